"""When a fault strikes, and until when: a step, a phase of a step, or a time."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import BadInput
from ..times import parse_seconds, spell

BEFORE_PUSH = "before-push"
PHASES = (BEFORE_PUSH, "after-push")
"""Phases that the probe says by itself, of each step; a trainer may say others."""
MAX_S = 3600.0
_PHASE = re.compile(r"[a-z][a-z-]{1,40}")


@dataclass(frozen=True, order=True)
class When:
    """A phase, of one step or of any, or (then without a phase) seconds after the tasks were started."""

    phase: str = ""
    step: int | None = None
    after_s: float = 0.0

    def __str__(self) -> str:
        if not self.phase:
            return spell(self.after_s)
        if self.step is None:
            return self.phase
        return str(self.step) if self.phase == BEFORE_PUSH else f"{self.phase}:{self.step}"

    @classmethod
    def parse(cls, text: str, *, place: str) -> When:
        """Read a step, ``PHASE``, ``PHASE:STEP`` or a time; raises BadInput."""
        if re.fullmatch(r"\d{1,9}", text):
            return cls(BEFORE_PUSH, int(text))
        phase, colon, step = text.partition(":")
        if _PHASE.fullmatch(phase) and phase not in ("ms", "us"):
            if colon and not re.fullmatch(r"\d{1,9}", step):
                raise BadInput(place, "must be PHASE:STEP, such as after-push:35", value=text)
            if phase in PHASES and not colon:
                raise BadInput(place, f"needs a step, such as {phase}:35", value=text)
            return cls(phase, int(step) if colon else None)
        seconds = parse_seconds(text, place=place)
        if not 0 <= seconds <= MAX_S:
            raise BadInput(place, f"the time must be between 0 and {MAX_S:.0f} s", value=text)
        return cls(after_s=seconds)
