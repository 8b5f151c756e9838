"""R3, R6, R7, and R4 on a ledger: what a rollback takes back, and what it must not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import numpy as np

from ..history.columns import Floats
from ..history.model import COUNT_TOLERANCE, History, Worker
from ..history.rollbacks import Rollback
from ..probe import COUNTS
from ..verdict import Verdict, counted, not_judged, unknown, valid, violated
from .reads import taken_back
from .registry import at_most, check

Amiss = Callable[[History, Worker, int, Rollback], Iterable[str]]
"""What is wrong with a read of a worker, which is its first after a rollback."""


@check("R3", "rollback", dimension="recovery", needs=(COUNTS,))
def rollback(history: History) -> Verdict:
    """R3: a rollback ends at a durable checkpoint, no older than the last one; nothing goes back silently.

    A restore names the newest checkpoint that its task had made durable, those that a fault has damaged left out. A
    name that is recorded once more with another clock stands for that one from then on.
    Within one cluster epoch nothing that a worker has read is taken back: a state that is older than one read before,
    without a restore in between, was reset silently. What a rollback took back, and was done again, is counted.

    Assumes: the target records its checkpoints and restores (``probe.checkpoint``, ``probe.restored``) and sets
    ``probe.epoch``; of one that does not, a rollback is a silent one. What is restored and was never recorded, or
    where a new epoch lacks what there was without any restore, it may have been a durable state, or none at all: nobody
    can say. Nor where a fault has damaged a file that no recorded name is that of, or of a folder that it is in.
    """
    if not history.struck:
        return not_judged("needs a fault: --kill or --stop")
    lines = [line for line, doubt in _too_old(history) if not doubt]
    for worker in history.workers:
        lines += list(at_most(_gone_back(history, worker)))
    if lines:
        return violated(lines)
    if not history.finals:
        return unknown(history.no_final)
    if reason := next((f"{line}: {doubt}" for line, doubt in _too_old(history) if doubt), unrecorded(history)):
        return unknown(reason)
    count = len(history.rollbacks)
    again = sum(int((worker.pushes.attempts - 1).sum()) for worker in history.workers)
    return valid(
        f"{counted(count, 'rollback')}, {counted(again, 'gradient')} sent again", rollbacks=count, sent_again=again
    )


def _too_old(history: History) -> Iterator[tuple[str, str]]:
    """Rollbacks to another than the newest durable checkpoint, and why one is perhaps none; empty: it is one."""
    for back in history.rollbacks:
        newest = back.newest
        if newest is not None and (older := back.older(newest)) is not False:
            doubt = "" if older else "made by another task, so nobody can tell which is older"
            if history.astray:
                doubt = f"nobody can tell of which checkpoint {history.astray} is, that was damaged"
            yield f"{back.text}, though {newest.name} was durable before", doubt
        elif back.anew is not None and back.older(back.anew) is not False:
            doubt = "nobody can tell whether it was damaged before it was written, or after"
            yield f"{back.text}, though {back.anew.name} was recorded before", doubt


def unrecorded(history: History) -> str:
    """A rollback to what nobody has recorded as a checkpoint, or that nobody has recorded at all; empty: none.

    Nobody can tell whether it ended at a durable one.
    """
    backs = history.rollbacks
    for back in backs:
        if back.restore.epoch and back.checkpoint is None:
            return f"{back.text}, {back.unclear or 'which nobody recorded (probe.checkpoint)'}"
    begun = {back.restore.epoch for back in backs}
    untold = (line for worker in history.workers for line in _untold(history, worker, begun))
    return next(untold, "")


def _untold(history: History, worker: Worker, begun: set[int]) -> Iterator[str]:
    """Reads that lack what the read before showed, in another epoch, which no restore is said to have begun."""
    reads = worker.reads
    for index, cells in taken_back(reads):
        epoch = int(reads.epoch[index])
        if epoch != reads.epoch[index - 1] and epoch not in begun:
            variable, peer, step = cells[0]
            yield (
                f"{history.where(worker, index)} read {history.variable(variable)} in epoch {epoch} without "
                f"{history.gradient(peer, step)}, that its read before had, and nobody recorded what was restored "
                "(probe.restored)"
            )


def _gone_back(history: History, worker: Worker) -> Iterator[str]:
    """Reads that lack what the read before showed, in the same epoch."""
    reads = worker.reads
    for index, cells in taken_back(reads):
        if reads.epoch[index] == reads.epoch[index - 1]:
            variable, peer, step = cells[0]
            more = f" and {len(cells) - 1} more" if len(cells) > 1 else ""
            yield (
                f"{history.where(worker, index)} read {history.variable(variable)} without "
                f"{history.gradient(peer, step)},{more} that its read before, at step {reads.step[index - 1]}, had; no "
                "restore was recorded between them"
            )


def restored_cut(history: History) -> Verdict:
    """R4 on a ledger: see `restored_state.one_cut`."""
    return _first_reads(history, lambda *read: [*_against_cut(*read, fenced=False), *at_most(_other_weights(*read))])


@check("R6", "fencing", dimension="recovery", needs=(COUNTS,))
def fencing(history: History) -> Verdict:
    """R6: no gradient computed before a rollback is applied after it.

    In its first read after a rollback a worker sees none of its own gradients that is not in the checkpoint, but for
    those that it has pushed in that epoch before it read: any other that shows is from before. (If a variable shows a
    whole run of them, it was not restored: that is R4.)

    Assumes: as R4.
    """
    return _first_reads(history, partial(_against_cut, fenced=True))


@check("R7", "torn checkpoint", dimension="recovery", needs=(COUNTS,))
def whole_checkpoint(history: History) -> Verdict:
    """R7: a checkpoint cut short by a crash or a full disk is never restored; the one before it is.

    A gradient stands twice in each variable, near its start and near its end, and what marks who initialised stands
    between. In its first read after a rollback a worker sees both halves of each gradient that the checkpoint holds,
    and the mark: of a file that is cut short, or of which a part is still empty, one half is missing. (If whole
    gradients are missing, it is another state: that is R4.)

    Assumes: as R4.
    """
    return _first_reads(history, lambda *read: at_most(_halves(*read)), also_final=True)


def restores(history: History) -> list[Rollback]:
    """Those of a recorded checkpoint."""
    return [back for back in history.rollbacks if back.restore.epoch and back.checkpoint is not None]


def _first_reads(history: History, amiss: Amiss, *, also_final: bool = False) -> Verdict:
    """What is wrong with the first read of each worker after each rollback."""
    backs, reason = restores(history), unrecorded(history)
    if not backs and not reason:
        return not_judged("needs a rollback: a ps that is killed, and a checkpoint")
    if history.places is None:
        return not_judged("needs the ps of each variable: probe.read(..., shards=...)")
    lines, looked = [], 0
    for back in backs:
        for worker in history.workers:
            for index in np.flatnonzero(worker.reads.epoch == back.restore.epoch)[:1].tolist():
                if also_final or not worker.reads.final[index] or _nothing_since(history, back):
                    looked += 1
                    lines += list(amiss(history, worker, index, back))
    if lines:
        return violated(lines)
    if reason or not looked:
        return unknown(reason or "no worker read after a rollback")
    return valid(counted(len(backs), "rollback"))


def _nothing_since(history: History, back: Rollback) -> bool:
    """No worker has sent a gradient since, so that a final read shows what was restored."""
    epoch = back.restore.epoch
    return not any(worker.sent_before(len(worker.reads) - 1, epoch=epoch).any() for worker in history.workers)


def _against_cut(history: History, worker: Worker, index: int, back: Rollback, *, fenced: bool) -> Iterator[str]:
    """How a worker's first read after a rollback differs from the checkpoint."""
    assert history.places is not None
    assert back.checkpoint is not None
    visible = history.visible_in(back.restore.epoch)
    since = worker.sent_before(index, epoch=back.restore.epoch)
    for variable, shard in enumerate(history.places):
        if shard >= len(back.checkpoint.clock):
            continue
        for peer, holds in enumerate(back.checkpoint.clock[shard]):
            shown = int(worker.reads.clock[index, variable, peer])
            where = f"{history.where(worker, index)} read {history.variable(variable)}"
            if shown < visible[peer, min(holds, history.steps)] and not fenced:
                yield f"{back.text}; {where} with {shown} gradients of worker:{peer}, the checkpoint has {holds}"
            if peer != worker.index or shown <= holds:
                continue
            steps = np.setdiff1d(np.arange(holds, shown), since)
            seen = steps[worker.reads.shows(index, np.full(len(steps), peer), steps)[variable]]
            if len(seen) > 1 and not fenced:
                yield (
                    f"{back.text}; {where} with {shown} of its own gradients, the checkpoint has {holds}: "
                    f"{history.variable(variable)} was not restored from it"
                )
            elif len(seen) == 1 and fenced:
                yield f"{back.text}; {where} with {history.gradient(peer, int(seen[0]))}, pushed before that"


