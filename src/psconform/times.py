"""Times as options spell them: ``50ms``, ``1.5s``."""

from __future__ import annotations

import math
from decimal import Decimal, DecimalException

from .errors import BadInput

UNITS = {"us": Decimal("1e-6"), "ms": Decimal("1e-3"), "s": Decimal(1)}


def spell(seconds: float, *, unit_after: str = "") -> str:
    """The time as options take it; read back it is the same number, to the last bit.

    ``unit_after``: what separates the number from the unit, in a sentence a space.
    """
    unit = next((unit for unit in ("s", "ms") if seconds >= float(UNITS[unit])), "us") if seconds else "s"
    text = f"{Decimal(repr(seconds)) / UNITS[unit]:f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text) + unit_after + unit


def parse_seconds(value: float | str, *, place: str) -> float:
    """Seconds, of a number or of text with its unit; NaN for one that is not finite. Raises BadInput."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    for unit, factor in UNITS.items():  # s is the end of the others, so it comes last
        if isinstance(value, str) and value.isascii() and value.endswith(unit):
            try:
                seconds = float(Decimal(value.removesuffix(unit)) * factor)
            except (DecimalException, OverflowError):
                break
            return seconds if math.isfinite(seconds) else math.nan
    raise BadInput(place, "the time must be a number with its unit, such as 50ms", value=value, choices=UNITS)
