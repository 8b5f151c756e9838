"""What of a plan is about containers, and about the devices that its tasks take."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..errors import BadInput, Unavailable
from ..faults.fault import Fault
from ..faults.kinds import kinds
from ..launchers.blueprint import PERIOD_US, Box, Containers, Limits, Resources
from ..launchers.engine import engine, told
from ..launchers.gpus import lacking
from ..launchers.launcher import DOCKER, launchers
from ..layout import Layout
from ..targets.compose import ComposeTarget, Service
from ..targets.target import IMAGE, Target


def hides(containers: Containers | None, fault: Fault) -> bool:
    """What its layout does to a task would count as this fault's: it is given no less time than it has."""
    if containers is None or not kinds()[fault.kind].hides or fault.task is None:
        return False
    most = round(containers.allowed(fault.task).cpus * PERIOD_US)
    return 0 < most <= PERIOD_US * dict(fault.amounts)["percent"] // 100


def containers_of(
    launcher: str, image: str, *, limits: Limits = (), layout: Layout, target: Target, out: Path
) -> Containers | None:
    """Whether tasks run in containers, and in which: of an image that is named here or in the target's file.

    Raises:
        BadInput: an option that does not go with the others, or a command that names a folder of this machine.
    """
    if launcher not in launchers():
        raise BadInput("--launcher", "unknown launcher", value=launcher, choices=launchers())
    contained = launcher == DOCKER or isinstance(target, ComposeTarget)
    if contained and ":" in os.path.realpath(out):
        raise BadInput("--out", "must have no colon in its path: containers could not mount it", value=str(out))
    if contained and target.uses("here"):
        problem = f"a command of {target.name} takes {{here}}, a folder of this machine, which containers do not see"
        hint = "Name an image that has what it needs (--image), and where that is in it"
        raise BadInput("--launcher", problem, value=DOCKER, hint=hint)
    if isinstance(target, ComposeTarget):
        for option, given in (("--image", image), ("--layout", "; ".join(job for job, _ in limits))):
            if given:
                raise BadInput(option, "is said by the services of a Compose file", value=given)
        return Containers(gpus=False, boxes=tuple((task, _box(of)) for task, of in (target.services or {}).items()))
    if image and launcher != DOCKER:
        raise BadInput("--image", f"is for --launcher {DOCKER}", value=image)
    if image and not re.fullmatch(IMAGE, image):
        raise BadInput("--image", "is no name of an image, such as registry.example/team/trainer:1.2", value=image)
    if launcher != DOCKER:
        for job, of in limits:
            said = ", ".join(name for name in ("cpus", "memory", "shared_memory") if getattr(of, name))
            problem = f"limits {said} of a {job}, and processes are not limited"
            raise BadInput("--layout", problem, value=layout.text, hint=f"Give --launcher {DOCKER}")
        return None
    return Containers(image=image or target.image, limits=limits, gpus=layout.gpus > 0 and not layout.emulated)


def _box(service: Service) -> Box:
    used = Resources(cpus=service.cpus, memory=service.memory, shared_memory=service.shared_memory)
    return Box(
        image=service.image,
        aliases=service.names,
        port=service.port,
        entrypoint=service.entrypoint,
        resources=used,
        working_dir=service.working_dir,
    )


def need_gpus(layout: Layout, *, containers: bool) -> None:
    """Raises PsconformError if a layout has GPUs that this machine lacks, naming what does."""
    count = layout.workers * layout.gpus
    if not count or layout.emulated:
        return
    info = None
    if containers:
        with told("the Docker engine does not say what it has"):
            info = engine().info()
    if lacks := lacking(count, info=info):
        hint = "--emulate-gpus puts them on logical CPUs"
        raise Unavailable(f"layout {layout.text} needs {count} GPU(s), and {lacks}. {hint}")
