"""R1, R2: how often each gradient was applied."""

from __future__ import annotations

from itertools import islice, pairwise

import numpy as np

from ..history.columns import OUTCOMES, UNKNOWN, Bools, Floats
from ..history.model import COUNT_TOLERANCE, History, Worker
from ..history.weights import short_rounds
from ..probe import ENTRIES
from ..verdict import Verdict, counted, unknown, valid, violated
from .registry import check
from .witness import again, grouped, listed, spans

HALF = -1
"""In the place of how often a gradient was applied: to a part of a variable."""
MOST = 1000
"""Pieces of work that were never pushed, and are named."""
_BOUNDS = {"exactly-once": (1, 1), "at-least-once": (1, None), "at-most-once": (0, 1)}


@check("R1", "delivery", dimension="delivery", acked=True)
def delivery_class(history: History) -> Verdict:
    """R1: an acknowledged gradient is applied as often as the delivery class says.

    exactly-once: once; at-least-once: once or more; at-most-once: once or not at all. A push that surely failed is
    not applied; an unknown one (no acknowledgement) may be, within the class; a gradient that nobody pushed never is.
    In every class a gradient is applied whole: one that final reads show more of at one end of a variable than at the
    other, and none evenly, is not.
    Where a queue deals out work (``probe.push(step, work=n, of=N)``), each piece is applied so, too, by any worker.
    Without ``of``, numbers that no worker has pushed are no work, or were lost with the workers that died: unknown.
    Judged on the final reads, which every worker makes after all are done, so on every variable at head and tail: what
    none of them shows is lost. Doubles and phantoms show in any read. A weight that is no whole number is S5's or A1's
    business; if all gradients show alike a whole number of times, they may be duplicates or a weight.

    Assumes: a final read, to say that something is lost.
    """
    least, most = _BOUNDS[history.claims.delivery]
    high = _high(history)
    ceiling = np.where(history.barred, 0.0, np.inf if most is None else most * history.meanings)
    too_often = high > ceiling
    lost = np.zeros_like(too_often)
    if history.finals and least:
        lost = history.accepted & ~history.last.plain & (_whole(history.last.least) < least) & ~too_often
    half = _half(history) & ~too_often & ~lost
    found: list[tuple[int, int, str, tuple[str, int]]] = []
    for peer, step, variable in np.argwhere((too_often | lost | half).transpose(1, 2, 0)).tolist():
        # of a record cut short, the push may be missing
        code = history.outcomes[peer, step] or (0 if history.barred[peer, step] else UNKNOWN)
        times = int(high[variable, peer, step]) if too_often[variable, peer, step] else 0
        times = HALF if half[variable, peer, step] else times
        found.append((peer, step, history.variable(variable), (OUTCOMES[code], times)))
    lines = []
    for group in grouped(found):
        outcome, times = group.said
        line = f"{group.gradients}, ({outcome}) {group.were} "
        if times == HALF:
            lines.append(f"{line}applied to one end of {group.where} more than to the other{group.number}")
        elif times:
            line += f"applied {counted(times, 'time')} to {group.where}{group.number}"
            lines.append(line + (again(history, group) if times > 1 else ""))
        else:
            never = "never show" if len(group.variables) > 1 else "never shows"
            lines.append(f"{line}lost: {group.where} {never} {group.them} in the end{group.number}")
    lines += _work_lost(history) if least else []
    anew = _numbered_anew(history) if most == 1 else ""
    lines += _work_again(history) if most == 1 and not anew else []
    if lines:
        return violated(lines)
    if not history.finals or anew:
        return unknown(anew or history.no_final)
    if doubt := (_ambiguous(history) if most == 1 else "") or (_maybe_lost(history) if least else ""):
        return unknown(doubt)
    pushed, acked = sum(len(w.pushes) for w in history.workers), int(history.accepted.sum())
    said = counted(pushed, "gradient")
    said = said if acked == pushed else f"{acked} acknowledged of {said}"
    return valid(f"{said}, {counted(history.variables, 'variable')}")


def _half(history: History) -> Bools:
    """Gradients that final reads show more of at one end than at the other, and none evenly, bool[V, W, K].

    Where reads may be torn, or a compression may leave entries out, that says nothing.
    """
    if not history.finals or history.claims.read_atomicity == "none" or ENTRIES in history.workload.shows:
        return np.zeros((history.variables, history.layout.workers, history.steps), np.bool_)
    return history.last.uneven


