"""The plan of a stored run, to run it again, as it was or smaller."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from ..errors import BadInput
from ..faults.fault import Fault
from ..faults.plan_file import load_plan, parse_plan, plan_text
from ..history.manifest import Manifest
from ..history.reasons import Missed
from ..launchers.blueprint import Limits
from ..layout import Layout
from ..targets.lookup import find_target
from ..targets.reference import MODULE, REFERENCE
from .container_setup import containers_of
from .layout_file import FILE, read_layout
from .plan import FAULTS, Plan, check_faults, check_phases
from .series import Outcome, Series
from .session import Session
from .stragglers import with_faults, without_faults
from .verdicts import Judged, judge_folder


def stored_plan(folder: Path, *, out: Path) -> Plan:
    """What a run folder is of, to be run into another one.

    Raises:
        BadInput: it is no run folder, or its target is not there any more, or cannot do it any more.
    """
    manifest = Manifest.read(folder)
    if manifest.calibration:
        raise BadInput(str(folder), "is a calibration that did not complete", hint=f"Run again: {manifest.repeat}")
    workload, layout = manifest.workload, manifest.layout
    name = REFERENCE if manifest.source == MODULE else manifest.source
    limits = _limits(folder, manifest)
    target = find_target(
        name,
        defect=manifest.defect,
        layout=layout,
        steps=workload.steps,
        workload=workload.name,
        compression=workload.compression,
    )
    target.fits(layout)
    target.claimed(layout)
    for variable, value in target.given(os.environ).items():
        if variable not in manifest.environment:
            hint = f"Run `unset {variable}` before"
            raise BadInput(variable, "is set, and was not in that run", value=value, hint=hint)
    plan = Plan(
        target=target,
        layout=layout,
        workload=workload,
        out=out,
        defect=manifest.defect,
        checkpoint_every=manifest.checkpoint_every,
        checkpoint_seconds=manifest.checkpoint_seconds,
        patience_s=manifest.patience_s,
        bounds=manifest.bounds,
        require_faults=manifest.require_faults,
        spelled=name,
        launcher=manifest.launcher,
        containers=containers_of(
            manifest.launcher, manifest.image, limits=limits, layout=layout, target=target, out=out
        ),
        environment=manifest.environment,
    )
    if not manifest.faults:
        return plan
    if not (folder / FAULTS).is_file():
        raise BadInput(str(folder), f"had faults ({', '.join(manifest.faults)}), and has no {FAULTS}")
    faults = load_plan(folder / FAULTS, layout=layout, steps=workload.steps)
    if (said := [f"{fault.kind} {fault}" for fault in faults]) != manifest.faults:
        problem = f"is not what this run had: {', '.join(said) or 'no faults'}"
        raise BadInput(str(folder / FAULTS), problem, hint=f"It had {', '.join(manifest.faults)}")
    return _with(plan, faults)


def _limits(folder: Path, manifest: Manifest) -> Limits:
    """What its tasks might use; raises BadInput where that is not known any more."""
    if not (folder / FILE).is_file():
        if manifest.limited:
            raise BadInput(str(folder), f"had tasks that were limited, and has no {FILE}")
        return ()
    file = read_layout(folder / FILE)
    if file.text != manifest.layout.text:
        problem = "is not of the tasks that this run had"
        raise BadInput(str(folder / FILE), problem, value=file.text, choices=(manifest.layout.text,))
    return file.limits


def changed(plan: Plan, *, layout: Layout, steps: int, faults: Sequence[Fault]) -> Plan:
    """The same plan on another layout, with fewer steps, or with other faults.

    Raises:
        BadInput: that cannot be run: a fault is of a task that is not there, a defect needs more steps, ...
    """
    target = find_target(
        plan.spelled,
        defect=plan.defect,
        layout=layout,
        steps=steps,
        workload=plan.workload.name,
        compression=plan.workload.compression,
    )
    target.fits(layout)
    target.claimed(layout)
    workers = {str(task) for task in layout.worker_tasks}
    again = parse_plan(plan_text(faults), place="faults", layout=layout, steps=steps)
    workload = msgspec.structs.replace(
        plan.workload,
        steps=steps,
        read_every=min(plan.workload.read_every, steps),
        slow=tuple(pair for pair in plan.workload.slow if pair[0] in workers),
        batches=with_faults(
            tuple(
                pair
                for pair in without_faults(plan.workload.batches, plan.faults)
                if pair[0] in workers and pair[1] < steps
            ),
            again,
            layout=layout,
        ),
    )
    return _with(dataclasses.replace(plan, target=target, layout=layout, workload=workload), again)


def _with(plan: Plan, faults: tuple[Fault, ...]) -> Plan:
    check_faults(faults, containers=plan.containers)
    check_phases(faults, plan.target)
    return dataclasses.replace(plan, faults=faults)


LEAST_PATIENCE_S = 8.0
"""A call that is lost is given up after 5 s, and its worker is back within 6."""


@dataclass(frozen=True)
class Replay:
    """A stored run, and what came of it when it was run again."""

    before: Judged
    series: Series

    @property
    def came_back(self) -> int:
        """How many runs ended as the stored one: all valid, undecided, or with one of the same guarantees violated."""
        return sum(same_verdict(self.before, outcome) for outcome in self.series.outcomes)

    @property
    def summary(self) -> str:
        """One line."""
        violated = ", ".join(self.before.names("violated"))
        word = {0: "valid", 1: f"violated {violated}", 2: "unknown"}[self.before.exit_code]
        return f"the verdict ({word}) came back in {self.came_back} of {len(self.series.outcomes)} runs"


def same_verdict(before: Judged, now: Judged | Outcome) -> bool:
    """Whether a run says what the stored one said; which reads show a bug, and so which checks, may differ."""
    if before.exit_code != now.exit_code:
        return False
    return now.exit_code != 1 or bool(set(now.names("violated")) & set(before.names("violated")))


@dataclass(frozen=True)
class Seen:
    """One run of a plan: whether it failed, and the faults of the plan that never struck in it."""

    failed: bool
    idle: frozenset[Fault] = frozenset()


@dataclass
class Fails:
    """Runs a plan once, in a scratch folder, and says whether it fails as a stored run did. ``runs`` counts.

    ``patience_s``: for these runs; a hang takes no longer then. Whether it is one, the plan's own patience tells.
    """

    before: Judged
    session: Session
    scratch: Path
    patience_s: float
    runs: int = 0

    def __call__(self, plan: Plan) -> Seen:
        """It fails if one of the same guarantees is violated."""
        self.runs += 1
        folder = self.scratch / f"{self.runs:04}"
        self.session.run(dataclasses.replace(plan, out=folder, patience_s=self.patience_s))
        judged = judge_folder(folder)
        shutil.rmtree(folder)
        failed = same_verdict(self.before, judged)
        return Seen(failed, frozenset(fault for fault in plan.faults if _idle(fault, judged)))


def short_patience(before: Judged, plan: Plan) -> float:
    """Twice the longest silence of the stored run after which it went on: a longer one is most likely a hang."""
    workers = before.history.workers
    times = [of for worker in workers for of in (worker.reads.at, worker.pushes.at, worker.acked_ns)]
    silences = np.diff(np.sort(np.concatenate(times))) if times else np.zeros(0)
    return min(plan.patience_s, max(LEAST_PATIENCE_S, 2 * float(silences.max(initial=0.0)) / 1e9))


def _idle(fault: Fault, judged: Judged) -> bool:
    """It was not injected: training did not get there, or it could not be."""
    untouched = (Missed.NEVER_INJECTED, Missed.REFUSED)
    missed = {(each.kind, each.fault) for each in judged.history.missed if each.how in untouched}
    return (fault.kind, str(fault)) in missed


def run_until_it_fails(plan: Plan, before: Judged, session: Session, *, times: int) -> bool:
    """Run a plan into its folder, so often at most; returns whether the run that is there fails as the stored one."""
    for left in reversed(range(times)):
        session.run(plan)
        judged = judge_folder(plan.out)
        if same_verdict(before, judged):
            return True
        if left:
            shutil.rmtree(plan.out)
    return False


def keep(plan: Plan, folder: Path) -> str:
    """Write the faults of a plan that was not run to a folder; returns the command that runs it, or the plan itself."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / FAULTS).write_text(plan_text(plan.faults), encoding="utf-8")
    except OSError as error:
        return f"{folder} takes it no more ({error.strerror}):\n{plan_text(plan.faults)}"
    return dataclasses.replace(plan, out=folder).repeat


def replayed(folder: Path, *, times: int, out: Path) -> Replay:
    """The stored run judged, and the plans to run; raises BadInput."""
    if not 1 <= times <= 10_000:
        raise BadInput("--times", "must be between 1 and 10000", value=times)
    plans = [stored_plan(folder, out=out / f"{number:04}") for number in range(1, times + 1)]
    return Replay(judge_folder(folder), Series(plans, out))
