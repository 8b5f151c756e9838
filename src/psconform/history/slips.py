"""What a trainer got wrong in calls of the probe, and what each costs the record."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from ..layout import Task
from ..probe import MOST_SLIPS, Slip
from .events import Slip as SlipEvent


class Cost(Enum):
    """What the record lacks for it."""

    NOTHING = "nothing: it is shown"
    PART = "a part of what happened: nothing is valid"
    SENT = "what was sent, or what was answered, too: what is not in the record may have happened all the same"


COSTS = {
    Slip.ACK_AGAIN: (Cost.NOTHING, "double acknowledgement"),  # says what the first one said
    Slip.NO_ACK: (Cost.NOTHING, "push without an acknowledgement"),  # it counts as unknown
    Slip.FINAL_BEFORE_DONE: (Cost.NOTHING, "final read before wait_for_all, not taken for one"),  # the lack is a gap
    Slip.ACK_CHANGED: (Cost.PART, "second acknowledgement, other than the first"),  # one of them is wrong
    Slip.ACK_WITHOUT_PUSH: (
        Cost.SENT,
        "acknowledgement of what was never pushed (probe.push comes first)",
    ),  # or the push was not recorded
    Slip.ACK_AFTER_DONE: (Cost.SENT, "acknowledgement after wait_for_all"),  # the push stays unknown
    Slip.NO_WEIGHT: (Cost.PART, "push without its weight in a round that is a weighted mean"),
    Slip.NO_WORK: (
        Cost.PART,
        "push of a piece of work whose number is no whole one from 0, or not below how many there are",
    ),
    Slip.NO_OUTCOME: (Cost.SENT, "acknowledgement with an unknown outcome"),
    Slip.PUSH_AFTER_DONE: (Cost.SENT, "push after wait_for_all"),  # the final reads may not show it
    Slip.PUSH_AFTER_RESIDUAL: (Cost.SENT, "push after the residual"),
    Slip.PUSH_OUT_OF_ORDER: (Cost.SENT, "push whose attempt is not the next"),  # others may not be recorded
    Slip.READ_AFTER_DONE: (Cost.PART, "read after wait_for_all that is not the final one"),
    Slip.NO_VALUES: (Cost.PART, "call without values"),
    Slip.SIZE: (
        Cost.PART,
        "call with values of a wrong shape: they are one array of probe.slots numbers for each variable",
    ),
    Slip.RANGE: (Cost.SENT, "call with a number out of range"),  # which may be the step of a push
    Slip.RESIDUAL_AGAIN: (Cost.PART, "second residual"),
    Slip.WORKLOAD: (Cost.PART, "call that this workload has no use for"),
    Slip.ARGUMENT: (Cost.SENT, "argument that the probe cannot use"),
}
"""By kind of slip: what it costs, and what it is called."""
SHOWN = 3
"""Steps of slips of one kind that are named."""


@dataclass(frozen=True)
class Slipped:
    """Slips of one kind in one call, of one task, in all its incarnations."""

    task: Task
    call: str
    what: Slip
    number: int
    steps: tuple[int, ...]

    @property
    def cost(self) -> Cost:
        """What the record lacks for them."""
        return COSTS[self.what][0]

    def __str__(self) -> str:
        more = " ..." if len(self.steps) > SHOWN else ""
        steps = f", step {', '.join(map(str, self.steps[:SHOWN]))}{more}" if self.steps else ""
        number = f"{self.number}{' or more' if self.number >= MOST_SLIPS else ''} x " if self.number > 1 else ""
        return f"{self.task}: {number}{COSTS[self.what][1]} (probe.{self.call}{steps})"


def lost_sends(events: Iterable[SlipEvent]) -> bool:
    """A push, or an answer to one, may be missing from the record."""
    return any(COSTS[event.what][0] is Cost.SENT for event in events)


def slips_of(task: Task, events: Iterable[SlipEvent]) -> list[Slipped]:
    """What a task got wrong, in the order of the first of each kind."""
    found: dict[tuple[str, Slip], list[SlipEvent]] = {}
    for event in events:
        found.setdefault((event.call, event.what), []).append(event)
    return [
        Slipped(task, call, what, len(same), tuple(dict.fromkeys(e.step for e in same if e.step is not None)))
        for (call, what), same in found.items()
    ]
