"""What injects each fault of a plan."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ..faults.disk_faults import Disk
from ..faults.fault import Fault
from ..faults.injectors import Injector, Life
from ..faults.kinds import kinds
from ..faults.scene import Scene, Seconds
from ..launchers.launcher import Launcher
from ..layout import Layout, Task
from .folder import CHECKPOINTS
from .plan import Plan

if TYPE_CHECKING:  # what it imports is an extra
    from ..faults.packet_match import Wires
    from ..faults.proxies import Links


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
    """One for each fault that psconform injects.

    ``seconds`` starts second processes of tasks; ``disk`` is what is mounted over the folder for checkpoints; ``wires``
    is the network of tasks in containers, and ``moved`` is called with one that has another address.
    """
    found = {fault: maker for fault in plan.faults if (maker := kinds()[fault.kind].injector) is not None}
    pods = launcher.pods
    scene = Scene(
        processes=launcher,
        life=life,
        done=lambda task: _is_done(folder, plan.layout, task),
        seed=plan.workload.seed,
        checkpoints=folder / CHECKPOINTS,
        clock=lambda task: clock_of(launcher, task),
        seconds=seconds,
        numbers={fault: number for number, fault in enumerate(found)},
        moved=moved,
        by_memory=lambda task: pods is not None and pods.ended_by_memory(task),
        proxies=links,
        disk=disk,
        network=wires,
        containers=None if pods is None else pods.boxes,
    )
    return {fault: maker(fault, scene) for fault, maker in found.items()}


def _is_done(folder: Path, layout: Layout, task: Task | None) -> bool:
    """A worker has made its last step; a ps, all workers have."""
    workers = layout.worker_tasks if task is None or task.job == "ps" else (task,)
    return all((folder / "done" / worker.slug).exists() for worker in workers)
