"""Trainers of a model that break one promise each."""

from __future__ import annotations

from collections import deque

import numpy as np

from .bugs import WHEN, WHO, Weighted
from .simulate import Trainer


class Training(Trainer):
    """Keeps its promises; one variable per ps, as models need it."""

    workload = "digits"


class LosesGradient(Weighted, Training):
    """One gradient of one worker is lost on its way."""

    factor = 0.0


class StartsElsewhere(Training):
    """Initialises something else than it was given."""

    def initialise(self):
        self.theta[0] += np.float32(0.01)
        super().initialise()


class Stale(Training):
    """Computes gradients at what it read ``age`` steps ago."""

    age = 4

    def compute(self, worker, step, values):
        self.old = getattr(self, "old", {})
        mine = self.old.setdefault(worker, deque(maxlen=self.age + 1))
        mine.append(values)
        return super().compute(worker, step, mine[0])


class Altered(Training):
    """One worker uses other samples than it was given, once."""

    def samples(self, given):
        return given

    def compute(self, worker, step, values):
        probe = self.probes[worker]
        if (worker, step) != (WHO, WHEN):
            return super().compute(worker, step, values)
        return np.stack(probe.gradients(step, values, self.samples(probe.samples(step))))


class Reuses(Altered):
    def samples(self, given):
        return [*given[:-1], given[0]]


class Skips(Altered):
    def samples(self, given):
        return given[:-1]


class Invents(Altered):
    def samples(self, given):
        return [*given[:-1], 0]


class SecretBatch(Training):
    """Computes on its own, so that no samples are recorded."""

    def compute(self, worker, step, values):
        probe = self.probes[worker]
        return np.stack([np.zeros(probe.slots, np.float32) for _ in self.shards])


class Diverges(Training):
    """One gradient is infinite."""

    def compute(self, worker, step, values):
        found = super().compute(worker, step, values)
        return np.full_like(found, np.inf) if (worker, step) == (WHO, WHEN) else found
