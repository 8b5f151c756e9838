"""A worker that adds up several gradients before it pushes (``--accumulate``): gradient accumulation."""

from __future__ import annotations

from typing import Any

import numpy as np

from psconform.probe import Probe

from ..worker import Values
from .full_worker import FullWorker


class Accumulates(FullWorker):
    """One worker that brings the sum of A gradients to a round, or 1/A of it for a mean; in the end, of those left."""

    def _own(self, probe: Probe, config: Any, shards: list[Any]) -> None:
        super()._own(probe, config, shards)
        self._kept: Values = self.empty()

    def read(self, step: int) -> tuple[Values, list[int]]:
        """Parameters and version of each shard, after the rounds that are complete before this step."""
        ended = step == self.config.steps
        return super().read(-(-step // self.config.accumulate) if ended else step // self.config.accumulate)

    def push(self, step: int, values: Values, gradient: Values) -> tuple[str, list[int]]:
        """Keep the gradient, and push what was kept if this step completes it; returns (outcome, versions)."""
        several = self.config.accumulate
        share = np.float32(several if self.config.reduction == "mean" else 1)
        self._kept = [kept + each for kept, each in zip(self._kept, gradient, strict=True)]
        if (step + 1) % several and step + 1 < self.config.steps:
            return "ok", self.seen
        brought, self._kept = self._kept, self.empty()
        return super().push(step // several, values, [each / share for each in brought])
