"""Rows that several workers change, as those of an embedding: the slot of a ledger in which all gradients are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ..history.columns import Ints
from ..history.model import History, Worker
from ..probe import SHARED_TOLERANCE, Ledger
from .witness import others

NOT_DUE = -1
LEAST = 0.05
"""Of a gradient at its usual weight: what must be missing, or too much."""
ROUNDING = 0.01
"""Of the sum: what numbers of few bits (a bfloat16 has 8) may change when a gradient is added, with either sign."""


@dataclass(frozen=True)
class Off:
    """A read in which the shared slot of a variable does not hold the sum of the gradients that the read shows."""

    worker: Worker
    read: int
    variable: int
    holds: float
    due: float


def off_sum(history: History, due: Callable[[Worker, Ints], Ints]) -> list[Off]:
    """Those among the reads that show all that they should, in the order of steps.

    Not where a gradient shows at one end only, or more of it there than at the other: what is missing is then of that.
    Nor if gradients may be compressed. What counts is how far it is off since the read before, and how many gradients
    were added since: a sum that is rounded each time wanders.

    Args:
        due: how many gradients each read of a worker should show, int64[R], given how many it shows of a variable;
            `NOT_DUE`: any number, and the read tells nothing. A final one should show all that any final read shows.
    """
    found: list[Off] = []
    if history.claims.compression != "lossless":
        return found
    for worker in (worker for worker in history.workers if worker.reads.shared):
        reads = worker.reads
        uneven = reads.tally(reads.odd.take(~(np.abs(reads.odd.head - reads.odd.tail) < SHARED_TOLERANCE)))
        for variable in range(history.variables):
            shown, ever = reads.gradients(variable), int(history.last.ever[variable].sum())
            odd = reads.odd.take((reads.odd.variable == variable) & reads.odd.zero)
            cells = reads.clock[:, variable].sum(axis=1) - reads.tally(odd)  # one that was applied twice is one
            whole = np.where(reads.final, cells == ever, shown == due(worker, shown)) & (uneven == 0)
            epoch, number, before = -1, 0, 0.0
            for read in np.flatnonzero(whole).tolist():
                holds, wanted = reads.shared[read][variable].tolist() if read in reads.shared else (0.0, 0.0)
                if reads.epoch[read] != epoch:
                    epoch, number, before = int(reads.epoch[read]), 0, 0.0
                added, level = abs(int(shown[read]) - number), max(1.0, abs(holds), abs(wanted))
                rounding = ROUNDING * np.sqrt(added) * level
                if abs(holds - wanted - before) > LEAST * min(1.0, history.scale) + rounding:
                    found.append(Off(worker, read, variable, holds, wanted))
                number, before = int(shown[read]), holds - wanted
    return sorted(found, key=lambda off: (int(off.worker.reads.step[off.read]), off.worker.index, off.variable))


def are_row_means(history: History, found: list[Off]) -> bool:
    """Each row is divided by the number of gradients that touch it: the shared one by all, a gradient's own by one."""
    number = history.layout.per_round
    return bool(found) and all(_like(off.holds * number, off.due) for off in found)


def row_lines(history: History, found: list[Off]) -> Iterator[str]:
    """The first one in words, and how many others there are."""
    for off in found[:1]:
        reads = len({(other.worker.index, other.read) for other in found})
        yield (
            f"{history.saw(off.worker, off.read, off.variable)}, in which a row that all gradients change holds "
            f"{off.holds:.4g} in place of their sum, {off.due:.4g}{_cause(history, found)}{others(reads - 1)}"
        )


def _cause(history: History, found: list[Off]) -> str:
    if are_row_means(history, found):
        return ": each row is divided by the number of gradients that touch it"
    off, ledger = found[0], Ledger(workers=history.layout.workers, steps=history.steps)
    if history.layout.update == "sync" and off.worker.reads.step[off.read] == 1:  # of one round
        weigh = [ledger.in_shared(worker, 0) for worker in range(history.layout.workers)]
        for worker, weight in enumerate(weigh):
            if _like(off.holds * sum(weigh), off.due * weight):
                return f": of a round it gets one gradient only, here that of worker:{worker} (the last writer wins)"
    return ": increments of a row that several workers change were lost, or are in it twice"


def _like(one: float, two: float) -> bool:
    return bool(abs(one - two) <= SHARED_TOLERANCE * abs(two))
