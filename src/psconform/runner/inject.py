"""What brings each fault of a plan about."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import PsconformError
from ..faults.clock import Jumps
from ..faults.disk import Damages
from ..faults.fault import Fault
from ..faults.injectors import Ends, Injector, Late, Life, Stops
from ..faults.kinds import DISK, KINDS, NETWORK
from ..faults.second import Seconds, Twice
from ..launchers.local import LocalLauncher
from ..layout import Task
from .folder import CHECKPOINTS
from .plan import Plan

if TYPE_CHECKING:  # what it imports is an extra
    from ..faults.links import Links


def clock_of(launcher: LocalLauncher, task: Task) -> Path:
    """The file from which a task whose clock may jump reads how far it is ahead; deleted with the tasks."""
    return launcher.temporary / f"clock-{task.slug}"


def injectors(
    plan: Plan, launcher: LocalLauncher, links: Links | None, *, folder: Path, life: Life, seconds: Seconds
) -> dict[Fault, Injector]:
    """One for each fault that psconform strikes; ``seconds`` starts second processes of tasks."""
    found: dict[Fault, Injector] = {}
    for fault in (fault for fault in plan.faults if fault.outside):
        if KINDS[fault.kind].of == NETWORK:
            if links is None:
                raise PsconformError(f"fault {fault.kind} {fault} needs proxies between the tasks")
            from ..faults.network import Disturbs

            found[fault] = Disturbs(fault, links, seed=plan.workload.seed, life=life)
        elif KINDS[fault.kind].of == DISK:
            found[fault] = Damages(fault, folder / CHECKPOINTS, seed=plan.workload.seed)
        elif fault.kind == "late":
            found[fault] = Late()
        elif fault.kind == "stop":
            found[fault] = Stops(fault, launcher)
        elif fault.kind == "clock":
            assert fault.task is not None
            found[fault] = Jumps(fault, clock_of(launcher, fault.task), launcher)
        elif fault.kind == "twice":
            found[fault] = Twice(fault, launcher, seconds)
        else:
            found[fault] = Ends(fault, launcher)
    return found
