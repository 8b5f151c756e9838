"""The workloads that really train, as a worker sees them: digits and quadratic. numpy only, loaded next to the probe.

The model is one flat vector, cut into as many equal slices as the trainer has variables (`models.split`). The gradient
comes from numpy, so that any trainer, in any framework, trains the same model and only the distribution is judged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

if __package__:
    from .models import Batches, Data, Mlp, Model, Quadratic, Softmax, join, split
    from .probe import MODEL, SAMPLES, Workload, workload, workload_of
else:  # the three files stand alone, in one folder
    from models import Batches, Data, Mlp, Model, Quadratic, Softmax, join, split  # type: ignore
    from probe import MODEL, SAMPLES, Workload, workload, workload_of  # type: ignore

Vector = NDArray[np.float32]
DATA = "digits.npz"


def model_of(spec: Mapping[str, Any]) -> Model:
    """The model that ``spec`` names: a spec.json, or a manifest's workload as a dict."""
    kind = workload_of(spec["workload"])
    if not issubclass(kind, Trained):
        raise ValueError(f"workload {kind.name} trains no model")
    return kind.model_of(spec)


def batches_of(spec: Mapping[str, Any], data: Data | None) -> Batches | None:
    """Which samples each worker uses at each step; None for a model without samples."""
    if data is None:
        return None
    sizes = {name: int(spec[name]) for name in ("workers", "batch", "seed")}
    return Batches(samples=len(data.train_y), **sizes)


class Trained(Workload):
    """A workload that trains a model; a subclass says which, in ``model_of``.

    Initial values and gradients of one worker, each multiplied by ``rate``: learning rate / that of the trainer.

    A gradient is taken at the parameters read ``delay`` steps ago (the workload's own staleness, known and the same in
    every trainer), and weighted with the size of its batch (`Batches.weights`), so that a mean over the workers is the
    mean over their samples.
    """

    shows = frozenset((MODEL,))
    options: tuple[str, ...] = ("learning_rate", "delay", "optimizer", "schedule", "clip_norm", "clip_when")
    most = 100_000  # full vectors would fill the disk

    @classmethod
    def model_of(cls, spec: Mapping[str, Any]) -> Model:
        """The model, of a spec.json or a manifest's workload as a dict; the same for the same one everywhere."""
        raise NotImplementedError

    @classmethod
    def of(cls, spec: Mapping[str, Any], folder: Path | None) -> Trained:
        """See `Workload`."""
        return cls(spec, folder)

    def __init__(self, spec: Mapping[str, Any], folder: Path | None) -> None:
        self.spec, self.folder = spec, folder
        self.model = self.model_of(spec)
        self.variables, self.rate = int(spec["variables"]), float(spec["rate"])
        self.slots = -(-self.model.size // self.variables)
        self._seen: deque[Sequence[Any]] = deque(maxlen=int(spec["delay"]) + 1)

    @cached_property
    def data(self) -> Data | None:
        """The samples; None for a model without."""
        if SAMPLES not in self.shows:
            return None
        if self.folder is None:
            raise RuntimeError(f"workload {self.name} needs the run folder that psconform makes")
        return Data.load(self.folder / DATA)

    @cached_property
    def batches(self) -> Batches | None:
        """Which samples are whose."""
        return batches_of(self.spec, self.data)

    def initial(self, variable: int) -> Vector:
        """The slice of one variable."""
        if not 0 <= variable < self.variables:
            raise ValueError(f"variable {variable} of {self.variables}: this workload has one variable per ps")
        return split(self.model.initial(int(self.spec["seed"])), self.variables)[variable].astype(np.float32)

    def samples(self, worker: int, step: int) -> NDArray[np.int64] | None:
        """Ids of the samples that are due, each once per epoch over all workers; None for a model without samples."""
        return None if self.batches is None else self.batches.of(worker, step)[1]

    def gradients(
        self, worker: int, step: int, values: Sequence[Any] | None, samples: Sequence[int] | None
    ) -> list[Vector]:
        """One float32[slots] per variable."""
        if values is None or len(values) != self.variables:
            raise ValueError(f"gradients of this workload need the values of its {self.variables} variables")
        self._seen.append(values)
        flat = [np.asarray(v, np.float32).reshape(-1) for v in self._seen[0]]
        theta = join(flat, self.model.size).astype(np.float32)
        if self.data is None or self.batches is None or samples is None:
            gradient, weight = self.model.gradient(theta, None, None), 1.0
        else:
            ids = np.asarray(samples, np.int64)
            gradient = self.data.gradient(self.model, theta, ids)
            weight = self._weight(worker, step, ids)
        return [part.astype(np.float32) for part in split(gradient * np.float32(weight * self.rate), self.variables)]

    def _weight(self, worker: int, step: int, ids: NDArray[np.int64]) -> float:
        """What makes the mean over the workers one over samples, where a round is put together of those dealt out.

        A worker that chooses its samples itself does not know how many the others have, and a trainer that weighs
        gradients does that itself.
        """
        assert self.batches is not None
        sync = self.spec["update"] == "sync" and not self.spec.get("weighted")
        dealt = sync and np.array_equal(ids, self.batches.of(worker, step)[1])
        return float(self.batches.weights(step)[worker]) if dealt else 1.0


@workload
class Digits(Trained):
    """Softmax regression or a small MLP on handwritten digits."""

    name = "digits"
    about = "softmax regression or a small MLP on handwritten digits, against serial SGD"
    shows = frozenset((MODEL, SAMPLES))
    options = (*Trained.options, "model", "batch")
    learning_rates: Mapping[str, float] = {"sgd": 0.1, "momentum": 0.01, "adam": 0.001}  # momentum acts tenfold

    @classmethod
    def model_of(cls, spec: Mapping[str, Any]) -> Model:
        """See `Trained`."""
        return Softmax() if spec["model"] == "softmax" else Mlp()


@workload
class QuadraticLoss(Trained):
    """A quadratic whose optimum and curvatures are known."""

    name = "quadratic"
    about = "a quadratic with known optimum and condition number: the rate of convergence against theory"
    options = (*Trained.options, "condition")
    learning_rates: Mapping[str, float] = {"sgd": 0.02, "momentum": 0.002, "adam": 0.01}

    @classmethod
    def model_of(cls, spec: Mapping[str, Any]) -> Model:
        """See `Trained`."""
        return Quadratic(size=100, mu=1.0 / float(spec["condition"]), L=1.0, seed=int(spec["seed"]))
