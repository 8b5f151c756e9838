"""Which links replicas train through, as a calibration sees it: that they dial each other does not tell.

A coordinator hands out addresses, then nothing goes through it but its own pings: who is told an address of psconform
may use it for no more than that. So bytes are counted between two moments of worker:0, from before its
second push to the answer to its last one. The others cannot end the round of that one before the first, and it has
their gradients at the second: whatever links these took, they took then.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..faults.control import Arrival
from ..faults.fault import AFTER_PUSH, BEFORE_PUSH
from ..layout import Task

if TYPE_CHECKING:
    from ..faults.proxies import Links  # what it imports is an extra

Pair = tuple[Task, Task]
WATCHED = Task("worker", 0)


class TrainingLinks:
    """Counts what passes between the two moments. Who has no probe that tells of them leaves it unknown."""

    def __init__(self, links: Links, steps: int) -> None:
        self._links, self._first, self._last = links, (BEFORE_PUSH, 1), (AFTER_PUSH, steps - 1)
        self._before: dict[Pair, tuple[int, int]] = {}
        self._used: set[Pair] | None = None

    @property
    def strikes(self) -> list[dict[str, str | int | None]]:
        """The phases at which worker:0 waits until it has been looked at, for the probe."""
        return [{"task": str(WATCHED), "phase": phase, "step": step} for phase, step in (self._first, self._last)]

    def heard(self, arrival: Arrival) -> None:
        """A task has arrived somewhere, and waits."""
        if arrival.task != str(WATCHED):
            return
        if (arrival.phase, arrival.step) == self._first:
            self._before = self._links.passed()
        elif (arrival.phase, arrival.step) == self._last and self._before:
            now = self._links.passed()
            self._used = {pair for pair, said in now.items() if said != self._before[pair]}

    def among(self, dialled: Iterable[Pair]) -> set[Pair]:
        """Those of the pairs (dialler, listener) through which something passed; all, where that is not known."""
        return {pair for pair in dialled if self._used is None or pair in self._used}
