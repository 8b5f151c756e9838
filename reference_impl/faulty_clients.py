"""Clients, in-graph or model-parallel, that compute something else than workers between-graph would."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from psconform.models import Model
from psconform.probe import Probe

from .in_graph import InGraph, Tower
from .model_parallel import ModelParallel
from .shard import Tensor
from .trainer import Values


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
