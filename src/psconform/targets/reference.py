"""The reference trainer as a Target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from psconform.reference_impl.defects.catalog import DEFECTS as CATALOG

from ..claims import DEFAULTS
from ..defect import Defect
from ..errors import BadInput
from ..layout import Layout
from ..optimizers import CLIP_WHEN
from ..options import OF_TRAINERS
from ..parts import TENSORFLOW
from ..probe import UNIT
from ..workloads import all_workloads
from .target import OPTIONS, Job, Target

REFERENCE = "reference"
ABOUT = "the minimal TensorFlow ps/worker trainer that comes with psconform"
MODULE = "psconform.reference_impl"
PHASES = dict.fromkeys(("initialising", "checkpointing", "restoring"), "worker:0")
DEFECTS: dict[str, Defect] = CATALOG
"""Seeded defects of the reference trainer, by name."""
PROMISES = {"init": "by-chief", "recovery": "checkpoint", "liveness": "progress"}


def _phases_of(defect: str) -> list[str]:
    """Phases that a trainer with this bug says beside those of any."""
    found = [kill.partition("@")[2].partition(":")[0] for kill in DEFECTS[defect].kill] if defect else []
    return [phase for phase in found if phase not in PHASES and not phase.isdecimal()]


def _unit(layout: Layout) -> float:
    """The reference trainer's learning rate is 1."""
    return UNIT / layout.per_round if layout.update == "sync" and layout.reduction == "mean" else UNIT


def reference(defect: str = "", *, layout: Layout | None = None, steps: int | None = None, **options: str) -> Target:
    """The reference trainer, with one deliberate bug if ``defect`` names one.

    Raises:
        BadInput: no such defect, or the layout, the steps or the other options (workload, compression) cannot show it.
    """
    replicas = layout is not None and not layout.ps
    if defect:
        _check_defect(defect, layout, steps, options)
    if layout is not None and layout.one_client and layout.update == "async":
        raise BadInput("--replication", "the reference trainer has it in sync only", value=layout.replication)
    if layout is not None and layout.clip_norm and layout.clip_when != CLIP_WHEN[0] and layout.ps > 1:
        problem = "the reference trainer has one ps then, or none, for each ps has a part of the average"
        raise BadInput("--clip-when", problem, value=layout.clip_when)
    command: tuple[str, ...] = (
        "{python}",
        "-m",
        MODULE,
        *(f"{option.flag}={{{option.placeholder}}}" for option in OF_TRAINERS),
        "--gpus={gpus}",
    )
    if defect:
        command += (f"--defect={defect}",)
    job = Job(command, entry=f"{MODULE}.__main__:main")
    return Target(
        name=REFERENCE,
        source=MODULE,
        jobs={"ps": job, "worker": job},
        claims={update: replace(claims, **PROMISES) for update, claims in DEFAULTS.items()},
        unit=_unit,
        distinct=True,
        preload=(f"{MODULE}.modes.setup",),
        defects=tuple(DEFECTS),
        workloads=tuple(all_workloads()),
        exchanges=("ps", "all-reduce"),
        compressions=("none", "topk"),
        batches=True,
        push_alone=True,
        phases={} if replicas else PHASES | dict.fromkeys(_phases_of(defect), "worker"),
        modules={TENSORFLOW: "tensorflow"},
    )


def _check_defect(name: str, layout: Layout | None, steps: int | None, options: Mapping[str, str]) -> Defect:
    if name not in DEFECTS:
        raise BadInput("--defect", "unknown defect", value=name, choices=DEFECTS)
    defect = DEFECTS[name]
    if steps is not None and steps < defect.steps:
        raise BadInput("--steps", f"defect {name} needs at least {defect.steps} to show", value=steps)
    for option, needed in (("workload", defect.workload), ("compression", defect.compression)):
        if (given := options.get(option, needed)) != needed:
            raise BadInput(f"--{option}", f"defect {name} needs {needed} to show", value=given)
    if layout is not None:
        if layout.all_reduce != defect.all_reduce:
            problem = f"defect {name} {'is of replicas: needs ps=0' if defect.all_reduce else 'needs at least 1 ps'}"
            raise BadInput("--layout", problem, value=layout.text)
        if layout.update not in defect.updates:
            raise BadInput("--update", f"defect {name} needs", value=layout.update, choices=defect.updates)
        if layout.gpus and not defect.gpus:
            raise BadInput("--layout", f"defect {name} is of workers without GPUs", value=layout.text)
        counts = (("ps", defect.ps, layout.ps), ("worker", defect.workers, layout.workers))
        for job, least, count in (*counts, ("gpus", defect.gpus, layout.gpus)):
            if count < least:
                raise BadInput("--layout", f"defect {name} needs at least {least} {job}", value=layout.text)
        _check_mode(name, defect, layout, steps)
        if steps is not None and steps * layout.workers < defect.gradients:
            problem = f"defect {name} needs at least {defect.gradients} gradients (workers x steps) to show"
            raise BadInput("--steps", problem, value=f"{layout.workers} x {steps}")
    return defect


def _check_mode(name: str, defect: Defect, layout: Layout, steps: int | None) -> None:
    for mode in (mode for mode in OPTIONS if mode != "gpus"):
        value, usual = getattr(layout, mode), getattr(Layout(), mode)
        option = f"--{mode.replace('_', '-')}"
        if value != usual and mode not in defect.mode:
            raise BadInput(option, f"defect {name} has no such option", value=value)
        if value == usual and mode in defect.mode:
            hint = f"Give {option} {defect.mode[mode]}"
            raise BadInput(option, f"defect {name} needs it", value=value, hint=hint)
    for named in ("replication", "optimizer", "schedule"):
        if (needed := defect.mode.get(named, getattr(layout, named))) != (given := getattr(layout, named)):
            raise BadInput(f"--{named}", f"defect {name} needs {needed} to show", value=given)
    if "staleness" in defect.mode and steps is not None and steps < 5 * (layout.staleness or 0):
        problem = f"is too much for defect {name} to show in {steps} steps"
        raise BadInput("--staleness", problem, value=layout.staleness)
    if "local_steps" in defect.mode and steps is not None and layout.local_steps > steps:
        problem = f"is more than the {steps} steps, so defect {name} never strikes"
        raise BadInput("--local-steps", problem, value=layout.local_steps)
    if "quorum" in defect.mode and not 2 <= layout.quorum < layout.workers:
        problem = f"defect {name} needs at least 2 and less than all {layout.workers} workers"
        raise BadInput("--quorum", problem, value=layout.quorum)
