"""Whether a seeded defect and the faults of a run go together."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import BadInput
from ..faults.data_faults import POISON
from ..faults.fault import BEFORE_PUSH, PHASES, Fault, When
from ..faults.plan_file import parse_plan
from ..faults.process_faults import KILL
from ..layout import Layout, Task
from ..targets.reference import DEFECTS


def check_leaving(name: str, given: Sequence[tuple[str, int]]) -> None:
    """Raises BadInput if a defect is about workers that run out of data, and none does, or the other way round."""
    defect = DEFECTS.get(name)
    if defect is None:  # none, or an unknown one, which is refused elsewhere
        return
    text = " ".join(f"{task}={number}" for task, number in given)
    if given and not defect.batches:
        raise BadInput("--batches", f"defect {name} is not about it", value=text)
    if defect.batches and not given:
        hint = f"Give --batches {defect.batches}"
        raise BadInput("--batches", f"defect {name} needs it", value="none", hint=hint)


def check_recovery(
    name: str, faults: Sequence[Fault], every: int, *, layout: Layout, steps: int, drawn: bool = False
) -> None:
    """Raises BadInput if a defect cannot show with these faults, and a checkpoint every so many steps.

    The trainer of a defect that is none of recovery does not recover. A plan that is ``drawn``, now or when it ran
    first, may show it or not: that is what it is drawn for.
    """
    defect = DEFECTS[name]
    poisons = [fault for fault in faults if fault.kind == POISON.name]
    if poisons and not defect.poison:
        raise BadInput(poisons[0].place, f"defect {name} is not about it", value=str(poisons[0]))
    if defect.poison and not poisons:
        raise BadInput("--poison", f"defect {name} needs it", value="none", hint=f"Give --poison {defect.poison[0]}")
    faults = [fault for fault in faults if fault.outside]
    if not defect.recovers:
        if faults:
            raise BadInput(faults[0].place, f"defect {name} has no recovery", value=str(faults[0]))
        if every:
            raise BadInput("--checkpoint-every", f"defect {name} has no recovery", value=every)
        return
    by_plan = defect.faults and not (defect.kill and all(fault.kind == KILL.name for fault in faults))
    if by_plan and not drawn:
        _check_plan(name, faults, layout=layout, steps=steps)
    elif not drawn:
        _check_kills(name, faults, every)
    if not every:
        raise BadInput("--checkpoint-every", f"defect {name} needs checkpoints", value=every)


def _check_plan(name: str, faults: Sequence[Fault], *, layout: Layout, steps: int) -> None:
    """Raises BadInput where a fault is missing that is like each of those that a defect of the network needs."""
    defect = DEFECTS[name]
    needed = parse_plan(defect.plan, place=f"defect {name}", layout=layout, steps=steps)
    left = list(faults)
    for fault in needed:
        alike = next((given for given in left if _alike(given, fault)), None)
        if alike is None:
            given = " ".join(f"{fault.kind} {fault}" for fault in faults) or "none"
            problem = f"defect {name} needs {f'{len(needed)} of ' if len(needed) > 1 else ''}{fault.kind} {fault.of}"
            raise BadInput("--faults", problem, value=given, hint=f"Give --faults '{defect.plan}'")
        left.remove(alike)


def _alike(fault: Fault, needed: Fault) -> bool:
    """Of the same kind, and of the same job, or between the same jobs in the same directions."""
    job = needed.task.job if needed.task is not None else ""
    if fault.kind != needed.kind or (fault.task.job if fault.task is not None else "") != job:
        return False
    return _directions(needed) <= _directions(fault)


def _directions(fault: Fault) -> set[tuple[str, str]]:
    return {(link.source.job, link.destination.job) for link in fault.links}


def _check_kills(name: str, faults: Sequence[Fault], every: int) -> None:
    """Raises BadInput where a kill is missing, or comes too early."""
    defect = DEFECTS[name]
    for needed in defect.kill:
        alike = [fault for fault in faults if _serves(fault, needed)]
        if not alike:
            given = " ".join(map(str, faults)) or "none"
            raise BadInput("--kill", f"defect {name} needs it", value=given, hint=f"Give --kill {needed}")
        if all(fault.restart_after_s is None for fault in alike):
            raise BadInput("--restart-after", f"defect {name} needs a task that comes back", value="never")
    if len(faults) < len(defect.kill):
        hint = " ".join(f"--kill {needed}" for needed in defect.kill)
        problem = f"defect {name} needs {len(defect.kill)} of them"
        raise BadInput("--kill", problem, value=" ".join(map(str, faults)), hint=f"Give {hint}")
    latest = max((fault.when.step or 0 for fault in faults if fault.when.phase == BEFORE_PUSH), default=0)
    if defect.checkpoint_every and 0 < latest <= every:
        problem = f"defect {name} needs a checkpoint before step {latest}"
        raise BadInput("--checkpoint-every", problem, value=every)


def _serves(fault: Fault, text: str) -> bool:
    """Whether it can do what a defect needs: of the same job, the chief or not, and at a phase of the defect's own."""
    name, _, at = text.partition("@")
    task, phase = Task.parse(name), When.parse(at, place="--kill").phase
    if fault.kind != KILL.name or fault.task is None or fault.task.job != task.job:
        return False
    same = (fault.task.index == 0) == (task.index == 0) and (phase in PHASES or fault.when.phase == phase)
    return task.job == "ps" or same
