"""The kinds of faults: each is declared once, where it is defined, and all that knows of kinds follows from that.

A kind is a `Kind` that is handed to `register`, by a module of this package or of another one that names it in its
entry points. `kinds` finds them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Literal

from ..errors import Unavailable
from ..extensions import load
from ..history.records import Harm
from ..parts import FAKETIME, FUSE, PYROUTE2, TOXIPROXY, TOXIPROXY_PYTHON, Missing

if TYPE_CHECKING:
    from .fault import Fault
    from .injectors import Injector, Scene

ENTRY_POINTS = "psconform.faults"
"""The group in which another package names a module, or an object in one, that registers kinds."""
PROCESS, CONTAINER, NETWORK, PACKETS = "process", "container", "network", "packets"
DISK, DATA = "disk", "data"
OF = (PROCESS, NETWORK, DISK, DATA, PACKETS, CONTAINER)
"""What faults can be of, in the order in which kinds are listed."""
IN_CONTAINERS = "tasks in containers: --launcher docker"


@dataclass(frozen=True)
class Amount:
    """A whole number that a kind takes.

    Attributes:
        about: what it counts.
        usual: its value where none is given; None: it must be.
        least, most: its bounds.
        drawn: the values that random plans have.
        zero: it may be 0.
    """

    about: str
    usual: int | None
    least: int
    most: int
    drawn: tuple[int, ...] = ()
    zero: bool = True


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of fault.

    Attributes:
        name: as plans have it.
        of: what it breaks, one of `OF`. That decides what it is said of: a task, or links, or nothing more.
        about: what it does.
        evidence: what psconform must see, or the fault does not count.
        injector: what injects, observes and heals one such fault; None: psconform does not, the probe knows of it from
            spec.json.
        lasts: it is a state, and must be given an end; else it is over by itself.
        restarts: the task that it ends is started again after a time.
        again: why it must be started again, where it cannot be without.
        asked: it is of workers alone, and the probe of the one that is struck tells psconform of it.
        first: it is there from the beginning, and at no other time.
        amounts: its parameters.
        values: what its ``value`` may be, the usual one first.
        option: it has an option of its own, ``--NAME``.
        harm: what it does to training.
        effect: what becomes of connections: they end, or what is sent is held back or passes through it.
        keeps_connections: of a process: connections stay, so that other faults can be seen on them.
        repeats: it is injected several times, the last time at a moment that no plan says.
        moves: its task listens at another address afterwards.
        silences: peers may not hear that a connection has ended.
        one_way: it is of what one side of a link does, the side that dials.
        shared: which partitions it can be of where all tasks share one cluster spec.
        undoes: kinds of faults of the same task that would end with this one, or the other way round.
        excludes: effects of other faults of the same links that must not end while this one lasts.
        drawn: random plans have it.
        outlasts: in random plans it often lasts for longer than a deadline.
        hides: the share of a CPU that its amount ``percent`` leaves must be less than what a layout leaves.
        needs: what this machine lacks for it, beside proxies, containers or a file system.
    """

    name: str
    of: str
    about: str
    evidence: str
    injector: Callable[[Fault, Scene], Injector] | None = None
    lasts: bool = False
    restarts: bool = False
    again: str = ""
    asked: bool = False
    first: bool = False
    amounts: Mapping[str, Amount] = field(default_factory=dict)
    values: tuple[str, ...] = ()
    option: bool = False
    harm: Harm = Harm.AWAY
    effect: Literal["", "ends", "holds", "passes"] = ""
    keeps_connections: bool = False
    repeats: bool = False
    moves: bool = False
    silences: bool = False
    one_way: bool = False
    shared: tuple[str, ...] = ("isolate", "mute", "deaf")
    undoes: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    drawn: bool = True
    outlasts: bool = False
    hides: bool = False
    needs: Callable[[], str] | None = None

    @property
    def lacks(self) -> str:
        """What this machine lacks for it; empty if nothing."""
        if self.in_containers:
            return IN_CONTAINERS
        return self.lacks_part or (_proxies() if self.of == NETWORK else "")

    @property
    def lacks_part(self) -> str:
        """The same, without containers and proxies."""
        why = self.needs() if self.needs is not None else ""
        return why or (_fuse() if self.mounts else "")

    @property
    def part(self) -> str:
        """The name of the part of the machine that it takes for tasks in processes, or none."""
        part = TOXIPROXY if self.of == NETWORK else FUSE if self.mounts else FAKETIME if self.asked else None
        return part.name if part is not None else ""

    @property
    def mounts(self) -> bool:
        """It takes a file system over the folder for checkpoints."""
        return self.of == DISK and self.lasts

    @property
    def of_links(self) -> bool:
        """It is of links between tasks."""
        return self.of in (NETWORK, PACKETS)

    @property
    def in_containers(self) -> bool:
        """Only tasks in containers can have it."""
        return self.of in (CONTAINER, PACKETS)

    @property
    def usual(self) -> tuple[tuple[str, int], ...]:
        """Its parameters where nothing else is said; of one that must be said, its least."""
        return tuple((name, a.least if a.usual is None else a.usual) for name, a in self.amounts.items())


