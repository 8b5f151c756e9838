"""slow-close: who has closed a connection is believed by the other end to be there for some time longer."""

from __future__ import annotations

from ..layout import Link, Task
from .fault import Fault
from .injectors import Injector, Life
from .proxies import Links

Open = dict[tuple[Task, Task], frozenset[int]]


class ClosesLate(Injector):
    """A toxic ``slow_close``: the end of a connection is passed on later, in the direction of the links.

    It shows only if a connection of the target ends meanwhile, say because a task dies: then what the destination has
    dialled stays open though nobody is behind it any more, or more connections stay open at the destination than there
    are that anybody has dialled.
    """

    holds = False

    def __init__(self, fault: Fault, links: Links, *, life: Life) -> None:
        self._fault, self._links, self._life = fault, links, life
        self._delay_ms = dict(fault.amounts)["ms"]
        self._name = f"{fault.kind}-{id(fault):x}"
        self._lives: dict[Task, int | None] = {}
        self._before: dict[Link, frozenset[int]] = {}  # what the destination has dialled, by its port
        self._usual: dict[Task, int] = {}  # connections of the destinations to themselves, say
        self._held = self._seen = ""
        self._healed = False

    def inject(self) -> None:
        self._links.add(self._name, "slow_close", self._fault.links, delay=self._delay_ms)
        self._lives = {link.source: self._life(link.source) for link in self._fault.links}
        self._before = {link: self._dialled(link) for link in self._fault.links}
        self._usual = {task: self._more_than_dialled(task) for task in self._destinations()}

    def evidence(self) -> str:
        """Seen twice: the end of a connection takes a moment even without the fault; and not after it."""
        if self._healed:
            return self._seen
        before, self._held = self._held, self._left_open()
        self._seen = self._seen or (self._held if before else "")
        return self._seen

    def heal(self) -> None:
        self._links.remove(self._name, self._fault.links)
        self._healed = True

    def healed(self) -> str:
        """What was kept open is closed now."""
        if self._left_open() or not self._links.as_told(self._fault.links):
            return ""
        return "no connection is open whose other end has gone"

    def _left_open(self) -> str:
        count = 0
        for link in self._fault.links:
            ports = self._dialled(link)
            if self._life(link.source) != self._lives[link.source]:
                count += len(self._before[link] & ports)
            else:
                self._before[link] = ports
        for task, usual in self._usual.items():
            if not self._others_are_slow(task):  # they keep open what somebody has closed, too
                count += max(0, self._more_than_dialled(task) - usual)
        return f"{count} connection(s) open whose other end had gone" if count else ""

    def _more_than_dialled(self, listener: Task) -> int:
        """Connections that a task has accepted, less those that others have dialled for it, through their proxies."""
        dialled = self._links.flows((task, listener) for task in self._links.addresses if task != listener)
        return len(self._links.accepted(listener)) - sum(len(said.open) for said in dialled.values())

    def _others_are_slow(self, listener: Task) -> bool:
        others = (Link(task, listener) for task in self._links.addresses if task != listener)
        return any(self._links.slowed(link) for link in others if link not in self._fault.links)

    def _destinations(self) -> list[Task]:
        return list(dict.fromkeys(link.destination for link in self._fault.links))

    def _dialled(self, link: Link) -> frozenset[int]:
        (flows,) = self._links.flows([(link.destination, link.source)]).values()
        return frozenset(flows.open)
