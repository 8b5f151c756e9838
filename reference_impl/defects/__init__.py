"""Deliberate bugs, which psconform must find: catalog.py declares them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .catalog import DEFECTS


def code_of(defect: str) -> type[Any]:
    """The class that has this bug."""
    module, _, name = DEFECTS[defect].code.partition(".")
    found: type[Any] = getattr(import_module(f".{module}", __name__), name)
    return found
