"""A1, A5: what asynchronous updates promise of every gradient."""

from __future__ import annotations

import numpy as np

from ..history.columns import Floats, Ints
from ..history.model import COUNT_TOLERANCE, NEVER, OK, History, Worker
from ..probe import COUNTS
from ..verdict import Verdict, counted, unknown, valid, violated
from .registry import ASYNC, MOST, check
from .shared_rows import NOT_DUE, off_sum, row_lines
from .witness import again, grouped, scheduled


@check("A1", "apply on arrival", dimension="delivery", weakest=("none", "at-most-once"), updates=ASYNC, acked=True)
def apply_on_arrival(history: History) -> Verdict:
    """A1: every accepted gradient is applied once, whole; versions go up by one per apply.

    At-least-once, a gradient that was sent n times may be applied up to n times, each time whole. So a row that all
    workers change, as one of an embedding, holds the sum of all gradients that show, unless increments were lost.

    A learning rate that changes with the step is named, as in S5.

    With a staleness-aware rate the weight is A4's business, and a gradient only has to show; but no application weighs
    more than one, so that a count above the times that it may be applied is of several.

    Judged on the final reads (each acknowledged gradient shows exactly once, at its full weight) and, where the
    target reports versions, on the acknowledgements: per shard, no two applies of a cluster epoch have the same
    version, and together they leave no version out. A rollback may give versions back, and what is sent again is
    answered with the version of that moment.

    Assumes: a final read.
    """
    if history.indistinct or not history.finals:
        return unknown(history.indistinct or history.no_final)
    lines = scheduled(history)
    if history.scale != 1.0:
        lines.append(f"every gradient was applied at {history.scale:.4g} times its weight")
    last, odd = history.last, history.last.odd
    most, times = _most(history)[odd.peer, odd.step], np.rint([odd.head, odd.tail])
    whole = np.abs([odd.head, odd.tail] - times) <= COUNT_TOLERANCE
    fits = (whole & (times >= 1) & (times <= most)).all(axis=0)
    if history.claims.rate != "constant":
        fits = ~odd.torn & ~(odd.most > most + COUNT_TOLERANCE)
    wrong = ~last.ever  # missing in some final reads only: they disagree, which decides nothing
    rows = odd.take(~fits & ~odd.zero)
    wrong[rows.variable, rows.peer, rows.step] = True
    found: list[tuple[int, int, str, tuple[float, str]]] = []
    for peer, step, variable in np.argwhere((wrong & history.accepted).transpose(1, 2, 0)).tolist():
        worst = max(last.counts(variable, peer, step), key=lambda count: abs(count - 1.0))
        other = history.made_for(variable, worst)
        named = "" if other is None else history.variable(other)
        found.append((peer, step, history.variable(variable), (worst, named)))
    for group in grouped(found):
        is_there = "accepted and are each" if group.several else "accepted and is"
        line = f"{group.gradients}, {group.were} {is_there} {group.said[0]:.4g} times in {group.where}{group.number}"
        line += f": made for {group.said[1]}" if group.said[1] else ""
        lines.append(line + (again(history, group) if group.said[0] > 1 else ""))
    lines += row_lines(history, off_sum(history, lambda worker, _: _applied_by(history, worker)))
    lines += _versions_by_one(history)
    return violated(lines) if lines else valid(counted(int(history.accepted.sum()), "gradient"))


def _applied_by(history: History, worker: Worker) -> Ints:
    """How many gradients were accepted before each read, where no gradient was on its way during that; else NOT_DUE."""
    reads = worker.reads
    if history.claims.read_atomicity == "none" or history.disturbed or not (history.one_clock and history.whole):
        return np.full(len(reads), NOT_DUE)
    mine = np.concatenate([[0], np.sort(worker.pushes.answered)])
    since = mine[np.searchsorted(mine, reads.at) - 1]  # its last answer before each read
    alone, number = np.ones(len(reads), np.bool_), np.zeros(len(reads), np.int64)
    for other in history.workers:
        pushes = other.pushes
        answered = np.where(pushes.answered > 0, pushes.answered, NEVER)
        latest = np.concatenate([[0], np.maximum.accumulate(answered)])  # by number of pushes: when all had an answer
        before = np.searchsorted(pushes.at, reads.at)
        alone &= (latest[before] < since) | (other is worker)
        number += np.concatenate([[0], np.cumsum(pushes.outcome == OK)])[before]
    return np.where(alone, number, NOT_DUE)