_kinds: dict[str, Kind] = {}


def register(kind: Kind) -> Kind:
    """Make a kind known; returns it.

    Raises:
        ValueError: there is one of that name already, or it is of nothing that faults can be of.
    """
    if kind.of not in OF:
        raise ValueError(f"fault kind {kind.name} is of {kind.of!r}; valid: {', '.join(OF)}")
    if kind.name in _kinds:
        raise ValueError(f"fault kind {kind.name} is declared already")
    _kinds[kind.name] = kind
    return kind


@cache
def kinds() -> Mapping[str, Kind]:
    """All kinds by name, those of other packages among them.

    Raises:
        BadInput: an entry point of another package cannot be loaded.
    """
    load(__name__.rpartition(".")[0], ENTRY_POINTS, ending="_faults")
    return {kind.name: kind for kind in sorted(_kinds.values(), key=lambda kind: (OF.index(kind.of), kind.name))}


def drawn_kinds(*, containers: bool = False) -> tuple[str, ...]:
    """What random plans have; in ``containers`` there is more.

    A poison asks for something else than recovery, of a job whose only checkpoint is damaged none can be asked for, a
    slow close (and an outage of DNS) shows only beside a fault that ends connections, and a clock that jumps needs a
    worker that is started cold.
    """
    return tuple(name for name, kind in kinds().items() if kind.drawn and (containers or not kind.in_containers))


def check_available(names: Iterable[str], *, proxies: bool) -> None:
    """Raises PsconformError if no run could have faults of these kinds here, whatever it sets up."""
    given = {name: kinds()[name] for name in sorted(set(names))}
    for name, kind in given.items():
        if why := kind.lacks_part:
            raise Unavailable(f"fault {name} needs {why}")
    if proxies or any(kind.of == NETWORK for kind in given.values()):
        _need_client()


def _need_client() -> None:
    """Raises Unavailable if psconform cannot set up proxies, or see what they do."""
    try:
        from . import toxiproxy  # noqa: F401
        from .traffic import available  # pyroute2, requests and toxiproxy-python are an extra
    except ImportError as error:
        part = PYROUTE2 if error.name == PYROUTE2.name else TOXIPROXY_PYTHON
        raise Missing(part, f"there is no Python module {error.name}") from None
    if why := available():
        raise Unavailable(f"network faults need to see the target's connections: {why}")


def _fuse() -> str:
    from .disk_faults import lacks  # which registers kinds

    return str(lacks() or "")


def _proxies() -> str:
    from .toxiproxy_install import find, missing

    try:
        _need_client()
    except Unavailable as error:
        return str(error)
    search = find()
    return "" if search.found is not None else str(missing(search))
