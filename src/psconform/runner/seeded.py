"""Whether a seeded defect and the faults of a run go together."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import BadInput
from ..faults.fault import Fault
from ..faults.when import BEFORE_PUSH, PHASES, When
from ..layout import Task
from ..targets.defects import DEFECTS


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


def check_recovery(name: str, faults: Sequence[Fault], every: int) -> None:
    """Raises BadInput if a defect cannot show with these faults, and a checkpoint every so many steps.

    The trainer of a defect that is none of recovery does not recover.
    """
    defect = DEFECTS[name]
    poisons = [fault for fault in faults if not fault.outside]
    if poisons and not defect.poison:
        raise BadInput("--poison", f"defect {name} is not about it", value=str(poisons[0]))
    if defect.poison and not poisons:
        raise BadInput("--poison", f"defect {name} needs it", value="none", hint=f"Give --poison {defect.poison[0]}")
    faults = [fault for fault in faults if fault.outside]
    if defect.fault:
        _check_fault(name, defect.fault, faults, every)
        return
    if not defect.kill:
        if faults:
            raise BadInput(faults[0].option, f"defect {name} has no recovery", value=str(faults[0]))
        if every:
            raise BadInput("--checkpoint-every", f"defect {name} has no recovery", value=every)
        return
    for needed in defect.kill:
        alike = [fault for fault in faults if _serves(fault, needed)]
        if not alike:
            given = " ".join(map(str, faults)) or "none"
            raise BadInput("--kill", f"defect {name} needs it", value=given, hint=f"Give --kill {needed}")
        if all(fault.restart_after_s is None for fault in alike):
            raise BadInput("--restart-after", f"defect {name} needs a task that comes back", value="never")
    if not every:
        raise BadInput("--checkpoint-every", f"defect {name} needs checkpoints", value=every)
    if len(faults) < len(defect.kill):
        hint = " ".join(f"--kill {needed}" for needed in defect.kill)
        problem = f"defect {name} needs {len(defect.kill)} of them"
        raise BadInput("--kill", problem, value=" ".join(map(str, faults)), hint=f"Give {hint}")
    latest = max((fault.when.step or 0 for fault in faults if fault.when.phase == BEFORE_PUSH), default=0)
    if defect.checkpoint_every and 0 < latest <= every:
        problem = f"defect {name} needs a checkpoint before step {latest}"
        raise BadInput("--checkpoint-every", problem, value=every)


def _check_fault(name: str, needed: str, faults: Sequence[Fault], every: int) -> None:
    """Raises BadInput if a defect lacks the fault of another kind that it needs, or checkpoints."""
    kind, _, of = needed.partition(" ")
    if not any(fault.kind == kind and _strikes_like(fault, of) for fault in faults):
        given = " ".join(f"{fault.kind} {fault}" for fault in faults) or "none"
        hint = f'Give --faults "{needed}"'
        raise BadInput("--faults", f"defect {name} needs it", value=given, hint=hint)
    if not every:
        raise BadInput("--checkpoint-every", f"defect {name} needs checkpoints", value=every)


def _serves(fault: Fault, text: str) -> bool:
    """Whether it can do what a defect needs: of the same job, the chief or not, and at a phase of the defect's own."""
    return fault.kind == "kill" and _strikes_like(fault, text)


def _strikes_like(fault: Fault, text: str) -> bool:
    """The same of a fault of any kind of process."""
    name, _, at = text.partition("@")
    task, phase = Task.parse(name), When.parse(at, place="--kill").phase
    if fault.task is None or fault.task.job != task.job:
        return False
    same = (fault.task.index == 0) == (task.index == 0) and (phase in PHASES or fault.when.phase == phase)
    return task.job == "ps" or same
