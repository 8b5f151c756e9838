"""twice: a second process of a task is started beside the first; both claim to be that task.

Whoever has arrived where it strikes waits until the second process has begun to record, or has ended: a process that
is still being loaded has claimed nothing.
"""

from __future__ import annotations

import time
from typing import Protocol

from ..layout import Task
from .fault import Fault
from .injectors import Injector, Processes

END_S = 5.0
"""At the end of the run, until a second process that was sent SIGKILL is gone."""


class Seconds(Protocol):
    """What it needs of whoever starts processes, beside what other faults do."""

    def start_second(self, task: Task) -> int:
        """Start a second process of a task; returns its process id."""

    def state_of(self, pid: int) -> str:
        """State letter of that process; empty if it has ended."""

    def recorded(self, pid: int) -> bool:
        """Its probe has begun to record."""

    def kill_second(self, pid: int) -> None:
        """SIGKILL to it and what it has started."""


class Twice(Injector):
    """It is over when the second process has ended; if that never does, it is killed when the run is over."""

    effect_s = 30.0  # a second process that is started cold has much to load
    unseen = "the second process neither recorded anything nor ended"

    def __init__(self, fault: Fault, processes: Processes, seconds: Seconds) -> None:
        assert fault.task is not None
        self._task, self._processes, self._seconds = fault.task, processes, seconds
        self._pid = 0
        self._beside = self._lost = False  # both were seen at once; the first was seen to be gone
        self._seen = self._over = ""

    def refused(self) -> str:
        return "" if self._task in self._processes.running else f"{self._task} was not running"

    def inject(self) -> None:
        self._pid = self._seconds.start_second(self._task)
        self._look()

    def _look(self) -> None:
        first = self._processes.state(self._task)
        self._lost = self._lost or not first
        self._beside = self._beside or bool(first and self._seconds.state_of(self._pid))

    def evidence(self) -> str:
        if not self._over:
            self._look()
        claimed = bool(self._over) or self._seconds.recorded(self._pid)
        # on a busy machine it may be over before anybody looks; the first was there before it, and still is
        beside = self._beside or (claimed and not self._lost and bool(self._processes.state(self._task)))
        if beside and claimed and not self._seen:
            self._seen = f"a second process of {self._task} ran beside the first"
        return self._seen

    def second_ended(self, pid: int, how: str) -> None:
        if pid == self._pid:
            self._over = f"it {how}"

    def over(self) -> str:
        return self._over

    def heal(self) -> None:
        """The run is over, and so must it be."""
        self._seconds.kill_second(self._pid)
        deadline = time.monotonic() + END_S
        while self._seconds.state_of(self._pid) and time.monotonic() < deadline:
            time.sleep(0.005)

    def healed(self) -> str:
        return "" if self._seconds.state_of(self._pid) else "it ran until the run ended, and was killed"
