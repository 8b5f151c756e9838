"""Proxies between tasks, one for each pair of a dialler and a listener, so that one direction can be broken alone.

Each task is told an address of its own for every other task: a proxy that only it dials. What TensorFlow sends from
worker:1 to ps:0 travels on connections that either of them dialled (a gradient on one that the *ps* dialled, the call
that asks for it on the worker's own), so the link worker:1->ps:0 is the upstream of one proxy and the downstream of the
other: `Links.streams`.

A stall holds bytes back and loses none: a toxic ``latency`` of an hour, which is there from the beginning, at 0, and is
changed to 0 again to heal; what was held back then arrives at once. (``timeout`` would swallow bytes, and removing it
closes the connection.)

Behind it is one that does nothing (``noop``). Toxiproxy interrupts the last toxic of a stream to add another, and
a ``latency`` that is interrupted lets go of what it holds, past the new one: whatever else began would end a stall for
a moment, and let the answer through that is to be cut off.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Self

from ..errors import PsconformError
from ..layout import Link, Task
from .fault import Fault
from .partitions import EVERYBODY, of_listener, talks
from .toxiproxy import Stream, Toxiproxy
from .traffic import Flow, Flows, Here, Meter, Traffic

HOUR_MS = 3_600_000
_DELAY: dict[Stream, str] = {"upstream": "delay-upstream", "downstream": "delay-downstream"}
_BEHIND: dict[Stream, str] = {"upstream": "behind-upstream", "downstream": "behind-downstream"}


@dataclass
class Links:
    """The proxies of one run. Use it as a context: they are deleted at its end.

    Args:
        server: a Toxiproxy on this machine; it may have other proxies, which are left alone.
        run: id of the run; the names of its proxies begin with it.
        addresses: where each task listens, ``host:port``.
        shared: there is one address for each task, whoever dials it (targets that have one cluster spec for all), so
            the links are those from and to EVERYBODY.
        traffic: who tells of the connections of tasks.
        host: where proxies are to listen.
        named: an address as proxies are told it: where it may change, by a name.
        moved: is called with a task and the address at which it listens from now on.
        place: gives each proxy a ``host:port`` of its own, which stays its own while it refuses connections and does
            not listen; None: a port that is free now.
    """

    server: Toxiproxy
    run: str
    addresses: Mapping[Task, str]
    shared: bool = False
    traffic: Traffic = field(default_factory=Here)
    host: str = "127.0.0.1"
    named: Callable[[str], str] = str
    moved: Callable[[Task, str], None] = lambda task, address: None
    place: Callable[[], str] | None = None
    _delays: dict[Link, dict[str, int]] = field(default_factory=dict)
    _told: dict[tuple[str, Stream], int] = field(default_factory=dict)  # how late each is, if that is known
    _held: Counter[tuple[str, Stream]] = field(default_factory=Counter)  # how many hold it
    _refused: dict[Link, set[str]] = field(default_factory=dict)
    _added: list[tuple[str, tuple[str, Stream]]] = field(default_factory=list)
    _listens: dict[tuple[Task, Task], str] = field(default_factory=dict)

    def __enter__(self) -> Self:
        try:
            for listener in sorted(self.addresses):
                for dialler in [EVERYBODY] if self.shared else [task for task in self.addresses if task != listener]:
                    self._make(dialler, listener)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def addresses_of(self, task: Task) -> dict[Task, str]:
        """The cluster as ``task`` is to know it: itself where it listens, everybody else behind a proxy.

        If it is shared, everybody is told the same: itself behind its proxy, too.
        """
        if self.shared:
            return {other: self._listens[EVERYBODY, other] for other in self.addresses}
        found = {other: self._listens[task, other] for other in self.addresses if other != task}
        return {**found, task: self.addresses[task]}

    def struck(self, fault: Fault) -> tuple[Link, ...]:
        """The links that a fault strikes: its own, or what they are with one proxy for each listener."""
        return of_listener(fault.region, kind=fault.kind, place=fault.place) if self.shared else fault.links

    def streams(self, link: Link) -> list[tuple[str, Stream]]:
        """The streams of proxies that carry a link: (proxy, stream)."""
        both: list[tuple[Task, Task, Stream]] = [
            (link.source, link.destination, "upstream"),
            (link.destination, link.source, "downstream"),
        ]
        return [(self._name(dialler, listener), stream) for dialler, listener, stream in both if listener != EVERYBODY]

    def delay(self, name: str, links: Iterable[Link], milliseconds: int) -> None:
        """Have all bytes of these links arrive so much later, on connections that are open and on new ones.

        Several delays of a link, each with a name of its own, act as the longest. ``HOUR_MS`` is a stall.
        """
        for link in links:
            self._delays.setdefault(link, {})[name] = milliseconds
            self._apply(link)

    def hold(self, dialled: Iterable[tuple[Task, Task]], *, on: bool = True) -> None:
        """Stall what comes back on the connections of each (dialler, listener) alone; ``on=False``: no more."""
        for dialler, listener in dialled:
            answers: tuple[str, Stream] = (self._name(dialler, listener), "downstream")
            self._held[answers] += 1 if on else -1
            self._apply(Link(listener, dialler))

    def outdone(self, name: str, link: Link) -> bool:
        """Whether nothing shows now of what is done to a link under this name: more is done to it under another.

        What is held back gets to nothing else; of several delays the longest acts.
        """
        delays = self._delays.get(link, {})
        longest = max((late for other, late in delays.items() if other != name), default=0)
        held = any(self._held[of] > 0 for of in self.streams(link))
        return held or longest > delays.get(name, HOUR_MS - 1)

    def slowed(self, link: Link) -> bool:
        """Whether anything makes what is sent on a link late, or holds it back."""
        streams = self.streams(link)
        return any(self._told.get(of) or self._held[of] > 0 for of in streams) or any(
            of in streams for _, of in self._added
        )

    def refused(self, link: Link) -> bool:
        """Whether connections of either end of a link to the other are refused now."""
        return bool(self._refused.get(link) or self._refused.get(Link(link.destination, link.source)))

    def undelay(self, name: str, links: Iterable[Link]) -> None:
        """End what ``delay`` of that name has begun; first come the bytes that were held back. None is lost."""
        for link in links:
            self._delays.get(link, {}).pop(name, None)
            self._apply(link)

    def add(self, name: str, kind: str, links: Iterable[Link], **attributes: int) -> None:
        """Add a toxic of Toxiproxy's to both streams of each link; ``name`` is for ``remove``."""
        for link in links:
            for proxy, stream in self.streams(link):
                self.server.add(proxy, f"{name}-{stream}", kind, stream, **attributes)
                self._added.append((f"{name}-{stream}", (proxy, stream)))

    def change(self, name: str, links: Iterable[Link], **attributes: int) -> None:
        """Change what ``add`` has added; if it delays, what waits in it is let go."""
        for link in links:
            for proxy, stream in self.streams(link):
                self.server.change(proxy, f"{name}-{stream}", **attributes)

    def remove(self, name: str, links: Iterable[Link]) -> None:
        """Remove what ``add`` has added."""
        for link in links:
            for proxy, stream in self.streams(link):
                self.server.remove(proxy, f"{name}-{stream}")
                self._added.remove((f"{name}-{stream}", (proxy, stream)))

    def refuse(self, name: str, links: Iterable[Link], *, on: bool = True) -> None:
        """End the connections of each link's source to its destination and refuse new ones; ``on=False``: no more."""
        for link in links:
            by = self._refused.setdefault(link, set())
            (by.add if on else by.discard)(name)
            self.server.enable(self._name(link.source, link.destination), on=not by)

    def at(self, listener: Task, address: str) -> None:
        """A task listens there from now on; empty: nowhere, so nobody can dial it.

        A Toxiproxy that dials an address which has just gone waits for half a minute or longer, for nobody answers that
        there is nobody, and takes no other connection of that proxy meanwhile.
        """
        if address:
            self.moved(listener, address)
        self.refuse("moving", self._to(listener), on=not address)

    def silent(self, listener: Task, *, on: bool) -> None:
        """A task does not listen yet, so who dials it is refused, as without a proxy; ``on=False``: it listens."""
        self.refuse("silent", self._to(listener), on=on)

    def listens(self, listener: Task) -> bool:
        """Whether a task listens."""
        return self.traffic.listens(listener, self.addresses[listener])

    def _to(self, listener: Task) -> list[Link]:
        return [Link(dialler, there) for dialler, there in self._listens if there == listener]

    @property
    def urls(self) -> list[str]:
        """The proxies of this run: DELETE takes them away."""
        diallers = [EVERYBODY] if self.shared else list(self.addresses)
        names = [self._name(d, listener) for listener in sorted(self.addresses) for d in diallers if d != listener]
        return [f"{self.server.url}/proxies/{name}" for name in names]

    def dialled(self, dialler: Task, listener: Task) -> str:
        """The address that ``dialler`` dials for ``listener``; empty if there is none that it alone dials."""
        return self._listens.get((dialler, listener), "")

    def flows(self, pairs: Iterable[tuple[Task, Task]]) -> dict[str, Flows]:
        """Connections of each (dialler, listener) to its proxy, by the address of that; of those that there are."""
        dialled = [(dialler, self.dialled(dialler, listener)) for dialler, listener in pairs]
        return self.traffic.flows((dialler, address) for dialler, address in dialled if address)

    def dialled_by_now(self, known: Set[tuple[Task, Task]]) -> set[tuple[Task, Task]]:
        """(dialler, listener) of more proxies to which there are connections, or were in the last minute.

        Only between tasks that have something to exchange. Connections that are over are known if the dialler has
        closed them, or, of processes, the proxy; what is reset between two looks is missed.
        """
        asked = {
            pair: address
            for pair, address in self._listens.items()
            if pair not in known and (self.shared or talks(*pair, among=self.addresses))
        }
        said = self.traffic.flows((dialler, address) for (dialler, _), address in asked.items())
        return {
            pair
            for pair, address in asked.items()
            if said[address].open or said[address].left or self.traffic.closed(pair[1], address)
        }

    def passed(self) -> dict[tuple[Task, Task], tuple[int, int]]:
        """Of each (dialler, listener): bytes on connections that are open, and how many connections are over.

        Either changes if anything passes; those that are over are known as for `dialled_by_now`.
        """
        flows = self.traffic.flows((dialler, address) for (dialler, _), address in self._listens.items())
        found = {}
        for (dialler, listener), address in self._listens.items():
            open_now = flows[address].open.values()
            over = len(flows[address].left) + len(self.traffic.closed(listener, address))
            found[dialler, listener] = sum(flow.sent + flow.received for flow in open_now), over
        return found

    def accepted(self, listener: Task) -> dict[int, Flow]:
        """Connections that a task has accepted and that are open, as it sees them."""
        return self.traffic.accepted(listener, self.addresses[listener])

    def closed(self, listener: Task) -> frozenset[int]:
        """Connections that a task, which was dialled, has closed first, in the last minute."""
        return self.traffic.closed(listener, self.addresses[listener])

    def as_told(self, links: Iterable[Link]) -> bool:
        """Whether the server says of these links what it was told last."""
        proxies = self.server.proxies()
        for link in links:
            dialled = self._name(link.source, link.destination)
            known = link.destination == EVERYBODY or dialled in proxies
            if not known or (dialled in proxies and proxies[dialled].enabled == bool(self._refused.get(link))):
                return False
            for proxy, stream in self.streams(link):
                toxics = self.server.toxics(proxy)
                added = {name for name, of in self._added if of == (proxy, stream)}
                always = {_DELAY[stream], _BEHIND[stream]}
                there = {name for name, said in toxics.items() if said["stream"] == stream}
                if not always <= there:
                    return False  # somebody else has changed it: a server of one's own may be reset by anybody
                latency = toxics[_DELAY[stream]]["attributes"]["latency"]
                if latency != self._delay_of(link, (proxy, stream)) or there - always != added:
                    return False
        return True

    def lost(self) -> str:
        """Why tasks cannot reach each other any more, whatever the plan says; empty while all proxies are there."""
        try:
            there = self.server.proxies()
        except PsconformError as error:
            return str(error)
        gone = [name for pair in self._listens if (name := self._name(*pair)) not in there]
        return f"Toxiproxy at {self.server.url} has no proxy {gone[0]} any more" if gone else ""

    def close(self) -> None:
        """Delete the proxies of this run, as far as that goes: the server may have gone first."""
        for dialler, listener in list(self._listens):
            try:
                self.server.delete(self._name(dialler, listener))
            except PsconformError:
                continue
            del self._listens[dialler, listener]

    def _make(self, dialler: Task, listener: Task) -> None:
        name = self._name(dialler, listener)
        self._listens[dialler, listener] = ""
        listen = f"{self.host}:0" if self.place is None else self.place()
        proxy = self.server.create(name, upstream=self.named(self.addresses[listener]), listen=listen)
        self._listens[dialler, listener] = proxy.listen
        for stream, toxic in _DELAY.items():
            self.server.add(name, toxic, "latency", stream, latency=0)
            self.server.add(name, _BEHIND[stream], "noop", stream)
            self._told[name, stream] = 0

    def _latency(self, link: Link) -> int:
        return max(self._delays.get(link, {}).values(), default=0)

    def _apply(self, link: Link) -> None:
        for proxy, stream in self.streams(link):
            latency = self._delay_of(link, (proxy, stream))
            if latency != self._told.pop((proxy, stream), None):  # telling it the same would let go of what it holds
                self.server.change(proxy, _DELAY[stream], latency=latency)
            self._told[proxy, stream] = latency

    def _delay_of(self, link: Link, of: tuple[str, Stream]) -> int:
        return HOUR_MS if self._held[of] > 0 else self._latency(link)

    def _name(self, dialler: Task, listener: Task) -> str:
        return f"{self.run}.{dialler.slug}.{listener.slug}"


