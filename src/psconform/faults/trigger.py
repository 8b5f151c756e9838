"""When a fault strikes, and until when: a step, a phase of a step, or a time."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ..errors import BadInput
from ..layout import Layout
from ..times import parse_seconds, spell

BEFORE_PUSH = "before-push"
SENT = "sent"
"""A push has been sent, and not been answered: psconform holds the answers back, so the network must be proxied."""
AFTER_PUSH = "after-push"
PHASES = (BEFORE_PUSH, SENT, AFTER_PUSH)
"""Phases of each step that need no word of the trainer's; it may say others."""
MAX_S = 3600.0
_PHASE = re.compile(r"[a-z][a-z-]{1,40}")


@dataclass(frozen=True, order=True)
class When:
    """A phase, of one step or of any, or (then without a phase) seconds after the tasks were started.

    ``task`` is the worker that must get to that phase; empty: see ``Fault.where``.
    """

    phase: str = ""
    step: int | None = None
    after_s: float = 0.0
    task: str = ""

    def __str__(self) -> str:
        if not self.phase:
            return spell(self.after_s)
        who = f"{self.task}@" if self.task else ""
        if self.step is None:
            return who + self.phase
        return who + (str(self.step) if self.phase == BEFORE_PUSH else f"{self.phase}:{self.step}")

    @property
    def said(self) -> str:
        """The phase at which the probe tells that it is there."""
        return BEFORE_PUSH if self.phase == SENT else self.phase

    @classmethod
    def parse(cls, text: str, *, place: str) -> When:
        """Read a step, ``PHASE``, ``PHASE:STEP``, one of these behind ``worker:1@``, or a time; raises BadInput."""
        who, at, rest = text.rpartition("@")
        if at:
            found = cls.parse(rest, place=place)
            if not re.fullmatch(r"worker:\d{1,4}", who) or not found.phase:
                raise BadInput(place, "must be WORKER@STEP or WORKER@PHASE, such as worker:0@20", value=text)
            return replace(found, task=who)
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

    def check(self, *, layout: Layout, steps: int, place: str, value: object) -> None:
        """Raises BadInput if nobody will ever get there."""
        if self.task and self.task not in map(str, layout.worker_tasks):
            raise BadInput(place, f"layout {layout.text} has no such worker", value=value)
        if self.step is not None and self.step >= steps:
            raise BadInput(place, f"there are {steps} steps, 0 to {steps - 1}", value=value)
