"""R7: of a checkpoint that is not whole nothing comes back."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..history.model import History, Worker
from ..probe import COUNTS
from ..verdict import Verdict, not_judged, unknown, valid, violated
from .recovery import Rollback, rollbacks, unrecorded
from .registry import check
from .witness import at_most


@check("R7", "torn checkpoint", dimension="recovery", needs=(COUNTS,))
def whole_checkpoint(history: History) -> Verdict:
    """R7: a checkpoint cut short by a crash or a full disk is never restored; the one before it is.

    A gradient stands twice in each variable, near its start and near its end, and what marks who initialised stands
    between. In its first read after a rollback a worker sees both halves of each gradient that the checkpoint holds,
    and the mark: of a file that is cut short, or of which a part is still empty, one half is missing. (If whole
    gradients are missing, it is another state: that is R4.)

    Assumes: as R4.
    """
    backs = [back for back in rollbacks(history) if back.restore.epoch and back.checkpoint is not None]
    reason = unrecorded(history)
    if not backs and not reason:
        return not_judged("needs a rollback: a ps that is killed, and a checkpoint")
    if history.shards is None:
        return not_judged("needs the ps of each variable: probe.read(..., shards=...)")
    lines, looked = [], 0
    for back in backs:
        for worker in history.workers:
            first = np.flatnonzero(worker.reads.epoch == back.restore.epoch)[:1].tolist()
            looked += len(first)
            for index in first:
                lines += list(at_most(_halves(history, worker, index, back)))
    if lines:
        return violated(lines)
    if reason or not looked:
        return unknown(reason or "no worker read after a rollback")
    return valid(f"{len(backs)} rollback(s)")


def _halves(history: History, worker: Worker, index: int, back: Rollback) -> Iterator[str]:
    """What is half in a worker's first read after a rollback."""
    assert history.shards is not None
    assert back.checkpoint is not None
    reads, odd, clock = worker.reads, worker.reads.odd, back.checkpoint.clock
    holds = np.zeros((history.variables, history.layout.workers), np.int64)
    for variable, shard in enumerate(history.shards):
        if shard < len(clock):
            holds[variable, : len(clock[shard])] = clock[shard][: history.layout.workers]
    where = f"{back.text}; {history.where(worker, index)} read"
    for variable in np.flatnonzero(reads.nonce[index] == 0).tolist():
        yield f"{where} {history.variable(variable)} without what marks who initialised it"
    here = odd.take((odd.first <= index) & (index < odd.end) & ((odd.head == 0) != (odd.tail == 0)))
    here = here.take(here.step < holds[here.variable, here.peer])
    for row in np.lexsort((here.step, here.peer, here.variable)).tolist():
        half = "near its end" if here.head[row] else "near its start"
        gradient = history.gradient(int(here.peer[row]), int(here.step[row]))
        yield f"{where} {history.variable(int(here.variable[row]))} with half of {gradient}: {half} there is nothing"
