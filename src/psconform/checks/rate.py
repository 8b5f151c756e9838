"""A4: a learning rate that falls with the staleness of a gradient."""

from __future__ import annotations

import numpy as np

from ..history.columns import Floats
from ..history.model import COUNT_TOLERANCE, History
from ..verdict import Verdict, unknown, valid, violated
from .registry import ASYNC, check
from .staleness import computed_here, contradiction_of, taus_of


@check("A4", "staleness-aware rate", dimension="rate", weakest=("constant",), updates=ASYNC)
def staleness_aware(history: History) -> Verdict:
    """A4: the effective learning rate of a gradient is lr / max(1, tau), where a staleness-aware rate is declared.

    Zhang et al. 2016, "Staleness-aware Async-SGD for Distributed Deep Learning". tau is that of A2, version at apply
    - 1 - version read, for each ps by itself. The final reads show the weight of each gradient: it must be
    1 / max(1, tau) of the unit, within a relative 1e-4. A gradient that does not show is lost (A1, R1); one that was
    sent more than once is left out, for its acknowledgement may name another version.

    Assumes: a final read; versions in reads and acknowledgements, one per ps, that agree with the parameters;
    psconform knows which ps holds which variable.
    """
    if not history.finals:
        return unknown(history.no_final)
    expected = _expected(history)
    if expected is None:
        return unknown("needs versions in reads and acknowledgements, one per ps, and the ps of each variable")
    if contradiction := contradiction_of(history):
        return unknown(contradiction)
    odd = history.last.odd
    weight = np.where(history.last.plain, 1.0, np.nan)  # [V, W, K], nan: nothing to judge
    shown = odd.take(~odd.zero & ~odd.torn)
    with np.errstate(invalid="ignore"):
        for end in (shown.head, shown.tail):
            cell = (shown.variable, shown.peer, shown.step)
            off = np.abs(end / expected[cell] - 1) > COUNT_TOLERANCE
            weight[tuple(part[off] for part in cell)] = end[off]  # a wrong one has the last word
            known = np.isnan(weight[cell])
            weight[tuple(part[known] for part in cell)] = end[known]
        wrong = np.abs(weight / expected - 1) > COUNT_TOLERANCE
    lines = [
        f"{history.gradient(peer, step)}, has weight {weight[variable, peer, step]:.4g} in "
        f"{history.variable(variable)}, expected {expected[variable, peer, step]:.4g}: its staleness was "
        f"{1 / expected[variable, peer, step]:.0f}"
        for variable, peer, step in np.argwhere(wrong).tolist()
    ]
    if lines:
        return violated(lines)
    stale = int((expected < 1).any(axis=0).sum())
    return valid(f"{stale} of {int(history.accepted.sum())} gradients had a staleness above 1", stale=stale)


def _expected(history: History) -> Floats | None:
    """1 / max(1, tau) of each accepted gradient, float64[V, W, K], NaN for others; None: tau is not known."""
    shards = history.shards
    if shards is None:
        return None
    expected = np.full((history.variables, history.layout.workers, history.steps), np.nan)
    for worker in history.workers:
        tau, pushes = taus_of(history, worker), computed_here(history, worker)
        if tau is None or tau.shape[1] != history.layout.ps:
            return None
        for variable, shard in enumerate(shards):
            expected[variable, worker.index, pushes.step] = 1 / np.maximum(1, tau[:, shard])
    return expected
