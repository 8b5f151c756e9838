"""The History: what the checks look at. Immutable, indexed by worker, with counts instead of parameter values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..claims import Claims
from ..layout import Layout, Task

Ints = NDArray[np.int64]
Cell = tuple[int, int, int]
"""(variable, worker, step)."""
Odd = Mapping[Cell, tuple[float, float]]
"""Cells below the clock that do not hold exactly one application: count at head and at tail."""

COUNT_TOLERANCE = 1e-4
"""Deviation up to which a count is called whole; the probe's own tolerance for exactly one is 1e-5."""


@dataclass(frozen=True)
class Reads:
    """The R reads of one worker, in its own order; V variables, W workers, P version counters."""

    step: Ints  # [R]
    final: NDArray[np.bool_]  # [R], True: after every worker was done
    after: Ints  # [R], how many of its own pushes the worker had acknowledged as ok before this read
    clock: Ints  # [R, V, W]
    nonce: NDArray[np.float64]  # [R, V]
    versions: Ints | None  # [R, P]
    odd: tuple[Odd, ...]  # R mappings; equal neighbours are one object

    def __len__(self) -> int:
        return len(self.step)

    @cached_property
    def finite(self) -> NDArray[np.bool_]:
        """bool[R], False: the read shows a NaN or Inf."""
        known: dict[int, bool] = {}  # neighbours share one mapping, so each is looked at once
        for odd in self.odd:
            if id(odd) not in known:
                known[id(odd)] = bool(np.isfinite(list(odd.values())).all())
        return np.array([known[id(odd)] for odd in self.odd], np.bool_) & np.isfinite(self.nonce).all(axis=1)

    def take(self, keep: Ints) -> Reads:
        """Only the reads with these indices."""
        versions = None if self.versions is None else self.versions[keep]
        odd = tuple(self.odd[index] for index in keep)
        return Reads(
            self.step[keep], self.final[keep], self.after[keep], self.clock[keep], self.nonce[keep], versions, odd
        )


@dataclass(frozen=True)
class Push:
    """One gradient of one worker, all attempts taken together."""

    step: int
    attempts: int
    outcome: str  # ok if any attempt was accepted, else failed if all surely failed, else unknown
    accepted: int  # attempts with outcome ok
    versions: tuple[int, ...] | None  # from the accepting acknowledgement
    read: int  # index of the worker's last read before the first attempt, -1: none
    first: int  # position of the first attempt in the worker's record
    last: int  # ... and of the last one


@dataclass(frozen=True)
class Worker:
    """What one worker recorded.

    ``acked`` are the steps acknowledged as ok, in the order of the acknowledgements. A record that has ``ended`` is
    whole; of any other the end may be missing, so that what is not in it may have happened all the same.
    """

    index: int
    reads: Reads
    pushes: tuple[Push, ...]
    acked: tuple[int, ...]
    ended: bool

    def __str__(self) -> str:
        return f"worker:{self.index}"

    @cached_property
    def push_of(self) -> dict[int, Push]:
        """Pushes by step."""
        return {push.step: push for push in self.pushes}

    @cached_property
    def finite(self) -> Worker:
        """The same worker without the reads that show a NaN or Inf."""
        keep = np.flatnonzero(self.reads.finite)
        last = np.searchsorted(keep, [push.read for push in self.pushes], side="right") - 1
        pushes = tuple(replace(push, read=int(read)) for push, read in zip(self.pushes, last, strict=True))
        return replace(self, reads=self.reads.take(keep), pushes=pushes)


@dataclass(frozen=True)
class Init:
    """One task said that it initialised the servers."""

    task: Task
    nonce: tuple[float, ...]


