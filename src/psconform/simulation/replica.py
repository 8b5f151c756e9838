"""A replica: a worker without servers. It has all parameters itself, and exchanges gradients with the others."""

from __future__ import annotations

from typing import NamedTuple

from .server import Cut
from .trace import Initialised, Kept, Log, Restored, Resumed, Stated
from .worker import Doing, Worker
from .world import Message

HAVE = "have"
APPLY_S = 0.0001
"""How long a step without the others takes to be applied."""


class Share(NamedTuple):
    """What a replica brings to a round: the gradients of these steps. ``life``: the last one of it that sent them."""

    round: int
    steps: tuple[int, ...]
    life: int


class Handed(NamedTuple):
    """What a replica has for one that was started again: its state, and the shares of the last rounds."""

    step: int
    logs: tuple[Log, ...]
    shares: dict[int, dict[str, Share]]


class Resume(NamedTuple):
    """Where a job that was restarted goes on: in this epoch, from that checkpoint."""

    epoch: int
    cut: Cut


class Replica(Worker):
    """One worker of an all-reduce.

    Each sends its share of a round to all others, and again to those that do not answer; with the shares of all it
    makes the round by itself. With local steps it trains alone in between, and a round makes the mean of the replicas:
    what each had at the round before, and what all have added since.

    Where one dies, all are started again, and go on from the newest checkpoint of the chief. In an elastic job that one
    alone is started again, and gets its state from the replica that is furthest. The life before may have sent the
    share of a round to some of the others and not to all: then that share is sent to all, and not computed anew. A
    replica that was asked for its state takes no further share of the life before.
    """

    logs: tuple[Log, ...] = ()
    """Its variables; and, if it has a state beside them, that."""
    resumed: Resume | None = None

    def on(self, message: Message) -> None:
        """Keep what another one sends, and say so; the rest is an answer to what this one has sent."""
        if message.kind not in ("initial", "resume", "share", "join"):
            super().on(message)
            return
        if message.kind == "join":
            self.lives[message.source] = message.body
            self.world.send(message.source, Message("answer", self.name, message.call, self.handed()))
            return
        if message.kind == "initial":
            self.logs = self.logs or tuple(Log(nonce) for nonce in message.body)
        elif message.kind == "resume":
            self.resumed = message.body
        elif message.body.life >= self.lives.get(message.source, 0):
            self.shares.setdefault(message.body.round, {})[message.source] = message.body
        self.world.send(message.source, Message("answer", self.name, message.call, HAVE))
        if self.waits:
            super().on(Message("wake", self.name, self._call))

    def _train(self) -> Doing:
        workers, self.variables = range(self.cluster.schedule.workers), self.cluster.schedule.variables
        self.peers = [f"worker:{worker}" for worker in workers if worker != self.index]
        self.shares: dict[int, dict[str, Share]] = {}  # by round and replica
        self.lives: dict[str, int] = {}  # by replica, which life of it has asked for the state
        self.waits = False
        yield from self.sleep(0.0)
        again = self.rejoin if self.cluster.schedule.elastic else self.resume
        yield from (again() if self.life else self.join())
        local, schedule = list[int](), self.cluster.schedule
        every = schedule.local_steps * schedule.accumulate
        base = self.logs  # as of the last round
        while self.step < self.habits.steps:
            if self.habits.every and self.index == 0 and self.step and self.step % self.habits.every == 0:
                self.keep()
            self._read(*(yield from self.pull(self.step)))
            for log in self.logs[self.variables :]:
                self.trace.tell(self.world.now, Stated(self.index, self.life, self.epoch, self.step, log.view()))
            if seconds := self.cluster.computes(self.index):
                yield from self.sleep(seconds)
            self._sends()
            local.append(self.step)
            if (self.step + 1) % every == 0 or self.step + 1 == self.habits.steps:
                yield from self.exchange(Share(self.step // every, tuple(local), self.life), base)
                local, base = [], self.logs
            elif schedule.local_steps > 1:
                self.alone(base)
                yield from self.sleep(APPLY_S)
            self._told("ok", ())
            self.step += 1
        yield from self._finish()

    def join(self) -> Doing:
        """The chief tells the others its initial values."""
        if self.index == 0:
            nonces = self.cluster.nonces() + (0,) * self.cluster.schedule.state
            self.logs = tuple(Log(nonce) for nonce in nonces)
            yield from self.ask("initial", dict.fromkeys(self.peers, nonces))
            self.trace.tell(self.world.now, Initialised(self.index, self.life, nonces[: self.variables]))
            if self.habits.every:
                self.keep()
        while not self.logs:
            yield from self.wait()

    def resume(self) -> Doing:
        """The chief tells the others of the newest checkpoint."""
        if self.index == 0:
            name, (cut,) = self.cluster.newest
            self.resumed = Resume(self.cluster.new_epoch(), cut)
            self.trace.tell(self.world.now, Restored(self.index, self.resumed.epoch, name))
            yield from self.ask("resume", dict.fromkeys(self.peers, self.resumed))
        while self.resumed is None:
            yield from self.wait()
        self.epoch, cut = self.resumed
        self.logs, self.step = tuple(log.copy() for log in cut.logs), cut.version
        self.trace.tell(self.world.now, Resumed(self.index, self.life, self.epoch, self.step))

    def handed(self) -> Handed:
        """What another replica may go on from."""
        shares = {number: dict(held) for number, held in self.shares.items()}
        return Handed(self.step, tuple(log.copy() for log in self.logs), shares)

    def rejoin(self) -> Doing:
        """Take the state of the replica that is furthest, and see to the shares that the life before has sent."""
        answers = yield from self.ask("join", dict.fromkeys(self.peers, self.life))
        self.step, self.logs, _ = max(answers.values(), key=lambda handed: handed.step)
        for handed in answers.values():
            for number, held in handed.shares.items():
                self.shares[number] = held | self.shares.get(number, {})
        for number in range(self.step - 1, self.step + 2):
            if (mine := self.shares.get(number, {}).get(self.name)) is not None:
                yield from self.ask("share", dict.fromkeys(self.peers, mine._replace(life=self.life)))
                if number == self.step:
                    yield from self.complete(number, self.logs)
                    self.step += 1
        self.trace.tell(self.world.now, Resumed(self.index, self.life, self.epoch, self.step))

    def keep(self) -> None:
        """Make a checkpoint: what it has is what all have."""
        applied = (self.step,) * self.cluster.schedule.workers
        name = self.cluster.keep([Cut(tuple(log.copy() for log in self.logs), self.step, applied, applied, ())])
        self.trace.tell(self.world.now, Kept(self.index, name, (applied,)))

    def wait(self) -> Doing:
        """Until another replica has sent something."""
        self._call, self.waits = self.world.call(), True
        yield
        self.waits = False

    def pull(self, until: int) -> Doing:
        """What it has itself."""
        yield from ()
        return tuple(log.view() for log in self.logs[: self.variables]), ()

    def alone(self, base: tuple[Log, ...]) -> None:
        """Take a step without the others."""
        if self.logs is base:
            self.logs = tuple(log.copy() for log in base)
        for log in self.logs:
            log.add(self.index, self.step, 1.0)

    def exchange(self, mine: Share, base: tuple[Log, ...]) -> Doing:
        """Bring its share to a round."""
        self.shares.setdefault(mine.round, {})[self.name] = mine
        yield from self.ask("share", dict.fromkeys(self.peers, mine))
        yield from self.complete(mine.round, base)

    def complete(self, number: int, base: tuple[Log, ...]) -> Doing:
        """Make a round of the shares of all, and keep them until the next one is made: a replica may come back."""
        while len(self.shares[number]) <= len(self.peers):
            yield from self.wait()
        shares = self.shares[number]
        self.shares.pop(number - 1, None)
        self.logs = base if self.logs is base else tuple(log.copy() for log in base)
        weight = 1 / (len(shares) * self.cluster.schedule.accumulate) if self.cluster.schedule.rules.mean else 1.0
        for name, share in sorted(shares.items()):
            for step in share.steps:
                for log in self.logs:
                    log.add(int(name.partition(":")[2]), step, weight)