QUIET_S = 0.15
"""So long nothing must have been sent. What comes in a burst on a busy machine may take longer, and is sent later."""


class Sent:
    """The phase ``sent``: one push of a worker, ``least`` bytes or more, whose answers are held back until `let_go`.

    What the servers answer travels on the connections that the worker has dialled, so that stream alone is stalled,
    from before the push; what a server asks for on connections of its own (with TensorFlow, the gradient itself) still
    comes. Once the worker has sent a gradient's bytes and all is quiet, it waits for an answer that is in the proxy.
    Whether the push was applied by then only a read would tell, and it does not matter: the worker cannot know it
    either. Of a trainer that reads parameters in the same call those are held back, too: it sends less, and the phase
    is not reached.
    """

    def __init__(self, links: Links, worker: Task, servers: Iterable[Task], *, least: int) -> None:
        self._least = least
        self._links, self._worker, self._servers = links, worker, tuple(servers)
        self._held = tuple((worker, server) for server in self._servers)
        links.hold(self._held)
        self._out = {address: Meter.since(now) for address, now in self._flows(dialled_by_worker=True).items()}
        self._back = {address: Meter.since(now) for address, now in self._flows(dialled_by_worker=False).items()}
        self._bytes, self._since = 0, time.monotonic()

    def look(self) -> str:
        """What shows that the push has been sent; empty so far."""
        for meters, dialled in ((self._out, True), (self._back, False)):
            for address, now in self._flows(dialled_by_worker=dialled).items():
                meters[address].look(now)
        sent = sum(meter.sent for meter in self._out.values()) + sum(meter.received for meter in self._back.values())
        if sent != self._bytes:
            self._bytes, self._since = sent, time.monotonic()
        if sent < self._least or time.monotonic() - self._since < QUIET_S:
            return ""
        return f"{self._worker} had sent {sent} bytes of its push, and no answer had come"

    def let_go(self) -> None:
        """Let the answers come."""
        self._links.hold(self._held, on=False)

    def _flows(self, *, dialled_by_worker: bool) -> dict[str, Flows]:
        worker = self._worker
        return self._links.flows((worker, s) if dialled_by_worker else (s, worker) for s in self._servers)
