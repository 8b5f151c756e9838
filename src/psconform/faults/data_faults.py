"""Faults of data: what the probe gives a worker, or does not. It knows of them from spec.json."""

from __future__ import annotations

from ..history.records import Harm
from .kinds import DATA, Kind, register

OUT_OF_DATA = register(
    Kind(
        name="out-of-data",
        of=DATA,
        about="a worker has no data from that step on",
        evidence="its record ends with the push before",
        drawn=False,
        harm=Harm.NONE,
    )
)
POISON = register(
    Kind(
        name="poison",
        of=DATA,
        about="a gradient full of NaN or Inf",
        evidence="its probe gave it, and recorded that",
        values=("nan", "inf"),
        option=True,
        drawn=False,
        harm=Harm.NONE,
    )
)
