"""What training should give (C1): serial SGD on the union batch of all workers, in float64, and how near to expect it.

A synchronous run in float32 drifts from serial SGD like a random walk of roundings. Measured for `Softmax` and `Mlp` on
the digits, 1 to 4 workers, gradients summed in random order, 300 to 3000 steps, in numpy (tests/training.py) and in
TensorFlow 2.21 on the CPU: the relative distance after k steps was at most

    2.2e-8 to 4e-8 x sqrt(k)      learning rates 1e-4 to 1, union batches of 64 (largest: 5.7e-7 after 600 steps)
    2e-7 x sqrt(k)                union batches of 16 at learning rate 1 (`Mlp`; `Softmax` 3e-8)
    6.5e-8 x sqrt(k)              learning rate 1e-5: updates near the last bit are rounded alike, step after step

`DRIFT` x sqrt(k + 1) leaves a factor of 2.5 to 20. One gradient lost in 600 steps, of one of four workers, is 1e-3 at
once and still 2e-4 after 300 further steps, where 1.2e-5 is allowed. A learning rate at which training itself is
unstable (`Mlp` at 2, `Softmax` at 4) multiplies every rounding, and no tolerance on the path can hold; there, and to
name the step that is wrong, C1 judges each step from where the run itself stood.

With momentum, Adam and a schedule (`Rule`) the same tolerances hold. Measured in numpy for the same models and
`Quadratic`, 2 and 4 workers, 300 steps, at the usual learning rates (momentum up to ten times those): the distance was
2.3e-8 to 5.5e-8 x sqrt(k), that of a step 2.5e-8 to 7.8e-8. Adam at larger rates is another matter: it makes a step
of full size of any gradient, so also of one near its epsilon that is all rounding (`Mlp` at 0.01: 7.5e-7 in the first
step, at 0.05 3.7e-6). C1 then adds what float32 makes of the gradient to the tolerance of a step, and does not judge
the path, for there a nudge of the parameters grows likewise.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..models import Batches, Data, Model, Vector
from ..optimizers import BETA_1, BETA_2, EPSILON, MOMENTS, MOMENTUM, SCHEDULES

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """An optimizer and its learning rate with a schedule, of those in psconform.optimizers.

    It holds no state: that is what the caller keeps, the moments and the number of updates.
    """

    learning_rate: float
    optimizer: str = "sgd"
    schedule: str = "constant"

    @property
    def plain(self) -> bool:
        """There is no state beside the parameters."""
        return self.optimizer == "sgd" and self.schedule == "constant"

    def rate(self, updates: int) -> float:
        """The learning rate after so many updates."""
        return self.learning_rate * SCHEDULES[self.schedule](updates)

    def begin(self, size: int) -> Array:
        """The moments before the first update, float64[moments, size]."""
        return np.zeros((len(MOMENTS[self.optimizer]), size))

    def update(self, moments: Array, gradient: Vector, updates: int) -> tuple[Array, Array]:
        """What the update with this gradient takes from the parameters, float64[size], and the moments after it.

        ``updates`` is the number of those before it.
        """
        rate = self.rate(updates)
        if self.optimizer == "sgd":
            return np.asarray(rate * gradient, np.float64), moments
        if self.optimizer == "momentum":
            after = MOMENTUM * moments + gradient
            return rate * after[0], after
        first = BETA_1 * moments[0] + (1 - BETA_1) * gradient
        second = BETA_2 * moments[1] + (1 - BETA_2) * gradient**2
        rate *= np.sqrt(1 - BETA_2 ** (updates + 1)) / (1 - BETA_1 ** (updates + 1))
        return rate * first / (np.sqrt(second) + EPSILON), np.stack([first, second])


Trajectory = NDArray[np.float64]
DRIFT = 5e-7
"""Tolerance of the distance from serial SGD in float32, times sqrt(step + 1); TF32 and bfloat16 are not float32."""
STEP_ERROR = 1e-6
"""Tolerance of one step in float32. Measured: 2.3e-8 to 4.1e-8 at learning rates up to 1, 1.7e-7 at 2."""


Gradient = Callable[[Vector, int], Vector]
"""The gradient at some parameters, of a step; in the dtype of the parameters."""


def union_gradient(model: Model, data: Data | None, batches: Batches | None) -> Gradient:
    """The mean gradient over the union batch of a step.

    ``data`` and ``batches`` are None for a model without samples (`Quadratic`).
    """

    def gradient(theta: Vector, step: int) -> Vector:
        if data is None or batches is None:
            return model.gradient(theta, None, None)
        _, ids = batches.union(step)
        return data.gradient(model, theta, ids)

    return gradient


def serial_training(
    model: Model,
    gradient: Gradient,
    *,
    start: Vector,
    steps: int,
    rule: Rule,
    delay: int = 0,
    skipped: Collection[int] = (),
) -> Trajectory:
    """Parameters before each step and after the last, float64[steps + 1, size].

    A gradient is taken where training stood ``delay`` steps before. Steps that are ``skipped`` change nothing.
    """
    if steps < 0 or delay < 0:
        raise ValueError(f"steps and delay must be at least 0, got {steps} and {delay}")
    path, moments, updates = np.empty((steps + 1, model.size)), rule.begin(model.size), 0
    path[0] = start
    with np.errstate(over="ignore", invalid="ignore"):  # divergence is a result
        for step in range(steps):
            now = gradient(path[max(0, step - delay)], step)
            if step in skipped:
                path[step + 1] = path[step]
                continue
            change, moments = rule.update(moments, now, updates)
            path[step + 1], updates = path[step] - change, updates + 1
    return path


def drift_tolerance(steps: int) -> NDArray[np.float64]:
    """How far from serial SGD float32 may be after 0, 1, ..., steps steps: DRIFT x sqrt(k + 1), float64[steps + 1]."""
    return DRIFT * np.sqrt(np.arange(1, steps + 2, dtype=np.float64))
