"""What is declared in modules of a package of psconform, or of another package by its entry points."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from .errors import BadInput


def load(package: str, group: str, *, ending: str = "") -> None:
    """Import the modules of a package whose names have this ending, and what entry points of this group name.

    Raises:
        BadInput: an entry point cannot be loaded.
    """
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
        if module.name.endswith(ending):
            importlib.import_module(module.name)
    for _ in entries(group):
        pass


def entries(group: str) -> Iterator[tuple[EntryPoint, Any]]:
    """What the entry points of this group name, in whatever packages are installed.

    Raises:
        BadInput: an entry point cannot be loaded.
    """
    for point in entry_points(group=group):
        try:
            value = point.load()
        except Exception as error:
            problem = f"cannot be loaded: {type(error).__name__}: {error}"
            raise BadInput(f"entry point {point.name} of {group}", problem, value=point.value) from error
        yield point, value