@dataclass(frozen=True)
class History:
    """The record of one run.

    Counts are in units of ``scale`` x the declared unit: a trainer that scales every gradient alike (a sum instead of
    a mean) has ``scale`` != 1, which is S5's or A1's business, and whole counts, so that the others can still judge.
    """

    layout: Layout
    claims: Claims
    steps: int
    workers: tuple[Worker, ...]  # those that recorded anything, by index
    inits: tuple[Init, ...]
    variables: int
    shards: tuple[int, ...] | None  # ps of each variable; None: not known
    scale: float
    gaps: tuple[str, ...]  # why the record is not complete; nothing is called valid then
    notes: tuple[str, ...] = ()  # what a reader should know and that takes nothing away

    @property
    def incomplete(self) -> str:
        """Why the record is not complete, in one line; empty if it is."""
        more = f" (and {len(self.gaps) - 1} more)" if len(self.gaps) > 1 else ""
        return f"incomplete: {self.gaps[0]}{more}" if self.gaps else ""

    @property
    def no_final(self) -> str:
        """Why there is no final read."""
        return self.incomplete or "no worker made a final read"

    @cached_property
    def finite(self) -> History:
        """The same history without the reads that show a NaN or Inf: no count can be read from such a slot."""
        if all(worker.reads.finite.all() for worker in self.workers):
            return self
        return replace(self, workers=tuple(worker.finite for worker in self.workers))

    @cached_property
    def whole(self) -> bool:
        """Every worker's record is there to its end: what is not in it did not happen."""
        return len(self.workers) == self.layout.workers and all(worker.ended for worker in self.workers)

    @cached_property
    def accepted(self) -> NDArray[np.bool_]:
        """bool[W, K]: gradients acknowledged as ok."""
        accepted = np.zeros((self.layout.workers, self.steps), np.bool_)
        for worker in self.workers:
            accepted[worker.index, list(worker.acked)] = True
        return accepted

    @cached_property
    def released(self) -> int:
        """The last step for which a worker read before all were done."""
        steps = [worker.reads.step[worker.reads.step < self.steps] for worker in self.workers]
        return max((int(read.max()) for read in steps if read.size), default=0)

    @cached_property
    def disagreement(self) -> str:
        """Where final reads differ about an accepted gradient, in one line; empty if they agree.

        After all is done there is one state, so one of them is stale or something was lost between them: which, the
        record cannot tell.
        """
        shown = (self.final_counts != 0).any(axis=-1)  # [F, V, W, K]
        differs = shown.any(axis=0) & ~shown.all(axis=0) & self.accepted
        for variable, peer, step in np.argwhere(differs).tolist()[:1]:
            has, lacks = (
                [w for (w, _), s in zip(self.finals, shown[:, variable, peer, step], strict=True) if s == v]
                for v in (True, False)
            )
            return (
                f"final reads disagree: {has[0]} has {self.gradient(peer, step)}, in {self.variable(variable)}, "
                f"{lacks[0]} has not"
            )
        return ""

    @cached_property
    def finals(self) -> tuple[tuple[Worker, int], ...]:
        """(worker, index) of the reads made after every worker was done."""
        return tuple((w, int(r)) for w in self.workers for r in np.flatnonzero(w.reads.final))

    @cached_property
    def final_counts(self) -> NDArray[np.float64]:
        """Counts in the final reads, float64[F, V, W, K, 2] (head, tail); F may be 0."""
        return np.array([self.counts(w.reads, r) for w, r in self.finals]).reshape(
            -1, self.variables, self.layout.workers, self.steps, 2
        )

    @cached_property
    def ever(self) -> NDArray[np.bool_]:
        """bool[V, W, K]: cells of which the final reads show a trace, at head or tail."""
        counts = self.final_counts
        return np.asarray((counts != 0).any(axis=(0, 4)))

    def counts(self, reads: Reads, index: int) -> NDArray[np.float64]:
        """How often each gradient was applied as this read saw it, float64[V, W, K, 2]."""
        below = np.arange(self.steps) < reads.clock[index][:, :, None]
        counts = np.repeat(below[..., None].astype(np.float64), 2, axis=-1)
        for (variable, worker, step), pair in reads.odd[index].items():
            counts[variable, worker, step] = pair
        return counts

    def every_read(self) -> Iterator[tuple[Worker, int]]:
        """All reads of all workers."""
        return ((w, r) for w in self.workers for r in range(len(w.reads)))

    def variable(self, index: int | np.integer) -> str:
        """A variable's name in a witness."""
        if self.shards is not None:
            shared = self.shards.count(self.shards[index]) > 1
            return f"ps:{self.shards[index]}" + (f" (variable {index})" if shared else "")
        return f"variable {index}"

    def gradient(self, worker: int, step: int) -> str:
        """A gradient's name in a witness."""
        return f"the gradient of worker:{worker}, step {step}"

    def saw(self, worker: Worker, index: int, variable: int) -> str:
        """A read of one variable in a witness: ``worker:1 read version 7 of ps:0 at step 8``."""
        reads, what = worker.reads, self.variable(variable)
        when = "in its final read" if reads.final[index] else f"at step {reads.step[index]}"
        if reads.versions is not None and self.shards is not None and reads.versions.shape[1] == self.layout.ps:
            what = f"version {reads.versions[index][self.shards[variable]]} of {what}"
        return f"{worker} read {what} {when}"

    def where(self, worker: Worker, index: int) -> str:
        """A read's name in a witness: who, when, which version."""
        reads = worker.reads
        when = "in its final read" if reads.final[index] else f"at step {reads.step[index]}"
        if reads.versions is None:
            return f"{worker} {when}"
        versions = sorted(set(reads.versions[index].tolist()))
        return f"{worker} {when}, version {' and '.join(map(str, versions))},"
