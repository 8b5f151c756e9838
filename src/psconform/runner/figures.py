"""Figures of a stored run that are no verdict: how long steps took, and what a model reached beside serial training.

A step lasts from one acknowledgement of a worker to the next, by its own clock: reading (and, in sync, waiting
for the round), computing, pushing. The first step is left out if there are others: it pays for connecting and building
graphs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..checks.path import serial_path, training_of
from ..history.columns import OK, Bools, Floats, Ints, Pushes
from ..history.model import History
from ..models import Classifier, join
from ..optimizers import clipped
from ..trained import batches_of, model_of
from ..workloads.serial import serial_training, union_gradient


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


POINTS = 50
"""At most so many losses of each curve are computed; between them the curve is a straight line."""


@dataclass(frozen=True, kw_only=True)
class Curves:
    """``losses`` by worker and of ``serial`` training, one for each step; NaN where nothing was read.

    Serial training takes the same number of updates from the same initial parameters: in sync the union batch of each
    round, in async as many batches of one worker's size as the workers pushed together. Losses are those on the whole
    training set, accuracies on the test set (None for a model without).
    """

    losses: dict[str, list[float]]
    accuracy: float | None
    serial_accuracy: float | None

    def as_dict(self) -> dict[str, Any]:
        """For losses.json; JSON has no NaN."""
        losses = {n: [v if np.isfinite(v) else None for v in values] for n, values in self.losses.items()}
        return {**asdict(self), "losses": losses}

    @property
    def summary(self) -> dict[str, float | None]:
        """For verdicts.json: what was reached in the end."""
        last = {name: values[-1] for name, values in self.losses.items() if values and np.isfinite(values[-1])}
        workers = [loss for name, loss in last.items() if name != "serial"]
        return {
            "loss": max(workers, default=None),
            "serial_loss": last.get("serial"),
            "accuracy": self.accuracy,
            "serial_accuracy": self.serial_accuracy,
        }


def curves_of(history: History) -> Curves | None:
    """The curves of a run that trains a model; None for a ledger."""
    if history.workload.is_ledger:
        return None
    model, data, layout = model_of(history.spec), history.data, history.layout
    steps = history.steps
    sync = layout.update == "sync"
    run, alone = training_of(history), {**history.spec, "workers": 1}
    if sync:
        path = serial_path(run, run.start, steps)
    else:
        gradient = union_gradient(model, data, batches_of(alone, data))
        path = serial_training(
            model,
            lambda theta, step: clipped(gradient(theta, step), layout.clip_norm),
            start=run.start,
            steps=steps * layout.workers,
            rule=run.rule,
        )[:: layout.workers]
    x, y = (None, None) if data is None else (data.train_x, data.train_y)
    thetas = {"serial": dict(enumerate(path))}
    for worker in history.workers:
        reads = worker.reads
        thetas[str(worker)] = {
            int(reads.step[index]): join(list(values), model.size) for index, values in sorted(reads.values.items())
        }
    losses = {}
    for name, by_step in thetas.items():
        known = [step for step in sorted(by_step) if step % max(1, -(-steps // POINTS)) == 0 or step == steps]
        with np.errstate(over="ignore", invalid="ignore"):  # of training that diverges
            found = [model.loss(np.asarray(by_step[step], np.float32), x, y) for step in known]
        losses[name] = np.interp(np.arange(steps + 1), known, found).tolist() if known else []
    accuracy = serial_accuracy = None
    whole = not history.gone  # else updates are missing by the faults' doing
    if data is not None and isinstance(model, Classifier) and whole:
        reached = [join(list(w.reads.values[i]), model.size) for w, i in history.finals if i in w.reads.values]
        accuracy = min(
            (model.accuracy(np.asarray(t, np.float32), data.test_x, data.test_y) for t in reached), default=None
        )
        serial_accuracy = model.accuracy(path[-1].astype(np.float32), data.test_x, data.test_y)
    return Curves(losses=losses, accuracy=accuracy, serial_accuracy=serial_accuracy)
