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
    Judged on the final reads, which every worker makes after all are done, so on every variable at head and tail.
    Doubles and phantoms show in any read. A weight that is no whole number is S5's or A1's business.

    Assumes: a final read, to say that something is lost.
    """
    least, most = _BOUNDS[history.claims.delivery]
    outcome = {(w.index, p.step): p.outcome for w in history.workers for p in w.pushes}
    lines: list[str] = []
    for peer, step, variable, low, high in _counts(history):
        said = outcome.get((peer, step), "never pushed")
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
    return valid(f"{len(outcome)} gradients, {history.variables} variables")


def _counts(history: History) -> list[tuple[int, int, int, int | None, int | None]]:
    """(worker, step, variable, fewest applications in the final reads, most in any read), where not 1 and 1."""
    low: dict[tuple[int, int, int], int] = {}
    high: dict[tuple[int, int, int], int] = {}
    if history.finals:
        final = history.final_counts
        for variable, peer, step in np.argwhere((final != 1.0).any(axis=(0, 4))).tolist():
            seen = final[:, variable, peer, step]
            low[peer, step, variable] = _whole(float(np.nanmin(seen)) if np.isfinite(seen).any() else 1.0)
    for worker, index in history.every_read():
        for (variable, peer, step), pair in worker.reads.odd[index].items():
            most = max((count for count in pair if np.isfinite(count)), default=1.0)
            if most > 0:
                key = (peer, step, variable)
                high[key] = max(high.get(key, 0), _whole(most))
    pushed = {(w.index, p.step) for w in history.workers for p in w.pushes if p.outcome != "failed"}
    for worker, index in history.every_read():
        for variable, row in enumerate(worker.reads.clock[index].tolist()):
            for peer, clock in enumerate(row):
                for step in range(clock - 1, -1, -1):  # phantoms are rare and at the top: stop at the first real one
                    if (peer, step) in pushed:
                        break
                    if worker.reads.odd[index].get((variable, peer, step)) != (0.0, 0.0):
                        high.setdefault((peer, step, variable), 1)
    return [(*key, low.get(key), high.get(key)) for key in sorted(low.keys() | high.keys())]


def _whole(count: float) -> int:
    """Applications in a count; a part of one, in either direction, counts as one (its weight is judged elsewhere)."""
    nearest = round(count)
    return nearest if abs(count - nearest) <= COUNT_TOLERANCE else 1


def duplicates(history: History) -> Verdict:
    """R2: duplicates at most (retries) for at-least-once, none for exactly-once.

    A gradient sent n times, because its acknowledgement was lost, may be applied n times under at-least-once.

    Assumes: every attempt is recorded by ``probe.push``.
    """
    exactly = history.claims.delivery == "exactly-once"
    attempts = {(w.index, p.step): p.attempts for w in history.workers for p in w.pushes}
    lines = []
    for peer, step, variable, _, high in _counts(history):
        allowed = 1 if exactly else attempts.get((peer, step), 1)
        if high is not None and high > allowed:
            lines.append(
                f"{history.gradient(peer, step)}, sent {attempts.get((peer, step), 0)} time(s), was applied {high} "
                f"times to {history.variable(variable)}"
            )
    if lines:
        return violated(lines)
    return valid() if history.finals else unknown(history.no_final)
