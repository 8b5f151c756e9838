"""Deliberate bugs, one subclass each: the trainer itself knows nothing of them.

What they do to a run, and which check must find them: ``psconform list defects``.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from .shard import Shard, ShardConfig, Tensor
from .trainer import Values, Worker

EVERY = 5
"""Defects of reading strike at each step s > 0 with s % EVERY == 3."""


def victim(config: ShardConfig) -> tuple[int, int]:
    """(worker, step) that a defect of a single gradient strikes, drawn from the seed."""
    return config.seed % config.workers, (config.seed // config.workers + config.steps // 2) % config.steps


def _strikes(config: ShardConfig, step: int) -> bool:
    return step == 1 if config.steps < EVERY else step % EVERY == 3


class _Scaled(Shard):
    """One gradient counts ``factor`` times."""

    factor = 1.0

    def contribution(self, gradient: Tensor, worker: int, step: Tensor) -> Tensor:
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

    def contribution(self, gradient: Tensor, worker: int, step: Tensor) -> Tensor:
        return super().contribution(gradient, worker, step) if self.index == 0 else gradient


class SumNotMean(Shard):
    def weight(self) -> float:
        return 1.0


class WrongN(Shard):
    def weight(self) -> float:
        return 1.0 / (self.config.workers + 1)


class _OutOfRound(Shard):
    """Takes a gradient in whatever round is open."""

    def is_next(self, applied: Tensor, version: Tensor, step: Tensor) -> Tensor:
        del version
        return tf.equal(applied, step)


class EarlyCommit(_OutOfRound):
    def quorum(self) -> float:
        return float(self.config.workers - 1)


class RunAhead(Worker):
    shard_type = _OutOfRound

    def read(self, step: int) -> tuple[Values, list[int]]:
        ahead = self.index == victim(self.config)[0] and 0 < step < self.config.steps
        return super().read(step - 1 if ahead else step)


class _Remembers(Worker):
    """Keeps what it read before, by shard."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.last: tuple[Values, list[int]] | None = None

    def read(self, step: int) -> tuple[Values, list[int]]:
        before, now = self.last, super().read(step)
        self.last = now
        if before is not None and step < self.config.steps and _strikes(self.config, step):
            return self.mix(before, now)
        return now

    def mix(self, before: tuple[Values, list[int]], now: tuple[Values, list[int]]) -> tuple[Values, list[int]]:
        return before


class StaleCache(_Remembers):
    pass


class TornRead(_Remembers):
    def mix(self, before: tuple[Values, list[int]], now: tuple[Values, list[int]]) -> tuple[Values, list[int]]:
        return [*now[0][:-1], before[0][-1]], [*now[1][:-1], before[1][-1]]


class ReinitOnJoin(Worker):
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


def _overwrite(shard: Shard, theta: Tensor) -> Tensor:
    rest = shard.state.read_value()[shard.theta_size :]
    with tf.control_dependencies([shard.state.assign(tf.concat([theta, rest], 0))]):
        return tf.constant(True)


def _with_shard(kind: type[Shard]) -> type[Worker]:
    return type(f"{kind.__name__}Worker", (Worker,), {"shard_type": kind})


WORKERS: dict[str, type[Worker]] = {
    "": Worker,
    "drop-gradient": _with_shard(DropGradient),
    "apply-twice": _with_shard(ApplyTwice),
    "sum-not-mean": _with_shard(SumNotMean),
    "wrong-n": _with_shard(WrongN),
    "early-commit": _with_shard(EarlyCommit),
    "run-ahead": RunAhead,
    "stale-cache": StaleCache,
    "torn-read": TornRead,
    "reinit-on-join": ReinitOnJoin,
    "lose-shard-update": _with_shard(LoseShardUpdate),
}
