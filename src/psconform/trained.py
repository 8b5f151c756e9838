"""The workloads that really train, as a worker sees them: digits and quadratic. numpy only, loaded next to the probe.

The model is one flat vector, cut into as many equal slices as the trainer has variables (`models.split`). The gradient
comes from numpy, so that any trainer, in any framework, trains the same model and only the distribution is judged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .models import Batches, Data, Mlp, Model, Quadratic, Softmax, join, split

Vector = NDArray[np.float32]
DATA = "digits.npz"


def model_of(spec: dict[str, Any]) -> Model:
    """The model that ``spec`` names: a spec.json, or a manifest's workload as a dict."""
    if spec["workload"] == "quadratic":
        return Quadratic(size=100, mu=1.0 / float(spec["condition"]), L=1.0, seed=int(spec["seed"]))
    return Softmax() if spec["model"] == "softmax" else Mlp()


def batches_of(spec: dict[str, Any], data: Data | None) -> Batches | None:
    """Which samples each worker uses at each step; None for a model without samples."""
    if data is None:
        return None
    sizes = {name: int(spec[name]) for name in ("workers", "batch", "seed")}
    return Batches(samples=len(data.train_y), **sizes)


class Trained:
    """Initial values and gradients of one worker, each multiplied by ``rate``: learning rate / that of the trainer.

    A gradient is taken at the parameters read ``delay`` steps ago (the workload's own staleness, known and the same in
    every trainer), and weighted with the size of its batch (`Batches.weights`), so that a mean over the workers is the
    mean over their samples.
    """

    cells = None

    def __init__(self, spec: dict[str, Any], folder: Path | None) -> None:
        self.spec, self.folder = spec, folder
        self.model = model_of(spec)
        self.variables, self.rate = int(spec["variables"]), float(spec["rate"])
        self.slots = -(-self.model.size // self.variables)
        self._seen: deque[Sequence[Any]] = deque(maxlen=int(spec["delay"]) + 1)

    @cached_property
    def data(self) -> Data | None:
        """The samples; None for a model without."""
        if self.spec["workload"] == "quadratic":
            return None
        if self.folder is None:
            raise RuntimeError("workload digits needs the run folder that psconform makes")
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
            gradient = self.model.gradient(theta, self.data.train_x[ids], self.data.train_y[ids])
            # weighted in sync, where a round is put together; in async each batch is an update of its own
            weight = float(self.batches.weights(step)[worker]) if self.spec["update"] == "sync" else 1.0
        return [part.astype(np.float32) for part in split(gradient * np.float32(weight * self.rate), self.variables)]
