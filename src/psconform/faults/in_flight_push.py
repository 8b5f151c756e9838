"""The phase ``sent``: a worker's push is on its way or has arrived, and no answer to it has.

What the servers answer travels on the connections that the worker has dialled, so that stream alone is stalled, from
before the push; what a server asks for on connections of its own (with TensorFlow, the gradient itself) still comes.
Once the worker has sent a gradient's bytes and all is quiet, it waits for an answer that is in the proxy. Whether the
push was applied by then only a read would tell, and it does not matter: the worker cannot know it either. Of a trainer
that reads parameters in the same call those are held back, too: it sends less, and the phase is not reached.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from ..layout import Task
from .proxies import Links
from .traffic import Flows, Meter

QUIET_S = 0.15
"""So long nothing must have been sent. What comes in a burst on a busy machine may take longer, and is sent later."""


class Sent:
    """One push of a worker, ``least`` bytes or more, whose answers are held back until `let_go`."""

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
