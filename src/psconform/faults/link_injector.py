"""Faults of the network: what Toxiproxy is told, and how their effect shows on the target's own connections."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator

from ..layout import Link, Task
from .fault import Fault
from .injectors import Injector, Scene
from .kinds import kinds
from .partitions import EVERYBODY
from .proxies import HOUR_MS, Links
from .traffic import Flow, Flows, Meter

SURE_S, LOOKS = 0.3, 5
"""What is only on its way has come by then."""
Connection = tuple[Link, int]
"""Of the destination of a link to its source, by the port of the first."""


class HeldBack:
    """Bytes that the sources of links have sent on connections that they have accepted, and that are not there yet.

    Toxiproxy stands between the two ends of a connection, so which they are is not known. But a task that waits for an
    answer sends nothing: as many bytes as it has sent have reached the other end, and of those that have received so
    many that one counts which has sent least. Where that end is gone (its process has died) what it had sent by then
    counts, for the end of a connection waits behind bytes that are held back.
    """

    def __init__(self, links: Links, of: Iterable[Link]) -> None:
        self._links, self._of = links, [link for link in of if link.source != EVERYBODY]
        self._told: dict[Connection, int] = {}  # what had been sent by the last look that told
        self._before: dict[Connection, tuple[int, int]] = {}  # past the stall already and not there; what had come
        for link, port, flow, missing in self._look():
            waits = links.slowed(link)  # another holds it back already
            self._before[link, port] = (0 if waits else max(0, missing), flow.received)
        self._since, self._looks = 0.0, 0

    def on_their_way(self, link: Link, now: Flows) -> int:
        """Bytes that were on their way on a link when this was made, and have not arrived by now."""
        return sum(
            max(0, missing - (now.open[port].received - received))
            for (of, port), (missing, received) in self._before.items()
            if of == link and port in now.open
        )

    def look(self) -> str:
        """What is surely held back, empty if nothing is; call it often."""
        held = 0
        for link, port, flow, missing in self._look():
            before, received = self._before.get((link, port), (0, 0))
            held += max(0, missing - max(0, before - (flow.received - received)))
        if not held:
            self._looks = 0
            return ""
        if not self._looks:
            self._since = time.monotonic()
        self._looks += 1
        return f"{held} bytes held back" if self._looks >= LOOKS and time.monotonic() - self._since >= SURE_S else ""

    def _look(self) -> Iterator[tuple[Link, int, Flow, int]]:
        """Connections whose dialler waits, and how many bytes have been sent to it that it has not got.

        Who has accepted them is asked first, so that what passes meanwhile is not taken for missing.
        """
        accepted = {source: self._links.accepted(source).values() for source in {link.source for link in self._of}}
        for link in self._of:
            dialled = self._links.flows([(link.destination, link.source)]).values()
            for port, flow in (each for said in dialled for each in said.open.items()):
                sent = [other.sent for other in accepted[link.source] if other.received == flow.sent]
                if sent:
                    self._told[link, port] = min(sent)
                if (link, port) in self._told:
                    yield link, port, flow, self._told[link, port] - flow.received


JITTER_LOOKS = 5
"""A latency with jitter is drawn anew every so many looks."""
Toxic = tuple[str, Callable[[dict[str, int]], dict[str, int]]]
"""Toxiproxy's name of what it adds, and its attributes by the parameters of a fault (github.com/Shopify/toxiproxy)."""
UNUSED = (
    "no connection went through the proxies of these links: either neither task dials the other, or they tell each "
    "other their addresses, past those that psconform has handed out"
)
ENDS_S = 2.0
"""So long after the bytes that are to end their connection it has ended: what ends later may have another reason."""


