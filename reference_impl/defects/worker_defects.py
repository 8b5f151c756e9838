"""Workers that break a promise, one subclass each."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..cluster import Tensor, tf
from ..modes.full_ps import FullShard
from ..modes.full_worker import FullWorker
from ..modes.top_k import TopK
from ..ps import Row
from ..worker import Values
from .shard_defects import LateShard, OutOfRound, strikes, victim

AGE = 50
"""Steps by which stale gradients are late."""


class RunAhead(FullWorker):
    """One worker waits for the round before the one that it has pushed to."""

    shard_type = OutOfRound

    def awaits(self, step: int) -> list[int]:
        return [step] * len(self.shards) if self._ahead(step + 1) else super().awaits(step)

    def push(self, step: int, values: Values, gradient: Values) -> tuple[str, list[int]]:
        outcome, versions = super().push(step, values, gradient)
        return ("ok", [step + 1] * len(versions)) if self._ahead(step + 1) else (outcome, versions)

    def _settled(self, rows: list[Row], version: int) -> list[Row]:
        return super()._settled(rows, version - 1 if self._ahead(version) else version)

    def _ahead(self, step: int) -> bool:
        return self.index == victim(self.config)[0] and 0 < step < self.config.steps


class TowerLeftOut(FullWorker):
    def averaged(self, gradients: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        return super().averaged(gradients[:-1])


class _Remembers(FullWorker):
    """Keeps what it read before, by shard."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.last: tuple[Values, list[int]] | None = None

    def read(self, step: int) -> tuple[Values, list[int]]:
        before, now = self.last, super().read(step)
        self.last = now
        if before is not None and step < self.config.steps and strikes(self.config, step):
            return self.mix(before, now)
        return now

    def mix(self, before: tuple[Values, list[int]], now: tuple[Values, list[int]]) -> tuple[Values, list[int]]:
        return before


class StaleCache(_Remembers):
    pass


class TornRead(_Remembers):
    def mix(self, before: tuple[Values, list[int]], now: tuple[Values, list[int]]) -> tuple[Values, list[int]]:
        return [*now[0][:-1], before[0][-1]], [*now[1][:-1], before[1][-1]]


class EarlyRelease(FullWorker):
    """Reads as soon as all shards but the last have committed; pushes only when that one has, too."""

    shard_type = LateShard

    def _build(self) -> None:
        last = self.shards[-1]
        assert isinstance(last, LateShard)
        last.late = True
        super()._build()

    def read(self, step: int) -> tuple[Values, list[int]]:
        if step == self.config.steps:
            self.pulled = self._all_settled(step)
        return super().read(step)

    def push(self, step: int, values: Values, gradient: Values) -> tuple[str, list[int]]:
        self._all_settled(step)
        _, versions = super().push(step, values, gradient)  # the last shard has it, though not yet in what is read
        return "ok", versions

    def _settled(self, rows: list[Row], version: int) -> list[Row]:
        if rows and min(self._versions(rows)[:-1]) >= version:
            return rows
        return super()._settled(rows, version)

    def _all_settled(self, version: int) -> list[Row]:
        return super()._settled([], version)


class LateToNextRound(FullWorker):
    """The counters of one gradient arrive in time, and its round is committed; what it adds comes with the next one."""

    held: Values | None = None

    def push(self, step: int, values: Values, gradient: Values) -> tuple[str, list[int]]:
        whose, when = victim(self.config)
        if (self.index, step) == (whose, min(when, self.config.steps - 2)):
            self.held = gradient
            return super().push(step, values, [np.zeros_like(x) for x in gradient])
        if self.held is not None:
            gradient, self.held = [x + late for x, late in zip(gradient, self.held, strict=True)], None
        return super().push(step, values, gradient)


class AckBeforeApply(FullWorker):
    """Says that a gradient is applied when it has merely been queued; it leaves with the next one."""

    held: tuple[int, Values, Values] | None = None

    def push(self, step: int, values: Values, gradient: Values) -> tuple[str, list[int]]:
        if self.held is not None:
            super().push(*self.held)
            self.held, self.pulled = None, []
        read_next = step + 1 < self.config.steps and self.reads_at(step + 1)
        if self.index == victim(self.config)[0] and strikes(self.config, step) and read_next:
            self.held = step, values, gradient
            return "ok", []
        return super().push(step, values, gradient)


