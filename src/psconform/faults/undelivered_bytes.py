"""What a stall holds back on connections that others have dialled: what a task has sent, and nobody has."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from ..layout import Link
from .partitions import EVERYBODY
from .proxies import Links
from .traffic import Flow, Flows

SURE_S, LOOKS = 0.3, 5
"""What is only on its way has come by then."""
Connection = tuple[Link, int]
"""Of the destination of a link to its source, by the port of the first."""


class HeldBack:
    """Bytes that the sources of links have sent on connections that they have accepted, and that are not there yet.

    Toxiproxy stands between the two ends of a connection, so nobody knows which they are. But who waits for an answer
    sends nothing: as many bytes as it has sent have reached the other end, and of those that have received so many that
    one counts which has sent least. Where that end is gone (its process has died) what it had sent by then counts, for
    the end of a connection waits behind bytes that are held back.
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
