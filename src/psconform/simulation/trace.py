"""The truth about a simulated run: what was applied to each variable, and what each worker read, sent and was told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

HEAD, TAIL, SHARED, WHOLE = 1, 2, 4, 7
"""What of a variable an update reached: an end, and the slot that all share."""


class Entry(NamedTuple):
    """A gradient was applied: times its weight, to a part of a variable or to the whole of it.

    ``epoch``: the cluster epoch in which it was computed; None: not said.
    """

    worker: int
    step: int
    weight: float
    end: int = WHOLE
    epoch: int | None = None


class Log:
    """What a variable is: its initial value, and all that was applied since, in order.

    The parameters follow from it, so that it cannot be wrong about them. The first ``start`` entries came with it, from
    a checkpoint.
    """

    __slots__ = ("entries", "nonce", "start")

    def __init__(self, nonce: int, entries: Sequence[Entry] = ()) -> None:
        self.nonce, self.entries = nonce, list(entries)
        self.start = len(self.entries)

    def add(self, worker: int, step: int, weight: float, end: int = WHOLE, *, epoch: int | None = None) -> None:
        """Apply a gradient."""
        self.entries.append(Entry(worker, step, weight, end, epoch))

    def copy(self) -> Log:
        """A variable of its own with the same content."""
        return Log(self.nonce, self.entries)

    def view(self) -> View:
        """What a read of it shows now."""
        return View(self, len(self.entries))


class View(NamedTuple):
    """A variable as it was when it had so many entries."""

    log: Log
    length: int

    @property
    def entries(self) -> list[Entry]:
        """What had been applied."""
        return self.log.entries[: self.length]


class Read(NamedTuple):
    """A worker has read all variables before the gradient of ``step``, or in the end."""

    worker: int
    life: int
    epoch: int
    step: int
    views: tuple[View, ...]
    versions: tuple[int, ...]
    final: bool
    read_again: bool = False


class Stated(NamedTuple):
    """What a worker has beside the parameters before the gradient of ``step``: the gradients that are in it."""

    worker: int
    life: int
    epoch: int
    step: int
    view: View


class Sent(NamedTuple):
    """A worker is about to send a gradient, for the n-th time in this life; of a piece of the work, or -1."""

    worker: int
    life: int
    epoch: int
    step: int
    attempt: int
    work: int = -1


class Told(NamedTuple):
    """A worker knows, or gives up to know, what became of a gradient."""

    worker: int
    life: int
    epoch: int
    step: int
    outcome: str
    versions: tuple[int, ...]


class Initialised(NamedTuple):
    """A worker has initialised these variables."""

    worker: int
    life: int
    nonces: tuple[int, ...]


class Resumed(NamedTuple):
    """A worker goes on at a step."""

    worker: int
    life: int
    epoch: int
    step: int


class Evicted(NamedTuple):
    """The chief evicts ``absent`` from the round of ``step``, after it has waited for it."""

    worker: int
    epoch: int
    step: int
    absent: int


class Kept(NamedTuple):
    """A worker has made a checkpoint durable; ``clock``: by ps and worker, how many gradients it has."""

    worker: int
    name: str
    clock: tuple[tuple[int, ...], ...]


class Restored(NamedTuple):
    """A worker has restored all ps."""

    worker: int
    epoch: int
    name: str


@dataclass
class Trace:
    """All that happened, in order. A subclass writes it down as a run folder, too."""

    happened: list[tuple[float, object]] = field(default_factory=list)

    def tell(self, now: float, what: object) -> None:
        """Something happened."""
        self.happened.append((now, what))

    def done(self, now: float, worker: int) -> None:
        """A worker has its last answer."""

    def closed(self, now: float, worker: int) -> None:
        """A worker has ended as it should."""

    def killed(self, now: float, task: str) -> None:
        """A task was killed."""
