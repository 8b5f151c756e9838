"""A task that was started again has a record for each of its lives; here they become one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from ..layout import Task
from .columns import ANEW, FAILED, FIRST, OK, UNKNOWN, UNTOLD, Ints, Odd, Pushes, Reads, Sent
from .events import Checkpoint, Restore, Resume
from .model import Join, Worker
from .reader import EventFile
from .records import Mark


@dataclass(frozen=True)
class Life:
    """One incarnation of a worker: its record, how many events there are in it, and whether a slip cost it a push.

    ``number``: 0, then 1 after the first restart. One that was killed early enough has no record.
    """

    number: int
    worker: Worker
    events: int
    slipped: bool = False


def joined(lives: Sequence[Life], *, steps: int) -> Worker:
    """One worker, all of whose lives are one record: reads one after the other, pushes of a step taken together.

    Only how the last life ended says whether the record is whole, but for slips: every event is written before what it
    announces, so that of a life that was cut short nothing is missing but an answer.
    """
    slipped = any(life.slipped for life in lives)
    workers = [_unsure(life.worker) if slipped else life.worker for life in lives]
    whole = workers[-1].ended and not slipped
    before = np.cumsum([0, *(life.events for life in lives)]).tolist()
    read_before = np.cumsum([0, *(len(worker.reads) for worker in workers)]).tolist()
    acked_before = np.cumsum([0, *(len(worker.acked) for worker in workers)]).tolist()
    joins = tuple(_joins(lives, read_before))
    if len(lives) == 1:
        return replace(workers[0], joins=joins)
    return replace(
        workers[-1],
        ended=whole,
        reads=_reads(workers, read_before, acked_before),
        pushes=_pushes(workers, read_before, before, steps=steps),
        acked=np.concatenate([worker.acked for worker in workers]),
        acked_ns=np.concatenate([worker.acked_ns for worker in workers]),
        acked_epoch=np.concatenate([worker.acked_epoch for worker in workers]),
        acked_versions=_acked_versions(workers),
        sent=Sent(
            step=np.concatenate([worker.sent.step for worker in workers]),
            epoch=np.concatenate([worker.sent.epoch for worker in workers]),
            read=np.concatenate([worker.sent.read + read_before[k] for k, worker in enumerate(workers)]),
        ),
        residual=workers[-1].residual,
        joins=joins,
    )


def _unsure(worker: Worker) -> Worker:
    """The same worker, where an attempt that was accepted may be missing from the record: nothing has surely failed."""
    outcome = worker.pushes.outcome
    return replace(worker, pushes=replace(worker.pushes, outcome=np.where(outcome == FAILED, UNKNOWN, outcome)))


def _acked_versions(workers: Sequence[Worker]) -> Ints:
    each = [worker.acked_versions for worker in workers]
    widths = {versions.shape[1] for versions in each} - {0}
    width = widths.pop() if len(widths) == 1 else 0
    told = (v if width and v.shape[1] else np.full((len(v), width), UNTOLD, np.int64) for v in each)
    return np.concatenate(list(told))


def _joins(lives: Sequence[Life], read_before: list[int]) -> Iterator[Join]:
    last = -1
    for life, before in zip(lives, read_before, strict=False):
        pushes = life.worker.pushes
        if life.number and len(pushes):
            first = int(np.argmin(pushes.first))
            read = int(pushes.read[first])
            yield Join(life.number, int(pushes.step[first]), read + before if read >= 0 else -1, last)
        last = max(last, int(pushes.step.max(initial=-1)))


def _reads(workers: Sequence[Worker], read_before: list[int], acked_before: list[int]) -> Reads:
    parts = [worker.reads for worker in workers if len(worker.reads)] or [workers[0].reads]
    kept = [index for index, worker in enumerate(workers) if len(worker.reads)] or [0]
    odd = Odd(*(np.concatenate(columns) for columns in zip(*_moved(parts, kept, read_before), strict=True)))
    versions = [part.versions for part in parts if part.versions is not None]
    widths = {part.shape[1] for part in versions}  # lives that count differently cannot be compared
    of_lives = list(zip(kept, parts, strict=True))
    values = {read + read_before[k]: v for k, part in of_lives for read, v in part.values.items()}
    shared = {read + read_before[k]: v for k, part in of_lives for read, v in part.shared.items()}
    columns = ("step", "final", "at", "clock", "nonce", "epoch")
    return Reads(
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in columns},
        use=np.concatenate([_use(workers[:k], part) for k, part in zip(kept, parts, strict=True)]),
        after=np.concatenate([part.after + acked_before[k] for k, part in zip(kept, parts, strict=True)]),
        versions=np.concatenate(versions) if len(versions) == len(parts) and len(widths) < 2 else None,
        odd=odd.sorted(),
        values=values,
        shared=shared,
        life=np.concatenate([np.full(len(part), k, np.int64) for k, part in zip(kept, parts, strict=True)]),
    )


def _use(before: Sequence[Worker], reads: Reads) -> Ints:
    """The use of each read, knowing the lives before: a push of theirs of which they have not learnt what became of it
    may still arrive, in its cluster epoch, so what is computed at a read of that step is its gradient once more."""
    still_open: set[tuple[int, int]] = set()
    for worker in before:
        still_open |= worker.still_open
        still_open -= {*zip(worker.acked_epoch.tolist(), worker.acked.tolist(), strict=True)}
    pairs = zip(reads.epoch.tolist(), reads.step.tolist(), strict=True)
    again = np.array([pair in still_open for pair in pairs], np.bool_)
    return np.where(again & (reads.use == FIRST) & ~reads.final, ANEW, reads.use)


def _moved(parts: list[Reads], kept: list[int], read_before: list[int]) -> list[list[Ints]]:
    """The columns of each part's odd rows, with reads counted from the first life on."""
    rows = []
    for k, part in zip(kept, parts, strict=True):
        shift = {"first": read_before[k], "end": read_before[k]}
        rows.append([getattr(part.odd, f.name) + shift.get(f.name, 0) for f in fields(Odd)])
    return rows


