"""What a stall holds back on connections that others have dialled: bytes that a task has sent, and that nobody has."""

from __future__ import annotations

import time
from collections.abc import Iterable

from ..layout import Link, Task
from .links import Links
from .partitions import EVERYBODY

SURE_S, LOOKS = 0.3, 5
"""What is only on its way has come by then, or was not there at one of so many looks."""


class HeldBack:
    """Bytes in the proxies of those who have dialled the sources of links, of what these have sent since it was made.

    A task does not know who is behind a connection that it has accepted, so all are taken together: what it has sent on
    them (its kernel knows), less what those have received who have dialled it. The difference is on its way, or held
    back: on its way it is only for a moment, unless another link of the task is slow, of which nothing is said then.
    Nor is anything said where it has accepted more connections than came through proxies (TensorFlow's client of its
    own server, a monitor).
    """

    def __init__(self, links: Links, of: Iterable[Link]) -> None:
        self._links, self._of = links, tuple(of)
        self._sources = list(dict.fromkeys(link.source for link in self._of if link.source != EVERYBODY))
        self._before: dict[Task, int] = {}  # past the stall already, and not there yet
        self._received: dict[Task, int] = {}
        self._ports: dict[Task, frozenset[tuple[str, int]]] = {}
        self._since, self._looks = 0.0, 0
        for source in self._sources:
            sent, received = self._look_at(source)
            waits = any(links.slowed(link) for link in self._of if link.source == source)  # held already, by another
            self._before[source] = 0 if waits or sent is None else max(0, sent - received)
            self._received[source] = received

    @property
    def before(self) -> int:
        """Bytes that were on their way when it was made."""
        return sum(self._before.values())

    def look(self) -> int:
        """How many bytes are surely held back; call it often."""
        held = sum(max(0, self._held_of(source)) for source in self._sources)
        if not held:
            self._looks = 0
            return 0
        if not self._looks:
            self._since = time.monotonic()
        self._looks += 1
        return held if self._looks >= LOOKS and time.monotonic() - self._since >= SURE_S else 0

    def _held_of(self, source: Task) -> int:
        ports = self._ports[source]
        sent, received = self._look_at(source)
        if ports - self._ports[source]:  # a connection is over: what was on its way may be, too
            self._before[source], self._received[source] = 0, received
        if sent is None or self._others_are_slow(source):
            return 0
        on_its_way = max(0, self._before[source] - (received - self._received[source]))
        return sent - received - on_its_way

    def _look_at(self, source: Task) -> tuple[int | None, int]:
        """(bytes sent on connections that it has accepted, bytes received by who has dialled it), of those open.

        The first is asked first, so that what passes meanwhile is not taken for held back; None: they do not belong
        together.
        """
        accepted = self._links.accepted(source)
        dialled = self._links.flows((task, source) for task in self._diallers() if task != source)
        flows = {(address, port): flow for address, said in dialled.items() for port, flow in said.open.items()}
        self._ports[source] = frozenset(flows)
        received = sum(flow.received for flow in flows.values())
        if len(accepted) != len(flows):
            return None, received
        return sum(flow.sent for flow in accepted.values()), received

    def _others_are_slow(self, source: Task) -> bool:
        others = (Link(source, task) for task in self._diallers() if task != source)
        return any(self._links.slowed(link) for link in others if link not in self._of)

    def _diallers(self) -> list[Task]:
        return [EVERYBODY] if self._links.shared else list(self._links.addresses)
