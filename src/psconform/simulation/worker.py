"""A worker: reads, computes, pushes, waits for the answers, and goes on; worker:0 is the chief, too."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .server import ALIVE, LATE, NO_MORE, REFUSED, WAIT, Cut, Pull, Push, Shown, State
from .trace import Evicted, Initialised, Kept, Read, Restored, Resumed, Sent, Told, View
from .world import Message

if TYPE_CHECKING:
    from .cluster import Cluster

AGAIN_S = 0.5
"""Seconds after which a call that was not answered is sent again."""
POLL_S = 0.02
Doing = Generator[None, Message, Any]


class Rolled(Exception):
    """A server serves another epoch, or none: what was sent may be lost, and training goes on from what it has."""


@dataclass(frozen=True)
class Habits:
    """How a worker of this run trains.

    Attributes:
        steps: how many it takes.
        sync: it waits for each round.
        full: every worker is in each round, so that a step is a round.
        accumulate: it adds up so many gradients for a round.
        staleness: how many steps it may be ahead of the slowest; None: any number.
        tries: a push that is not answered is sent again: ``always``, ``recorded`` (as a further attempt), or ``never``.
        every: the chief makes a checkpoint each so many steps; 0: never.
        patience: sync, it waits so many seconds for a worker; 0: for ever.
        work: async, each step is a piece of the work that it asks for, as long as there are any.
    """

    steps: int
    sync: bool = True
    full: bool = True
    accumulate: int = 1
    staleness: int | None = None
    tries: str = "always"
    every: int = 0
    patience: float = 0.0
    work: bool = False

    def rounds(self, steps: int) -> int:
        """How many rounds so many steps are."""
        return -(-steps // self.accumulate)


class Worker:
    """One life of a worker. ``_train`` is its program; it yields whenever it waits for a message."""

    def __init__(self, cluster: Cluster, index: int, life: int, habits: Habits) -> None:
        self.cluster, self.world, self.trace = cluster, cluster.world, cluster.trace
        self.name, self.index, self.life, self.habits = f"worker:{index}", index, life, habits
        self.servers = cluster.servers
        self.epoch = self.step = 0
        self.piece = -1  # of the work, that it does
        self.attempts: dict[int, int] = {}  # by step, how often its gradient was sent again
        self.began = self.ended = False
        self._call = self._ticked = 0
        self._tick = Message("tick", self.name, 0)
        self._program = self._train()
        next(self._program)
        self.world.later(self.name, self._tick, AGAIN_S)

    # Messages.

    def on(self, message: Message) -> None:
        """Take an answer; now and then look whether one is missing."""
        if message is self._tick:
            self.world.later(self.name, message, AGAIN_S)
            late, self._ticked = self._ticked == self._call, self._call
            if not late:
                return
        elif message.call != self._call:
            return  # to a call that was answered before
        try:
            self._program.send(message)
        except StopIteration:
            self.ended = True
            self.cluster.ended(self)

    def sleep(self, seconds: float) -> Doing:
        """Do nothing for so long."""
        self._call = self.world.call()
        wake = Message("wake", self.name, self._call)
        self.world.later(self.name, wake, seconds)
        while (yield) is not wake:
            pass

    def ask(self, kind: str, bodies: Mapping[str, Any], *, tries: str = "always") -> Doing:
        """Call servers, again if they do not answer; the answers by server (of some only, if it is not tried again).

        Raises:
            Rolled: one refuses, for it serves another epoch, or none.
        """
        call = self._call = self.world.call()
        answers: dict[str, Any] = {}
        for server, body in bodies.items():
            self.world.send(server, Message(kind, self.name, call, body))
        while len(answers) < len(bodies):
            message = yield
            if message is not self._tick:
                if message.body == REFUSED:
                    raise Rolled
                if message.source in bodies and message.body != ALIVE:
                    answers.setdefault(message.source, message.body)
                continue
            if tries == "never":
                break
            if tries == "recorded":
                self._told("unknown", ())
                self._sends()
            for server, body in bodies.items():
                if server not in answers:
                    self.world.send(server, Message(kind, self.name, call, body))
            if kind in ("pull", "push", "leave"):  # what it waits for may never come if another server has died
                for server in self.servers:
                    self.world.send(server, Message("ping", self.name, call, self.epoch))
        return answers

    def everywhere(self, kind: str, body: Any = None) -> Doing:
        """The same call to all servers; their answers in order."""
        answers = yield from self.ask(kind, dict.fromkeys(self.servers, body))
        return [answers[server] for server in self.servers]

    # The program.

    def _train(self) -> Doing:
        yield from self.sleep(0.0)
        if self.life:
            yield from self.resume()
        else:
            yield from self.join()
        while True:
            try:
                yield from self._steps()
                yield from self._finish()
                return
            except Rolled:
                yield from self.resume()

    def _steps(self) -> Doing:
        habits = self.habits
        views, versions = yield from self.pull(self.step if habits.full else 0)
        while self.step < habits.steps:
            if habits.sync and habits.full:
                self.step = versions[0] * habits.accumulate  # what the life before had sent may have made a round since
            if habits.sync and versions[0] >= habits.rounds(habits.steps):
                return
            if habits.every and self.index == 0 and self.step and self.step % habits.every == 0:
                yield from self.checkpoint()
            if habits.work and not (yield from self.take()):
                return
            self._read(views, versions)
            yield from self.add_up(versions)
            if seconds := self.cluster.computes(self.index):
                yield from self.sleep(seconds)
            outcome, became = yield from self.push(versions)
            if habits.sync:
                if habits.patience and self.index == 0:
                    yield from self.evict(became[0] - 1)
                views, versions = yield from self.pull(became[0])
                self._told(outcome, became)
                self.step += 1
            else:
                self._told(outcome, became)
                self.step += 1
                views, versions = yield from self.pull(0)

    def take(self) -> Doing:
        """Ask for a piece of the work; whether there is any left."""
        (first,) = self.servers
        while True:
            answers = yield from self.ask("deal", {first: (self.index, self.step, self.epoch)})
            self.piece = answers[first]
            if self.piece != WAIT:
                return self.piece != NO_MORE
            yield from self.sleep(POLL_S)

    def add_up(self, versions: tuple[int, ...]) -> Doing:
        """Keep all gradients of a round but the last one."""
        several, last = self.habits.accumulate, self.habits.steps - 1
        while (self.step + 1) % several and self.step < last:
            if seconds := self.cluster.computes(self.index):
                yield from self.sleep(seconds)
            self._sends()
            self._told("ok", versions)
            self.step += 1
            self._read(*(yield from self.pull(versions[0])))

    def _read(self, views: tuple[View, ...], versions: tuple[int, ...], *, final: bool = False) -> None:
        step, self.began = self.habits.steps if final else self.step, True
        self.trace.tell(self.world.now, Read(self.index, self.life, self.epoch, step, views, versions, final))

    def _sends(self) -> None:
        attempt = self.attempts[self.step] = self.attempts.get(self.step, -1) + 1
        self.trace.tell(self.world.now, Sent(self.index, self.life, self.epoch, self.step, attempt, self.piece))
        self.cluster.reached(self.index, self.step)

    def _told(self, outcome: str, versions: tuple[int, ...]) -> None:
        self.trace.tell(self.world.now, Told(self.index, self.life, self.epoch, self.step, outcome, versions))

    def pull(self, until: int) -> Doing:
        """Read all variables, at this version or a later one: (views, versions).

        Sync, at one version of all servers: that of ps:0, to which the others follow.
        """
        if not self.habits.sync:
            bound = 0 if self.habits.staleness is None else self.step - self.habits.staleness
            answers = yield from self.everywhere("pull", Pull(self.epoch, until, bound))
            return tuple(view for shown in answers for view in shown.views), tuple(shown.version for shown in answers)
        first, *others = self.servers
        while True:
            shown: Shown = (yield from self.ask("pull", {first: Pull(self.epoch, until)}))[first]
            views, version = shown.views, shown.version
            if others:
                after = Pull(self.epoch, rounds=shown.rounds)
                answers = yield from self.ask("pull", dict.fromkeys(others, after))
                views += tuple(view for server in others for view in answers[server].views)
                until = max(answer.version for answer in answers.values())
            if not others or until == version:
                return views, (version,) * len(self.servers)

    def push(self, seen: tuple[int, ...]) -> Doing:
        """Send the gradient of this step to all servers: (outcome, the version that it became at each)."""
        self._sends()
        bodies = {
            server: Push(self.index, self.step, self.epoch, version, self.piece, self.step % self.habits.accumulate + 1)
            for server, version in zip(self.servers, seen, strict=True)
        }
        try:
            if self.habits.sync:
                return (yield from self._offer(bodies))
            answers = yield from self.ask("push", bodies, tries=self.habits.tries)
        except Rolled:
            self._told("unknown", ())
            raise
        if len(answers) < len(bodies):
            return "unknown", ()
        if any(said == LATE for said, _ in answers.values()):
            return "failed", ()
        return "ok", tuple(answers[server][1] for server in self.servers)

    def _offer(self, bodies: dict[str, Push]) -> Doing:
        """Leave the gradient with the others, then offer it to ps:0, which decides."""
        first, *others = self.servers
        yield from self.ask("leave", {server: bodies[server] for server in others})
        said, version = (yield from self.ask("push", {first: bodies[first]}))[first]
        return "failed" if said == LATE else "ok", (version,) * len(bodies)

    def _finish(self) -> Doing:
        """Wait for the others, and read once more."""
        self.trace.done(self.world.now, self.index)
        self.cluster.done(self.index, self.epoch)
        while not self.cluster.all_done:
            yield from self.sleep(POLL_S)
            if self.habits.every:
                yield from self.look()
        views, versions = yield from self.pull(self.habits.rounds(self.habits.steps) if self.habits.sync else 0)
        self._read(views, versions, final=True)
        self.trace.closed(self.world.now, self.index)

    # How it comes to know where to begin.

    def look(self) -> Doing:
        """Raise `Rolled` if a server serves another epoch, or none."""
        states: list[State] = yield from self.everywhere("state")
        if not all(state.ready and state.epoch == self.epoch for state in states):
            raise Rolled

    def join(self) -> Doing:
        """The chief initialises the variables; all wait until they are there."""
        if self.index == 0:
            nonces = {server: self.cluster.nonces() for server in self.servers}
            yield from self.ask("initialise", nonces)
            written = tuple(nonce for server in self.servers for nonce in nonces[server])
            self.trace.tell(self.world.now, Initialised(self.index, self.life, written))
            if self.habits.every:
                yield from self.checkpoint()
            yield from self.everywhere("open", 0)
            return
        while not all(state.ready for state in (yield from self.everywhere("state"))):
            yield from self.sleep(POLL_S)

    def resume(self) -> Doing:
        """Wait until all servers serve one epoch, and go on from what they have; the chief sees to that."""
        self.cluster.done(self.index, None)
        while True:
            states: list[State] = yield from self.everywhere("state")
            if all(state.ready for state in states) and len({state.epoch for state in states}) == 1:
                break
            if self.index == 0:
                yield from self.restore()
            else:
                yield from self.sleep(POLL_S)
        if self.index == 0:
            yield from self.everywhere("open gate", self.world.call())  # the life before may have died in between
        self.epoch = states[0].epoch
        applied = min(state.applied[self.index] for state in states)
        self.step = states[0].version if self.habits.sync else applied
        self.trace.tell(self.world.now, Resumed(self.index, self.life, self.epoch, self.step))

    # What the chief does for the job.

    def checkpoint(self) -> Doing:
        """Close a gate on all servers, keep what they have, open it again."""
        number = self.world.call()
        cuts: list[Cut] = yield from self.everywhere("close gate", number)
        name = self.cluster.keep(cuts)
        self.trace.tell(self.world.now, Kept(self.index, name, tuple(cut.applied for cut in cuts)))
        yield from self.everywhere("open gate", number)

    def evict(self, version: int) -> Doing:
        """Wait for the round after this version, but not for ever; then make it without those that are missing."""
        (first, *_), until = self.servers, self.world.now + self.habits.patience
        while absent := (yield from self.ask("absent", {first: (self.epoch, version)}))[first]:
            if self.world.now < until:
                yield from self.sleep(POLL_S)
                continue
            for worker in absent:
                self.trace.tell(self.world.now, Evicted(self.index, self.epoch, self.step, worker))
            yield from self.ask("evict", {first: (self.epoch, version, absent)})

    def restore(self) -> Doing:
        """Fence all servers, fill them from the newest checkpoint, and serve in a new epoch."""
        epoch = self.cluster.new_epoch()
        if not all((yield from self.everywhere("fence", epoch))):
            return
        name, cuts = self.cluster.newest
        bodies = {server: (epoch, cut) for server, cut in zip(self.servers, cuts, strict=True)}
        if not all((yield from self.ask("restore", bodies)).values()):
            return
        self.epoch = epoch
        self.trace.tell(self.world.now, Restored(self.index, epoch, name))
        yield from self.everywhere("open", epoch)
