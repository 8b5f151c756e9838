"""Healthy trainers that a judge could take for broken ones: each was, once."""

from __future__ import annotations

import msgspec
import numpy as np

from psconform.probe import UNIT

from .bugs import SentTwiceAppliedOnce, SentTwiceExactly
from .replicas import Ring
from .simulate import Trainer


class Retries(SentTwiceAppliedOnce):
    """The answer to the second attempt tells the version of that moment, not of the apply."""


class LosesOne(Trainer):
    level = ("delivery", "at-most-once")

    def weight(self, worker, step, variable, attempt):
        return 0.0 if (worker, step) == (1, 3) else 1.0


class AppliesRetries(SentTwiceExactly):
    level = ("delivery", "at-least-once")


class PromisesNoReduction(Trainer):
    """It averages, and does not say so: its unit is that of a sum."""

    level = ("reduction", "none")

    def _workload(self):
        return msgspec.structs.replace(super()._workload(), unit=UNIT)


class ByVariable(Trainer):
    """Variables of one ps change one by one, its version with the last of them."""

    level = ("read_atomicity", "per-variable")

    def push(self, worker, step, gradient, attempt):
        versions = []
        for server in self.servers:
            mine = [variable for variable, shard in enumerate(self.shards) if shard == server]
            for variable in mine:
                self.applied[variable].append((worker, step))
                amount = np.array(gradient)
                if decay := self.decay(server):
                    amount = amount + self.theta[variable] * np.float32(decay)
                self.theta[variable] -= amount
                if variable == mine[-1]:
                    self.version[server] += 1
                    versions.append(self.version[server])
                yield False
        return versions

    def _pull(self):
        values, versions = [np.zeros(0, np.float32) for _ in self.shards], []
        for server in self.servers:
            mine = [variable for variable, shard in enumerate(self.shards) if shard == server]
            for variable in mine:
                values[variable] = self.theta[variable].copy()
                if variable == mine[-1]:
                    versions.append(self.version[server])
                yield False
        return values, versions


class RoundsTheNonce(Ring):
    """Its average multiplies by 1/N, which float32 does not hold exactly."""

    def averaged(self, worker, step, replicas):
        return np.sum(replicas, axis=0, dtype=np.float32) * np.float32(1 / self.workers)