def _other_weights(history: History, worker: Worker, index: int, back: Rollback) -> Iterator[str]:
    """Gradients of the checkpoint that a worker's first read after the rollback shows with another weight than the last
    read of any worker in the epoch in which it was made.

    So many times as much is applied again (R1). A round without a worker may have other weights in each epoch.
    """
    assert history.places is not None
    assert back.checkpoint is not None
    if history.claims.delivery != "exactly-once":
        return
    held = np.zeros((history.variables, history.layout.workers, history.steps), np.bool_)
    for variable, shard in enumerate(history.places):
        for peer, count in enumerate(back.checkpoint.clock[shard] if shard < len(back.checkpoint.clock) else ()):
            held[variable, peer, :count] = True
    held &= (history.meanings == 1) & ~history.excused.any(axis=0)
    now, before = _counts(history, worker, index), []
    for other in history.workers:
        for last in np.flatnonzero(other.reads.epoch == back.checkpoint.epoch)[-1:].tolist():
            before.append(_counts(history, other, last))
    with np.errstate(all="ignore"):
        times = [now / counts for counts in before]
        fits = [np.abs(n - np.maximum(1, np.rint(n))) <= COUNT_TOLERANCE * np.maximum(1, n) for n in times]
    known = [np.isfinite(n) & (n > 0) for n in times]
    wrong = held & np.logical_or.reduce(known, initial=False) & ~np.logical_or.reduce(fits, initial=False)
    for variable, peer, step in np.argwhere(wrong).tolist():
        was = next(c[variable, peer, step] for c, k in zip(before, known, strict=True) if k[variable, peer, step])
        yield (
            f"{back.text}; {history.where(worker, index)} read {history.variable(variable)} with "
            f"{history.gradient(peer, step)} {now[variable, peer, step]:.4g} times, and it was there {was:.4g} times"
        )


def _counts(history: History, worker: Worker, read: int) -> Floats:
    """How often a read shows each gradient, float64[V, W, K]; NaN where it is torn, or not finite."""
    shown = worker.reads.clock[read][:, :, None] > np.arange(history.steps)
    counts: Floats = np.where(shown, 1.0, 0.0)
    odd = worker.reads.odd.at(read)
    even = np.abs(odd.head - odd.tail) <= COUNT_TOLERANCE
    counts[odd.variable, odd.peer, odd.step] = np.where(even, odd.head, np.nan)
    return counts


def _halves(history: History, worker: Worker, index: int, back: Rollback) -> Iterator[str]:
    """What is half in a worker's first read after a rollback."""
    assert history.places is not None
    assert back.checkpoint is not None
    reads, odd, clock = worker.reads, worker.reads.odd, back.checkpoint.clock
    holds = np.zeros((history.variables, history.layout.workers), np.int64)
    for variable, shard in enumerate(history.places):
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