class Disturbs(Injector):
    """All kinds whose evidence is bytes or connections of the target, on the links that they strike.

    The bytes from a to b travel on connections that either has dialled, so there are two to look at: what a has sent
    into its proxy to b, and what has come out of b's proxy to a.
    """

    holds = False

    def __init__(self, fault: Fault, scene: Scene, *, toxic: Toxic | None = None) -> None:
        """``toxic``: what Toxiproxy adds; None: the link holds back, delays or refuses, as the kind's effect says."""
        super().__init__(fault, scene)
        self._links, self._life = scene.links(fault), scene.life
        self._of = self._links.struck(fault)
        self._toxic, self._effect_of = toxic, kinds()[fault.kind].effect
        self._name = f"{fault.kind}-{id(fault):x}"
        self._out: dict[Link, Meter] = {}  # on what the source has dialled
        self._back: dict[Link, Meter] = {}  # on what the destination has dialled
        self._lives: dict[Link, tuple[int | None, int | None]] = {}
        self._struck: dict[Link, tuple[int | None, int | None]] = {}
        self._closed: dict[Task, frozenset[int]] = {}  # by who was dialled, the connections that it has closed
        self._outdone: set[Link] = set()  # where nothing of it showed when somebody last looked
        self._taken_away = False
        self._looks = 0
        self._held: HeldBack | None = None
        self._past: dict[Link, int] = {}  # bytes that were beyond its reach when the meter was set, and still to arrive
        self._first = 0.0  # when there were bytes that were to end their connection
        self._doubt = ""
        self._dialled_at_all = False
        self._jitter = random.Random(f"{scene.seed}:{fault}")

    @property
    def lingers(self) -> bool:  # type: ignore[override]
        """Whatever acts on bytes harms nobody before there are any; who is refused is harmed at once."""
        if self._ends:
            return not self._refuses and (not self._first or time.monotonic() - self._first < ENDS_S)
        return True

    @property
    def unseen(self) -> str:  # type: ignore[override]
        """Nobody has dialled what it acts on."""
        return "" if self._dialled_at_all else UNUSED

    def inject(self) -> None:
        links = self._links
        self._held = None if self._ends else HeldBack(links, self._of)
        self._count_from_now()  # what ends now has ended by it
        if self._toxic is not None:
            name, attributes = self._toxic
            links.add(self._name, name, self._of, **attributes(self._amounts))
        elif self._refuses:
            links.refuse(self._name, self._of)
        elif self._holds:
            links.delay(self._name, self._of, HOUR_MS)
        else:
            links.delay(self._name, self._of, self._least)
            if self._spread:
                links.add(self._name, "latency", self._of, latency=self._more())
        if not self._ends:
            self._count_from_now()  # what passed before is none of it

    def evidence(self) -> str:
        if self._taken_away:
            return self._seen  # what passes from then on is no sign that it was there
        self._looks += 1
        if self._spread and self._looks % JITTER_LOOKS == 0:
            self._links.change(self._name, self._of, latency=self._more())
        self._seen = self._seen or self._effect()
        return self._seen

    def _effect(self) -> str:
        if self._effect_of == "passes":
            self._leave_out_what_does_not_show()
        self._look()
        sent = sum(meter.sent for meter in self._out.values())
        if self._ends:
            return self._ended()
        if self._holds:
            assert self._held is not None
            held = self._held.look()
            return f"{sent} bytes held back" if sent else held
        arrived = max(0, sum(meter.received - self._past.get(link, 0) for link, meter in self._back.items()))
        return f"{sent + arrived} bytes passed through it" if sent + arrived else ""

    def _leave_out_what_does_not_show(self) -> None:
        """Where bytes are held back, or later than this makes them anyhow, nothing counts until that is over."""
        before, self._outdone = self._outdone, {link for link in self._of if self._links.outdone(self._name, link)}
        if left_out := before | self._outdone:
            now = self._flows()
            for meters, link, address in self._dialled():
                if link in left_out:
                    self._count_from(now[address], meters, link)

    def _ended(self) -> str:
        """Connections that neither end has closed. Who dies closes its own before anybody knows: ask a second time."""
        lives = {link: self._both(link) for link in self._of}
        refused = not self._refuses and any(map(self._links.refused, self._of))  # that ends them, too
        if refused or any(None in both for both in lives.values()) or lives != self._lives:
            self._count_from_now()
            self._doubt = ""
            return ""
        passed = sum(meter.sent for meter in self._out.values()) + sum(m.received for m in self._back.values())
        if passed >= self._amounts.get("bytes", 1):
            self._first = self._first or time.monotonic()
        ended = max(0, self._ended_by_no_dialler() - self._closed_by_listeners())
        told, self._doubt = self._doubt, f"{ended} connection(s) ended" if ended else ""
        return self._doubt if told else ""

    def _ended_by_no_dialler(self) -> int:
        return sum(meter.ended for meter in self._meters(only_out=self._refuses))

    def _closed_by_listeners(self) -> int:
        """Connections that who was dialled has closed by itself; the proxy only passes that on."""
        return sum(len(self._links.closed(task) - before) for task, before in self._closed.items())

    def heal(self) -> None:
        self._taken_away = True
        self._struck = dict(self._lives)
        links = self._links
        self._count_from_now()  # what was held back may have come, and its connection be over, before the next look
        if self._refuses:
            links.refuse(self._name, self._of, on=False)
            return
        if self._toxic is None:
            links.undelay(self._name, self._of)
        if self._toxic is not None or self._spread:
            links.remove(self._name, self._of)

    def healed(self) -> str:
        """Bytes come through again: out of the proxies, to the destination, or as an answer to the source."""
        self._look()
        if self._doubt and {link: self._both(link) for link in self._of} == self._struck:
            self._seen, self._doubt = self._seen or self._doubt, ""
        back = sum(meter.received for meter in self._meters())
        ended = any(meter.over for meter in self._back.values())  # it may be over before anybody looks
        over = self._holds and self._seen and ended and not back
        if not (back or over) or not self._links.as_told(self._of):  # answers may come the other way
            return ""
        return "what was held back came through, and the connection is over" if over else f"{back} bytes came through"

    def gone(self) -> str:
        return "Toxiproxy has let go of it, no byte came since" if self._links.as_told(self._of) else ""

    @property
    def _ends(self) -> bool:
        return self._effect_of == "ends"

    @property
    def _holds(self) -> bool:
        return self._effect_of == "holds"

    @property
    def _refuses(self) -> bool:
        return self._ends and self._toxic is None

    @property
    def _spread(self) -> int:
        return self._amounts.get("jitter_ms", 0)

    @property
    def _least(self) -> int:
        """What each byte is late at least: that is never told anew, for whoever waits then would be let go."""
        return max(0, self._amounts["ms"] - self._spread)

    def _more(self) -> int:
        """What it is late beyond that, in a toxic of its own, drawn anew now and then."""
        drawn = self._jitter.randint(-self._spread, self._spread)
        return max(0, self._amounts["ms"] + drawn) - self._least

    def _dialled(self) -> list[tuple[dict[Link, Meter], Link, str]]:
        """What the source of each link dials, and what the destination dials."""
        both = [
            (meters, link, self._links.dialled(dialler, listener))
            for link in self._of
            for meters, dialler, listener in (
                (self._out, link.source, link.destination),
                (self._back, link.destination, link.source),
            )
        ]
        return [(meters, link, address) for meters, link, address in both if address]

    def _meters(self, *, only_out: bool = False) -> Iterable[Meter]:
        """One for each address: of a shared proxy both directions are counted on the same connections."""
        found = {to: meters[link] for meters, link, to in self._dialled() if not only_out or meters is self._out}
        return found.values()

    def _flows(self) -> dict[str, Flows]:
        pairs = [(link.source, link.destination) for link in self._of]
        found = self._links.flows((*pairs, *((listener, dialler) for dialler, listener in pairs)))
        own = {self._links.dialled(*pair) for pair in pairs}  # who is refused is who dials
        seen = (flows.open for address, flows in found.items() if not self._refuses or address in own)
        self._dialled_at_all = self._dialled_at_all or any(seen)
        return found

    def _count_from_now(self) -> None:
        now = self._flows()
        for meters, link, address in self._dialled():
            self._count_from(now[address], meters, link)
        if self._ends:
            dialled = {link.destination if meters is self._out else link.source for meters, link, _ in self._dialled()}
            self._closed = {task: self._links.closed(task) for task in dialled}
        self._lives = {link: self._both(link) for link in self._of}

    def _count_from(self, now: Flows, meters: dict[Link, Meter], link: Link) -> None:
        meters[link] = Meter.since(now)
        if meters is self._back and self._held is not None:
            self._past[link] = self._held.on_their_way(link, now)

    def _look(self) -> None:
        now = self._flows()
        for meters, link, address in self._dialled():
            meters[link].look(now[address])

    def _both(self, link: Link) -> tuple[int | None, int | None]:
        return self._life_of(link.source), self._life_of(link.destination)

    def _life_of(self, task: Task) -> int | None:
        """Of everybody, how many lives they have had; None if one of them is dead."""
        if task != EVERYBODY:
            return self._life(task)
        lives = [life for life in map(self._life, self._links.addresses) if life is not None]
        return sum(lives) if len(lives) == len(self._links.addresses) else None


Open = dict[tuple[Task, Task], frozenset[int]]


class ClosesLate(Injector):
    """A toxic ``slow_close``: the end of a connection is passed on later, in the direction of the links.

    It shows only if a connection of the target ends meanwhile, say because a task dies: then what the destination has
    dialled stays open though its end is gone, or more connections stay open at the destination than there
    are that anybody has dialled.
    """

    holds = False

    def __init__(self, fault: Fault, scene: Scene) -> None:
        super().__init__(fault, scene)
        self._links, self._life = scene.links(fault), scene.life
        self._name = f"{fault.kind}-{id(fault):x}"
        self._lives: dict[Task, int | None] = {}
        self._before: dict[Link, frozenset[int]] = {}  # what the destination has dialled, by its port
        self._usual: dict[Task, int] = {}  # connections of the destinations to themselves, say
        self._held = ""
        self._healed = False

    def inject(self) -> None:
        self._links.add(self._name, "slow_close", self._fault.links, delay=self._amounts["ms"])
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
            if not self._others_are_slow(task):  # they keep closed connections open, too
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
