"""NaN and Inf: in a gradient, or in what is read."""

from __future__ import annotations

import numpy as np

from ..history.columns import OUTCOMES
from ..history.model import History, Worker
from .anomaly import Anomaly, seconds

KIND = "non-finite"


def non_finite(history: History) -> list[Anomaly]:
    """Gradients that were not finite, by worker, and parameters that were not, by the worker that first read them.

    There is no threshold: one NaN is one too many. What the worker was told of its gradient is C3's business, and only
    repeated here. Only gradients that the probe has given are known.
    """
    return [*_gradients(history), *_parameters(history)]


def _gradients(history: History) -> list[Anomaly]:
    found = []
    for worker in history.workers:
        mine = [poison for poison in history.poisons if poison.worker == worker.index]
        if not mine:
            continue
        first = min(mine, key=lambda poison: poison.step)
        told = OUTCOMES[history.outcomes[worker.index, first.step]]
        more = f", and {len(mine) - 1} more" if len(mine) > 1 else ""
        text = f"its gradient of step {first.step} is {first.value} ({told}){more}"
        since_s = seconds(history, worker, first.at)
        found.append(Anomaly(kind=KIND, task=str(worker), step=first.step, since_s=since_s, text=text))
    return found


def _parameters(history: History) -> list[Anomaly]:
    first = [(int(w.reads.at[index]), w, index) for w in history.workers if (index := _first_bad(w)) is not None]
    if not first:
        return []
    at, worker, index = min(first, key=lambda item: item[0])
    others = f", as did {len(first) - 1} other worker(s)" if len(first) > 1 else ""
    step = int(worker.reads.step[index])
    text = f"it read parameters that are not finite{others}"
    return [Anomaly(kind=KIND, task=str(worker), step=step, since_s=seconds(history, worker, at), text=text)]


def _first_bad(worker: Worker) -> int | None:
    bad = np.flatnonzero(~worker.reads.finite)
    return int(bad[0]) if bad.size else None
