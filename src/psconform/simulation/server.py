"""A parameter server: a state machine that takes gradients, and gives what it holds to read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .trace import Log, View
from .world import Message, World

REFUSED, OK, LATE, ALIVE = "refused", "ok", "too late", "alive"
WAIT, NO_MORE = -1, -2
"""In the place of a piece of work: all are dealt out, or done."""
DEALT_S = 0.2
"""So long no other worker gets a piece that was dealt out and is not done: a straggler may still be at it then."""


class Push(NamedTuple):
    """A gradient of a worker: of its ``step``, or the sum of its last ones, computed at the version ``seen``.

    ``work``: the piece of the work that it is of, where a queue deals that out.
    """

    worker: int
    step: int
    epoch: int
    seen: int
    work: int = -1
    number: int = 1


Rounds = tuple[tuple[Push, ...], ...]
"""By version, the gradients that made the round after it."""


class Pull(NamedTuple):
    """A read: answered once the version is ``until`` and each worker's first ``bound`` gradients are there.

    ``rounds`` are what ps:0 has decided; the other servers follow.
    """

    epoch: int
    until: int = 0
    bound: int = 0
    rounds: Rounds = ()


class Shown(NamedTuple):
    """What a read shows."""

    views: tuple[View, ...]
    version: int
    rounds: Rounds


@dataclass(frozen=True)
class State:
    """What a ps tells of itself."""

    ready: bool
    epoch: int
    fence: int
    version: int
    applied: tuple[int, ...]


@dataclass(frozen=True)
class Cut:
    """What a checkpoint has of one ps."""

    logs: tuple[Log, ...]
    version: int
    applied: tuple[int, ...]
    at: tuple[int, ...]
    rounds: Rounds


@dataclass(frozen=True)
class Rules:
    """What a server of this run does with a gradient.

    Attributes:
        workers: how many there are.
        per_round: so many gradients make a round; 0: each is applied as it arrives.
        last: after so many rounds every gradient is late.
        mean: a round is their mean, not their sum.
        live: one without some workers is the mean of those that are in it, not of all.
        accumulate: a worker adds up so many gradients for a round, but for the last one.
        weights: by worker, what its gradients count in a weighted mean; empty: a round is none.
        aware: the rate is divided by the staleness.
        once: a gradient that was applied is not applied again.
        skipped: rounds that change nothing, for a gradient overflows, and that every worker is refused.
        work: async, the pieces that are dealt out as workers ask for them, in this order; none: each has its own steps.
    """

    workers: int
    per_round: int = 0
    last: int = 0
    mean: bool = True
    live: bool = False
    accumulate: int = 1
    weights: tuple[int, ...] = ()
    aware: bool = False
    once: bool = True
    skipped: frozenset[int] = frozenset()
    work: tuple[int, ...] = ()


@dataclass
class Server:
    """One ps.

    Async, it applies a gradient as it arrives: to all its variables in one step, and those of a worker in turn.

    Sync, a worker leaves its gradient with every other ps before it offers it to ps:0, which takes the first of each
    version. What ps:0 has taken comes to the others with the next read, so that all make the same rounds, also if a
    worker dies between two calls.
    """

    world: World
    name: str
    rules: Rules
    logs: list[Log] = field(default_factory=list)
    version: int = 0
    epoch: int = 0
    fence: int = 0
    ready: bool = False

    def __post_init__(self) -> None:
        self.applied = [0] * self.rules.workers  # of each worker, the step that comes next
        self.at = [0] * self.rules.workers  # and the version that its last one became
        self.rounds: Rounds = ()
        self.offered: dict[int, Push] = {}  # by worker, what the open round has
        self.evicted: set[int] = set()  # workers that the open round does not wait for
        self.left: dict[tuple[int, int], Push] = {}  # by worker and version, what may be in a round
        self.waiting: dict[str, Message] = {}  # by worker, the read that is not due yet
        self.gate: list[Message] | None = None  # while a checkpoint is taken, gradients wait here
        self.done: set[int] = set()  # pieces of the work that were applied
        self.out: dict[int, float] = {}  # by piece, until when no other worker gets it
        self.dealt: dict[tuple[int, int], int] = {}  # by worker and step
        self.refused: set[tuple[int, int]] = set()  # gradients of pieces that another worker had done
        self.gates = 0  # the number of the newest gate that it has heard of

    def on(self, message: Message) -> None:
        """Take a call; a read may be answered later."""
        kind, body = message.kind, message.body
        if kind == "push" and self.gate is not None:
            self.gate.append(message)
        elif kind == "push":
            self._answer(message, self.push(body))
            self._serve()
        elif kind == "pull" and self.is_due(body):
            self.waiting.pop(message.source, None)
            self._answer(message, self.pull(body))
        elif kind == "pull":
            self.waiting[message.source] = message
        else:
            calls: dict[str, Callable[[Any], object]] = {
                "leave": self.leave,
                "deal": self.deal,
                "absent": self.absent,
                "evict": self.evict,
                "ping": self.ping,
                "state": self.state,
                "initialise": self.initialise,
                "open": self.open,
                "close gate": self.close_gate,
                "open gate": self.open_gate,
                "fence": self.raise_fence,
                "restore": self.restore,
            }
            self._answer(message, calls[kind](body))

    def serves(self, epoch: int) -> bool:
        """Whether it serves, in this epoch."""
        return self.ready and epoch == self.epoch

    def ping(self, epoch: int) -> str:
        """Say whether it serves."""
        return ALIVE if self.serves(epoch) else REFUSED

    # Gradients.

    def push(self, push: Push) -> tuple[str, int] | str:
        """What becomes of a gradient, and the version that it became or will be."""
        if not self.serves(push.epoch):
            return REFUSED
        if self.rules.per_round:
            return self.offer(push)
        if (push.worker, push.step) in self.refused:
            return LATE, self.version
        if self.rules.once and push.step < self.applied[push.worker]:
            return OK, self.at[push.worker]
        if self.rules.once and push.work in self.done:
            self.refused.add((push.worker, push.step))
            self.applied[push.worker] += 1
            return LATE, self.version
        self.apply(push, 1 / max(1, self.version - push.seen) if self.rules.aware else 1.0)
        if self.rules.work:
            self.done.add(push.work)
        self.version += 1
        self.at[push.worker] = self.version
        return OK, self.version

    def deal(self, body: tuple[int, int, int]) -> int | str:
        """A piece of the work for a step of a worker: the same if it asks again, until a worker has done that."""
        worker, step, epoch = body
        if not self.serves(epoch):
            return REFUSED
        piece, now = self.dealt.get((worker, step)), self.world.now
        if piece is None or piece in self.done:
            left = (one for one in self.rules.work if one not in self.done)
            piece = next((one for one in left if self.out.get(one, 0.0) <= now), None)
        if piece is None:
            return WAIT if len(self.done) < len(self.rules.work) else NO_MORE
        self.out[piece] = now + DEALT_S
        self.dealt[worker, step] = piece
        return piece

    def offer(self, push: Push) -> tuple[str, int]:
        """Take a gradient into the open round, if it was computed at the version before it."""
        if push.seen < self.version:
            taken = any(member.worker == push.worker for member in self.rounds[push.seen])
            return OK if taken and push.seen not in self.rules.skipped else LATE, push.seen + 1
        if self.version == self.rules.last:
            return LATE, push.seen + 1
        self.offered[push.worker] = push
        self.complete()
        return LATE if push.seen in self.rules.skipped else OK, push.seen + 1

    def complete(self) -> None:
        """Make the open round once all of its workers have offered a gradient, or are evicted."""
        if len(self.offered.keys() | self.evicted) == self.rules.per_round:
            self.commit(tuple(self.offered.values()))

    def absent(self, body: tuple[int, int]) -> tuple[int, ...] | str:
        """Who is missing in the round after this version; none, if it is made."""
        epoch, version = body
        if not self.serves(epoch):
            return REFUSED
        everyone = range(self.rules.workers) if version == self.version else ()
        return tuple(worker for worker in everyone if worker not in self.offered)

    def evict(self, body: tuple[int, int, tuple[int, ...]]) -> str:
        """Make the round after this version without these workers, but for those that have come meanwhile."""
        epoch, version, workers = body
        if not self.serves(epoch):
            return REFUSED
        if version == self.version:
            self.evicted = {*workers} - self.offered.keys()
            self.complete()
            self._serve()
        return OK

    def leave(self, push: Push) -> str:
        """Keep a gradient until ps:0 has decided."""
        if not self.serves(push.epoch):
            return REFUSED
        self.left[push.worker, push.seen] = push
        return OK

    def follow(self, rounds: Rounds) -> None:
        """Make the rounds that ps:0 has made."""
        for members in rounds[self.version :]:
            self.commit(tuple(self.left[member.worker, member.seen] for member in members))

    def commit(self, members: tuple[Push, ...]) -> None:
        """Complete a round: its mean, or sum, is one update."""
        for push in members:
            for step in range(push.step + 1 - push.number, push.step + 1):
                self.apply(push._replace(step=step), self.share(push, members))
        self.offered, self.evicted = {}, set()
        self.rounds += (members,)
        self.version += 1

    def share(self, push: Push, members: tuple[Push, ...]) -> float:
        """What a gradient makes of its round."""
        if self.rules.weights:
            return self.rules.weights[push.worker] / sum(self.rules.weights[member.worker] for member in members)
        number = len(members) if self.rules.live else self.rules.per_round
        return 1 / (number * self.rules.accumulate) if self.rules.mean else 1.0

    def apply(self, push: Push, weight: float) -> None:
        """Apply a gradient to every variable."""
        if self.version not in self.rules.skipped:
            for log in self.logs:
                log.add(push.worker, push.step, weight, epoch=push.epoch)
        self.applied[push.worker] = push.step + 1

    # Reads.

    def _serve(self) -> None:
        """Answer the reads that are due."""
        if not self.waiting:
            return
        for message in [message for message in self.waiting.values() if self.is_due(message.body)]:
            del self.waiting[message.source]
            self._answer(message, self.pull(message.body))

    def is_due(self, pull: Pull) -> bool:
        """Whether a read need not wait any longer."""
        if not self.serves(pull.epoch) or pull.rounds:
            return True
        return self.version >= pull.until and (pull.bound <= 0 or min(self.applied) >= pull.bound)

    def pull(self, pull: Pull) -> Shown | str:
        """All variables as they are now, and the version."""
        if not self.serves(pull.epoch):
            return REFUSED
        self.follow(pull.rounds)
        return Shown(tuple(log.view() for log in self.logs), self.version, self.rounds)

    # The beginning, checkpoints, and recovery.

    def state(self, _: None) -> State:
        """What it tells of itself."""
        return State(self.ready, self.epoch, self.fence, self.version, tuple(self.applied))

    def initialise(self, nonces: tuple[int, ...]) -> bool:
        """Take initial values, one for each variable, unless there are any."""
        if self.logs:
            return False
        self.logs = [Log(nonce) for nonce in nonces]
        return True

    def open(self, epoch: int) -> bool:
        """Serve from now on, in this epoch."""
        if self.logs and epoch >= self.fence:
            self.epoch, self.ready = epoch, True
        return self.ready

    def close_gate(self, number: int) -> Cut | str:
        """Let gradients wait, and say what there is for a checkpoint; a round that is open is none of it."""
        if number > self.gates:
            self.gate, self.gates = self.gate or [], number
        if not self.logs:
            return REFUSED
        logs = tuple(log.copy() for log in self.logs)
        return Cut(logs, self.version, tuple(self.applied), tuple(self.at), self.rounds)

    def open_gate(self, number: int) -> bool:
        """Take gradients again, first those that have waited; not if a newer gate was closed."""
        if number < self.gates:
            return False
        self.gates = number
        waited, self.gate = self.gate or [], None
        for message in waited:
            self.on(message)
        return True

    def raise_fence(self, epoch: int) -> bool:
        """Serve nothing more until a restore of this epoch, or a later one, is done."""
        if epoch <= self.fence:
            return epoch == self.fence
        self.fence, self.ready, self.offered, self.evicted, self.left = epoch, False, {}, set(), {}
        self._serve()
        self.open_gate(self.gates)
        return True

    def restore(self, body: tuple[int, Cut]) -> bool:
        """Take the state of a checkpoint."""
        epoch, cut = body
        if epoch != self.fence or self.ready:
            return epoch == self.fence
        self.logs = [log.copy() for log in cut.logs]
        self.version, self.rounds = cut.version, cut.rounds
        self.applied, self.at = list(cut.applied), list(cut.at)
        return True

    def _answer(self, message: Message, body: object) -> None:
        self.world.send(message.source, Message("answer", self.name, message.call, body))
