"""Virtual time and the network in it: messages between tasks are late, lost, doubled, and overtake each other."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple, Protocol

PAUSED, HELD = "paused", "held"


@dataclass(frozen=True)
class Network:
    """What becomes of a message between two tasks. Seconds of virtual time; shares of all messages.

    ``ordered``: none overtakes another one of the same link, as in one TCP connection.
    """

    least_s: float = 0.0005
    jitter_s: float = 0.002
    loss: float = 0.0
    doubled: float = 0.0
    ordered: bool = True


class Message(NamedTuple):
    """A call, or the answer to one. ``call`` tells which; ``body`` is what the kind of message has to say."""

    kind: str
    source: str
    call: int
    body: Any = None


class Machine(Protocol):
    """A task: a state machine that takes one message after another."""

    def on(self, message: Message) -> None:
        """Take a message, and send others."""


class World:
    """Tasks by name, the messages under way, and what is wrong with links and tasks just now.

    The same random numbers give the same schedule. Nothing here knows what is trained.
    """

    def __init__(self, random: Random, network: Network) -> None:
        self.now = 0.0
        self.calls = 0
        self.machines: dict[str, Machine] = {}
        self.lives: dict[str, int] = {}
        self._draw, self._network = random.random, network
        self._queue: list[tuple[float, int, str, int, Message]] = []
        self._sent = 0
        self._latest: dict[tuple[str, str], float] = {}
        self._links: dict[tuple[str, str], list[Message] | None] = {}  # those that are cut; a list holds messages back
        self._paused: dict[str, list[Message]] = {}

    def start(self, task: str, make: Callable[[int], Machine]) -> None:
        """Start a task, or start it again: ``make`` is given which life of it this is, from 0."""
        self.lives[task] = self.lives.get(task, -1) + 1
        self.machines[task] = make(self.lives[task])

    def kill(self, task: str) -> None:
        """End a task at once; what is under way to it is lost."""
        self.machines.pop(task, None)
        self._paused.pop(task, None)

    def pause(self, task: str) -> None:
        """Stop a task; what is sent to it waits."""
        self._paused.setdefault(task, [])

    def proceed(self, task: str) -> None:
        """Let it go on."""
        for message in self._paused.pop(task, ()):
            self.later(task, message, 0.0)

    def cut(self, source: str, destination: str, *, hold: bool) -> None:
        """Let nothing through from one task to another: it is held back, or lost."""
        self._links[source, destination] = [] if hold else None

    def mend(self, source: str, destination: str) -> None:
        """Let messages through again, first those that were held back."""
        for message in self._links.pop((source, destination), None) or ():
            self._deliver((source, destination), message)

    def call(self) -> int:
        """A number for a new call."""
        self.calls += 1
        return self.calls

    def send(self, destination: str, message: Message) -> None:
        """Send a message from its source."""
        link = message.source, destination
        if self._links and link in self._links:
            held = self._links[link]
            if held is not None:
                held.append(message)
            return
        self._deliver(link, message)

    def _deliver(self, link: tuple[str, str], message: Message) -> None:
        network, draw = self._network, self._draw
        if network.loss and draw() < network.loss:
            return
        self._arrives(link, message)
        if network.doubled and draw() < network.doubled:
            self._arrives(link, message)

    def _arrives(self, link: tuple[str, str], message: Message) -> None:
        at = self.now + self._network.least_s + self._network.jitter_s * self._draw()
        if self._network.ordered:
            at = self._latest[link] = max(at, self._latest.get(link, 0.0))
        self._queued(at, link[1], message)

    def later(self, task: str, message: Message, delay: float) -> None:
        """Have a message reach this life of a task after so many seconds, whatever the network does."""
        self._queued(self.now + delay, task, message)

    def _queued(self, at: float, task: str, message: Message) -> None:
        self._sent += 1
        heapq.heappush(self._queue, (at, self._sent, task, self.lives[task], message))

    def step(self) -> bool:
        """Deliver the next message; False if none is under way."""
        if not self._queue:
            return False
        self.now, _, task, life, message = heapq.heappop(self._queue)
        if self._paused and task in self._paused:
            self._paused[task].append(message)
        elif (machine := self.machines.get(task)) is not None and self.lives[task] == life:
            machine.on(message)
        return True
