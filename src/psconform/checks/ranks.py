"""The order in which a server applied its updates, from the final reads of a decayed ledger."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..history.columns import OUTCOMES, UNKNOWN, Bools, Floats, Ints, Values
from ..history.model import History, Worker
from ..probe import DECAY

TOLERANCE = 0.25
"""How far from a whole number an age may be. Rounding adds up to 0.006 in 50,000 updates; what was scaled, doubled or
decayed otherwise is off by anything, and hides under this only together with a place that fits no permutation."""


@dataclass(frozen=True)
class Ranks:
    """Place of each accepted gradient among the updates of its variable, from 0; in sync place of its round.

    ``error`` is the largest distance of an age from a whole number.
    """

    rank: Ints  # [V, W, K], -1: not applied
    error: float


@dataclass(frozen=True)
class Seen:
    """What the R reads of one worker show of the order, per variable."""

    count: Ints  # [R, V], accepted gradients
    top: Ints  # [R, V], the highest rank among them, -1: none


def ranks(history: History) -> Ranks | str:
    """The order, or why it cannot be told.

    A gradient that n updates came after holds (1 - DECAY)^n of the unit. The ages must be whole and, async, be 0, 1,
    2, ... once each; in sync the gradients of a round share one, and there are as many rounds as steps.
    """
    final = _final_values(history)
    reason = final if isinstance(final, str) else _amiss(history, final)
    if isinstance(final, str) or reason:
        return reason
    unit, half = float(history.workload.unit or 0.0), final.shape[1] // 2
    accepted = history.accepted.ravel()
    ends = np.stack([final[:, :half], final[:, half + 1 :]])[:, :, accepted]  # [2, V, n]
    age = np.log(ends.astype(np.float64) / -unit) / np.log1p(-DECAY)
    whole = np.rint(age) + 0.0  # 0, not -0
    error = float(np.abs(age - whole).max(initial=0.0))
    rank = np.full((history.variables, accepted.size), -1, np.int64)
    for variable in range(history.variables):
        found = _places(history, age[:, variable], whole[:, variable])
        if isinstance(found, str):
            return f"{history.variable(variable)} has no order: {found}"
        rank[variable, accepted] = found
    return Ranks(rank.reshape(history.variables, *history.accepted.shape), error)


def _final_values(history: History) -> Values | str:
    """What every final read shows, or why there is no such thing."""
    if history.plain is None:
        return "no plain ledger of the same set-up was run"
    if history.plain:
        return f"a plain ledger of the same set-up is not clean: {history.plain}"
    if not history.finals:
        return history.no_final
    found = [worker.reads.values[index] for worker, index in history.finals if index in worker.reads.values]
    if len(found) < len(history.finals):
        return "a final read has no full parameters"
    return found[0] if all(np.array_equal(other, found[0]) for other in found) else "the final reads disagree"


def _amiss(history: History, final: Values) -> str:
    """What makes the ledger more or less than one application of each accepted gradient; empty if nothing does."""
    for peer, step in np.argwhere(history.outcomes == UNKNOWN).tolist()[:1]:
        return f"{history.gradient(peer, step)}, is {OUTCOMES[UNKNOWN]}: nobody can say whether it was applied"
    half = final.shape[1] // 2
    ends = np.stack([final[:, :half], final[:, half + 1 :]]).reshape(2, history.variables, *history.accepted.shape)
    for variable, peer, step in np.argwhere(((ends != 0) != history.accepted).any(axis=0)).tolist()[:1]:
        word = "lacks" if history.accepted[peer, step] else "shows"
        said = OUTCOMES[history.outcomes[peer, step]]
        return f"{history.variable(variable)} {word} {history.gradient(peer, step)} ({said}) in the end"
    for variable, peer, step in np.argwhere((ends > 0).any(axis=0)).tolist()[:1]:
        return f"{history.variable(variable)} holds {history.gradient(peer, step)}, with the wrong sign"
    return ""


def _places(history: History, age: Floats, whole: Floats) -> Ints | str:
    """Ranks from the ages at head and tail, float64[2, n], of one variable."""
    peers, steps = np.nonzero(history.accepted)

    def names(at: int | np.integer) -> str:
        return f"{history.gradient(peers[at], steps[at])},"

    off = np.abs(age - whole).max(axis=0)
    if (off > TOLERANCE).any():
        at = int(np.argmax(off))
        return f"{names(at)} would be {age[np.argmax(np.abs(age - whole)[:, at]), at]:.2f} updates old"
    if (whole[0] != whole[1]).any():
        at = int(np.argmax(whole[0] != whole[1]))
        return f"{names(at)} is {whole[0, at]:.0f} updates old at the head and {whole[1, at]:.0f} at the tail"
    ages, first, counts = np.unique(whole[0], return_index=True, return_counts=True)
    sync = history.layout.update == "sync"
    if not sync and (counts > 1).any():
        twice = int(np.argmax(counts > 1))
        return f"{counts[twice]} gradients are {ages[twice]:.0f} updates old, {names(first[twice])} is one of them"
    if (ages != np.arange(len(ages))).any():
        gap = int(np.argmax(ages != np.arange(len(ages))))
        return f"no gradient is {gap} updates old, and {names(first[gap])} is {ages[gap]:.0f}"
    if sync and len(ages) != np.unique(steps).size:
        return f"{len(ages)} rounds of {np.unique(steps).size} steps"
    return np.asarray(len(ages) - 1 - whole[0], np.int64)


def seen(history: History, worker: Worker, order: Ranks) -> Seen:
    """How many accepted gradients each read of a worker shows, and the latest update that it shows one of."""
    reads, rank = worker.reads, order.rank
    begin = np.full((*rank.shape[:2], 1), -1, np.int64)
    highest = np.concatenate([begin, np.maximum.accumulate(rank, axis=2)], axis=2)  # of the steps below a clock
    number = np.concatenate([begin + 1, np.cumsum(rank >= 0, axis=2)], axis=2)
    variable, peer = np.ogrid[: rank.shape[0], : rank.shape[1]]
    top = highest[variable, peer, reads.clock].max(axis=2, initial=-1)
    count = number[variable, peer, reads.clock].sum(axis=2)
    late = reads.odd.take(reads.odd.zero & (rank[reads.odd.variable, reads.odd.peer, reads.odd.step] >= 0))
    for which in range(rank.shape[0]):
        missing = reads.tally(late.take(late.variable == which))
        count[:, which] -= missing
        for index in np.flatnonzero(missing).tolist():
            shown = rank[which][shown_by(history, worker, index, which)]
            top[index, which] = shown.max(initial=-1)
    return Seen(count, top)


def shown_by(history: History, worker: Worker, index: int, variable: int) -> Bools:
    """The gradients that one read shows in one variable, bool[W, K]."""
    odd = worker.reads.odd.at(index)
    gone = odd.take(odd.zero & (odd.variable == variable))
    shown = np.asarray(np.arange(history.steps) < worker.reads.clock[index, variable][:, None])
    shown[gone.peer, gone.step] = False
    return shown