def _pushes(workers: Sequence[Worker], read_before: list[int], before: list[int], *, steps: int) -> Pushes:
    """Attempts of all lives taken together: accepted if any was, failed only if all surely were."""
    lives = [worker.pushes for worker in workers]
    step = np.concatenate([pushes.step for pushes in lives])
    outcome = np.concatenate([pushes.outcome for pushes in lives])
    width = max((pushes.versions.shape[1] for pushes in lives), default=0)
    versions = np.concatenate([np.pad(p.versions, ((0, 0), (0, width - p.versions.shape[1]))) for p in lives])
    sent, first = np.unique(step, return_index=True)
    sent, first = sent[np.argsort(first)], np.sort(first)
    last = len(step) - 1 - np.unique(step[::-1], return_index=True)[1]
    last = last[np.searchsorted(np.unique(step), sent)]

    lifted = {
        name: np.concatenate([getattr(p, name) + shift[k] * (getattr(p, name) >= 0) for k, p in enumerate(lives)])
        for name, shift in (("read", read_before), ("first", before), ("last", before))
    }
    ok = outcome == OK
    accepted = np.full(steps, -1, np.int64)  # by step, the place of its first acceptance
    accepted[step[ok][::-1]] = np.flatnonzero(ok)[::-1]
    chosen = np.where(accepted[sent] >= 0, accepted[sent], first)
    attempts, answered = np.concatenate([p.attempts for p in lives]), np.concatenate([p.answered for p in lives])
    unsure = np.bincount(step[outcome == UNKNOWN], minlength=steps)[sent] > 0
    return Pushes(
        step=sent,
        attempts=np.bincount(step, weights=attempts, minlength=steps)[sent].astype(np.int64),
        outcome=np.where(accepted[sent] >= 0, OK, np.where(unsure, UNKNOWN, FAILED)),
        width=np.concatenate([p.width for p in lives])[chosen],
        versions=versions[chosen],
        read=lifted["read"][first],
        first=lifted["first"][first],
        last=lifted["last"][last],
        at=np.concatenate([p.at for p in lives])[first],
        refused=np.bincount(step, weights=np.concatenate([p.refused for p in lives]), minlength=steps)[sent].astype(
            np.int64
        ),
        answered=_latest(answered, step, none=0, steps=steps)[sent],
        epoch=_latest(np.concatenate([p.epoch for p in lives]), step, none=-1, steps=steps)[sent],
    )


def _latest(values: Ints, step: Ints, *, none: int, steps: int) -> Ints:
    """By step, the largest of these values."""
    latest = np.full(steps, none, np.int64)
    np.maximum.at(latest, step, values)
    return latest


def marks(file: EventFile, *, task: Task, life: int) -> list[Mark]:
    """Checkpoints, restores and resumptions of one life, in the order of its record."""
    found = [
        Mark(task, life, "checkpoint", e.epoch, e.seq, e.name, clock=tuple(map(tuple, e.clock)), at=e.mono_ns)
        for e in file.of(Checkpoint)
    ]
    found += [Mark(task, life, "restore", e.epoch, e.seq, name=e.name, at=e.mono_ns) for e in file.of(Restore)]
    found += [Mark(task, life, "resume", e.epoch, e.seq, step=e.step, at=e.mono_ns) for e in file.of(Resume)]
    return sorted(found, key=lambda mark: mark.seq)
