"""Deliberate bugs of order: a ps that acknowledges a gradient, and applies it after one that came later.

What it keeps back lies in a second row of its state, and counts as applied from the moment it came; nothing is lost,
for only gradients are kept that another one surely follows.
"""

from __future__ import annotations

from typing import Any

from ..cluster import Tensor, tf
from ..modes.full_ps import FullShard
from ..ps import Offer
from .shard_defects import victim


class _KeepsBack(FullShard):
    """Row 1 = [ the gradient that is kept | padding | whose it is: one per worker | 1 if there is one ]. Async only."""

    def rows(self) -> int:
        return 2

    def keeps(self, worker: int, step: Tensor, total: Tensor, mine: Tensor) -> Tensor:
        """1.0: keep the gradient that comes now; ``mine``: 1.0 if the one that is kept is of the same worker."""
        raise NotImplementedError

    def releases(self, mine: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
        """1.0: apply the one that is kept before the one that comes now; after it."""
        raise NotImplementedError

    def _row(self, version: Any) -> Tensor:
        return self.state.read_value()[0]

    def _transition(self, offer: Offer, *, pull: bool) -> Tensor:
        worker, step, delta = offer.worker, offer.step, offer.delta
        row, kept = tf.unstack(self.state.read_value())
        first = self.shape[1] - self.counters
        applied, total = (tf.cast(row[column : column + 1], tf.int32) for column in (first + worker, self.shape[1] - 1))
        theta = self.columns(1.0, 0.0)
        fresh = tf.cast(self.is_next(applied, total, step), tf.float32)
        mine = kept[worker - self.counters]
        take = fresh * self.keeps(worker, step, total, mine)
        before, after = (fresh * times for times in self.releases(mine, kept[-1] - mine))
        for amount, times in ((kept, before), (delta[0], fresh - take), (kept, after)):
            row -= times * (theta * amount + self._decayed(row))
        row -= fresh * (1 - theta) * delta[0]
        kept = kept * (1 - before - after) + take * (2 * theta - 1) * delta[0]
        with tf.control_dependencies([self.state.assign(tf.stack([row, kept]), read_value=False)]):
            return self._row(0) if pull else self._counted()


class OutOfOrder(_KeepsBack):
    """One gradient of a worker comes after its next one, on every ps."""

    def keeps(self, worker: int, step: Tensor, total: Tensor, mine: Tensor) -> Tensor:
        whose, when = victim(self.config)
        return tf.cast(tf.equal(step, min(when, self.config.steps - 2)), tf.float32) * float(worker == whose)

    def releases(self, mine: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
        return tf.zeros_like(mine), mine


class SwapUpdates(_KeepsBack):
    """On ps:0 one gradient comes after the next one of another worker.

    It strikes while the others must still have some to come. If the same worker is faster, what was kept is applied,
    and the newer one kept in its place.
    """

    def keeps(self, worker: int, step: Tensor, total: Tensor, mine: Tensor) -> Tensor:
        config = self.config
        when = (config.seed + config.steps // 2) % ((config.workers - 1) * config.steps)
        return tf.maximum(tf.cast(tf.equal(total, when), tf.float32), mine) * float(self.index == 0)

    def releases(self, mine: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
        return mine, others
