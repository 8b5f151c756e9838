"""What a run that trains a model reached: losses over the steps, and the accuracy, beside serial training."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..history.model import History
from ..models import Classifier, join
from ..trained import batches_of, model_of
from ..workloads.serial import serial_training
from ..workloads.update_rules import Rule

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
    union = {**history.spec, "workers": layout.workers if sync else 1}
    path = serial_training(
        model,
        data,
        batches_of(union, data),
        start=model.initial(history.workload.seed),
        steps=steps if sync else steps * layout.workers,
        rule=Rule(learning_rate=history.workload.learning_rate, optimizer=layout.optimizer, schedule=layout.schedule),
    )[:: 1 if sync else layout.workers]
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
    if data is not None and isinstance(model, Classifier):
        reached = [join(list(w.reads.values[i]), model.size) for w, i in history.finals if i in w.reads.values]
        accuracy = min(
            (model.accuracy(np.asarray(t, np.float32), data.test_x, data.test_y) for t in reached), default=None
        )
        serial_accuracy = model.accuracy(path[-1].astype(np.float32), data.test_x, data.test_y)
    return Curves(losses=losses, accuracy=accuracy, serial_accuracy=serial_accuracy)
