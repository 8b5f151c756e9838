"""What a run tells beside reads and pushes: checkpoints and restores, who was gone on without, poisons, and faults."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath

from ..layout import Task


@dataclass(frozen=True)
class Mark:
    """A task made a checkpoint, restored one, or resumed training; in the order of its record, life after life."""

    task: Task
    life: int
    kind: str  # checkpoint, restore, resume
    epoch: int
    seq: int
    name: str = ""
    clock: tuple[tuple[int, ...], ...] = ()  # of a checkpoint: per ps and worker, gradients in it
    step: int = 0  # of a resumption: the next step
    at: int = 0  # when it was recorded, nanoseconds of CLOCK_MONOTONIC


@dataclass(frozen=True)
class Absence:
    """Somebody said that the job goes on without a worker: in sync the round of ``step``, in async from there on."""

    worker: int
    step: int
    at: int  # when it was recorded, nanoseconds of CLOCK_MONOTONIC
    epoch: int = 0


@dataclass(frozen=True)
class State:
    """What a worker had beside the parameters before the gradient of a step; in the order of its record."""

    worker: int
    life: int
    epoch: int
    step: int
    name: str
    digest: int
    total: float | None  # the sum of its numbers; None: it has none
    at: int  # when it was recorded, nanoseconds of CLOCK_MONOTONIC

    def text(self, other: State) -> str:
        """It, in a witness, beside another one."""
        if self.total is None or f"{self.total:.6g}" == f"{other.total or 0:.6g}":
            return f"checksum {self.digest:08x}"
        return f"a sum of {self.total:.6g}"


@dataclass(frozen=True)
class Poisoned:
    """A worker was given a gradient that is not finite; ``seeded``: by psconform, else training has diverged."""

    worker: int
    step: int
    value: str
    seeded: bool
    at: int  # when it was recorded, nanoseconds of CLOCK_MONOTONIC


class Harm(StrEnum):
    """What a fault does to training, as psconform's own record says of each."""

    ENDS = "ends"  # a task is another process after it
    DOUBLES = "doubles"  # or there are two of them
    AWAY = "away"  # a task, or its peers, may wait for it to be over
    SLOWS = "slows"  # it keeps no task away
    NONE = "none"  # it is no outage: there is nothing to heal


@dataclass(frozen=True)
class Struck:
    """A fault that took effect, as psconform recorded it, and how it was healed (empty: it was not).

    One that was attempted and not observed has no evidence; it may have taken effect all the same.

    A poison is one gradient, there is nothing to heal: its ``healed`` stays empty.
    """

    kind: str
    of: str  # a task, or links, in words
    at: str
    evidence: str
    healed: str
    file: str = ""  # the checkpoint file that it damaged, below the folder for checkpoints
    on_ns: int = 0  # from then on it was there, nanoseconds of CLOCK_MONOTONIC; 0: not known
    off_ns: int = 0  # until then; 0: not known, or it was not healed
    harm: Harm = Harm.AWAY
    tasks: tuple[str, ...] = ()  # that task, or those between which the links are; none: of all
    number: int | None = None  # of the faults that psconform injects, from 0
    words: str = ""  # ``what``, as it was recorded
    ends: str = ""  # its parameters and its end, in words

    @property
    def kills(self) -> bool:
        """A task is another process after it, or there are two of them."""
        return self.harm in (Harm.ENDS, Harm.DOUBLES)

    @property
    def outage(self) -> bool:
        """There is something to heal."""
        return self.harm is not Harm.NONE

    @property
    def what(self) -> str:
        """What struck whom, and when."""
        return self.words or f"{self.kind} {self.of} at {self.at}"

    def damaged(self, name: str) -> bool:
        """Whether the file that it damaged is of the checkpoint of this name.

        Then the file, or a folder that it is in, is called so, with or without more behind a dot. A name may be a path,
        from wherever. (Older run folders have only the file's own name.)
        """
        file, named = PurePosixPath(self.file).parts, PurePosixPath(name).parts
        if not file or not named:
            return False
        below = any(_begins(file, named[start:]) for start in range(len(named)))
        return below or any(_begins(file[start:], named) for start in range(1, len(file)))


def _begins(file: tuple[str, ...], named: tuple[str, ...]) -> bool:
    """These components of a path are of what is named so."""
    *folders, last = named
    if len(file) < len(named) or list(file[: len(folders)]) != folders:
        return False
    here = file[len(folders)]
    return here == last or here.startswith(f"{last}.")
