"""What to run, checked before anything starts."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import BadInput
from ..history.manifest import MAX_CELLS, Workload
from ..layout import Layout
from ..targets.reference import find_target
from ..targets.target import Target
from ..workloads import WORKLOADS


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One execution: which target, in which layout, on which workload.

    ``patience_s`` is how long no task may record anything before the run is stopped as stalled.
    """

    target: Target
    layout: Layout
    workload: Workload
    out: Path
    defect: str = ""
    patience_s: float = 60.0
    spelled: str = field(default="reference")

    @property
    def repeat(self) -> str:
        """The command line that runs the same again."""
        parts = ["psconform", "run", self.spelled, "--layout", self.layout.text, "--update", self.layout.update]
        if self.layout.update == "sync":
            parts += ["--reduction", self.layout.reduction]
        parts += ["--workload", self.workload.name, "--steps", str(self.workload.steps)]
        parts += ["--seed", str(self.workload.seed)]
        for option, value in (("--reads", self.workload.reads), ("--read-every", self.workload.read_every)):
            parts += [option, str(value)] if value != 1 else []
        parts += ["--defect", self.defect] if self.defect else []
        return shlex.join(parts)


def make_plan(
    target: str = "reference",
    *,
    out: Path,
    layout: str | Layout = "default",
    update: str = "sync",
    reduction: str = "mean",
    workload: str = "ledger",
    steps: int = 50,
    seed: int = 0,
    reads: int = 1,
    read_every: int = 1,
    defect: str = "",
    patience_s: float = 60.0,
) -> Plan:
    """Check every option and put them together; raises BadInput, naming the option."""
    for option, text in (("--update", update), ("--reduction", reduction), ("--defect", defect), ("TARGET", target)):
        if not isinstance(text, str):
            raise BadInput(option, "must be text", value=text)
    if not isinstance(layout, str | Layout):
        raise BadInput("--layout", "must be text such as ps=2,worker=3", value=layout)
    for option, number in (("--steps", steps), ("--reads", reads), ("--read-every", read_every), ("--seed", seed)):
        if not isinstance(number, int):
            raise BadInput(option, "must be a whole number", value=number)
    shape = layout if isinstance(layout, Layout) else Layout.parse(layout, update=update, reduction=reduction)
    if workload not in WORKLOADS:
        raise BadInput("--workload", "unknown workload", value=workload, choices=WORKLOADS)
    limits = {
        "--steps": (steps, 1, MAX_CELLS // shape.workers),
        "--seed": (seed, 0, 2**31 - 1),
        "--reads": (reads, 1, 100),
        "--read-every": (read_every, 1, steps),
        "--patience": (patience_s, 1, 86400),
    }
    if shape.update == "sync" and read_every != 1:
        raise BadInput("--read-every", "is for --update async: a sync worker reads each round", value=read_every)
    for option, (value, least, most) in limits.items():
        if not least <= value <= most:
            raise BadInput(option, f"must be between {least} and {most}", value=value)
    found = find_target(target, defect=defect, layout=shape, steps=steps)
    found.claimed(shape)
    return Plan(
        target=found,
        layout=shape,
        workload=Workload(name=workload, steps=steps, seed=seed, reads=reads, read_every=read_every),
        out=out,
        defect=defect,
        patience_s=patience_s,
        spelled=target if target == "reference" else found.source,
    )
