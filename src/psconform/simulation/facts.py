"""What happened in a simulated run, sorted for the oracle: what was applied where, and what reads show of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations
from typing import NamedTuple

from .cluster import Cluster
from .record import manifest_of
from .trace import HEAD, TAIL, WHOLE, Entry, Evicted, Log, Read, Sent, Told


class Breach(NamedTuple):
    """Something that breaks a guarantee; whether what is recorded shows it."""

    shown: bool
    why: str


Breaches = Iterator[Breach]
Grad = tuple[int, int]
"""A gradient: its worker, and its step."""


@dataclass
class Column:
    """One end of a variable, as long as one log stands for it: until the next restore.

    Attributes:
        variable: its number among those of all ps.
        epoch: the cluster epoch in which it was served.
        read: so many of its entries are shown by the longest recorded read.
        live: the run ended with it.
    """

    ps: int
    variable: int
    log: Log
    end: int
    epoch: int
    read: int
    live: bool

    def __post_init__(self) -> None:
        self.entries = [entry for entry in self.log.entries if entry.end & self.end]
        self.start = sum(1 for entry in self.log.entries[: self.log.start] if entry.end & self.end)
        self.grads = [(entry.worker, entry.step) for entry in self.entries]
        self.counts = Counter(self.grads)

    def shown(self, read: Read) -> list[Grad]:
        """The gradients that a read shows here."""
        return [(entry.worker, entry.step) for entry in read.views[self.variable].entries if entry.end & self.end]

    def breach(self, index: int, why: str) -> Breach:
        """The entry of that index breaks a guarantee."""
        worker, step = self.grads[index]
        return Breach(index < self.read, f"{self}: gradient {step} of worker:{worker} {why}")

    def __str__(self) -> str:
        return f"variable {self.variable} of ps:{self.ps}, epoch {self.epoch}"


class Facts:
    """What happened in a run, sorted."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.schedule = cluster, cluster.schedule
        self.claims = manifest_of(cluster.schedule).claims
        variables = cluster.schedule.variables * max(1, cluster.schedule.ps)
        self.happened = [
            what
            for _, what in cluster.trace.happened
            if not isinstance(what, Read) or len(what.views) == variables  # a ps that is not restored has none
        ]
        self.reads = [what for what in self.happened if isinstance(what, Read)]
        self.told = [what for what in self.happened if isinstance(what, Told)]
        in_round = (self.schedule.quorum or self.schedule.workers) * self.schedule.accumulate
        self.per_round = in_round if self.schedule.sync else 1
        self.finished = cluster.status == "finished"
        self.evicted = {(what.absent, what.step) for what in self.happened if isinstance(what, Evicted)}
        everyone, skips = range(self.schedule.workers), self.schedule.skips
        self.excused = self.evicted | {(worker, step) for worker in everyone for step in skips}  # due in no round
        self.sent: dict[Grad, list[tuple[Sent, Read | None]]] = {}  # by gradient; and the read before it
        latest: dict[int, Read] = {}
        for what in self.happened:
            if isinstance(what, Read):
                latest[what.worker] = what
            elif isinstance(what, Sent):
                self.sent.setdefault((what.worker, what.step), []).append((what, latest.get(what.worker)))

    @cached_property
    def pieces(self) -> dict[Grad, set[int]]:
        """By gradient, the pieces of the work that it was sent as: of a worker that came back, there may be two."""
        found: dict[Grad, set[int]] = {}
        for what in self.happened:
            if isinstance(what, Sent) and what.work >= 0:
                found.setdefault((what.worker, what.step), set()).add(what.work)
        return found

    def due(self, step: int) -> int:
        """How many rounds the steps before this one complete; the last round may be of fewer."""
        return -(-step // self.schedule.accumulate) if step == self.schedule.steps else step // self.schedule.accumulate

    def made(self, step: int) -> int:
        """How many rounds of the steps before this one change anything."""
        return self.due(step) - sum(1 for skipped in self.schedule.skips if skipped < step)

    @cached_property
    def columns(self) -> list[Column]:
        """Of all logs that are live, or that a read shows; in the order in which they came up."""
        found: dict[int, Column] = {}
        ends = {}
        for read in self.reads:
            for variable, view in enumerate(read.views):
                ps = variable // self.schedule.variables
                column = found.setdefault(id(view.log), Column(ps, variable, view.log, WHOLE, read.epoch, 0, False))
                column.epoch, column.read = max(column.epoch, read.epoch), max(column.read, view.length)
        holders = list(enumerate(self.cluster.servers))
        if not holders:  # each replica has all variables
            holders = [(0, f"worker:{worker}") for worker in range(self.schedule.workers)]
        for ps, holder in holders:
            machine = self.cluster.world.machines.get(holder)
            for number, log in enumerate(getattr(machine, "logs", ())[: self.schedule.variables]):
                variable = ps * self.schedule.variables + number
                epoch: int = getattr(machine, "epoch", 0)
                column = found.setdefault(id(log), Column(ps, variable, log, WHOLE, epoch, 0, True))
                column.epoch, column.live = max(column.epoch, epoch), True
        for key, whole in found.items():
            torn = any(not entry.end & HEAD or not entry.end & TAIL for entry in whole.log.entries)
            for end in (HEAD, TAIL) if torn else (WHOLE,):
                length = sum(1 for entry in whole.log.entries[: whole.read] if entry.end & end)
                ends[key, end] = Column(whole.ps, whole.variable, whole.log, end, whole.epoch, length, whole.live)
        return list(ends.values())

    @cached_property
    def live(self) -> list[Column]:
        """Those that the run ended with."""
        return [column for column in self.columns if column.live]

    @cached_property
    def lasting(self) -> dict[int, set[Grad]]:
        """By variable, what the run ended with."""
        found: dict[int, set[Grad]] = {column.variable: set() for column in self.columns}
        for column in self.live:
            found[column.variable].update(column.grads)
        return found

    def seen_by(self, read: Read) -> list[tuple[Column, list[Grad]]]:
        """What a read shows, by column."""
        logs = {id(view.log) for view in read.views}
        return [(column, column.shown(read)) for column in self.columns if id(column.log) in logs]

    def tries(self, grad: Grad) -> int:
        """How often a gradient was sent, as far as is recorded."""
        return len(self.sent.get(grad, ()))

    def bases(self, entry: Entry) -> list[Read]:
        """The reads at which a gradient may have been computed."""
        sent = self.sent.get((entry.worker, entry.step), ())
        return [read for what, read in sent if read is not None and entry.epoch in (None, what.epoch)]

    @cached_property
    def accepted(self) -> list[Grad]:
        """Gradients that were acknowledged, and that the run should have ended with."""
        now = max((column.epoch for column in self.live), default=0)
        told = [what for what in self.told if what.outcome == "ok" and (self.finished or what.epoch == now)]
        return sorted({(what.worker, what.step) for what in told} - self.evicted)

    @cached_property
    def resumed_with(self) -> set[Grad]:
        """What each life but the first of a worker sent first: the life before may have died while it sent that."""
        found: dict[tuple[int, int], Grad] = {}
        for what in self.happened:
            if isinstance(what, Sent) and what.life:
                found.setdefault((what.worker, what.life), (what.worker, what.step))
        return {*found.values()}

    @cached_property
    def first_reads(self) -> list[Read]:
        """The first read of each worker in each epoch after a restore."""
        found: dict[tuple[int, int], Read] = {}
        for read in self.reads:
            if read.epoch:
                found.setdefault((read.worker, read.epoch), read)
        return list(found.values())

    def is_read(self, column: Column) -> bool:
        """Whether a read shows it, be it without any gradient."""
        return any(view.log is column.log for read in self.reads for view in read.views)


def mixed(facts: Facts, reads: Iterable[Read], level: Callable[[Column], int]) -> Breaches:
    """Reads that show a gradient in one variable, and not yet in another of the same group."""
    for read in reads:
        seen = [(column, set(grads)) for column, grads in facts.seen_by(read)]
        for (one, here), (other, there) in permutations(seen, 2):
            if level(one) == level(other) and (mixed := (here - there) & other.counts.keys()):
                yield Breach(True, f"{name_of(read)} shows {sorted(mixed)[0]} in {one}, not yet in {other}")


def name_of(read: Read) -> str:
    """A read, in words."""
    return f"the read of worker:{read.worker} " + ("in the end" if read.final else f"for step {read.step}")
