"""How a run is doing, for whoever watches it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """How a run is doing: each task's state, steps acknowledged so far and in all, steps per second of all workers."""

    tasks: dict[str, str]
    steps: int
    total: int
    rate: float


Notify = Callable[[Progress], None]
