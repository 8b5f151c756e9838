"""What a run needs of whatever starts its tasks: processes here (local.py), or containers (containers.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from ..extensions import named
from ..layout import Command, Task

PROCESS, DOCKER = "process", "docker"
LAUNCHERS = (PROCESS, DOCKER)
ENTRY_POINTS = "psconform.launchers"
"""The group in which another package names its launchers, each a class that is made as `LocalLauncher` is."""


@dataclass(frozen=True)
class Ended:
    """A task's process ended; ``status`` is minus the signal number if a signal ended it."""

    task: Task
    status: int
    pid: int
    second: bool = False  # it ran beside the process of the task, which may still be there


class Pods(Protocol):
    """What only tasks in containers have, each in a pod of its own.

    Attributes:
        boxes: what the engine can do to the container of a task (`faults.container_faults.Boxes`).
    """

    boxes: Any

    def ask_pod(self, task: Task, **request: Any) -> dict[str, Any]:
        """A request to the helper of a task's pod, and its answer; raises PsconformError."""

    def ended_by_memory(self, task: Task) -> bool:
        """The kernel has ended its latest process for want of memory."""

    def lost(self) -> str:
        """Why tasks cannot find each other any more, whatever the plan says; empty while they can."""

    def toxiproxy(self) -> tuple[str, str]:
        """Start the proxies of this run; returns the URL of Toxiproxy, and the address at which its proxies listen."""

    def toxiproxy_runs(self) -> bool:
        """It was started, and has not ended."""


class Launcher(Protocol):
    """Starts the tasks of one cluster after another.

    Attributes:
        name: what ``--launcher`` takes.
        about: one line, for lists.
        ready_s: seconds that it took to be ready to start tasks.
        temporary: a folder that tasks can read, gone when the launcher is closed.
        python: the Python that tasks have.
        inherited: what is in the environment of tasks, whatever they are told.
        others: tasks are another user than psconform.
    """

    name: str
    about: str
    ready_s: float
    temporary: Path
    python: str
    inherited: Mapping[str, str]
    others: bool

    @property
    def pods(self) -> Pods | None:
        """None: tasks are processes on this machine."""

    @property
    def control(self) -> Path | None:
        """Where the control channel is to be, as a Unix socket; None: it listens on loopback."""

    def begin(self, run: str, tasks: Sequence[Task], folder: Path) -> None:
        """A run begins, into a run folder: end and forget the one before."""

    def address(self, dialler: Task | None, listener: Task) -> str:
        """The ``host:port`` at which a task is to listen."""

    def named(self, address: str) -> str:
        """An address as tasks are told it: where it may change, by a name."""

    def seen(self, path: Path) -> str:
        """A path of psconform's as tasks see it: one in the run folder, or in ``temporary``."""

    def start(self, task: Task, command: Command, *, log: Path, second: bool = False) -> int:
        """Start one task; returns a number that stands for this process, of no other of the run.

        Args:
            task: whom the process is.
            command: what it runs.
            log: standard output and error are appended to it.
            second: it runs beside the process of that task, and is none of ``running``.

        Raises:
            PsconformError: it cannot be executed.
        """

    def poll(self, timeout: float) -> list[Ended]:
        """Ends of tasks; waits up to ``timeout`` seconds for the first one."""

    @property
    def running(self) -> tuple[Task, ...]:
        """Tasks that have not ended."""

    def signal(self, task: Task, number: int) -> None:
        """Send a signal to every process of a task, in any session or process group."""

    def ask(self, task: Task, pid: int, number: int) -> bool:
        """Send a signal to one process, as the task knows it, if it is the task's; returns whether it did."""

    def state(self, task: Task) -> str:
        """State letter of a task's process as ps(1) shows it (T: stopped, and all that it has started, too); empty if
        it is gone or cannot be told."""

    def state_of(self, pid: int) -> str:
        """The same of a process that ``start`` has returned."""

    def whose(self, group: int) -> str:
        """The task whose process group it is, or was in this run, as this machine counts; empty if none's."""

    def kill_second(self, pid: int) -> None:
        """SIGKILL to a second process of a task, and to what it has started."""

    def scratch(self, place: Path | str, *, mine: bool = True) -> None:
        """Have something deleted, should psconform go away; ``mine=False``: not any more."""

    def stop_all(self, *, grace: float = 0.3) -> list[Ended]:
        """End every task: SIGTERM, after ``grace`` seconds SIGKILL. Returns when all are gone."""

    def close(self) -> None:
        """End whatever is there."""


@cache
def launchers() -> Mapping[str, Any]:
    """Classes of what is a `Launcher`, by name: psconform's own, and those of other packages.

    Raises:
        BadInput: an entry point cannot be loaded, is no launcher, or has the name of another one.
    """
    from .containers import DockerLauncher  # it imports this module
    from .local import LocalLauncher  # and so does this

    own = {each.name: each for each in (LocalLauncher, DockerLauncher)}
    what = "a class like psconform.launchers.local.LocalLauncher, with a name and a line about it"
    return {**own, **named(ENTRY_POINTS, what, _is_launcher, taken=own)}


def _is_launcher(value: Any) -> bool:
    return isinstance(value, type) and all(isinstance(getattr(value, said, None), str) for said in ("name", "about"))
