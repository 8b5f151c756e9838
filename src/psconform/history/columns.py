"""What a worker recorded, as columns: its reads, the cells in them that stand out, its pushes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
MANY = 1e9
"""What a read shows more often has a weight: so many gradients there are not."""
UNTOLD = -(2**62)
"""In the place of a version that an acknowledgement does not name: below all."""
COLUMNS = ("step", "use", "final", "after", "at", "clock", "nonce", "epoch", "life")
"""Of reads: those with a row for each."""


FIRST, ANEW, UNUSED, LOOK = range(4)
"""What gradient is computed at a read: of a step not yet pushed, once more of one that was, none because the last one
is sent again as it was, or none because a worker that was started again looks where it is (its step says nothing)."""


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

    step: Ints  # [R], of the push that follows, if that is of the step pushed last
    use: Ints  # [R]: FIRST, ANEW, UNUSED or LOOK
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
    # by read: what the shared slot holds and should hold, [V, 2]; none for reads in which these are the same
    shared: Mapping[int, Floats] = field(default_factory=dict)

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

    def gradients(self, variable: int) -> Ints:
        """How many gradients each read shows in a variable, int64[R]; one at any weight counts as one."""
        odd = self.odd.take(self.odd.variable == variable)
        times = np.where(np.abs(odd.most) < MANY, np.rint(odd.most), 1.0).astype(np.int64)
        extra = np.where(odd.zero, -1, np.maximum(times, 1) - 1)
        return np.asarray(self.clock[:, variable].sum(axis=1) + self.tally(odd, extra))

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
        shared = {new: self.shared[old] for new, old in enumerate(keep.tolist()) if old in self.shared}
        return Reads(**kept, versions=versions, odd=moved.take(first < end).sorted(), values=values, shared=shared)


@dataclass(frozen=True)
class Sent:
    """Every attempt of one worker to send a gradient, in the order of its record."""

    step: Ints
    epoch: Ints  # the cluster epoch that it was made in
    read: Ints  # index of the worker's last read before it, -1: none


def no_sent() -> Sent:
    """No attempts."""
    none = np.zeros(0, np.int64)
    return Sent(none, none, none)


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


Counts = NDArray[np.int32]
MISSING = 1e-4
"""A count up to this is called nothing where a variable's contributors are compared."""


@dataclass(frozen=True)
class Finals:
    """F final reads of V variables; W workers, K steps.

    ``below`` counts the reads whose clock is past a cell; ``odd`` are their odd cells, one row per read and cell. Cells
    below the clock that are not odd hold exactly one.
    """

    count: int
    below: Counts  # [V, W, K]
    odd: Odd

    def _number(self, which: Bools) -> Counts:
        """In how many reads a cell is one of these odd rows, int32[V, W, K]."""
        number = np.zeros_like(self.below)
        if which.any():
            rows = self.odd.take(which)
            np.add.at(number, (rows.variable, rows.peer, rows.step), 1)
        return number

    @cached_property
    def _shown(self) -> Counts:
        return self.below - self._number(self.odd.zero)

    @cached_property
    def ever(self) -> Bools:
        """Some final read shows a trace of it, at head or tail."""
        return np.asarray(self._shown > 0)

    @cached_property
    def always(self) -> Bools:
        """Every final read shows a trace of it."""
        return np.asarray(self._shown == self.count)

    @cached_property
    def plain(self) -> Bools:
        """Some final read shows it exactly once."""
        return np.asarray(self.below > self._number(np.ones(len(self.odd), np.bool_)))

    @cached_property
    def whole(self) -> Bools:
        """Some final read shows it, at head and tail."""
        return np.asarray(self._shown > self._number(self.odd.torn))

    @cached_property
    def uneven(self) -> Bools:
        """Some final read shows more of it at one end than at the other, and none shows the same at both."""
        off = np.abs(self.odd.head - self.odd.tail) > MISSING
        return np.asarray((self._number(off) > 0) & (self._number(off | self.odd.zero) == self.below))

    @cached_property
    def contributed(self) -> Bools:
        """Some final read shows it at head and tail, with a weight worth the name."""
        slight = np.minimum(np.abs(self.odd.head), np.abs(self.odd.tail)) <= MISSING
        return np.asarray(self.below > self._number(slight))

    def counts(self, variable: int, peer: int, step: int) -> list[float]:
        """The counts of one cell in the final reads: the odd ones first, then 1 and 0 where some read shows that."""
        odd = self.odd
        rows = odd.take((odd.variable == variable) & (odd.peer == peer) & (odd.step == step))
        found = np.stack([rows.head, rows.tail], axis=1).ravel().tolist()
        found += [1.0] if self.below[variable, peer, step] > len(rows) else []
        return found + ([0.0] if self.below[variable, peer, step] < self.count else [])

    @property
    def least(self) -> Floats:
        """The fewest applications that are whole in some read, float64[V, W, K]."""
        least = self.plain.astype(np.float64)
        odd = self.odd
        np.maximum.at(least, (odd.variable, odd.peer, odd.step), np.minimum(odd.head, odd.tail))
        return least

    @property
    def most(self) -> Floats:
        """The most applications that any read shows, float64[V, W, K]."""
        most = self.plain.astype(np.float64)
        odd = self.odd
        np.maximum.at(most, (odd.variable, odd.peer, odd.step), odd.most)
        return most


def final_reads(reads: Sequence[tuple[Reads, int]], *, shape: tuple[int, int, int]) -> Finals:
    """Put the final reads of all workers together; ``shape`` is (V, W, K)."""
    variables, workers, steps = shape
    ended = np.zeros((variables, workers, steps + 1), np.int32)  # reads whose clock is this number
    found = [no_odd()]
    for read, index in reads:
        ended[np.arange(variables)[:, None], np.arange(workers), read.clock[index]] += 1
        found.append(read.odd.at(index))
    below = len(reads) - np.cumsum(ended, axis=2, dtype=np.int32)[:, :, :steps]
    columns = (np.concatenate([getattr(odd, field.name) for odd in found]) for field in fields(Odd))
    return Finals(len(reads), below, Odd(*columns))
