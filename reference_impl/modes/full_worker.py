"""A worker for all options of between-graph training: top-k compression, bounded staleness, and towers on its GPUs."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from psconform.layout import Task
from psconform.optimizers import CLIP_WHEN, clipped
from psconform.probe import Probe

from ..cluster import CALL_TIMEOUT_S, Cluster, Tensor, new_server, session_config, tf, tf1
from ..ps import Row
from ..worker import Values, Worker
from . import towers
from .full_ps import FullConfig, FullShard
from .top_k import TopK

POLL_S = 0.002
"""Between two looks of a worker that waits for slower ones (``--staleness``)."""


class FullWorker(Worker):
    """One worker with all options."""

    shard_type: type[FullShard] = FullShard
    config: FullConfig

    def __init__(self, cluster: Cluster, probe: Probe, config: FullConfig) -> None:
        task = Task("worker", probe.index)
        cpus = config.gpus if config.emulated else 0
        server = new_server(cluster, task, session_config(task, to_ps=True, cpus=cpus))
        super().__init__(cluster, probe, config, server)

    def _own(self, probe: Probe, config: Any, shards: list[Any]) -> None:
        super()._own(probe, config, shards)
        self.compressor = None if config.compression == "none" else TopK(len(self.shards), config.slots)
        self.refusals: list[int] = [0] * len(self.shards)  # gradients of this worker that each shard found not finite

    def _gradients(self) -> list[Tensor]:
        """With GPUs, those of a tower on each; what follows the gradient in a message is none."""
        if not self.config.gpus:
            return super()._gradients()
        slots = self.config.slots
        self._theta, self._x = [tf1.placeholder(tf.float32, [slots]) for _ in self.shards], self._inputs()
        on = towers.devices(self.index, self.config.gpus, emulated=self.config.emulated)
        self._towers = towers.gradients(self._theta, [x[:slots] for x in self._x], on)
        means = self.averaged(self._towers)
        return [tf.concat([mean, x[slots:]], 0) for mean, x in zip(means, self._x, strict=True)]

    def averaged(self, gradients: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """What is pushed, by shard, of the gradients of the towers."""
        return towers.averaged(gradients)

    def train(self) -> None:
        """Train, and before that record where the towers are."""
        self._say_devices()
        super().train()

    def _say_devices(self) -> None:
        if self.config.gpus:
            zeros = {theta: np.zeros(self.config.slots, np.float32) for theta in self._theta}
            self.probe.devices(towers.placed(self.session, self._towers, zeros))

    def gradients(self, step: int, values: Values) -> Values:
        """What is to be pushed: the gradient of each shard, all of them clipped together; or its largest entries."""
        found = super().gradients(step, values)
        if self.config.clip_norm and self.config.clip_when == CLIP_WHEN[0]:
            found = np.split(clipped(np.concatenate(found), self.config.clip_norm), len(found))
        return found if self.compressor is None else self.compressor.compress(found)

    def read(self, step: int) -> tuple[Values, list[int]]:
        """Parameters and version of each shard."""
        found = super().read(step)
        self._refused(self._answer)
        return found

    def _settled(self, rows: list[Row], version: int) -> list[Row]:
        """These rows, or newer ones: with ``--staleness``, no worker may be too far behind them."""
        rows, bound = super()._settled(rows, version), self.config.staleness
        return rows if bound is None or version >= self.config.steps else self._close(rows, version - bound)

    def _close(self, rows: list[Row], least: int) -> list[Row]:
        """These rows, or newer ones in which every shard has ``least`` gradients of each worker (SSP: Ho et al. 2013).

        By asking again and again: what is true stands in the row that is read, so no wake-up can be lost.
        """
        deadline = time.monotonic() + CALL_TIMEOUT_S
        while min(shard.slowest(row) for shard, row in zip(self.shards, rows, strict=True)) < least:
            if time.monotonic() > deadline:
                raise TimeoutError(f"worker:{self.index}: a worker has not pushed {least} gradients in time")
            time.sleep(POLL_S)
            rows = self.run_read()
        return rows

    def awaits(self, step: int) -> list[int]:
        """The version that each shard must have, or if staleness matters the one that was read."""
        return self.seen if self.config.aware else super().awaits(step)

    def push(self, step: int, values: Values, gradient: Values) -> tuple[str, list[int]]:
        """Push to every shard; returns (outcome to record, versions)."""
        outcome, versions = super().push(step, values, gradient)
        return self.outcome(step, outcome, self._refused(self._answer)), versions

    def _refused(self, rows: list[Row]) -> list[int]:
        """Shards that have found a gradient of this worker not finite since they were last asked."""
        before = self.refusals
        self.refusals = [shard.refused(row, self.index) for shard, row in zip(self.shards, rows, strict=True)]
        return [i for i, (was, now) in enumerate(zip(before, self.refusals, strict=True)) if now > was]

    def outcome(self, step: int, outcome: str, refusing: list[int]) -> str:
        """What to record of the push of ``step``; one that these shards found not finite goes into the log, too.

        Unknown, if only some shards found it so: each decides for itself, and the others have applied their part.
        """
        if not refusing:
            return outcome
        names = ", ".join(f"ps:{shard}" for shard in refusing)
        logging.warning("worker:%d: gradient of step %d is not finite, rejected by %s", self.index, step, names)
        return "failed" if len(refusing) == len(self.shards) else "unknown"

    def finish(self) -> None:
        """Record what was not sent, wait for the others, and read once more."""
        if self.compressor is not None:
            self.probe.residual(self.compressor.residual)
        super().finish()
