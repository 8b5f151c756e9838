"""The final reads, taken together: what each variable shows of each gradient once all is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .columns import Bools, Floats, Odd, Reads, no_odd

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
        """Every final read shows it, at head and tail."""
        return np.asarray(self._shown - self._number(self.odd.torn) == self.count)

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