class ReinitOnJoin(FullWorker):
    """The last worker overwrites the parameters, though not the counters, when it joins."""

    def _build(self) -> None:
        super()._build()
        self._overwrite = []
        for shard, theta in zip(self.shards, self._theta, strict=True):
            with shard.device():
                self._overwrite.append(shard.section.execute(lambda s=shard, t=theta: _overwrite(s, t)))

    def join(self) -> None:
        super().join()
        if self.index == self.config.workers - 1:
            initial = [self.probe.initial() for _ in self.shards]
            self.session.run(self._overwrite, dict(zip(self._theta, initial, strict=True)))
            self.probe.initialised(initial)


def _overwrite(shard: FullShard, theta: Tensor) -> Tensor:
    rows = shard.state.read_value()
    thetas = tf.stack([theta] * shard.shape[0])
    with tf.control_dependencies([shard.state.assign(tf.concat([thetas, rows[:, shard.config.slots :]], 1))]):
        return tf.constant(True)


class ApplyBeforeInit(FullWorker):
    """The last worker makes do with zeros; the chief, who comes late, writes the initial parameters over its work."""

    def _build(self) -> None:
        super()._build()
        self._write = []
        for shard, theta in zip(self.shards, self._theta, strict=True):
            with shard.device():
                self._write.append(shard.section.execute(lambda s=shard, t=theta: _overwrite(s, t)))
        self._pushed = [tf.reduce_max(shard._totals()) for shard in self.shards]

    def join(self) -> None:
        zeros = [np.zeros(self.config.slots, np.float32) for _ in self.shards]
        if self.index == self.config.workers - 1:
            self._run_initialise(*zeros)
        elif self.index:
            super().join()
        else:
            self._come_late()

    def _come_late(self) -> None:
        while not all(self._run_initialised()) or min(self.session.run(self._pushed)) < 1:
            time.sleep(0.005)
        initial = [self.probe.initial() for _ in self.shards]
        self.session.run(self._write, dict(zip(self._theta, initial, strict=True)))
        self.probe.initialised(initial)


class RetryTwice(FullWorker):
    """The answer to one push is taken for lost; it is sent again, to servers that do not ask whether they have it."""

    def _build(self) -> None:
        super()._build()
        self._again = []
        for shard, x in zip(self.shards, self._x, strict=True):
            less = tf.pad(x[: self.config.slots], [[0, shard.shape[1] - self.config.slots]])
            with shard.device():
                self._again.append(shard.section.execute(lambda s=shard, d=less: _subtract(s, d)))

    def push(self, step: int, values: Values, gradient: Values) -> tuple[str, list[int]]:
        answer = super().push(step, values, gradient)
        if (self.index, step) == victim(self.config):
            self.probe.push(step, 1)
            self.session.run(self._again)
        return answer


def _subtract(shard: FullShard, delta: Tensor) -> Tensor:
    """From both rows: the one that workers read, and the one that may be made of it already."""
    with tf.control_dependencies([shard.state.assign_sub(tf.stack([delta] * shard.shape[0]))]):
        return tf.constant(True)


class _Forgetful(TopK):
    def compress(self, gradients: Values) -> Values:
        sent = super().compress(gradients)
        for kept in self.residual:
            kept[:] = 0.0
        return sent


class ForgetResidual(FullWorker):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.compressor = _Forgetful(len(self.shards), self.config.slots)


class NanSwallowed(FullWorker):
    """Puts zeros in the place of what is not finite, and reports nothing."""

    def gradients(self, step: int, values: Values) -> Values:
        found = super().gradients(step, values)
        return [np.where(np.isfinite(gradient), gradient, np.float32(0)) for gradient in found]


class ReuseSample(FullWorker):
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


class StaleGradients(FullWorker):
    """Gradients are computed at what was read ``AGE`` steps ago."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.old: deque[Values] = deque(maxlen=AGE + 1)

    def gradients(self, step: int, values: Values) -> Values:
        self.old.append([value.copy() for value in values])
        return super().gradients(step, self.old[0])


class LeavesTheRound(FullWorker):
    """Out of data it is done, and the others wait for it in their next round (tensorflow#20342)."""

    def run_dry(self, values: Values) -> None:
        del values


class DataAgain(FullWorker):
    """Out of data it begins again, and goes on to the last step."""

    def train(self) -> None:
        self.probe.due[self.index] = self.config.steps
        super().train()
