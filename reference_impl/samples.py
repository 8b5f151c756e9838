"""Workers that compute the wrong gradient: of other samples, or at old parameters."""

from __future__ import annotations

from collections import deque
from typing import Any

from .faulty_shards import strikes, victim
from .trainer import Values, Worker

AGE = 50
"""Steps by which stale gradients are late."""


class ReuseSample(Worker):
    """One worker takes one sample twice in each step that strikes, in place of another."""

    def gradients(self, step: int, values: Values) -> Values:
        samples = self.probe.samples(step)
        if samples and self.index == victim(self.config)[0] and strikes(self.config, step):
            samples = self.altered(samples)
        return self.probe.gradients(step, values, samples)

    def altered(self, samples: list[int]) -> list[int]:
        return [*samples[:-1], samples[0]]


class SkipSample(ReuseSample):
    def altered(self, samples: list[int]) -> list[int]:
        return samples[:-1]


class StaleGradients(Worker):
    """Gradients are computed at what was read ``AGE`` steps ago."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.old: deque[Values] = deque(maxlen=AGE + 1)

    def gradients(self, step: int, values: Values) -> Values:
        self.old.append([value.copy() for value in values])
        return super().gradients(step, self.old[0])
