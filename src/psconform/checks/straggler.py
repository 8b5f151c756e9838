"""S6: that a round waits for its slowest worker."""

from __future__ import annotations

import numpy as np

from ..history.columns import Floats, Ints
from ..history.model import History
from ..verdict import Verdict, not_judged, unknown, valid, violated
from .registry import SYNC, check
from .witness import MOST

NEVER = np.iinfo(np.int64).max


@check("S6", "straggler", dimension="barrier", weakest=("none", "r-of-n"), updates=SYNC, needs=(), faults="none")
def waits_for_slowest(history: History) -> Verdict:
    """S6: a round takes at least as long as its slowest required worker.

    Under a full barrier every worker is required: nobody reads for step k+1 before the last worker has sent its
    gradient of step k. Judged by the clock alone (CLOCK_MONOTONIC, which all processes of one boot share), whatever
    parameters and versions say: a push is recorded before it is sent and a read after it was answered.

    Assumes: all workers under one boot of one machine, else it is not judged.
    """
    boots = {worker.boot for worker in history.workers}
    if len(boots) != 1 or boots == {""}:
        return not_judged("needs all workers on one machine: clocks of several cannot be compared")
    if len(history.workers) < history.layout.workers:
        return unknown(history.incomplete or "a worker kept no record")
    sent = np.full((history.layout.workers, history.steps), NEVER, np.int64)
    for worker in history.workers:
        sent[worker.index, worker.pushes.step] = worker.pushes.at
    sent[:, history.excused.any(axis=0)] = NEVER  # a round that went on without somebody waits for nobody
    last = sent.max(axis=0)  # of each round; never, if somebody's push is not in the record
    lines: list[str] = []
    for worker in history.workers:
        reads = worker.reads
        released = np.flatnonzero((reads.step > 0) & (reads.step < history.steps))
        before = last[reads.step[released] - 1]
        for index in released[(before != NEVER) & (reads.at[released] < before)][:MOST].tolist():
            step = int(reads.step[index]) - 1
            slowest = int(np.argmax(sent[:, step]))
            early = (last[step] - reads.at[index]) / 1e6
            lines.append(
                f"{history.where(worker, index)} read {early:.2f} ms before worker:{slowest} sent its gradient of step "
                f"{step}"
            )
    if lines:
        return violated(lines)
    times, slowest_ms = _rounds(sent)
    if not len(times):
        return valid("one round")
    stats = {"round_ms": round(float(np.median(times)), 3), "spread_ms": round(float(np.median(slowest_ms)), 3)}
    said = f"median round {stats['round_ms']:.1f} ms, last worker {stats['spread_ms']:.1f} ms after the first"
    return valid(said, **stats)


def _rounds(sent: Ints) -> tuple[Floats, Floats]:
    """Milliseconds from one round's last push to the next one's, and from a round's first push to its last."""
    whole = sent[:, (sent != NEVER).all(axis=0)]
    return np.diff(whole.max(axis=0)) / 1e6, (whole.max(axis=0) - whole.min(axis=0))[1:] / 1e6
