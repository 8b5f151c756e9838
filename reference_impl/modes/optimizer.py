"""Momentum, Adam, a learning-rate schedule and clipping on the ps, for the rules of `psconform.optimizers`.

The moments are rows of the state behind those of the parameters, so an update is still one assignment in one critical
section, and a worker reads and sends what it does with plain SGD::

    row 0, in sync also row 1     [ theta | padding | applied: one per worker | total ]    as in ps.py
    a row per moment              [ moment | nothing ]

In sync the row of the open round holds minus the sum of its gradients where its parameters will be. The last gradient
of the round turns it into the next version, and the moments into theirs: so the optimizer is applied once a round, to
the mean (or sum). In async each gradient is an update. The number of updates, for Adam's correction and the schedule,
is the version, that is: what the counters say. It goes back when they do.

What is clipped after the average is the gradient of a round on this ps, so all of it only where there is one ps.
"""

from __future__ import annotations

from math import pi
from typing import TYPE_CHECKING, Any

from psconform.optimizers import BETA_1, BETA_2, CLIP_WHEN, COSINE_PERIOD, EPSILON, HALVE_EVERY, MOMENTUM, WARM_UP

from ..cluster import Tensor, tf
from ..ps import if_then

if TYPE_CHECKING:
    from .full_ps import FullShard


class Optimizer:
    """What turns the gradients that a shard has taken into an update."""

    def __init__(self, shard: FullShard) -> None:
        self.shard, self.config = shard, shard.config

    def join(self, delta: Tensor, totals: Tensor, newest: Tensor, target: Tensor, first: Tensor) -> Any:
        """In sync: take a gradient into the open round, and commit it with the last one. Arguments as of Shard.join."""
        shard = self.shard
        row = shard.state.sparse_read(newest)
        opened = tf.where(first, row * self._behind(), row) - delta

        def write(rows: Any, indices: Any) -> Any:
            return tf.raw_ops.ResourceScatterUpdate(resource=shard.state.handle, indices=indices, updates=rows)

        def commit() -> Any:
            moments = list(range(shard.rows(), shard.shape[0]))
            before = shard.state.sparse_read(tf.concat([1 - target, moments], 0))
            return write(self.updated(before[:1], before[1:], opened), tf.concat([target, moments], 0))

        complete = tf.equal((tf.reduce_max(totals) + 1) % shard.per_round, 0)
        return if_then(complete, commit, lambda: write(opened, target))

    def put(self, delta: Tensor) -> Any:
        """In async: apply a gradient to the whole state."""
        rows = self.shard.state.read_value()
        opened = rows[:1] * self._behind() - delta
        return self.shard.state.assign(self.updated(rows[:1], rows[1:], opened), read_value=False)

    def _factor(self, updates: Tensor) -> Tensor:
        """What the schedule makes of the learning rate after so many updates, float64."""
        match self.config.schedule:
            case "halving":
                return tf.pow(tf.constant(0.5, tf.float64), tf.cast(updates // HALVE_EVERY, tf.float64))
            case "warm-up":
                return tf.minimum(tf.constant(1.0, tf.float64), tf.cast(updates + 1, tf.float64) / WARM_UP)
            case "cosine":
                place = tf.cast(updates % COSINE_PERIOD, tf.float64) / COSINE_PERIOD
                return (1.0 + tf.cos(pi * place)) / 2.0
        return tf.constant(1.0, tf.float64)

    def _behind(self) -> Tensor:
        """1 for what is behind the parameters in a row, float32[columns]."""
        return self.shard.columns(0.0, 1.0)

    def updated(self, row: Tensor, moments: Tensor, opened: Tensor) -> Tensor:
        """The row, [1, columns], and the moments after one update, [1 + moments, columns].

        ``opened`` is [minus the gradient | what is behind the parameters in the row after the update], [1, columns].
        """
        slots = self.config.slots
        gradient = -opened[:, :slots]
        if self.config.clip_norm and self.config.clip_when != CLIP_WHEN[0]:
            gradient = tf.clip_by_norm(gradient, self.config.clip_norm)
        change, after = self.change(gradient, moments[:, :slots], self.shard.updates(row))
        theta = tf.concat([row[:, :slots] - change, opened[:, slots:]], 1)
        return tf.concat([theta, tf.pad(after, [[0, 0], [0, self.shard.shape[1] - slots]])], 0)

    def change(self, gradient: Tensor, moments: Tensor, updates: Tensor) -> tuple[Tensor, Tensor]:
        """What an update takes from the parameters, [1, slots], and the moments after it, [moments, slots].

        The factor of all parameters in float64: 1 - BETA_2 ** t in float32 is off by 1e-5 in the first updates.
        """
        rate = tf.constant(self.config.learning_rate, tf.float64)
        rate *= self._factor(updates)
        if self.config.optimizer == "adam":
            t = tf.cast(updates + 1, tf.float64)
            rate *= tf.sqrt(1.0 - tf.pow(tf.constant(BETA_2, tf.float64), t))
            rate /= 1.0 - tf.pow(tf.constant(BETA_1, tf.float64), t)
            first = BETA_1 * moments[:1] + (1 - BETA_1) * gradient
            second = BETA_2 * moments[1:] + (1 - BETA_2) * tf.square(gradient)
            return tf.cast(rate, tf.float32) * first / (tf.sqrt(second) + EPSILON), tf.concat([first, second], 0)
        if self.config.optimizer == "momentum":
            moments = MOMENTUM * moments + gradient
            gradient = moments
        return tf.cast(rate, tf.float32) * gradient, moments
