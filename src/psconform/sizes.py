"""Sizes as options spell them: ``512MiB``."""

from __future__ import annotations

import re

from .errors import BadInput

UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_SIZE = re.compile(r"([0-9]{1,7})(KiB|MiB|GiB)")


def parse_size(text: str, *, place: str) -> int:
    """Bytes, of a whole number with its unit. Raises BadInput."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise BadInput(place, "must be a whole number with its unit, such as 512MiB", value=text, choices=UNITS)
    return int(match[1]) * UNITS[match[2]]


def spell_size(size: int) -> str:
    """The size as options take it, in the largest unit in which it is a whole number; else in bytes."""
    unit = next((unit for unit in ("GiB", "MiB", "KiB") if size and size % UNITS[unit] == 0), "")
    return f"{size // UNITS[unit]}{unit}" if unit else f"{size} bytes"
