"""What is trained. The classes are in probe.py and trained.py, which trainers must reach without psconform."""

from __future__ import annotations

from ..errors import BadInput
from ..probe import Workload, workloads

__all__ = ["all_workloads", "find_workload"]


def all_workloads() -> dict[str, type[Workload]]:
    """All workloads by name, those of other packages among them.

    Raises:
        BadInput: an entry point of another package cannot be loaded.
    """
    try:
        return dict(workloads())
    except Exception as error:
        raise BadInput("entry points psconform.workloads", f"{type(error).__name__}: {error}") from error


def find_workload(name: str, *, place: str) -> type[Workload]:
    """The class of a workload; raises BadInput, naming the place, if there is none."""
    found = all_workloads()
    if name not in found:
        raise BadInput(place, "unknown workload", value=name, choices=found)
    return found[name]
