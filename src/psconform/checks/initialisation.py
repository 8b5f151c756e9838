"""I1, I2: one initialisation, and nothing before it."""

from __future__ import annotations

import numpy as np

from ..history.columns import Floats
from ..history.model import History, Worker
from ..probe import COUNTS, GRADIENTS
from ..verdict import Verdict, counted, not_judged, unknown, valid, violated
from .registry import check

ROUNDING = 5e-7
"""Relative change of a nonce in one exchange of replicas: a few roundings of float32."""


@check("I1", "one initialisation", dimension="init", weakest=("repeated",), needs=(COUNTS,), local_steps="any")
def one_initialisation(history: History) -> Verdict:
    """I1: one initialisation per variable and cluster epoch, by whoever did it first; a joiner never re-initialises.

    Every initialisation writes a fresh random nonce into each variable. All reads of all workers must show one and the
    same nonce per variable, and no variable may be recorded as initialised twice. With the claim ``by-chief``, no
    worker but the chief (worker:0) may be one of those that record it. What a task records after it was started again
    does not count if no read shows its nonce: the servers refused it.

    Assumes: the initialiser writes ``probe.initial()`` into every variable; without a nonce in any read it is not
    judged.
    """
    lines, seen = [], _nonces(history)
    if not any(seen):
        return not_judged("needs the initialiser to write probe.initial()")
    for variable, nonces in enumerate(seen):
        if len(nonces) > 1:
            reads = [f"{n:.0f} first by {who}" for n, who in nonces.items()]
            lines.append(f"{history.variable(variable)} was read with {len(nonces)} nonces: {', '.join(reads)}")
    shown = {nonce for nonces in seen for nonce in nonces}
    # a restarted task may record initial values that the servers refused
    inits = [init for init in history.inits if not init.second and not (init.life and shown.isdisjoint(init.nonce))]
    if history.claims.init == "by-chief":
        others = [init for init in inits if init.task.job == "worker" and init.task.index]
        lines += [f"{init.by} initialised, though it is not the chief" for init in others]
    written = {n: init for init in history.inits for n in init.nonce}
    total = sum(len(init.nonce) for init in inits)
    if total > history.variables:
        names = ", ".join(f"{init.by} ({len(init.nonce)})" for init in inits)
        variables = counted(history.variables, "variable")
        lines.append(f"{variables} {'was' if history.variables == 1 else 'were'} initialised {total} times: by {names}")
    if total >= history.variables:  # else some initialiser keeps no record, or its record is gone
        for variable, nonces in enumerate(seen):
            for nonce, who in nonces.items():
                init = written.get(nonce)
                if init is None or init.second:
                    by = "nobody" if init is None else init.by
                    lines.append(f"{who} read {history.variable(variable)} with nonce {nonce:.0f}, written by {by}")
    if lines:
        return violated(lines)
    return unknown(_markless(history)) if _markless(history) else valid("one nonce per variable")


def _markless(history: History) -> str:
    """Which variable never shows a nonce, so that nobody can say who initialised it; empty if there is none."""
    lacks = [history.variable(variable) for variable, nonces in enumerate(_nonces(history)) if not nonces]
    return f"no read of {lacks[0]} shows a nonce: was it initialised with probe.initial()?" if lacks else ""


def _nonces(history: History) -> list[dict[float, str]]:
    """Per variable the nonces that reads show, with the first read of each; 0 (uninitialised) is left to I2."""
    seen: list[dict[float, str]] = [{} for _ in range(history.variables)]
    for worker in history.workers:
        for variable, column in enumerate(_unrounded(history, worker).T):
            nonces, first = np.unique(column, return_index=True)
            for index in np.sort(first[(nonces != 0) & np.isfinite(nonces)]).tolist():
                seen[variable].setdefault(float(column[index]), history.where(worker, index).rstrip(","))
    return seen


def _unrounded(history: History, worker: Worker) -> Floats:
    """The nonces that reads show, float64[R, V].

    Replicas that average their parameters round the nonce, too, a little in each exchange: what is so near to one that
    was written is that one.
    """
    nonces = worker.reads.nonce.copy()
    if history.layout.local_steps > 1:
        allowed = ROUNDING * (1 + history.steps // history.layout.local_steps)
        for written in sorted({n for init in history.inits for n in init.nonce}):
            nonces[np.abs(nonces - written) <= allowed * abs(written)] = written
    return nonces


@check("I2", "nothing before ready", dimension="init", weakest=("repeated",), needs=(GRADIENTS,), local_steps="any")
def nothing_before_ready(history: History) -> Verdict:
    """I2: no read or apply before initialisation is complete.

    A variable without a nonce (0) is not initialised: no read may show one. A gradient applied before its variable is
    initialised is overwritten, and shows as lost (R1).

    Assumes: the initialiser writes ``probe.initial()`` into every variable; without a nonce in any read it is not
    judged.
    """
    seen = _nonces(history)
    # all variables are recorded as initialised, so one without a nonce is not one that the target leaves out
    told = sum(len(init.nonce) for init in history.inits if not init.second) >= history.variables
    if not any(seen):
        return not_judged("needs the initialiser to write probe.initial()")
    lines = [
        f"{history.where(worker, index)} read {history.variable(variable)} before it was initialised (nonce 0)"
        for worker in history.workers
        for index, variable in np.argwhere(worker.reads.nonce == 0).tolist()
        if told or seen[variable]
    ]
    if lines:
        return violated(lines)
    return unknown(_markless(history)) if _markless(history) else valid()