def _most(history: History) -> Floats:
    """How often each gradient may be applied, float64[W, K]."""
    most = history.meanings.astype(np.float64)
    if history.claims.delivery == "at-least-once":
        for worker in history.workers:  # of a record cut short, attempts may be missing
            most[worker.index, worker.pushes.step] = worker.pushes.attempts if worker.ended else np.inf
    return most


def _versions_by_one(history: History) -> list[str]:
    # a gradient sent again may be answered with the version of that moment, not of its apply
    known = [
        (worker, worker.pushes.take((worker.pushes.outcome == OK) & history.sent_once(worker)))
        for worker in history.workers
    ]
    known = [(worker, pushes) for worker, pushes in known if len(pushes)]
    if not known or not history.counted or any((pushes.width == 0).any() for _, pushes in known):
        return []
    widths = {int(width) for _, pushes in known for width in np.unique(pushes.width)}
    if len(widths) != 1:
        return ["acknowledgements name different numbers of versions"]
    who = np.concatenate([np.full(len(pushes), worker.index) for worker, pushes in known])
    step = np.concatenate([pushes.step for _, pushes in known])
    versions = np.concatenate([pushes.versions for _, pushes in known])
    epoch = np.concatenate([pushes.epoch for _, pushes in known])
    lines = []
    # any other push may have taken a version of its own
    complete = history.whole and len(step) == sum(len(worker.pushes) for worker in history.workers)
    complete = complete and (history.straight or not history.disturbed)
    for counter in range(widths.pop()):
        order = np.lexsort((versions[:, counter], epoch))
        given = versions[order, counter]
        gap = np.where(np.diff(epoch[order]) == 0, np.diff(given), 1)
        for at in np.flatnonzero(gap == 0).tolist()[:MOST]:
            one, two = order[at], order[at + 1]
            lines.append(
                f"ps:{counter} gave version {given[at]} to worker:{who[two]}, step {step[two]}, and to "
                f"worker:{who[one]}, step {step[one]}"
            )
        if complete and not lines:
            for at in np.flatnonzero(gap > 1).tolist()[:1]:
                lines.append(f"ps:{counter} went from version {given[at]} to {given[at] + 2} with no apply between")
    return lines


@check("A5", "no lost update", dimension="delivery", updates=ASYNC, needs=(COUNTS,), acked=True, whole_gradients=True)
def no_lost_update(history: History) -> Verdict:
    """A5: applied = pushed where delivery is claimed at least once, applied <= pushed where it is not.

    Counts per variable the acknowledged gradients that the final reads do not show: two workers whose updates
    overwrite each other (read, modify, write without a lock) lose one.

    Assumes: a final read.
    """
    if not history.finals:
        return unknown(history.no_final)
    must = history.claims.delivery in ("at-least-once", "exactly-once")
    lines = []
    lost = ~history.last.ever & history.accepted  # [V, W, K]
    for variable in range(history.variables):
        gone = np.argwhere(lost[variable]).tolist()
        if gone and must:
            names = ", ".join(f"worker:{w} step {s}" for w, s in gone[:3]) + (" ..." if len(gone) > 3 else "")
            total = sum(len(worker.acked) for worker in history.workers)
            lines.append(f"{history.variable(variable)} lost {len(gone)} of {total} acknowledged gradients: {names}")
    if not must and history.whole:
        pushed = sum(int(worker.pushes.attempts.sum()) for worker in history.workers)
        applied = np.floor(history.last.most + COUNT_TOLERANCE).sum(axis=(1, 2)).max(initial=0.0)
        if applied > pushed:
            lines.append(f"{int(applied)} gradients were applied, {pushed} pushed")
    return violated(lines) if lines else valid()
