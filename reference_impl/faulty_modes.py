"""Bugs of backup workers, of bounded staleness, and of a rate that depends on staleness."""

from __future__ import annotations

import time

from .faulty_shards import victim
from .quorum import QuorumShard, QuorumWorker
from .shard import Row, Shard, Tensor
from .trainer import Values, Worker


class LateApplied(QuorumWorker):
    """A gradient that was late is offered again, as if it had been computed at the version that is current now."""

    def push(self, step: int, values: Values, gradient: Values) -> tuple[bool, list[int]]:
        accepted, versions = super().push(step, values, gradient)
        while not accepted and self.read(step)[1][0] < self.config.steps:
            accepted, versions = super().push(step, values, gradient)
        return accepted, versions


class _QuorumMinusOne(QuorumShard):
    def quorum(self) -> int:
        return super().quorum() - 1


class QuorumMinusOne(QuorumWorker):
    shard_type = _QuorumMinusOne


class _Constant(Shard):
    def slowed(self, delta: Tensor, tau: Tensor) -> Tensor:
        del tau
        return delta


class TauIgnored(Worker):
    """The rate is constant, and one worker is so slow that its gradients are stale."""

    shard_type = _Constant

    def gradients(self, step: int, values: Values) -> Values:
        if self.index == victim(self.config)[0]:
            time.sleep(0.03)
        return super().gradients(step, values)


class SspOff(Worker):
    """One worker does not wait for the slowest, and another one is slow."""

    def _close(self, rows: list[Row], least: int) -> list[Row]:
        return rows if self.index == victim(self.config)[0] else super()._close(rows, least)

    def gradients(self, step: int, values: Values) -> Values:
        if self.index == (victim(self.config)[0] + 1) % self.config.workers:
            time.sleep(0.1)
        return super().gradients(step, values)
