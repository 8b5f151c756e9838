"""What a worker recorded, as columns: its reads, the cells in them that stand out, its pushes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

Values = NDArray[np.float32]
"""The parameters of one read, [V, slots]."""

OUTCOMES = ("never pushed", "ok", "failed", "unknown")
"""What became of a gradient; a code is an index into these."""
OK, FAILED, UNKNOWN = 1, 2, 3
COLUMNS = ("step", "final", "after", "at", "clock", "nonce", "epoch", "life")
"""Of reads: those with a row for each."""


@dataclass(frozen=True)
class Odd:
    """Cells below the clock that do not hold exactly one application, as runs of reads.

    Row i: the reads ``first[i] <= r < end[i]`` show the gradient of worker ``peer[i]``, step ``step[i]``, in variable
    ``variable[i]`` with the counts ``head[i]`` and ``tail[i]``. Rows of one cell do not overlap. Sorted by first, then
    by cell, so that the earliest comes first in a witness.
    """

    variable: Ints
    peer: Ints
    step: Ints
    first: Ints
    end: Ints
    head: Floats
    tail: Floats

    def __len__(self) -> int:
        return len(self.step)

    def take(self, which: Bools | Ints) -> Odd:
        """Only these rows."""
        return Odd(*(getattr(self, column.name)[which] for column in fields(self)))

    def at(self, read: int) -> Odd:
        """The rows that one read shows."""
        return self.take((self.first <= read) & (read < self.end))

    def sorted(self) -> Odd:
        """The same rows in the order that holds for all."""
        return self.take(np.lexsort((self.step, self.peer, self.variable, self.first)))

    @cached_property
    def zero(self) -> Bools:
        """The gradient does not show at all."""
        return np.asarray((self.head == 0) & (self.tail == 0))

    @cached_property
    def torn(self) -> Bools:
        """It shows at the head or at the tail only."""
        return np.asarray((self.head != 0) ^ (self.tail != 0))

    @cached_property
    def finite(self) -> Bools:
        """Neither count is NaN or Inf."""
        return np.asarray(np.isfinite(self.head) & np.isfinite(self.tail))

    @cached_property
    def most(self) -> Floats:
        """The larger of the two counts."""
        return np.asarray(np.maximum(self.head, self.tail))


def no_odd() -> Odd:
    """No rows."""
    none, counts = np.zeros(0, np.int64), np.zeros(0)
    return Odd(none, none, none, none, none, counts, counts)


@dataclass(frozen=True)
class Reads:
    """The R reads of one worker, in its own order; V variables, W workers, P version counters."""

    step: Ints  # [R]
    final: Bools  # [R], True: after every worker was done
    after: Ints  # [R], how many of its own pushes the worker had acknowledged as ok before this read
    at: Ints  # [R], when it was recorded, nanoseconds of CLOCK_MONOTONIC
    clock: Ints  # [R, V, W]
    nonce: Floats  # [R, V]
    versions: Ints | None  # [R, P]
    odd: Odd
    epoch: Ints  # [R], the cluster epoch that it was made in
    life: Ints  # [R], which incarnation of the worker made it
    # by read: of a model all, of ledgers the final (not of the plain one with a ps)
    values: Mapping[int, Values] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.step)

    @cached_property
    def finite(self) -> Bools:
        """bool[R], False: the read shows a NaN or Inf."""
        bad = self.odd.take(~self.odd.finite)
        finite = np.array((self.tally(bad) == 0) & np.isfinite(self.nonce).all(axis=1))
        finite[[index for index, values in self.values.items() if not np.isfinite(values).all()]] = False
        return finite

    def tally(self, odd: Odd, weight: Ints | None = None) -> Ints:
        """In how many of these rows each read is (or the sum of their weights), int64[R]."""
        change = np.zeros(len(self) + 1, np.int64)
        np.add.at(change, odd.first, 1 if weight is None else weight)
        np.subtract.at(change, odd.end, 1 if weight is None else weight)
        return np.asarray(np.cumsum(change)[:-1])

    def shows(self, read: int, peer: Ints, step: Ints) -> Bools:
        """Which of these gradients each variable shows in one read, at head or tail, bool[V, n]."""
        shown = np.asarray(self.clock[read][:, peer] > step)
        odd = self.odd.at(read)
        gone = odd.take(odd.zero)
        for variable, whose, when in zip(gone.variable, gone.peer, gone.step, strict=True):
            shown[variable, (peer == whose) & (step == when)] = False
        return shown

    def count(self, read: int, variable: int, peer: int, step: int) -> tuple[float, float]:
        """How often one read shows one gradient, at head and at tail."""
        odd = self.odd
        cell = (odd.variable == variable) & (odd.peer == peer) & (odd.step == step)
        found = np.flatnonzero(cell & (odd.first <= read) & (read < odd.end))
        if found.size:
            return float(odd.head[found[0]]), float(odd.tail[found[0]])
        return (1.0, 1.0) if self.clock[read, variable, peer] > step else (0.0, 0.0)

    def take(self, keep: Ints) -> Reads:
        """Only the reads with these indices, ascending."""
        first, end = np.searchsorted(keep, self.odd.first), np.searchsorted(keep, self.odd.end)
        odd = self.odd
        moved = Odd(odd.variable, odd.peer, odd.step, first, end, odd.head, odd.tail)
        versions = None if self.versions is None else self.versions[keep]
        kept = {name: getattr(self, name)[keep] for name in COLUMNS}
        values = {new: self.values[old] for new, old in enumerate(keep.tolist()) if old in self.values}
        return Reads(**kept, versions=versions, odd=moved.take(first < end).sorted(), values=values)


@dataclass(frozen=True)
class Pushes:
    """The gradients of one worker in the order of their first sending, all N of them; attempts taken together."""

    step: Ints  # [N]
    attempts: Ints  # [N]
    outcome: Ints  # [N]: OK if any attempt was accepted, else FAILED if all surely failed, else UNKNOWN
    width: Ints  # [N], version counters in the accepting acknowledgement; 0: none
    versions: Ints  # [N, the largest width]
    read: Ints  # [N], index of the worker's last read before the first attempt, -1: none
    first: Ints  # [N], position of the first attempt in the worker's record
    last: Ints  # [N], ... and of the last one
    at: Ints  # [N], when the first attempt was recorded, nanoseconds of CLOCK_MONOTONIC
    answered: Ints  # [N], when the last answer was; 0: never
    epoch: Ints  # [N], the cluster epoch of the last accepting answer; -1: none
    refused: Ints  # [N], attempts that were acknowledged as failed

    def __len__(self) -> int:
        return len(self.step)

    def take(self, which: Bools | Ints) -> Pushes:
        """Only these pushes."""
        return Pushes(*(getattr(self, column.name)[which] for column in fields(self)))

    @cached_property
    def ok(self) -> Pushes:
        """Those that were accepted."""
        return self.take(self.outcome == OK)

    @cached_property
    def same_width(self) -> int:
        """Version counters in every accepting acknowledgement; 0 if any has none or another number."""
        widths = set(self.ok.width.tolist())
        return widths.pop() if len(widths) == 1 else 0
