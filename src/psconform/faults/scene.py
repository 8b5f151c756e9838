"""What the faults of one run can act on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from ..errors import PsconformError
from ..layout import Task
from .fault import Fault
from .injectors import Life, Processes
from .kinds import IN_CONTAINERS

if TYPE_CHECKING:  # what they import is an extra
    from .container_faults import Boxes
    from .disk_faults import Disk
    from .packet_match import Wires
    from .proxies import Links


Part = TypeVar("Part")


class Seconds(Protocol):
    """What a second process takes of whatever starts processes."""

    def start_second(self, task: Task) -> int:
        """Start a second process of a task; returns its process id."""

    def state_of(self, pid: int) -> str:
        """State letter of that process; empty if it has ended."""

    def recorded(self, pid: int) -> bool:
        """Its probe has begun to record."""

    def kill_second(self, pid: int) -> None:
        """SIGKILL to it and what it has started."""


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
        seconds: starts second processes of tasks.
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
    seconds: Seconds
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
