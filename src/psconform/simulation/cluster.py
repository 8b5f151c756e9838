"""A simulated run: starts the tasks of a schedule, injects its faults, and follows it to its end."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field, replace
from random import Random

from ..faults.process_faults import KILL, STOP
from ..faults.proxy_faults import STALL
from .replica import Replica
from .schedule import Fault, Schedule
from .server import Cut, Server
from .trace import Trace, View
from .worker import Worker
from .world import Message, World

PATIENCE_S = 60.0
"""Seconds of virtual time without a fault, or a gradient that is sent for the first time, after which a run hangs."""
RUNNER = "runner"


@dataclass(frozen=True)
class Parts:
    """The state machines that a run is made of; a mutant takes the place of one."""

    server: type[Server] = Server
    worker: type[Worker] = Worker
    replica: type[Replica] = Replica


@dataclass(frozen=True)
class Injected:
    """A fault that has been injected."""

    number: int
    fault: Fault
    on: bool


@dataclass
class Cluster:
    """The tasks of one run. ``run`` takes it to its end; or `world.step`, message by message."""

    schedule: Schedule
    trace: Trace = field(default_factory=Trace)
    parts: Parts = field(default_factory=Parts)
    status: str = "running"

    def __post_init__(self) -> None:
        schedule = self.schedule
        self.random = Random(schedule.seed)
        self.world = World(self.random, schedule.network)
        self.servers = [f"ps:{index}" for index in range(schedule.ps)]
        self.finished: set[int] = set()
        self.gone: set[int] = set()  # workers that are not started again
        self._done: dict[int, int | None] = dict.fromkeys(range(schedule.workers))  # by worker, in which epoch
        self._kept: list[list[Cut]] = []
        self.kept: dict[str, list[list[View]]] = {}  # by checkpoint and ps, its variables as they were then
        self._epochs = 0
        self._moved = 0.0  # when training last made progress
        self._reached: set[tuple[int, int]] = set()
        self._pending = list(enumerate(schedule.faults))
        self._lasting: dict[int, Injected] = {}  # faults that have not been healed
        self.world.start(RUNNER, lambda _: _Runner(self))
        for task in schedule.tasks:
            self.start(task)

    def start(self, task: str) -> None:
        """Start a task, or start it again."""
        job, _, index = task.partition(":")
        if job == "ps":
            self.world.start(task, lambda _: self.parts.server(self.world, task, self.schedule.rules))
        else:
            kind = self.parts.worker if self.servers else self.parts.replica
            self.world.start(task, lambda life: kind(self, int(index), life, self.schedule.habits))

    def run(self) -> Trace:
        """Until all workers have ended, or none of them gets on any more."""
        world, collects = self.world, gc.isenabled()
        gc.disable()  # what happened only grows; the collector would look through it again and again
        try:
            while self.status == "running":
                if not world.step() or world.now - self._moved > PATIENCE_S:
                    self.status = "stalled"
        finally:
            if collects:
                gc.enable()
        for what in self._lasting.values():  # what lasts is taken away
            self.trace.tell(world.now, replace(what, on=False))
        return self.trace

    # What workers need of it.

    def computes(self, worker: int) -> float:
        """How long a gradient takes, seconds."""
        slower = self.schedule.slow[worker] if self.schedule.slow else 1.0
        return self.schedule.compute_s * slower * (0.5 + self.random.random())

    def nonces(self) -> tuple[int, ...]:
        """Initial values that mark who initialised, one per variable of a ps."""
        return tuple(1 + self.random.randrange(1 << 20) for _ in range(self.schedule.variables))

    def keep(self, cuts: list[Cut]) -> str:
        """Make a checkpoint durable; its name."""
        self._kept.append(cuts)
        name, _ = self.newest
        self.kept[name] = [[log.view() for log in cut.logs] for cut in cuts]
        return name

    def new_epoch(self) -> int:
        """The number of the next epoch, which is durable: a server that has lost its state does not know the last."""
        self._epochs += 1
        return self._epochs

    @property
    def newest(self) -> tuple[str, list[Cut]]:
        """The newest checkpoint."""
        return f"checkpoint-{len(self._kept) - 1}", self._kept[-1]

    def done(self, worker: int, epoch: int | None) -> None:
        """A worker has its last answer in this epoch; None: it turns out that it has not."""
        self._done[worker] = epoch

    @property
    def all_done(self) -> bool:
        """Every worker that will come to its end has its last answer, and knows of the last rollback."""
        return all(worker in self.gone or epoch == self._epochs for worker, epoch in self._done.items())

    def ended(self, worker: Worker) -> None:
        """A worker has ended as it should."""
        self.finished.add(worker.index)
        if len(self.finished | self.gone) == self.schedule.workers:
            self.status = "finished"

    def reached(self, worker: int, step: int) -> None:
        """A worker is about to send the gradient of a step: faults that wait for that are injected."""
        if (worker, step) not in self._reached:  # the same once more is no progress
            self._reached.add((worker, step))
            self._moved = self.world.now
        for pair in self._pending and [
            pair for pair in self._pending if (pair[1].worker, pair[1].step) == (worker, step)
        ]:
            self._pending.remove(pair)
            self._later(Injected(*pair, on=True), pair[1].after_s)

    # Faults.

    def _later(self, what: Injected, seconds: float) -> None:
        self.world.later(RUNNER, Message("fault", RUNNER, 0, what), seconds)

    def inject(self, what: Injected) -> None:
        """Inject a fault, or heal it."""
        fault, world = what.fault, self.world
        if what.on and (self.all_done or any(task in fault.tasks for task in self.away)):
            return  # training is over, or another fault has ended the task
        if fault.kind is KILL:
            self._kill(fault) if what.on else self.start(fault.tasks[0])
        elif fault.kind is STOP:
            world.pause(fault.tasks[0]) if what.on else world.proceed(fault.tasks[0])
        for source, destination in fault.links:
            if what.on:
                world.cut(source, destination, hold=fault.kind is STALL)
            else:
                world.mend(source, destination)
        self.trace.tell(world.now, what)
        self._moved = world.now
        self._lasting.pop(what.number, None)
        if what.on and fault.lasts_s is not None:
            self._lasting[what.number] = what
            self._later(replace(what, on=False), fault.lasts_s)

    def _kill(self, fault: Fault) -> None:
        (task,) = fault.tasks
        self.world.kill(task)
        self.trace.killed(self.world.now, task)
        job, _, index = task.partition(":")
        if job == "worker":
            self.done(int(index), None)  # its next life has to say so again
        if fault.lasts_s is None:
            self.gone.add(int(index))

    @property
    def away(self) -> set[str]:
        """Tasks that have ended, or are not there just now."""
        ended = {f"worker:{index}" for index in self.finished}
        return ended | {task for task in self.world.lives if task not in self.world.machines}


class _Runner:
    """Where psconform itself takes messages: it injects faults."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def on(self, message: Message) -> None:
        self._cluster.inject(message.body)
