"""clock: the wall clock of one worker jumps, and later jumps back.

The evidence is the worker's own: its probe says what its clock shows, at each step, and beside it what the monotonic
clock shows, which all processes of a machine share and which is not faked. So it does not matter how long that takes
to be read.
"""

from __future__ import annotations

from ..history.records import Harm
from . import faketime
from .control import Arrival
from .fault import Fault
from .injectors import OfTask, Scene
from .kinds import PROCESS, Amount, Kind, register


class Jumps(OfTask):
    """One jump, there and back."""

    holds = False  # whoever waits does not look at its clock: it is at the next step that it tells of it

    unseen = "its probe has not told what its clock shows"
    _there, _wrong, _back = False, False, ""
    _offset_s: int | None = None  # what the file says because of this fault

    def __init__(self, fault: Fault, scene: Scene) -> None:
        super().__init__(fault, scene)
        self._jump_s = self._amounts["jump_s"]

    def inject(self) -> None:
        self._write(self._jump_s)
        self._there = True

    def heard(self, arrival: Arrival) -> None:
        """What its probe says of its clock counts once that has jumped at least half of the way."""
        if arrival.task != str(self._task) or arrival.ahead_s is None:
            return
        self.unseen = ""
        ahead_s = arrival.ahead_s
        jumped = abs(ahead_s - self._jump_s) < abs(self._jump_s) / 2
        if self._there and jumped:
            self._seen = self._seen or f"its clock is {_apart(ahead_s)}"
        self._wrong = not self._there and jumped
        if not self._there and not jumped and abs(ahead_s) < abs(self._jump_s) / 2:
            self._back = self._back or f"its clock is {_apart(ahead_s)}"
        if self._offset_s is not None and abs(ahead_s - self._offset_s) >= abs(self._jump_s) / 2:
            self._write(self._offset_s)  # its library may have missed it (see faketime); or it told of before

    def heal(self) -> None:
        self._write(0)
        self._there, self._wrong, self._back = False, False, ""

    def healed(self) -> str:
        if self._back:
            return self._back
        return "" if self._processes.state(self._task) else "the process with that clock has ended"

    def gone(self) -> str:
        return "" if self._wrong else "its clock was set back, and it has not told of it since"

    def _write(self, seconds: int) -> None:
        faketime.write(self._scene.clock(self._task), seconds)
        self._offset_s = seconds


def _apart(seconds: float) -> str:
    return f"{abs(seconds):.1f} s {'behind' if round(seconds, 1) < 0 else 'ahead'}"


def _lacks() -> str:
    return str(faketime.lacking() or "")


CLOCK = register(
    Kind(
        name="clock",
        of=PROCESS,
        about="the wall clock of a worker jumps, and then jumps back",
        evidence="its probe told that its clock has jumped, and that it is right again",
        injector=Jumps,
        lasts=True,
        asked=True,
        amounts={
            "jump_s": Amount("seconds ahead; negative: behind", 3600, -1_000_000_000, 1_000_000_000, zero=False),
        },
        undoes=("clock",),
        drawn=False,
        harm=Harm.SLOWS,
        needs=_lacks,
    )
)
