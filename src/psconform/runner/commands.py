"""How a task of a run is started: its command line and its environment, as it sees paths and addresses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..history.manifest import Manifest
from ..layout import Command, Task
from ..probe import CONTROL
from ..targets.target import Target
from .folder import placeholders


@dataclass(frozen=True, kw_only=True)
class View:
    """What tasks of a launcher see; see `Launcher`."""

    python: str
    seen: Callable[[Path], str]
    named: Callable[[str], str]


def command_of(
    target: Target, manifest: Manifest, task: Task, known: Mapping[Task, str], *, listens: str, view: View
) -> Command:
    """The command line of a task that knows the others by these addresses."""
    workload = placeholders(manifest) | {"python": view.python, "here": view.seen(target.here)}
    addresses = {other: view.named(address) for other, address in known.items()}
    return target.command(task, addresses, layout=manifest.layout, workload=workload, listens=view.named(listens))


def environment_of(
    manifest: Manifest, task: Task, *, life: int, spec: Path, control: str, view: View
) -> dict[str, str]:
    """What a task's probe needs to know."""
    return {
        "PSCONFORM_SPEC": view.seen(spec),
        "PSCONFORM_TASK": str(task),
        "PSCONFORM_RUN": manifest.run,
        "PSCONFORM_INCARNATION": str(life),
        CONTROL: control,
    }
