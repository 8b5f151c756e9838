"""The parts of the machine that a run takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from psconform.faults.kinds import kinds


def parts_of(options: Mapping[str, Any]) -> list[str]:
    """What the faults of a run in processes take, as `psconform.doctor.PARTS` names it: ``faults`` of these options."""
    text = str(options.get("faults", ""))
    found = [kind for name, kind in kinds().items() if f'"{name}"' in text or text.endswith(f":{name}")]
    return sorted({kind.part for kind in found if kind.part})
