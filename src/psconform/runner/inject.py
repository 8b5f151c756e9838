"""What brings each fault of a plan about."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import PsconformError
from ..faults.disk import Damages
from ..faults.fault import Fault
from ..faults.injectors import Ends, Injector, Late, Life, Stops, Throttles
from ..faults.kinds import DISK, KINDS, NETWORK
from ..faults.mount import Breaks, Disk
from ..launchers.local import LocalLauncher
from .folder import CHECKPOINTS
from .plan import Plan

if TYPE_CHECKING:  # what it imports is an extra
    from ..faults.links import Links


def injectors(
    plan: Plan, launcher: LocalLauncher, links: Links | None, *, folder: Path, life: Life, disk: Disk | None = None
) -> dict[Fault, Injector]:
    """One for each fault that psconform strikes; ``disk`` is what is mounted over the folder for checkpoints."""
    found: dict[Fault, Injector] = {}
    for fault in (fault for fault in plan.faults if fault.outside):
        if KINDS[fault.kind].of == NETWORK:
            if links is None:
                raise PsconformError(f"fault {fault.kind} {fault} needs proxies between the tasks")
            from ..faults.closing import ClosesLate
            from ..faults.network import Disturbs

            if fault.kind == "slow-close":
                found[fault] = ClosesLate(fault, links, life=life)
                continue
            found[fault] = Disturbs(fault, links, seed=plan.workload.seed, life=life)
        elif KINDS[fault.kind].mounts:
            if disk is None:
                raise PsconformError(f"fault {fault.kind} {fault} needs a file system over the folder for checkpoints")
            found[fault] = Breaks(fault, disk)
        elif KINDS[fault.kind].of == DISK:
            where = folder / CHECKPOINTS if disk is None else disk.below
            found[fault] = Damages(fault, where, seed=plan.workload.seed)
        elif fault.kind == "late":
            found[fault] = Late()
        elif fault.kind == "stop":
            found[fault] = Stops(fault, launcher)
        elif fault.kind == "throttle":
            found[fault] = Throttles(fault, launcher)
        else:
            found[fault] = Ends(fault, launcher)
    return found
