"""What brings each fault of a plan about."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import PsconformError
from ..faults.boxes import Disconnects, Exhausts, Fills, Limits, Moves, Nameless, OfBox, Pauses
from ..faults.clock import Jumps
from ..faults.disk import Damages
from ..faults.fault import Fault
from ..faults.injectors import Ends, Injector, Late, Life, Stops, Throttles
from ..faults.kinds import KINDS
from ..faults.mount import Breaks, Disk
from ..faults.second import Seconds, Twice
from ..faults.words import CONTAINER, DISK, NETWORK, PACKETS
from ..launchers.containers import DockerLauncher
from ..launchers.launcher import Launcher
from ..layout import Layout, Task
from .folder import CHECKPOINTS
from .plan import Plan

if TYPE_CHECKING:  # what it imports is an extra
    from ..faults.links import Links
    from ..faults.wires import Wires


def clock_of(launcher: Launcher, task: Task) -> Path:
    """The file from which a task whose clock may jump reads how far it is ahead; deleted with the tasks."""
    return launcher.temporary / clock_name(task)


def clock_name(task: Task) -> str:
    """The name of that file."""
    return f"clock-{task.slug}"


def injectors(
    plan: Plan,
    launcher: Launcher,
    links: Links | None,
    *,
    folder: Path,
    life: Life,
    seconds: Seconds,
    disk: Disk | None = None,
    wires: Wires | None = None,
    moved: Callable[[Task, str], None] = lambda *_: None,
) -> dict[Fault, Injector]:
    """One for each fault that psconform strikes.

    ``seconds`` starts second processes of tasks; ``disk`` is what is mounted over the folder for checkpoints; ``wires``
    is the network of tasks in containers, and ``moved`` is told of one that has another address.
    """
    found: dict[Fault, Injector] = {}
    for number, fault in enumerate(fault for fault in plan.faults if fault.outside):
        of = KINDS[fault.kind].of
        if of in (PACKETS, CONTAINER):
            found[fault] = _of_container(fault, launcher, wires, number=number, seed=plan.workload.seed, moved=moved)
        elif of == NETWORK:
            found[fault] = _of_links(fault, links, seed=plan.workload.seed, life=life)
        elif of == DISK:
            found[fault] = _of_disk(fault, disk, folder / CHECKPOINTS, seed=plan.workload.seed)
        else:
            found[fault] = _of_task(fault, launcher, seconds, done=partial(_is_done, folder, plan.layout, fault.task))
    return found


def _of_links(fault: Fault, links: Links | None, *, seed: int, life: Life) -> Injector:
    if links is None:
        raise PsconformError(f"fault {fault.kind} {fault} needs proxies between the tasks")
    from ..faults.closing import ClosesLate
    from ..faults.network import Disturbs

    if fault.kind == "slow-close":
        return ClosesLate(fault, links, life=life)
    return Disturbs(fault, links, seed=seed, life=life)


def _of_container(
    fault: Fault,
    launcher: Launcher,
    wires: Wires | None,
    *,
    number: int,
    seed: int,
    moved: Callable[[Task, str], None],
) -> Injector:
    if wires is None or not isinstance(launcher, DockerLauncher):
        raise PsconformError(f"fault {fault.kind} {fault} needs {KINDS[fault.kind].lacks}")
    from ..faults.packets import Packets, Rate

    if KINDS[fault.kind].of == PACKETS:
        return Packets(fault, wires, number=number, seed=seed)
    if fault.kind == "rate":
        return Rate(fault, wires)
    of_box = fault, launcher.boxes, launcher, wires.ask
    if fault.kind == "oom":
        return Exhausts(*of_box, by_memory=launcher.ended_by_memory)
    if fault.kind == "new-address":
        return Moves(*of_box, moved=moved)
    return BOXES[fault.kind](*of_box)


BOXES: dict[str, type[OfBox]] = {
    "pause": Pauses,
    "cpu-quota": Limits,
    "disconnect": Disconnects,
    "dns": Nameless,
    "tmpfs-full": Fills,
}


def _of_disk(fault: Fault, disk: Disk | None, folder: Path, *, seed: int) -> Injector:
    if not KINDS[fault.kind].mounts:
        return Damages(fault, folder if disk is None else disk.below, seed=seed)
    if disk is None:
        raise PsconformError(f"fault {fault.kind} {fault} needs a file system over the folder for checkpoints")
    return Breaks(fault, disk)


def _is_done(folder: Path, layout: Layout, task: Task | None) -> bool:
    """A worker has made its last step; a ps, all workers have."""
    workers = layout.worker_tasks if task is None or task.job == "ps" else (task,)
    return all((folder / "done" / worker.slug).exists() for worker in workers)


def _of_task(fault: Fault, launcher: Launcher, seconds: Seconds, *, done: Callable[[], bool]) -> Injector:
    assert fault.task is not None
    match fault.kind:
        case "late":
            return Late()
        case "stop":
            return Stops(fault, launcher)
        case "throttle":
            return Throttles(fault, launcher)
        case "clock":
            return Jumps(fault, clock_of(launcher, fault.task), launcher)
        case "twice":
            return Twice(fault, launcher, seconds)
    return Ends(fault, launcher, done=done)
