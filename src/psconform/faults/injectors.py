"""How a fault is brought about, seen, and taken away again: one `Injector` for each fault of a run.

None of them waits: the runner looks at them between two looks at the tasks (runner/fault_scheduler.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from ..errors import PsconformError
from ..layout import Task
from .control import Arrival
from .fault import Fault
from .kinds import IN_CONTAINERS

if TYPE_CHECKING:  # what they import is an extra
    from .container_faults import Boxes
    from .disk_faults import Disk
    from .pod_network import Wires
    from .proxies import Links


Life = Callable[[Task], int | None]
"""Which of its lives a task is in; None: in none."""


class Processes(Protocol):
    """What a fault of a process needs; launchers have it."""

    @property
    def running(self) -> Iterable[Task]:
        """Tasks that have not ended."""

    def signal(self, task: Task, number: int) -> None:
        """Send a signal to every process of a task, in any session or process group."""

    def state(self, task: Task) -> str:
        """State letter of its process, as of ps(1) (T: what it has started is stopped, too); empty: it has ended."""

    def state_of(self, pid: int) -> str:
        """The same of a second process of a task."""

    def kill_second(self, pid: int) -> None:
        """SIGKILL to a second process, and what it has started."""


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

    def __init__(self, fault: Fault, scene: Scene) -> None:
        self._fault, self._scene, self._amounts, self._seen = fault, scene, dict(fault.amounts), ""

    def refused(self) -> str:
        """Why it cannot strike now; empty if it can."""
        return ""

    @abstractmethod
    def inject(self) -> None:
        """Bring it about."""

    def evidence(self) -> str:
        """What shows that it has taken effect on the target, empty so far; called often while it lasts."""
        return self._seen

    def heal(self) -> None:  # noqa: B027
        """Take it away; the runner starts a task that is to be started, and what is damaged stays so."""

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


class OfTask(Injector):
    """One that strikes a task which runs."""

    def __init__(self, fault: Fault, scene: Scene) -> None:
        super().__init__(fault, scene)
        assert fault.task is not None
        self._task, self._processes = fault.task, scene.processes

    def refused(self) -> str:
        return "" if self._task in self._processes.running else f"{self._task} was not running"


Part = TypeVar("Part")


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What the faults of one run can act on.

    Attributes:
        processes: the tasks.
        life: which of its lives a task is in.
        done: whether a task has nothing left to do (None: all workers), and may end by itself at any moment.
        seed: of what is drawn.
        checkpoints: the folder for checkpoints.
        clock: the file from which a task reads how far its clock is ahead.
        start_second: starts a second process of a task, and returns its process id.
        recorded: whether the probe of that process has begun to record.
        numbers: of each fault in the plan.
        moved: is called with a task and the address that it has now.
        by_memory: whether a task was ended for want of memory.
    """

    processes: Processes
    life: Life
    done: Callable[[Task | None], bool]
    seed: int
    checkpoints: Path
    clock: Callable[[Task], Path]
    start_second: Callable[[Task], int]
    recorded: Callable[[int], bool]
    numbers: dict[Fault, int]
    moved: Callable[[Task, str], None] = lambda *_: None
    by_memory: Callable[[Task], bool] = lambda _: False
    proxies: Links | None = None
    disk: Disk | None = None
    network: Wires | None = None
    containers: Boxes | None = None

    def links(self, fault: Fault) -> Links:
        """The proxies between the tasks; raises PsconformError if there are none."""
        return _there(self.proxies, fault, "proxies between the tasks")

    def mounted(self, fault: Fault) -> Disk:
        """The file system over the folder for checkpoints; raises PsconformError if there is none."""
        return _there(self.disk, fault, "a file system over the folder for checkpoints")

    def wires(self, fault: Fault) -> Wires:
        """The network of tasks in containers; raises PsconformError if they are in none."""
        return _there(self.network, fault, IN_CONTAINERS)

    def boxes(self, fault: Fault) -> Boxes:
        """The containers of the tasks; raises PsconformError if they are in none."""
        return _there(self.containers, fault, IN_CONTAINERS)


def _there(part: Part | None, fault: Fault, what: str) -> Part:
    if part is None:
        raise PsconformError(f"fault {fault.kind} {fault} needs {what}")
    return part
