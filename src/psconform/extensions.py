"""What is declared in modules of a package of psconform, or of another package by its entry points."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Container, Iterator
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
    for _ in _entries(group):
        pass


def named(group: str, what: str, fits: Callable[[Any], bool], *, taken: Container[str]) -> dict[str, Any]:
    """What the entry points of this group name, in whatever packages are installed, by the ``name`` that it has.

    Raises:
        BadInput: an entry point cannot be loaded, is not ``what`` it must be, or its name is taken.
    """
    found: dict[str, Any] = {}
    for point, value in _entries(group):
        place = f"entry point {point.name} of {group}"
        if not fits(value):
            raise BadInput(place, f"must be {what}", value=point.value)
        if value.name in taken or value.name in found:
            kind = group.rpartition(".")[2].removesuffix("s")
            raise BadInput(place, f"has the name of another {kind}", value=value.name)
        found[value.name] = value
    return found


def _entries(group: str) -> Iterator[tuple[EntryPoint, Any]]:
    for point in entry_points(group=group):
        try:
            yield point, point.load()
        except Exception as error:
            problem = f"cannot be loaded: {type(error).__name__}: {error}"
            raise BadInput(f"entry point {point.name} of {group}", problem, value=point.value) from error
