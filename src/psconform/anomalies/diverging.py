"""Training whose loss grows instead of falling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..history.model import History
from .anomaly import Anomaly, seconds

TIMES = 3.0
"""So many times the loss at the start: the noise of small batches and of staleness moves it by tenths."""
SMALLEST = 1e-6
"""A start below this is one at the optimum, and any rounding many times as much."""
SHARE = 0.1
"""Of the run, up to its end, in which the loss must be that high: a spike from which training recovers is none."""
LEAST = 5
"""... and so many steps."""


def diverging(history: History, losses: Mapping[str, Sequence[float]]) -> list[Anomaly]:
    """The loss is `TIMES` what it was at the start, or not finite, from some step to the end, for `SHARE` of the run.

    One report for the run, with the worker that saw it first: the parameters are everybody's. ``losses`` are those on
    the whole training set, by worker and step, so that no batch stands out. Silent on ledgers, which have no loss, and
    where that part of the run is less than `LEAST` steps.
    """
    found = []
    for worker in history.workers:
        values = np.asarray(losses.get(str(worker), ()), np.float64)
        if not len(values) or not np.isfinite(values[0]):
            continue
        start = float(values[0])
        high = ~(values <= TIMES * max(start, SMALLEST))  # so is NaN
        since = len(high) - int(np.argmin(high[::-1])) if not high.all() else 0
        if len(high) - since < max(LEAST, SHARE * len(high)):
            continue
        reads = worker.reads
        seen = np.flatnonzero(reads.step >= since)[:1]
        since_s = seconds(history, worker, int(reads.at[seen[0]])) if seen.size else 0.0
        last = values[-1]
        now = f"{last:.4g}" if np.isfinite(last) else "no number"
        text = f"the loss is {now} in the end, {start:.4g} at the start"
        found.append(Anomaly(kind="diverging", task=str(worker), step=since, since_s=since_s, text=text))
    return sorted(found, key=lambda anomaly: anomaly.since_s)[:1]