def _ambiguous(history: History) -> str:
    """Every gradient at twice (three times, ...) its weight, or applied twice: the ledger shows the same.

    So it is in a round without half of the workers, if it is the mean of the others; a round of which the mean makes no
    whole number shows by which rule all are made.
    """
    if history.divisor == "live" and history.claims.divisor == "any":
        there = history.last.ever.all(axis=0).sum(axis=0)[short_rounds(history)]
        if (history.layout.workers % there == 0).all():
            times = history.layout.workers // there[0]
            return (
                f"in rounds of {there[0]} of {history.layout.workers} workers each gradient shows {times} times: "
                "their mean, or applied again; claim divisor to tell"
            )
    for step, rate in history.rates:
        if round(rate) > 1 and abs(rate - round(rate)) <= COUNT_TOLERANCE:
            return (
                f"from step {step} on every gradient was applied {round(rate)} times, or at {rate:g} times its weight"
            )
    times, layout = round(history.scale), history.layout
    sums = {layout.per_round} | ({layout.workers, layout.accumulate} if layout.accumulate > 1 else set())
    summed = layout.update == "sync" and history.claims.reduction == "mean" and times in sums
    if times < 2 or summed or abs(history.scale - times) > COUNT_TOLERANCE:
        return ""
    return f"every gradient was applied {times} times, or at {times} times its weight: the ledger cannot tell"


def _high(history: History) -> Floats:
    """The most applications of each gradient that any read shows, where they are not one, float64[V, W, K]."""
    high = np.zeros((history.variables, history.layout.workers, history.steps))
    for worker in history.workers:
        odd = worker.reads.odd.take(worker.reads.odd.most > 0)
        np.maximum.at(high, (odd.variable, odd.peer, odd.step), _whole(odd.most))
    if history.barred.any():
        for worker in history.workers:
            high = np.maximum(high, _phantoms(history, worker))
    return high


def _phantoms(history: History, worker: Worker) -> Floats:
    """Gradients that some read of this worker shows though they must never show, 0.0 or 1.0, float64[V, W, K]."""
    found = np.zeros((history.variables, history.layout.workers, history.steps))
    clock, odd = worker.reads.clock, worker.reads.odd.take(worker.reads.odd.zero)
    for peer in np.flatnonzero(history.barred.any(axis=1)).tolist():
        for variable in range(history.variables):
            column = clock[:, variable, peer]
            ended = np.bincount(column, minlength=history.steps + 1)
            shown = len(column) - np.cumsum(ended)[: history.steps]  # reads whose clock is past the step
            mine = odd.take((odd.variable == variable) & (odd.peer == peer))
            np.subtract.at(shown, mine.step, mine.end - mine.first)
            found[variable, peer] = (shown > 0) & history.barred[peer]
    return found


def _whole(counts: Floats) -> Floats:
    """Applications in a count; a part of one, in either direction, counts as one (its weight is judged elsewhere)."""
    nearest = np.rint(counts)
    return np.asarray(np.where(np.abs(counts - nearest) <= COUNT_TOLERANCE, nearest, 1.0))


@check("R2", "duplicates", dimension="delivery", weakest=("none", "at-most-once"), acked=True, final=True)
def duplicates(history: History) -> Verdict:
    """R2: duplicates at most (retries) for at-least-once, none for exactly-once.

    A gradient sent n times, because its acknowledgement was lost, may be applied n times under at-least-once. If all
    gradients show alike a whole number of times, they may be duplicates or a weight. A piece of work that a queue has
    dealt out to several workers (``probe.push(step, work=n, of=N)``) may be applied more than once under at-least-once
    only.

    Assumes: every attempt is recorded by ``probe.push``.
    """
    exactly = history.claims.delivery == "exactly-once"
    sent = np.zeros((history.layout.workers, history.steps), np.int64)
    allowed = history.meanings.astype(np.float64)
    for worker in history.workers:
        sent[worker.index, worker.pushes.step] = worker.pushes.attempts
    if not exactly:
        allowed = np.maximum(sent, 1).astype(np.float64)
        whole = [worker.index for worker in history.workers if worker.ended]
        allowed[~np.isin(np.arange(len(allowed)), whole)] = np.inf  # attempts may be missing from its record
    high = _high(history)
    found = [
        (peer, step, history.variable(variable), (int(sent[peer, step]), int(high[variable, peer, step])))
        for peer, step, variable in np.argwhere((high > allowed).transpose(1, 2, 0)).tolist()
    ]
    if found:
        lines = []
        for group in grouped(found):
            attempts, times = group.said
            line = f"{group.gradients}, sent {counted(attempts, 'time')}, {group.were} applied {counted(times, 'time')}"
            cause = again(history, group) if attempts > 1 else ""
            lines.append(f"{line} to {group.where}{group.number}{cause}")
        return violated(lines)
    done_again = _work_again(history)
    anew = _numbered_anew(history) if exactly else ""
    if exactly and done_again and not anew:
        return violated(done_again)
    if doubt := ("" if history.finals else history.no_final) or anew or _ambiguous(history):
        return unknown(doubt)
    return valid(f"{counted(len(done_again), 'piece')} of work applied more than once" if done_again else "")


