"""What injects a fault, as in a run, on the parts that a test has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from psconform.faults.fault import Fault
from psconform.faults.injectors import Injector, Scene
from psconform.faults.kinds import kinds


class Nothing:
    """In place of what a fault does not act on."""


def scene_of(fault: Fault, **parts: Any) -> Scene:
    """``parts``: its fields."""
    usual: dict[str, Any] = {
        "processes": Nothing(),
        "life": lambda task: 0,
        "done": lambda task: False,
        "seed": 0,
        "checkpoints": Path("none"),
        "clock": lambda task: Path("none"),
        "start_second": lambda task: 0,
        "recorded": lambda pid: False,
        "numbers": {fault: 0},
    }
    return Scene(**usual | parts)


def injector_of(fault: Fault, **parts: Any) -> Injector:
    """``parts``: fields of a Scene."""
    maker = kinds()[fault.kind].injector
    assert maker is not None
    return maker(fault, scene_of(fault, **parts))
