"""Parameter servers that break a promise, one subclass each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..cluster import Tensor, tf
from ..modes.full_ps import FullConfig, FullShard
from ..ps import Offer

EVERY = 5
"""Defects of reading strike at each step s > 0 with s % EVERY == 3."""


def victim(config: FullConfig) -> tuple[int, int]:
    """(worker, step) that a defect of a single gradient strikes, drawn from the seed."""
    return config.seed % config.workers, (config.seed // config.workers + config.steps // 2) % config.steps


def strikes(config: FullConfig, step: int) -> bool:
    return step == 1 if config.steps < EVERY else step % EVERY == 3


class _Alters(FullShard):
    """Takes something else for the gradient that was sent."""

    def push(self, message: Tensor, worker: int, *, pull: bool) -> Tensor:
        slots = self.config.slots
        with self.device():
            altered = self.altered(message[:slots], worker, message[-2])
            return super().push(tf.concat([altered, message[slots:]], 0), worker, pull=pull)

    def altered(self, gradient: Tensor, worker: int, step: Tensor) -> Tensor:
        """What is taken in place of a weighted gradient, float32[slots]."""
        raise NotImplementedError


class _Scaled(_Alters):
    """One gradient counts ``factor`` times."""

    factor = 1.0

    def altered(self, gradient: Tensor, worker: int, step: Tensor) -> Tensor:
        whose, when = victim(self.config)
        if worker != whose:
            return gradient
        return tf.where(tf.equal(step, float(when)), self.factor * gradient, gradient)


class DropGradient(_Scaled):
    factor = 0.0


class ApplyTwice(_Scaled):
    factor = 2.0


class LoseShardUpdate(_Scaled):
    factor = 0.0

    def altered(self, gradient: Tensor, worker: int, step: Tensor) -> Tensor:
        return super().altered(gradient, worker, step) if self.index == 0 else gradient


class _Every500th(FullShard):
    """Of all gradients that a ps accepts, of whatever worker, every 500th counts ``factor`` times."""

    factor = 1.0

    def _transition(self, offer: Offer, *, pull: bool) -> Tensor:
        strikes = tf.equal(tf.reduce_max(self._totals()) % 500, 499)
        delta = tf.where(strikes, offer.delta * self.columns(self.factor, 1.0), offer.delta)
        return super()._transition(replace(offer, delta=delta), pull=pull)


class FlipSign(_Every500th):
    factor = -1.0


class Scale500th(_Every500th):
    factor = 1.5


class SumNotMean(FullShard):
    def weight(self) -> float:
        return 1.0


class WrongN(FullShard):
    def weight(self) -> float:
        return 1.0 / (self.config.workers + 1)


class UnequalWeights(_Alters):
    """Weighs gradients by batch shares 1 : 2 : 3 ..."""

    def altered(self, gradient: Tensor, worker: int, step: Tensor) -> Tensor:
        return gradient * (2.0 * (worker + 1) / (self.config.workers + 1))


class OutOfRound(FullShard):
    """Takes a gradient in whatever round is open."""

    def is_next(self, applied: Tensor, version: Tensor, step: Tensor) -> Tensor:
        del version
        return tf.equal(applied, step)


class EarlyCommit(OutOfRound):
    def __init__(self, index: int, config: FullConfig) -> None:
        super().__init__(index, config)
        self.per_round = config.workers - 1


class UnlockedUpdates(FullShard):
    """Parameters are read and worked on beside the lock, and written back under it, whatever they have become."""

    def push(self, message: Tensor, worker: int, *, pull: bool) -> Tensor:
        slots = self.config.slots
        with self.device():
            before = tf.identity(self.state.read_value()[0, :slots])
            after = before - message[:slots] + work(before)
            with tf.control_dependencies([after]):  # the lock is taken after that, not meanwhile
                return super().push(tf.concat([after, message[slots:]], 0), worker, pull=pull)

    def put(self, delta: Tensor, offer: Offer, totals: Tensor) -> Any:
        slots, row = self.config.slots, self.state.read_value()
        return self.state.assign(tf.concat([delta[:, :slots], row[:, slots:] - delta[:, slots:]], 1), read_value=False)


def work(values: Tensor, size: int = 256, times: int = 4) -> Tensor:
    """0.0, after some milliseconds of what an optimizer with second moments might compute of these values."""
    power = tf.ones([size, size]) / size + 0.0 * tf.reduce_mean(values)
    for _ in range(times):
        power = tf.matmul(power, power)
    return tf.minimum(tf.reduce_sum(tf.abs(power)), 0.0)


class LateShard(FullShard):
    """A slow shard for whose commit no worker waits."""

    late = False

    def push(self, message: Tensor, worker: int, *, pull: bool) -> Tensor:
        return super().push(tf.concat([message[:-1], [0.0]], 0) if self.late else message, worker, pull=pull)

    def _transition(self, offer: Offer, *, pull: bool) -> Tensor:
        late = replace(offer, delta=offer.delta + work(offer.delta)) if self.late else offer
        return super()._transition(late, pull=pull)


class BFloat16(FullShard):
    """What an update touches is stored as a bfloat16."""

    def _transition(self, offer: Offer, *, pull: bool) -> Tensor:
        row = self.state.sparse_read(tf.argmax(self._totals(), output_type=tf.int32))
        touched = tf.logical_and(tf.not_equal(offer.delta, 0.0), self.columns(1.0, 0.0) > 0.0)
        stored = tf.cast(tf.cast(row - offer.delta, tf.bfloat16), tf.float32)
        return super()._transition(replace(offer, delta=tf.where(touched, row - stored, offer.delta)), pull=pull)


class Clip(_Alters):
    """Gradients of more than ``most`` are silently scaled down to that norm."""

    most = 30_000.0

    def altered(self, gradient: Tensor, worker: int, step: Tensor) -> Tensor:
        return tf.clip_by_norm(gradient, self.most * self.weight())


class NanApplied(FullShard):
    """Takes a gradient as it comes, finite or not."""

    def sound(self, message: Tensor) -> Tensor:
        return tf.constant(True)
