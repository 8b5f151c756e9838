"""Where workers with GPUs have computed: what they say of it, against what the layout says."""

from __future__ import annotations

from collections.abc import Mapping

from ..layout import Layout, Task
from .events import Devices
from .reader import EventFile

By = Mapping[int, tuple[str, ...]]
"""By worker, the device of each of its towers."""


def devices_of(task: Task, file: EventFile) -> dict[int, tuple[str, ...]]:
    """What a worker says in one of its lives; the last word counts."""
    said = [tuple(event.names) for event in file.of(Devices)]
    return {task.index: said[-1]} if said else {}


def elsewhere(layout: Layout, devices: By) -> list[str]:
    """Workers that have not computed where the layout says: then nobody knows what the run would show there."""
    wanted = _wanted(layout)
    return [
        f"{task} computed on {', '.join(devices[task.index]) or 'nothing'}, not on {', '.join(wanted)}"
        for task in layout.worker_tasks
        if wanted and task.index in devices and sorted(devices[task.index]) != sorted(wanted)
    ]


def unsaid(layout: Layout, devices: By) -> list[str]:
    """Workers with GPUs that do not say where they compute."""
    silent = [str(task) for task in layout.worker_tasks if _wanted(layout) and task.index not in devices]
    return [f"{', '.join(silent)} did not say on which devices they compute (probe.devices)"] if silent else []


def _wanted(layout: Layout) -> tuple[str, ...]:
    return tuple(f"{'CPU' if layout.emulated else 'GPU'}:{number}" for number in range(layout.gpus))
