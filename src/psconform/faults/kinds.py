"""The kinds of faults: what each does, what shows it, what it takes, and what this machine lacks for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..errors import PsconformError
from . import faketime, mount
from .container_kinds import ROWS
from .words import CONTAINER, DATA, DISK, NETWORK, PACKETS, PROCESS, Amount


@dataclass(frozen=True)
class Kind:
    """A kind of fault.

    Attributes:
        of: what it breaks: a process, a container, the network, packets, the disk, data. That decides what it is said
            of: a task, or links, or nothing more.
        about: what it does.
        evidence: what psconform must see, or the fault does not count.
        lasts: it is a state, and must be given an end; else it is over by itself.
        restarts: who is struck is started again after a time.
        asked: it is of workers alone, and the probe of the one that is struck tells psconform of it.
        amounts: its parameters.
    """

    of: str
    about: str
    evidence: str
    lasts: bool = False
    restarts: bool = False
    asked: bool = False
    amounts: Mapping[str, Amount] = field(default_factory=dict)

    @property
    def lacks(self) -> str:
        """What this machine lacks for it; empty if nothing."""
        if self.of in (CONTAINER, PACKETS):
            return IN_CONTAINERS
        if self.asked:
            return faketime.lacking()
        return _network() if self.of == NETWORK else mount.lacks() if self.mounts else ""

    @property
    def part(self) -> str:
        """The part of the machine that it takes for tasks in processes, as `psconform.doctor.PARTS` has it, or none."""
        return "toxiproxy" if self.of == NETWORK else "fuse" if self.mounts else "faketime" if self.asked else ""

    @property
    def mounts(self) -> bool:
        """It takes a file system over the folder for checkpoints."""
        return self.of == DISK and self.lasts


IN_CONTAINERS = "tasks in containers: --launcher docker"
PASSED = "bytes of the target that passed through it"
ENDED = "connections of the target that ended, with both tasks alive"
HELD = "bytes that the target sent into it, and that are held back"
LEFT_OPEN = "a connection of the target that is open though its other end has gone"
REFUSED = "an operation of the target that failed with it"
DAMAGED = "the file of the checkpoint has changed"
KINDS: dict[str, Kind] = {
    "kill": Kind(PROCESS, "SIGKILL", "the process ended by signal 9", restarts=True),
    "term": Kind(PROCESS, "SIGTERM", "the process ended", restarts=True),
    "crash-loop": Kind(
        PROCESS,
        "SIGKILL, again and again, each time some moments after it was started again",
        "the process ended by signal 9, and was started again, once at least",
        restarts=True,
        amounts={
            "times": Amount("SIGKILLs", 3, 2, 100),
            "lives_ms": Amount("milliseconds from a start to the next SIGKILL", 300, 0, 60_000),
        },
    ),
    "late": Kind(PROCESS, "started later than the others", "it was not there", lasts=True),
    "stop": Kind(PROCESS, "SIGSTOP, then SIGCONT", "the process is in state T", lasts=True),
    "throttle": Kind(
        PROCESS,
        "SIGSTOP and SIGCONT in turn, so that it has only some of its time",
        "the process was seen stopped, and going on, twice at least",
        lasts=True,
        amounts={"percent": Amount("of the time that it has", 20, 20, 90)},
    ),
    "twice": Kind(
        PROCESS,
        "a second process of the task is started beside the first",
        "both ran, and the second recorded something, or ended",
    ),
    "clock": Kind(
        PROCESS,
        "the wall clock of a worker jumps, and then jumps back",
        "its probe told that its clock has jumped, and that it is right again",
        lasts=True,
        asked=True,
        amounts={"jump_s": Amount("seconds ahead; negative: behind", 3600, -1_000_000_000, 1_000_000_000)},
    ),
    "stall": Kind(NETWORK, "holds all bytes back, and delivers them when it is healed", HELD, lasts=True),
    "latency": Kind(
        NETWORK,
        "each byte arrives later",
        PASSED,
        lasts=True,
        amounts={
            "ms": Amount("milliseconds", 50, 1, 60_000),
            "jitter_ms": Amount("up to so much more or less, drawn from the seed", 0, 0, 60_000),
        },
    ),
    "bandwidth": Kind(
        NETWORK,
        "so many bytes a second on each connection",
        PASSED,
        lasts=True,
        amounts={"kB_per_s": Amount("kilobytes a second", 100, 1, 1_000_000)},
    ),
    "slice": Kind(
        NETWORK,
        "bytes arrive in small pieces, a pause after each",
        PASSED,
        lasts=True,
        amounts={
            "bytes": Amount("in each piece", 64, 1, 10_000),
            "delay_us": Amount("microseconds between two", 100, 0, 1_000_000),
        },
    ),
    "refuse": Kind(NETWORK, "the source cannot connect, and what it has is ended", ENDED, lasts=True),
    "reset": Kind(
        NETWORK,
        "connections end when something is sent",
        ENDED,
        lasts=True,
        amounts={"after_ms": Amount("milliseconds until then", 0, 0, 60_000)},
    ),
    "cut": Kind(
        NETWORK,
        "connections end after so many bytes, in the middle of a push or of its acknowledgement",
        ENDED,
        lasts=True,
        amounts={"bytes": Amount("that still pass on each connection", 1000, 0, 1_000_000_000)},
    ),
    "slow-close": Kind(
        NETWORK,
        "that the source has closed a connection reaches the destination later",
        LEFT_OPEN,
        lasts=True,
        amounts={"ms": Amount("milliseconds", 2000, 1, 60_000)},
    ),
    "truncate": Kind(DISK, "the newest checkpoint loses its second half", DAMAGED),
    "flip": Kind(DISK, "one bit of the newest checkpoint is turned over, drawn from the seed", DAMAGED),
    "full": Kind(DISK, "no room: what would take some fails with ENOSPC", REFUSED, lasts=True),
    "read-only": Kind(DISK, "whatever would change anything fails with EROFS", REFUSED, lasts=True),
    "unreadable": Kind(DISK, "opening a file to read it, and reading, fail with EIO", REFUSED, lasts=True),
    "slow-disk": Kind(
        DISK,
        "each read, write and fsync takes longer",
        "an operation of the target that was delayed",
        lasts=True,
        amounts={"ms": Amount("milliseconds", 200, 1, 60_000)},
    ),
    "out-of-data": Kind(DATA, "a worker has no data from that step on", "its record ends with the push before"),
    "poison": Kind(DATA, "a gradient full of NaN or Inf", "its probe gave it, and recorded that"),
}
KINDS |= {name: Kind(**row) for name, row in ROWS.items()}
ENDING = tuple(name for name, kind in KINDS.items() if kind.evidence == ENDED)
"""They end connections."""


def _network() -> str:
    try:
        from . import toxiproxy  # noqa: F401
        from .server import find
        from .traffic import available  # pyroute2, requests and toxiproxy-python are an extra
    except ImportError as error:
        return f"{error.name}: pip install 'psconform[chaos]'"
    search = find()
    if search.found is None:
        return f"Toxiproxy ({search.why_not}); a run sets it up if it can, psconform doctor says how"
    return available()


def usual_amounts(name: str) -> tuple[tuple[str, int], ...]:
    """The parameters of a kind where nothing else is said; of one that must be said, its least."""
    return tuple((key, a.least if a.usual is None else a.usual) for key, a in KINDS[name].amounts.items())


def check_available(names: Iterable[str], *, proxies: bool) -> None:
    """Raises PsconformError if no run could have faults of these kinds here, whatever it sets up."""
    given = set(names)
    for name in sorted(name for name in given if KINDS[name].asked):
        if why := KINDS[name].lacks:
            raise PsconformError(f"fault {name} needs {why}")
    kinds = {KINDS[name].of: KINDS[name] for name in given if KINDS[name].of == NETWORK or KINDS[name].mounts}
    if DISK in kinds and (why := kinds[DISK].lacks):
        raise PsconformError(f"faults of the disk that last need {why}")
    if NETWORK not in kinds and not proxies:
        return
    try:
        from . import toxiproxy  # noqa: F401
        from .traffic import available
    except ImportError as error:
        raise PsconformError(f"network faults need {error.name}: pip install 'psconform[chaos]'") from None
    if why := available():
        raise PsconformError(f"network faults need to see the target's connections: {why}")
