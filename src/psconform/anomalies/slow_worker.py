"""Stragglers: workers that compute far longer than the others, step after step."""

from __future__ import annotations

import numpy as np

from ..history.columns import Floats, Ints
from ..history.model import History, Worker
from .anomaly import Anomaly, seconds

TIMES = 3.0
"""So many times as long as the others: half as much again is what a neighbour on the same core costs."""
FLOOR_MS = 10.0
"""... and at least so much longer: a ledger's gradient takes 0.1 ms, a time slice of a busy machine some of them."""
SHARE = 0.8
"""Of the steps since then that must be so slow: a pause, however long, is one step."""
LEAST = 20
"""Steps: with fewer a few pauses are a share of them."""


def stragglers(history: History) -> list[Anomaly]:
    """Workers whose own time per step is `TIMES` that of the others and `FLOOR_MS` longer, persistently to the end.

    A step's own time is what passes from the last read for it to its push: computing, without waiting for anybody, so
    that in sync, where all take equally long, it shows who holds up the round. The others' time is the median of their
    medians (the lower one of two, so that two stragglers of three workers are seen). Slow ``since`` the first step from
    which on `SHARE` of at least `LEAST` steps are so.

    Silent with one worker, and where steps are not read one by one.
    """
    own = {worker.index: own_times_ms(worker) for worker in history.workers}
    medians = {index: float(np.median(times)) for index, (_, times) in own.items() if len(times) >= LEAST}
    found = []
    for worker in history.workers:
        others = sorted(value for index, value in medians.items() if index != worker.index)
        if worker.index not in medians or not others:
            continue
        usual = others[(len(others) - 1) // 2]
        steps, times = own[worker.index]
        since = _since(times > max(TIMES * usual, usual + FLOOR_MS))
        if since is None:
            continue
        step, slow = int(steps[since]), float(np.median(times[since:]))
        text = f"a gradient takes it {slow:.1f} ms, the others {usual:.1f} ms"
        at = int(worker.pushes.at[worker.pushes.step == step][0])
        since_s = seconds(history, worker, at)
        found.append(Anomaly(kind="straggler", task=str(worker), step=step, since_s=since_s, text=text))
    return found


def own_times_ms(worker: Worker) -> tuple[Ints, Floats]:
    """Steps that a worker has read and pushed once, and milliseconds from the read to the push of each."""
    pushes, reads = worker.pushes, worker.reads
    read = pushes.take((pushes.read >= 0) & (pushes.attempts == 1))
    read = read.take(reads.step[read.read] == read.step)
    read = read.take(np.argsort(read.step, kind="stable"))
    return read.step, (read.at - reads.at[read.read]) / 1e6


def _since(slow: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> int | None:
    """The first position that is slow and from which on enough are."""
    left = np.arange(len(slow), 0, -1)
    share = np.cumsum(slow[::-1])[::-1] / left
    starts = np.flatnonzero(slow & (share >= SHARE) & (left >= LEAST))
    return int(starts[0]) if starts.size else None