def _done(history: History) -> dict[int, list[tuple[int, int]]]:
    """By piece of work, the gradients of it (worker and step) that some variable shows in the end."""
    done: dict[int, list[tuple[int, int]]] = {}
    ever = np.array(history.last.ever.any(axis=0))
    for grad, pieces in sorted(history.work.items()):
        for piece in pieces:
            done.setdefault(piece, []).extend([grad] if ever[grad] else [])
    return done


def _work_again(history: History) -> list[str]:
    """Pieces of work of which two gradients were applied."""
    done = {
        piece: [grad for grad in grads if history.meanings[grad] == 1]  # else it may have been of another piece
        for piece, grads in _done(history).items()
    }
    lines = []
    for piece, grads in sorted(done.items()):
        if len(grads) > 1:
            by = listed(history.gradient(*grad) for grad in grads)
            lines.append(f"piece {piece} of the work was applied {counted(len(grads), 'time')}: {by}")
    return lines


def _numbered_anew(history: History) -> str:
    """Every piece of the work was applied more than once: then its numbers may be those of each epoch."""
    done = [grads for grads in _done(history).values() if grads]
    if history.pieces or len(done) < 2 or any(len(grads) < 2 for grads in done):
        return ""
    return (
        "every piece of the work was applied more than once, or its numbers begin anew in each epoch "
        "(probe.push(step, work=n, of=N) says that they do not)"
    )


def _work_lost(history: History) -> list[str]:
    """Pieces of work of which none was applied, though some worker had steps left.

    A piece that was refused, or that psconform poisoned, need not be done.
    """
    if not _is_all_done(history):
        return []
    done = _done(history)
    never = (piece for piece in range(history.pieces) if piece not in done)  # no worker pushed these
    spared = {
        piece for grad, pieces in history.work.items() if history.outcomes[grad] != UNKNOWN for piece in pieces
    } | {piece for p in history.poisons for piece in history.work.get((p.worker, p.step), ())}
    lost = sorted(
        {piece for piece, grads in done.items() if not grads and piece not in spared} | {*islice(never, MOST)}
    )
    return [f"{spans(lost, 'piece')} of the work never show{'s' * (len(lost) == 1)} in the end"] if lost else []


def _is_all_done(history: History) -> bool:
    """All the work was done, as far as its workers know, and each gradient that shows says of which piece it is."""
    spare = any(worker.ended and len(worker.pushes) < history.steps for worker in history.workers)
    shown = map(tuple, np.argwhere(history.last.ever.any(axis=0)).tolist())
    return bool(history.finals and history.work and spare and all(grad in history.work for grad in shown))


def _maybe_lost(history: History) -> str:
    """That numbers which no worker has pushed may be pieces that workers had when they died; or empty."""
    if history.pieces or not _is_all_done(history):
        return ""
    numbers = sorted(_done(history))
    deaths = sum(int(worker.reads.life.max(initial=0)) + (not worker.ended) for worker in history.workers)
    if not 0 < numbers[-1] - numbers[0] + 1 - len(numbers) <= deaths:
        return ""
    never = [piece for before, after in pairwise(numbers) for piece in range(before + 1, after)]
    return (
        f"no worker pushed {spans(never, 'piece')} of the work: lost with a worker that died, or no work "
        "(probe.push(step, work=n, of=N) says how many pieces there are)"
    )
