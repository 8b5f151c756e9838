"""How long the steps of a stored run took: per worker, from that worker's own clock.

A step's time is what passed between two acknowledgements of one worker: reading (and, in sync, waiting for the round),
computing, pushing. The first step is left out if there are others, for it pays for connecting and building graphs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..history.columns import OK, Bools, Floats, Ints, Pushes
from ..history.model import History


@dataclass(frozen=True, kw_only=True)
class WorkerTiming:
    """One worker: the number of steps timed, and their times in milliseconds."""

    task: str
    steps: int
    median_ms: float
    p95_ms: float
    max_ms: float
    updates_per_s: float


@dataclass(frozen=True)
class Timing:
    """Workers that had a gradient acknowledged, and what they did together.

    ``updates_per_s`` is the sum of the workers' own rates, that is the rate while all of them train. It needs no
    clock that two tasks share, and does not sink because a straggler finishes alone.
    """

    workers: tuple[WorkerTiming, ...] = ()

    @property
    def updates_per_s(self) -> float:
        """Gradients acknowledged as ok per second, all workers together."""
        return round(sum(worker.updates_per_s for worker in self.workers), 3)

    def as_dict(self) -> dict[str, Any]:
        """For verdicts.json."""
        workers = [dataclasses.asdict(worker) for worker in self.workers]
        return {"workers": workers, "updates_per_s": self.updates_per_s}


def timing_of(history: History) -> Timing:
    """The step times of a run; a worker of which nothing was acknowledged is left out."""
    timed = [time_worker(str(worker), worker.pushes, worker.reads.at) for worker in history.workers]
    return Timing(tuple(worker for worker in timed if worker is not None))


def step_times_ms(pushes: Pushes, reads_at: Ints) -> tuple[Floats, Bools]:
    """Milliseconds of each step that was acknowledged, and whether it was accepted; the first only if alone."""
    told = pushes.take(pushes.answered > 0)
    told = told.take(np.argsort(told.answered, kind="stable"))
    ok = np.asarray(told.outcome == OK)
    if len(told) == 1:
        began = min([*reads_at[:1].tolist(), *pushes.at[:1].tolist()])
        return (told.answered - began) / 1e6, ok
    return np.diff(told.answered) / 1e6, ok[1:]


def time_worker(task: str, pushes: Pushes, reads_at: Ints) -> WorkerTiming | None:
    """The step times of one worker, or None if nothing of it was acknowledged."""
    times_ms, ok = step_times_ms(pushes, reads_at)
    if not len(times_ms):
        return None
    total_s = float(times_ms.sum()) / 1e3
    return WorkerTiming(
        task=task,
        steps=len(times_ms),
        median_ms=round(float(np.median(times_ms)), 3),
        p95_ms=round(quantile(times_ms.tolist(), 0.95), 3),
        max_ms=round(float(times_ms.max()), 3),
        updates_per_s=round(int(ok.sum()) / total_s, 3) if total_s else 0.0,
    )


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest of the values that at least this share of them do not exceed."""
    return sorted(values)[max(1, math.ceil(share * len(values))) - 1]
