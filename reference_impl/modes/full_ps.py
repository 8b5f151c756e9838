"""A ps for all options of an update: it refuses what is not finite, decays, slows stale gradients, and has optimizers.

The rows of its state have one more part, ``refused``::

    row = [ theta: slots | padding | refused: one per worker | applied: one per worker | total ]        float32

``refused[w]`` counts those gradients of worker w that were not finite. A NaN or Inf never gets into theta: a gradient
of zero is applied in its place. It counts as its worker's step all the same, so that no worker waits for a round that
would never be complete, and the worker reads off the row that answers its push that it was refused. Each ps decides
that for itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from psconform.optimizers import CLIP_WHEN, MOMENTS

from ..cluster import Tensor, tf
from ..ps import Config, Offer, Row, Shard, if_then
from .optimizer import Optimizer


@dataclass(frozen=True)
class FullConfig(Config):
    """``Config``, and what the modes need.

    ``seed`` is for deliberate bugs; ``decay`` the share of each parameter that an update takes away before it subtracts
    the gradients (decoupled weight decay: Loshchilov and Hutter 2019), ``quorum`` the gradients that complete a sync
    round (0: those of all workers), ``staleness`` how many steps a worker may be ahead of another in async (None: any
    number); with the ``rate`` staleness-aware a ps divides a gradient by max(1, its staleness) (Zhang et al. 2016).
    ``compression`` is that of top_k.py, ``optimizer`` and ``schedule`` those of optimizer.py. ``clip_norm`` is the norm
    that a gradient may have (0: any), that of a worker or, with ``clip_when`` after, of a round. ``drop_after`` is how
    many seconds a job that recovers waits for a worker before it goes on without it (0: for ever; see eviction.py).
    ``gpus`` is how many each worker has, with a tower on each (towers.py); ``emulated``: on as many logical CPUs.
    """

    seed: int = 0
    decay: float = 0.0
    quorum: int = 0
    staleness: int | None = None
    rate: str = "constant"
    compression: str = "none"
    optimizer: str = "sgd"
    schedule: str = "constant"
    clip_norm: float = 0.0
    clip_when: str = CLIP_WHEN[0]
    drop_after: float = 0.0
    accumulate: int = 1
    gpus: int = 0
    emulated: bool = False

    @property
    def plain(self) -> bool:
        """An update is plain SGD at a constant rate."""
        return self.optimizer == "sgd" and self.schedule == "constant" and not self.clip_norm

    @property
    def aware(self) -> bool:
        """The learning rate depends on how stale a gradient is."""
        return self.rate == "staleness-aware"

    @property
    def per_round(self) -> int:
        """Gradients in a sync round."""
        return self.quorum or self.workers


class FullShard(Shard):
    """Graph of one ps with all options, as seen from one worker."""

    config: FullConfig

    def __init__(self, index: int, config: FullConfig, *, more: int = 0) -> None:
        super().__init__(index, config, extra=config.workers + more, beside=len(MOMENTS[config.optimizer]))
        self.refusals = -(self.extra + self.counters)  # where these begin, from the end of a row
        self.optimizer = None if config.plain else Optimizer(self)

    def share(self) -> float:
        """With an optimizer the learning rate comes last, on the ps."""
        return super().share() if self.optimizer is None else self.weight()

    def nothing(self, worker: int) -> Row:
        """A message that takes a step of a worker without a gradient, as if it had been refused."""
        message = self.blank(worker)
        message[self.shape[1] + self.refusals + worker] = -1.0
        return message

    def _take(self, offer: Offer, fresh: Tensor, write: Callable[[Tensor], Any]) -> Tensor:
        """Of a message that is not finite, a zero and a mark are written.

        What is sound costs no conditional beside the one that a push needs anyway: each keeps several threads busy.
        NaN or Inf makes a sum that is not finite, too, and that is one pass, outside the critical section. Whether a
        sum was not finite because it overflowed is looked at in the branch that is hardly ever taken.
        """

        def refusal() -> Tensor:
            counts = np.zeros([-self.refusals], np.float32)
            counts[[offer.worker, offer.worker - self.counters, -1]] = -1.0
            return tf.expand_dims(tf.concat([tf.zeros([self.shape[1] + self.refusals]), counts], 0), 0)

        def look() -> Any:
            return write(tf.cond(tf.reduce_all(tf.math.is_finite(offer.delta)), lambda: offer.delta, refusal))

        sound = self.sound(offer.message)
        return if_then(tf.logical_and(fresh, sound), lambda: write(offer.delta), lambda: if_then(fresh, look))

    def sound(self, message: Tensor) -> Tensor:
        """bool: no number of a message is NaN or Inf."""
        return tf.math.is_finite(tf.reduce_sum(message))

    def put(self, delta: Tensor, offer: Offer, totals: Tensor) -> Any:
        """In async: apply a gradient, with decay, a rate that depends on staleness, or an optimizer."""
        if self.optimizer is not None:
            return self.optimizer.put(delta)
        row = self.state.read_value()
        less = self.slowed(delta, totals[0] - offer.until) if self.config.aware else delta
        less = less + self._decayed(row) if self.config.decay else less
        return self.state.assign(row - less, read_value=False)

    def slowed(self, delta: Tensor, tau: Tensor) -> Tensor:
        """What a gradient takes from a row whose version is ``tau`` past the one it was computed at."""
        share = 1.0 / tf.cast(tf.maximum(tau, 1), tf.float32)
        return delta * self.columns(tf.reshape(share, []), 1.0)

    def join(self, delta: Tensor, totals: Tensor, newest: Tensor, target: Tensor, first: Tensor) -> Any:
        """Take a gradient into the open round; an optimizer has a part in the last one."""
        if self.optimizer is not None:
            return self.optimizer.join(delta, totals, newest, target, first)
        return super().join(delta, totals, newest, target, first)

    def begun(self, row: Tensor) -> Tensor:
        """Decayed, once a round."""
        return row - self._decayed(row) if self.config.decay else row

    def _decayed(self, row: Tensor) -> Tensor:
        """What decay takes from a row: a share of each parameter, and nothing of the counters."""
        return row * self.columns(self.config.decay, 0.0)

    def _row(self, version: Any) -> Tensor:
        if self.optimizer is not None and not self.config.sync:
            return self.state.read_value()[0]
        return super()._row(version)

    def updates(self, row: Tensor) -> Tensor:
        """The number of updates that a row, [1, columns], has had, int32, for an optimizer or a schedule."""
        total = tf.cast(row[0, -1], tf.int32)
        return total // self.per_round if self.config.sync else total

    def columns(self, theta: Any, rest: float) -> Tensor:
        """One number for each parameter in a row, and another one for what is behind them, float32[columns].

        Made by the ps whenever it is used. A constant as long as a row is part of the graph, and every worker sends its
        graph to a ps that is new: with 80 MB in it, copied again for each pass of the optimiser, that took seconds.
        """
        parts = (theta, self.config.slots), (rest, self.shape[1] - self.config.slots)
        return tf.concat([tf.fill([length], tf.cast(number, tf.float32)) for number, length in parts], 0)

    def slowest(self, row: Row) -> int:
        """Gradients accepted from the worker that has the fewest, in a row that was read."""
        return int(row[-self.counters : -1].min())

    def refused(self, row: Row, worker: int) -> int:
        """Gradients of a worker that were not finite, in a row, or the counters of a row, that was read."""
        return int(row[self.refusals + worker])
