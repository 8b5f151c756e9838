"""Workers whose ps tasks come back with the parameters, and without what an optimizer or a schedule has beside them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import tensorflow as tf

from .checkpoint import Cut
from .chief import RecoveringChief
from .optimizers import RecoverableOptimizingShard
from .recoverable import Moments
from .recovery import RecoveringWorker
from .shard import Row, Tensor


class MomentsLost(RecoveringChief):
    """Restores parameters and counters, with moments that are zero."""

    def chosen(self) -> Cut | None:
        cut = super().chosen()
        if cut is None:
            return None
        moments = [{name: np.zeros_like(moment) for name, moment in of.items()} for of in cut.moments]
        return replace(cut, moments=moments)


class _CountsFromRestore(RecoverableOptimizingShard):
    """Knows at which version it was restored, in one more column of its rows, and counts updates from there."""

    more = 2

    def packed(self, theta: Row, applied: tuple[int, ...], epoch: int, moments: Moments | None = None) -> Row:
        state = super().packed(theta, applied, epoch, moments)
        state[: self.rows(), self.column - 1] = sum(applied) // self.quorum()
        return state

    def updates(self, row: Tensor) -> Tensor:
        return super().updates(row) - tf.cast(row[0, self.column - 1], tf.int32)


class ScheduleRestarts(RecoveringWorker):
    shard_type = _CountsFromRestore
