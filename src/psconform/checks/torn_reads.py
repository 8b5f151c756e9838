"""Reads in which one variable shows a gradient that another does not show yet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ..history.columns import Bools, Ints
from ..history.model import History, Worker
from .witness import MOST


@dataclass(frozen=True)
class Mixed:
    """The (variable, worker, step) that a read lacks, though the variable ``seen_in`` shows it and it comes in the end.

    The first one, if there are several.
    """

    cell: tuple[int, int, int]
    seen_in: int


def mixed_reads(
    history: History, worker: Worker, variables: Iterable[int], *, only: Bools | None = None
) -> dict[int, Mixed]:
    """The mixed reads of a worker, by index, comparing these variables with each other; at most ``MOST``."""
    among = np.array(list(variables), np.int64)
    reads, odd = worker.reads, worker.reads.odd
    if not history.finals or len(among) < 2 or not len(reads):
        return {}
    clock = reads.clock[:, among]
    suspect = (clock != clock[:, :1]).any(axis=(1, 2))
    late = odd.take(odd.zero & np.isin(odd.variable, among) & history.last.ever[odd.variable, odd.peer, odd.step])
    suspect |= reads.tally(late) > 0
    found: dict[int, Mixed] = {}
    for index in np.flatnonzero(suspect if only is None else suspect & only).tolist():
        peer, step = _cells(clock[index])
        here = late.at(index)
        peer, step = np.concatenate([peer, here.peer]), np.concatenate([step, here.step])
        shown = reads.shows(index, peer, step)[among]
        lacks = shown.any(axis=0) & ~shown & history.last.ever[among][:, peer, step]
        where, which = np.nonzero(lacks)
        if where.size:
            first = np.lexsort((step[which], peer[which], where))[0]
            cell = which[first]
            found[index] = Mixed(
                (int(among[where[first]]), int(peer[cell]), int(step[cell])), int(among[np.argmax(shown[:, cell])])
            )
            if len(found) == MOST:
                break
    return found


def _cells(clock: Ints) -> tuple[Ints, Ints]:
    """(peer, step) of the cells below some variable's clock and not below another's."""
    low, high = clock.min(axis=0), clock.max(axis=0)
    peer = np.repeat(np.arange(clock.shape[1]), high - low)
    step = np.concatenate([np.arange(a, b) for a, b in zip(low, high, strict=True)])
    return peer, step
