"""Faults that the probe gives, as spec.json says: whether they took effect is looked up when the run has ended."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path

from ..faults.data_faults import OUT_OF_DATA, POISON
from ..faults.fault import Fault
from ..history.reasons import FaultMissed, Missed
from ..layout import Task
from ..probe import EventLog


def never_poisoned(faults: Sequence[Fault], folder: Path, *, without: Collection[str] = ()) -> list[FaultMissed]:
    """Poisons of which no record of their task tells: they prove nothing.

    ``without``: names of files that are no record of a task, but of a second process of it.
    """
    poisons = [fault for fault in faults if fault.kind == POISON.name]
    told = {fault.task: _steps(folder, fault.task, "poison", without) for fault in poisons if fault.task is not None}
    return [
        FaultMissed(fault.kind, str(fault), Missed.NEVER_INJECTED, "its probe was not asked for that gradient")
        for fault in poisons
        if fault.task is not None and fault.when.step not in told[fault.task]
    ]


def ran_out(
    faults: Sequence[Fault], folder: Path, log: EventLog, *, without: Collection[str] = ()
) -> list[FaultMissed]:
    """Record the workers that ran out of data, with their last push; returns those that never got there."""
    missing = []
    for fault in (fault for fault in faults if fault.kind == OUT_OF_DATA.name):
        assert fault.task is not None
        assert fault.when.step is not None
        pushed = _steps(folder, fault.task, "push", without) | _steps(folder, fault.task, "update", without)
        if fault.when.step - 1 in pushed:
            said = f"the last gradient that it pushed is of step {max(pushed)}"
            told = {"fault": fault.kind, "of": str(fault.task), "on": True, "at": str(fault.when), "evidence": said}
            log.write("fault", **told, harm=OUT_OF_DATA.harm.value)
        else:
            missing.append(FaultMissed(fault.kind, str(fault), Missed.NEVER_INJECTED, "training did not get there"))
    return missing


def _steps(folder: Path, task: Task, kind: str, without: Collection[str]) -> set[int]:
    """Steps of a task's events of this kind, in any of its lives; whatever cannot be read says nothing."""
    steps: set[int] = set()
    for path in (folder / "events").glob(f"{task.slug}*.jsonl"):
        if path.name.split(".")[0] != task.slug or path.name in without:
            continue  # worker-11 is not worker-1
        for line in path.read_bytes().splitlines():
            if f'"{kind}"'.encode() not in line:
                continue
            try:
                event = json.loads(line)
            except ValueError:
                continue  # torn: the reader says so
            if not isinstance(event, dict) or event.get("kind") != kind or not isinstance(event.get("step"), int):
                continue  # the reader says what is wrong with it
            if kind != "poison" or event.get("seeded"):
                steps.add(event["step"])
    return steps
