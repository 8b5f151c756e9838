"""Whether poison took effect: the probe records it, so that is looked up when the run has ended."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ..faults.fault import Fault
from ..layout import Task


def never_poisoned(faults: Sequence[Fault], folder: Path) -> list[str]:
    """Poisons of which no record of their task tells, in words: they prove nothing."""
    poisons = [fault for fault in faults if fault.kind == "poison"]
    told = {fault.task: _steps(folder, fault.task) for fault in poisons if fault.task is not None}
    return [
        f"fault poison {fault} never struck: its probe was not asked for that gradient"
        for fault in poisons
        if fault.task is not None and fault.when.step not in told[fault.task]
    ]


def _steps(folder: Path, task: Task) -> set[int]:
    """Steps whose gradient a task recorded as poisoned, in any of its lives; whatever cannot be read says nothing."""
    steps: set[int] = set()
    for path in (folder / "events").glob(f"{task.slug}*.jsonl"):
        if path.name.split(".")[0] != task.slug:
            continue  # worker-11 is not worker-1
        for line in path.read_bytes().splitlines():
            if b'"poison"' not in line:
                continue
            try:
                event = json.loads(line)
            except ValueError:
                continue  # torn: the reader says so
            if event.get("kind") == "poison" and event.get("seeded"):
                steps.add(int(event["step"]))
    return steps
