"""Why a run is not whole, as values: the manifest keeps them, the History has them, ``str`` says each in a sentence."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from ..sizes import spell_size


class Missed(StrEnum):
    """What did not come of a fault."""

    NEVER_INJECTED = "was never injected"
    REFUSED = "could not be injected"
    NOT_OBSERVED = "was not observed"
    RECORD_WENT_ON = "did not end the process that records"
    NOT_HEALED = "did not heal"
    LEFT_UNHEALED = "had not healed when the run ended"


class FaultMissed(msgspec.Struct, frozen=True, tag_field="reason", tag="fault missed"):
    """A fault was not injected, not observed or not healed: the run says nothing about it."""

    kind: str
    fault: str  # as the plan spells it
    how: Missed
    why: str = ""
    within_s: float = 0.0  # how long it was looked for, if that is over
    number: int | None = None  # of the faults that psconform injects, from 0; None: of those that the probe does
    words: str = ""  # the same as its kind and ``fault``, for people

    @property
    def observed(self) -> bool:
        """It took effect on the target, and only its end is in doubt."""
        return self.how in (Missed.NOT_HEALED, Missed.LEFT_UNHEALED)

    def __str__(self) -> str:
        within = f" within {self.within_s:.0f} s" if self.within_s else ""
        fault = self.words or f"{self.kind} {self.fault}"
        return f"fault {fault} {self.how}{within}" + (f": {self.why}" if self.why else "")


class Cause(StrEnum):
    """Who ended a task, if that was neither itself nor psconform."""

    UNKNOWN = ""
    OUT_OF_MEMORY = "the OOM killer ended it"
    KILLED = "SIGKILL came from outside: neither psconform nor, as far as is known, the OOM killer sent it"
    DISK_FULL = "a disk was full"


class TaskFailed(msgspec.Struct, frozen=True, tag_field="reason", tag="task failed"):
    """A task ended by itself, and not well."""

    task: str
    status: int  # an exit status, or, below 0, the signal
    log: str = ""  # the line of its log that names the error, else the last one
    block: tuple[str, ...] = ()  # the lines of the last traceback or fatal message of its log
    cause: Cause = Cause.UNKNOWN

    @property
    def how(self) -> str:
        """The task, and how it ended."""
        return f"{self.task} {how_it_ended(self.status)}"

    def __str__(self) -> str:
        return f"{self.how}; its log ends: {self.log}" if self.log else self.how


class EndedEarly(msgspec.Struct, frozen=True, tag_field="reason", tag="ended early"):
    """A worker ended with status 0 before it had taken its steps, and nothing says that it may."""

    task: str
    pushed: int
    due: int

    def __str__(self) -> str:
        return f"{self.task} ended with status 0 after {self.pushed} of {self.due} steps"


class FailedAfterEnd(msgspec.Struct, frozen=True, tag_field="reason", tag="failed after end"):
    """A task ended not well, when it had closed its record: nothing of the run is missing."""

    task: str
    status: int
    log: str = ""

    def __str__(self) -> str:
        how = f"{self.task} {how_it_ended(self.status)} after it had closed its record"
        return f"{how}; its log ends: {self.log}" if self.log else how


class NoProgress(msgspec.Struct, frozen=True, tag_field="reason", tag="no progress"):
    """Training did not move, and psconform ended it."""

    patience_s: float

    def __str__(self) -> str:
        return f"stopped: no task made progress for {self.patience_s:.0f} s"


class Decided(msgspec.Struct, frozen=True, tag_field="reason", tag="decided"):
    """Training did not move, and psconform ended it before that was a hang: the run was known to be violated."""

    silent_s: float
    guarantees: tuple[str, ...]

    def __str__(self) -> str:
        names, were = ", ".join(self.guarantees), "was" if len(self.guarantees) == 1 else "were"
        after = f"ended after {self.silent_s:.0f} s without progress"
        return f"{after}: {names} {were} already violated, and no later event could change that"


class NoEnd(msgspec.Struct, frozen=True, tag_field="reason", tag="no end"):
    """Tasks that end by themselves did not, though training was over."""

    tasks: tuple[str, ...]
    patience_s: float

    def __str__(self) -> str:
        if all(task.startswith("worker:") for task in self.tasks):
            return f"{', '.join(self.tasks)} did not end within {self.patience_s:.0f} s after all records were closed"
        late = f"{', '.join(self.tasks)} did not end within {self.patience_s:.0f} s of the last worker"
        return f"{late} (exits = false in its target file says that a task serves until it is stopped)"


class Overgrown(msgspec.Struct, frozen=True, tag_field="reason", tag="overgrown"):
    """What a target wrote was larger than it may be, and psconform ended the run."""

    what: str  # a file of the run folder, or all that count
    limit: int  # bytes
    option: str  # that raises the limit

    def __str__(self) -> str:
        return f"stopped: {self.what} grew beyond {spell_size(self.limit)} ({self.option} raises this limit)"


class LinksLost(msgspec.Struct, frozen=True, tag_field="reason", tag="links lost"):
    """The proxies between the tasks are gone, or the network that they find each other in, and not by the plan."""

    why: str

    def __str__(self) -> str:
        return f"tasks could not reach each other any more: {self.why}"


class Problem(msgspec.Struct, frozen=True, tag_field="reason", tag="problem"):
    """Anything else that kept psconform from its work, as the error says it."""

    what: str

    def __str__(self) -> str:
        return self.what


Stop = TaskFailed | EndedEarly | NoProgress | Decided
"""Why training did not come to its end."""
Reason = FaultMissed | TaskFailed | FailedAfterEnd | NoProgress | Decided | NoEnd | Overgrown | LinksLost | Problem


def how_it_ended(status: int) -> str:
    """An exit status in words."""
    return f"was ended by signal {-status}" if status < 0 else f"failed with status {status}"
