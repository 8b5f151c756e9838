"""What each restore brought back: which checkpoint stood under that name then, and which was the newest.

Nobody demands that names are used once: of a ring of two files (``a``, ``b``, ``a`` ...) a name says what was written
there last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .records import Mark, Struck


@dataclass(frozen=True)
class Rollback:
    """A restore, and what its task had recorded before it.

    ``checkpoint`` is the one that it named, None if nobody can tell which that was (``unclear`` says why, empty: nobody
    recorded it). ``newest`` is the newest one, those that a fault has damaged left out, and ``anew`` what may have been
    it: its file was damaged, and seems to have been written once more since.
    """

    restore: Mark
    checkpoint: Mark | None
    newest: Mark | None
    anew: Mark | None = None
    unclear: str = ""

    @property
    def text(self) -> str:
        """Who restored what, when."""
        return f"{self.restore.task} restored {self.restore.name} in epoch {self.restore.epoch}"

    def older(self, other: Mark | None) -> bool | None:
        """The checkpoint that was restored is older than another one; None: nobody can tell, tasks share no clock."""
        if self.checkpoint is None or other is None:
            return False
        if self.checkpoint.task == other.task:
            return place(self.checkpoint) < place(other)
        mine, its = _flat(self.checkpoint), _flat(other)
        return False if len(mine) == len(its) and all(a >= b for a, b in zip(mine, its, strict=True)) else None


def place(mark: Mark) -> tuple[int, int]:
    """Where in the record of its task."""
    return mark.life, mark.seq


def rollbacks_of(marks: Iterable[Mark], faults: Iterable[Struck]) -> tuple[Rollback, ...]:
    """All restores, in the order of the epochs that they began.

    What came before what is taken from the record of one task, life after life, for tasks share no clock; so the newest
    checkpoint is that of the task that restored.
    """
    told, struck = list(marks), [fault for fault in faults if fault.file]
    made = [mark for mark in told if mark.kind == "checkpoint"]
    found = []
    for restore in (mark for mark in told if mark.kind == "restore"):
        mine = sorted((mark for mark in made if mark.task == restore.task), key=place)
        held = _held(mark for mark in mine if place(mark) < place(restore))
        named, unclear = _named(restore, held.get(restore.name), made=made, told=told)
        whole = [mark for mark in held.values() if not any(fault.damaged(mark.name) for fault in struck)]
        anew = [mark for mark in held.values() if _anew(mark, mine, struck)]
        newest = max(whole, key=place, default=None)
        found.append(Rollback(restore, named, newest, max(anew, key=place, default=None), unclear))
    return tuple(sorted(found, key=lambda back: back.restore.epoch))


def _held(made: Iterable[Mark]) -> dict[str, Mark]:
    """What each name stands for, as far as a task has recorded it: what it recorded last.

    Recorded once more with the same clock it is the same checkpoint, where it was: a successor may record again what is
    there. Only where nothing newer has another clock this is not to be told, and makes no difference.
    """
    held: dict[str, Mark] = {}
    newest: Mark | None = None
    for mark in made:
        old = held.get(mark.name)
        if old is None or newest is None or old.clock != mark.clock or old.clock == newest.clock:
            held[mark.name] = newest = mark
    return held


def _named(restore: Mark, mine: Mark | None, *, made: list[Mark], told: list[Mark]) -> tuple[Mark | None, str]:
    """The checkpoint that a restore named, or why nobody can tell."""
    same = [mark for mark in made if mark.name == restore.name]
    since = mine.epoch if mine is not None else 0
    others = [m for m in same if m.task != restore.task and (since <= m.epoch < restore.epoch or not restore.epoch)]
    found = [mine] if mine is not None else [*_late(restore, same, told)] or others[:1]
    if not found:
        return None, ""
    if any(mark.clock != found[0].clock for mark in others):
        return None, "a name that several tasks have used, for different checkpoints"
    clocks = {(mark.name, mark.clock) for mark in made}
    reused = len(clocks) > len({name for name, _ in clocks})
    before = [m.life for m in same if m.task == restore.task and place(m) < place(restore)]
    if reused and before and max(before) < restore.life:
        # who was killed may have written the next one under that name, and not have come to say so
        return None, f"which may be another one than it was: names are used again, and life {restore.life} has not said"
    return found[0], ""


def _late(restore: Mark, same: list[Mark], told: list[Mark]) -> Iterator[Mark]:
    """What was recorded right after it was restored, before its task went on: later the name may be used again."""
    mine = [mark for mark in told if (mark.task, mark.life) == (restore.task, restore.life) and mark.seq > restore.seq]
    goes_on = min((mark.seq for mark in mine if mark.kind == "resume"), default=0)
    yield from (mark for mark in same if mark in mine and mark.seq < goes_on)


def _anew(mark: Mark, mine: list[Mark], struck: list[Struck]) -> bool:
    """It was damaged, then recorded once more as another one: but which of the two was struck?"""
    on = max((fault.on_ns for fault in struck if fault.damaged(mark.name)), default=0)
    before = (m for m in mine if m.name == mark.name and m.clock != mark.clock and m.at <= on)
    return 0 < on < mark.at and any(before)


def _flat(mark: Mark) -> list[int]:
    return [count for row in mark.clock for count in row]
