"""A factor that all gradients share: found, and taken out of the counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from .columns import Odd, Reads
from .model import COUNT_TOLERANCE, History, Worker


def whole_scale(workers: list[Worker]) -> float:
    """The factor by which (nearly) every applied gradient is off, 1.0 if there is none.

    Two thirds of the cells that show in the workers' last reads must share it, and at least two.
    """
    total, heads = 0, []
    for worker in workers:
        if len(worker.reads):
            odd = worker.reads.odd.at(len(worker.reads) - 1)
            total += int(worker.reads.clock[-1].sum()) - int(odd.zero.sum())
            heads.append(odd.head[(odd.head == odd.tail) & (odd.head != 0) & np.isfinite(odd.head)])
    found = np.concatenate([*heads, np.zeros(0)])
    if 3 * len(found) < 2 * total or len(found) < 2:
        return 1.0
    # digits that count: a scale can be tiny
    digits = 10.0 ** (3 - np.floor(np.log10(np.abs(found))))
    alike, which, number = np.unique(np.rint(found * digits) / digits, return_inverse=True, return_counts=True)
    most = found[which == np.argmax(number)]
    scale = float(np.median(most)) if len(most) >= 2 and 3 * len(most) >= 2 * total else 1.0
    del alike
    if scale > 1.5 and abs(scale - round(scale)) <= COUNT_TOLERANCE:
        attempts = np.concatenate([worker.pushes.attempts for worker in workers])
        if 2 * np.count_nonzero(attempts >= round(scale)) > len(attempts):
            return 1.0  # most were sent that often: they were applied that often, not with that weight
    return scale if abs(scale - 1.0) > COUNT_TOLERANCE else 1.0


def rescaled(history: History, scale: float) -> History:
    """The same history with counts in units of ``scale``: a cell that holds exactly that is no longer odd."""
    workers = tuple(replace(w, reads=replace(w.reads, odd=_rescaled(w.reads, scale))) for w in history.workers)
    return replace(history, workers=workers, scale=scale)


def _rescaled(reads: Reads, scale: float) -> Odd:
    odd = reads.odd
    scaled = replace(odd, head=odd.head / scale, tail=odd.tail / scale)
    fits = (np.abs(scaled.head - 1) < COUNT_TOLERANCE) & (np.abs(scaled.tail - 1) < COUNT_TOLERANCE)
    kept = scaled.take(~fits)
    added = np.array(list(_plain_runs(reads)), np.int64).reshape(-1, 5)
    ones = np.full(len(added), 1 / scale)
    variable, peer, step, first, end = added.T
    plain = Odd(variable, peer, step, first, end, head=ones, tail=ones)  # held exactly one: odd now
    names = ("variable", "peer", "step", "first", "end", "head", "tail")
    return Odd(*(np.concatenate([getattr(kept, name), getattr(plain, name)]) for name in names)).sorted()


def _plain_runs(reads: Reads) -> Iterator[tuple[int, int, int, int, int]]:
    """(variable, worker, step, first, end) of cells that hold exactly one."""
    odd = reads.odd
    for variable in range(reads.clock.shape[1]):
        for peer in range(reads.clock.shape[2]):
            clock = reads.clock[:, variable, peer]
            mine = odd.take((odd.variable == variable) & (odd.peer == peer))
            top = int(clock.max(initial=0))
            shown = len(clock) - np.cumsum(np.bincount(clock, minlength=top + 1))[:top]  # reads below whose clock
            number = np.zeros(top, np.int64)
            np.add.at(number, mine.step, mine.end - mine.first)
            for step in np.flatnonzero(shown > number).tolist():
                plain = clock > step
                for first, end in zip(*(getattr(mine, n)[mine.step == step] for n in ("first", "end")), strict=True):
                    plain[first:end] = False
                edges = np.flatnonzero(np.diff(np.concatenate([[False], plain, [False]])))
                for first, end in edges.reshape(-1, 2).tolist():
                    yield variable, peer, step, first, end
