"""The seeded defects of the reference trainer, by name."""

from __future__ import annotations

from .defect import Defect
from .seeded import TRAINING
from .seeded_faults import FAULTY

__all__ = ["DEFECTS", "Defect"]

DEFECTS: dict[str, Defect] = {**TRAINING, **FAULTY}
