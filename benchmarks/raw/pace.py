"""The driver's pace: a worker trains so many steps as it is told, says how long they took, and waits for more."""

from __future__ import annotations

import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psconform.probe import Probe


class Pace:
    """Worker's end of the pipe to the driver."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._left = -1
        self._began = 0.0

    def wait(self) -> bool:
        """Called before each step: returns at once within a segment, between segments when the next one begins."""
        if self._left <= 0:
            if self._left == 0:
                self._pipe.send(time.perf_counter() - self._began)
            else:
                self._pipe.send(0.0)  # ready
            self._left = int(self._pipe.recv())
            self._began = time.perf_counter()
        self._left -= 1
        return True


class PacedProbe(Probe):
    """A detached probe whose gradients come in the driver's pace, ``slots`` numbers each."""

    def __init__(self, pace: Pace, *, workers: int, slots: int, steps: int, task: str) -> None:
        super().__init__({"workers": workers, "steps": steps, "unit": None, "run": ""}, task=task)
        self.slots = slots
        self._pace = pace
        self._filled = np.zeros(slots, np.float32)

    def initial(self, variable: int = 0) -> NDArray[np.float32]:
        """Zeros, as on the raw side."""
        return np.zeros(self.slots, np.float32)

    def initialised(self, *args: Any, **kwargs: Any) -> None:
        """Nobody judges this run."""

    def gradients(
        self, step: int, values: Sequence[Any] | None = None, samples: Sequence[int] | None = None
    ) -> list[NDArray[np.float32]]:
        """The same zeros each time: what filling them costs is not the trainer's."""
        del step, samples
        self._pace.wait()
        return [self._filled] * len(values or ())

    def push(self, *args: Any, **kwargs: Any) -> None:
        """Recording is measured in probe_cost.py."""

    def ack(self, *args: Any, **kwargs: Any) -> None:
        """Recording is measured in probe_cost.py."""
