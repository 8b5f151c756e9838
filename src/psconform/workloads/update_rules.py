"""The update rules of `psconform.optimizers` in float64: what serial training does with a gradient."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..models import Vector
from ..optimizers import BETA_1, BETA_2, EPSILON, HALVE_EVERY, MOMENTS, MOMENTUM

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """An optimizer (``sgd``, ``momentum``, ``adam``) and its learning rate with a schedule (``constant``, ``halving``).

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
        return self.learning_rate * (0.5 ** (updates // HALVE_EVERY) if self.schedule == "halving" else 1.0)

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
