"""Replicas that break a promise, one subclass each."""

from __future__ import annotations

from typing import Any

import numpy as np

from .replica import Replica, Values


class SkipExchange(Replica):
    """The last replica applies its own gradient in place of the reduced one, once."""

    def step(self, step: int, gradient: Values) -> None:
        if self.probe.index != self.workers - 1 or step != self.probe.steps // 3:
            return super().step(step, gradient)
        before = self.read()
        super().step(step, gradient)
        self.theta.assign(before - gradient * np.float32(self.weight))
        return None


class OwnInit(Replica):
    """Everybody initialises, nobody takes the chief's."""

    def initial(self) -> Values:
        return self.probe.initial()

    def _initial_step(self, mine: Any) -> None:
        self.summed(mine)
        self.theta.assign(mine)


class SkipAverage(Replica):
    """The last replica keeps its own parameters after one exchange."""

    def average(self, step: int) -> None:
        before = self.read()
        super().average(step)
        if self.probe.index == self.workers - 1 and step + 1 == self.local_steps:
            self.theta.assign(before)


class SumOfSteps(Replica):
    """An exchange adds up what all replicas have changed."""

    def share(self) -> float:
        return 1.0


REPLICAS: dict[str, type[Replica]] = {
    "": Replica,
    "skip-exchange": SkipExchange,
    "own-init": OwnInit,
    "skip-average": SkipAverage,
    "sum-of-steps": SumOfSteps,
}
