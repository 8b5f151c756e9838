"""Bugs of modes: backup workers, staleness, in-graph and model-parallel clients, and all-reduce."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from psconform.models import Model
from psconform.probe import Probe

from ..cluster import Tensor, tf
from ..modes import all_reduce
from ..modes.all_reduce import Replica
from ..modes.backup_workers import QuorumShard, QuorumWorker
from ..modes.full_ps import FullConfig, FullShard
from ..modes.full_worker import FullWorker
from ..modes.in_graph import InGraph, Tower
from ..modes.model_parallel import ModelParallel
from ..ps import Row
from ..worker import Values
from .shard_defects import victim


class LateApplied(QuorumWorker):
    """A gradient that was late is offered again, as if it had been computed at the version that is current now."""

    def push(self, step: int, values: Values, gradient: Values) -> tuple[str, list[int]]:
        outcome, versions = super().push(step, values, gradient)
        while outcome == "failed" and self.read(step)[1][0] < self.config.steps:
            outcome, versions = super().push(step, values, gradient)
        return outcome, versions


class _QuorumMinusOne(QuorumShard):
    def __init__(self, index: int, config: FullConfig) -> None:
        super().__init__(index, config)
        self.per_round -= 1


class QuorumMinusOne(QuorumWorker):
    shard_type = _QuorumMinusOne


class _Constant(FullShard):
    def slowed(self, delta: Tensor, tau: Tensor) -> Tensor:
        del tau
        return delta


class TauIgnored(FullWorker):
    """The rate is constant, and one worker is so slow that its gradients are stale."""

    shard_type = _Constant

    def gradients(self, step: int, values: Values) -> Values:
        if self.index == victim(self.config)[0]:
            time.sleep(0.03)
        return super().gradients(step, values)


class SspOff(FullWorker):
    """One worker does not wait for the slowest, and another one is slow."""

    def _close(self, rows: list[Row], least: int) -> list[Row]:
        return rows if self.index == victim(self.config)[0] else super()._close(rows, least)

    def gradients(self, step: int, values: Values) -> Values:
        if self.index == (victim(self.config)[0] + 1) % self.config.workers:
            time.sleep(0.1)
        return super().gradients(step, values)


class _RepeatingTower(Tower):
    first: Probe

    def gradients(self, step: int, values: Values) -> Values:
        samples = self.first.samples(step) if self.index == self.config.workers - 1 else None
        return self.probe.gradients(step, values, samples)


class RepeatsBatch(InGraph):
    """The last tower is fed the samples of the first."""

    def _towers(self, probes: Sequence[Probe]) -> Sequence[Tower]:
        towers = [_RepeatingTower(probe, self.config, self.shards) for probe in probes]
        for tower in towers:
            tower.first = probes[0]
        return towers


class DetachedSlice(ModelParallel):
    """The last worker's gradient comes from a loss to which the others contribute nothing."""

    def gradients(self, model: Model, thetas: list[list[Tensor]]) -> list[list[Tensor]]:
        parts = self.parts(model, thetas)
        alone = self.loss(model, [*(tf.zeros_like(part) for part in parts[:-1]), parts[-1]], thetas)
        return [*super().gradients(model, thetas)[:-1], self.derive(alone, thetas[-1])]


class SkipExchange(Replica):
    """The last replica applies its own gradient in place of the reduced one, once."""

    def step(self, step: int, gradient: all_reduce.Values) -> None:
        if self.probe.index != self.workers - 1 or step != self.probe.steps // 3:
            return super().step(step, gradient)
        before = self.read()
        super().step(step, gradient)
        self.theta.assign(before - gradient * np.float32(self.weight))
        return None


class OwnInit(Replica):
    """Each replica initialises for itself, and none takes the chief's values."""

    def initial(self) -> all_reduce.Values:
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
