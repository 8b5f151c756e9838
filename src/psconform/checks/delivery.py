"""R1, R2: how often each gradient was applied."""

from __future__ import annotations

import numpy as np

from ..history.model import COUNT_TOLERANCE, History
from ..verdict import Verdict, unknown, valid, violated

_BOUNDS = {"exactly-once": (1, 1), "at-least-once": (1, None), "at-most-once": (0, 1)}


def delivery_class(history: History) -> Verdict:
    """R1: an acknowledged gradient is applied as often as the delivery class says.

    exactly-once: once; at-least-once: once or more; at-most-once: once or not at all. A push that surely failed is
    not applied; an unknown one (no acknowledgement) may be, within the class; a gradient that nobody pushed never is.
    Judged on the final reads, which every worker makes after all are done, so on every variable at head and tail: what
    none of them shows is lost. Doubles and phantoms show in any read. A weight that is no whole number is S5's or A1's
    business; if all gradients show alike a whole number of times, they may be duplicates or a weight.

    Assumes: a final read, to say that something is lost.
    """
    least, most = _BOUNDS[history.claims.delivery]
    outcome = _outcomes(history)
    lines: list[str] = []
    for peer, step, variable, low, high in _counts(history):
        said = outcome.get((peer, step), "unknown")
        floor = least if said == "ok" else 0
        ceiling = 0 if said in ("failed", "never pushed") else most
        where = history.variable(variable)
        if high is not None and ceiling is not None and high > ceiling:
            lines.append(f"{history.gradient(peer, step)}, ({said}) was applied {high} time(s) to {where}")
        elif low is not None and low < floor:
            lines.append(f"{history.gradient(peer, step)}, ({said}) was lost: {where} never shows it in the end")
    if lines:
        return violated(lines)
    if not history.finals:
        return unknown(history.no_final)
    if most == 1 and _ambiguous(history):
        return unknown(_ambiguous(history))
    pushed, acked = (
        sum(map(len, lists)) for lists in zip(*((w.pushes, w.acked) for w in history.workers), strict=True)
    )
    said = f"{pushed} gradients" if acked == pushed else f"{acked} acknowledged of {pushed} gradients"
    return valid(f"{said}, {history.variables} variables")


def _outcomes(history: History) -> dict[tuple[int, int], str]:
    """What became of each gradient of which the record tells; never pushed, only where the record is whole."""
    whole = [worker.index for worker in history.workers if worker.ended]
    outcomes = dict.fromkeys(((index, step) for index in whole for step in range(history.steps)), "never pushed")
    return outcomes | {(worker.index, push.step): push.outcome for worker in history.workers for push in worker.pushes}


def _ambiguous(history: History) -> str:
    """Every gradient at twice (three times, ...) its weight, or applied twice: the ledger shows the same."""
    times = round(history.scale)
    summed = history.layout.update == "sync" and history.claims.reduction == "mean" and times == history.layout.workers
    if times < 2 or summed or abs(history.scale - times) > COUNT_TOLERANCE:
        return ""
    return f"every gradient was applied {times} times, or at {times} times its weight: the ledger cannot tell"


def _counts(history: History) -> list[tuple[int, int, int, int | None, int | None]]:
    """(worker, step, variable, fewest applications in the final reads, most in any read), where not 1 and 1."""
    low: dict[tuple[int, int, int], int] = {}
    high: dict[tuple[int, int, int], int] = {}
    if history.finals:
        least = history.final_counts.min(axis=-1).max(axis=0)  # [V, W, K]: whole in one final read is enough
        for variable, peer, step in np.argwhere(least != 1.0).tolist():
            low[peer, step, variable] = _whole(float(least[variable, peer, step]))
    for worker, index in history.every_read():
        if index and worker.reads.odd[index] is worker.reads.odd[index - 1]:
            continue
        for (variable, peer, step), pair in worker.reads.odd[index].items():
            if max(pair) > 0:
                key = (peer, step, variable)
                high[key] = max(high.get(key, 0), _whole(max(pair)))
    for key in _phantoms(history):
        high.setdefault(key, 1)
    return [(*key, low.get(key), high.get(key)) for key in sorted(low.keys() | high.keys())]


def _phantoms(history: History) -> list[tuple[int, int, int]]:
    """(worker, step, variable) that some read shows though the gradient was never pushed, or surely failed."""
    barred = [cell for cell, said in _outcomes(history).items() if said in ("failed", "never pushed")]
    found = []
    for worker in history.workers:
        reads = worker.reads
        top = reads.clock.max(axis=(0, 1), initial=0)
        for peer, step in barred:
            if step >= top[peer]:
                continue
            for index, variable in np.argwhere(reads.clock[:, :, peer] > step).tolist():
                if reads.odd[index].get((variable, peer, step)) != (0.0, 0.0):
                    found.append((peer, step, variable))
    return found


def _whole(count: float) -> int:
    """Applications in a count; a part of one, in either direction, counts as one (its weight is judged elsewhere)."""
    nearest = round(count)
    return nearest if abs(count - nearest) <= COUNT_TOLERANCE else 1


def duplicates(history: History) -> Verdict:
    """R2: duplicates at most (retries) for at-least-once, none for exactly-once.

    A gradient sent n times, because its acknowledgement was lost, may be applied n times under at-least-once. If all
    gradients show alike a whole number of times, they may be duplicates or a weight.

    Assumes: every attempt is recorded by ``probe.push``.
    """
    exactly = history.claims.delivery == "exactly-once"
    attempts = {(w.index, p.step): p.attempts for w in history.workers for p in w.pushes}
    whole = {worker.index for worker in history.workers if worker.ended}
    lines = []
    for peer, step, variable, _, high in _counts(history):
        if not exactly and peer not in whole:
            continue  # attempts may be missing from its record
        allowed = 1 if exactly else attempts.get((peer, step), 1)
        if high is not None and high > allowed:
            lines.append(
                f"{history.gradient(peer, step)}, sent {attempts.get((peer, step), 0)} time(s), was applied {high} "
                f"times to {history.variable(variable)}"
            )
    if lines:
        return violated(lines)
    if not history.finals:
        return unknown(history.no_final)
    return unknown(_ambiguous(history)) if _ambiguous(history) else valid()
