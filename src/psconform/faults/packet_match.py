"""Where the packets of a link leave, and how they are told from others: what rules in the network of a pod match.

Every rule is where packets leave, in the pod of whoever sends them. Between two tasks that know each other's address
that is the source. Behind proxies each pair has a port of its own: bytes from a to b travel from a to the proxy that it
dials for b, and, on connections that b has dialled, from b's proxy for a to b, so from the pod of the proxies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..layout import Link, Task

if TYPE_CHECKING:  # what it imports is an extra
    from .proxies import Links

Ask = Callable[..., dict[str, Any]]
"""``ask(task, do=..., ...)``: a request to the helper of a task's pod, and its answer."""


@dataclass(frozen=True)
class Wires:
    """The network of one run in containers.

    Args:
        ask: asks the helper of a pod.
        address: where a task listens now, ``ip:port``.
        links: the proxies between the tasks; None: they dial each other.
        proxies: whose pod that of the proxies is.
    """

    ask: Ask
    address: Callable[[Task], str]
    links: Links | None
    proxies: Task

    def matches(self, link: Link) -> list[tuple[Task, tuple[str, ...]]]:
        """Whose pod, and what of iptables matches there the packets of a link."""
        ip = self.address(link.destination).rpartition(":")[0]
        if self.links is None:
            return [(link.source, ("-d", ip))]
        there = self.links.dialled(link.source, link.destination)
        back = self.links.dialled(link.destination, link.source)
        return [
            (link.source, ("-p", "tcp", "-d", there.rpartition(":")[0], "--dport", there.rpartition(":")[2])),
            (self.proxies, ("-p", "tcp", "-d", ip, "--sport", back.rpartition(":")[2])),
        ]
