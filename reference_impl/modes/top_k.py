"""Compression of gradients in the worker: the largest entries now, the others later.

Error feedback (Karimireddy et al. 2019): what a worker does not send it adds to its next gradient, so that nothing is
lost, only late.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Values = list[NDArray[np.float32]]

K = 4
"""Entries of each variable that are sent in a step: half of those of a dense ledger's gradient."""


class TopK:
    """Sends the ``K`` entries of the largest magnitude of each variable, and keeps the others."""

    def __init__(self, variables: int, slots: int) -> None:
        self.residual: Values = [np.zeros(slots, np.float32) for _ in range(variables)]

    def compress(self, gradients: Values) -> Values:
        """What is to be sent of these gradients and of what was not sent before; the rest is kept."""
        sent = []
        for kept, gradient in zip(self.residual, gradients, strict=True):
            np.add(kept, gradient, out=kept)
            largest = np.argpartition(np.abs(kept), -K)[-K:]
            sent.append(np.zeros_like(kept))
            sent[-1][largest] = kept[largest]
            kept[largest] = 0.0
        return sent
