"""How a fault is brought about, seen, and taken away again: one `Injector` for each fault of a run.

None of them waits: the runner looks at them between two looks at the tasks (runner/fault_scheduler.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Protocol

from ..layout import Task
from .control import Arrival

Life = Callable[[Task], int | None]
"""Which of its lives a task is in; None: in none."""


class Processes(Protocol):
    """What a fault of a process needs; launchers have it."""

    @property
    def running(self) -> Iterable[Task]:
        """Tasks that have not ended."""

    def signal(self, task: Task, number: int) -> None:
        """Send a signal to a task's process group."""

    def state(self, task: Task) -> str:
        """State letter of its process, as of ps(1); empty if there is none."""


class Injector(ABC):
    """One fault, for one run.

    Attributes:
        holds: whoever has arrived where it strikes waits until it is seen to have taken effect; else until it is there.
        effect_s: seconds after which it has shown no effect, if whoever has arrived waits for it.
        ends: it has taken effect when the task has ended; see ``ended``.
        starts: it is healed by starting the task.
        lingers: its time is not over before it is seen to have taken effect, within ``effect_s``.
        alone: what its task is while it lasts, where the end of one would end another of its kind; else empty.
        freezes: it stops its task; once continued, the task may end by itself.
        file: what it has damaged, if it is a file.
        unseen: why it may not have been seen to take effect, as far as that is known.
    """

    holds, ends, starts, lingers, freezes = True, False, False, False, False
    effect_s = 10.0
    file = unseen = alone = ""

    def refused(self) -> str:
        """Why it cannot strike now; empty if it can."""
        return ""

    @abstractmethod
    def inject(self) -> None:
        """Bring it about."""

    @abstractmethod
    def evidence(self) -> str:
        """What shows that it has taken effect on the target, empty so far; called often while it lasts."""

    @abstractmethod
    def heal(self) -> None:
        """Take it away."""

    @abstractmethod
    def healed(self) -> str:
        """What shows on the target that it is gone; empty so far."""

    def gone(self) -> str:
        """What shows that it is gone, though nothing of the target tells; empty if it may still be there."""
        return ""

    def heard(self, arrival: Arrival) -> None:  # noqa: B027
        """A task has said where it is; most faults need not know."""

    def ended(self, status: int) -> bool:
        """The task has ended, with this exit status, negative for a signal; returns whether that was the fault."""
        del status
        return False

    def second_ended(self, pid: int, how: str) -> None:  # noqa: B027
        """A second process of a task has ended; says how."""

    def over(self) -> str:
        """What shows that it is over by itself; empty if it is not, or nobody can tell."""
        return ""

    def again_s(self) -> float | None:
        """It strikes again so many seconds after it was healed; None: it does not."""
        return None
