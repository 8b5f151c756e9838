"""What a task's own connections say: bytes that it has sent, bytes that have reached it, read from the kernel.

Linux counts both for each TCP connection (``tcpi_bytes_acked`` and ``tcpi_bytes_received`` of TCP_INFO, RFC 4898), and
tells them to whoever asks over netlink (sock_diag(7); no privilege is needed). Of the connections of a cluster behind
proxies it is enough to look at those *to* a proxy, for each proxy has one dialler. Bytes that were acknowledged are in
the proxy; what is in the proxy of a link that is stalled is held back. Toxiproxy's own counters are written when a
connection ends, so they would show nothing of a channel that is open.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Protocol

from pyroute2 import DiagSocket
from pyroute2.netlink.exceptions import NetlinkError

from ..layout import Task

ESTABLISHED = 1 << 1
LISTEN = 1 << 10
LEFT = 1 << 4 | 1 << 5 | 1 << 6
"""FIN_WAIT1, FIN_WAIT2, TIME_WAIT: this end has closed the connection first."""
MAPPED = "::ffff:"
FAMILIES = socket.AF_INET, socket.AF_INET6
"""gRPC dials an IPv4 address from an IPv6 socket."""
ANYWHERE = "0.0.0.0", "::"
MANY = 16
"""For more ports than these the kernel is asked for all connections at once: it goes through all of them each time."""
INFO = 1 << 1
"""INET_DIAG_INFO as a bit of ``idiag_ext``: bit n asks for attribute n + 1."""


@dataclass(frozen=True)
class Flow:
    """Bytes of one connection since it was made: from who dialled, and to it."""

    sent: int
    received: int


@dataclass(frozen=True)
class Flows:
    """Connections to one address, by the port of who dialled: those that are open, and those that it has closed."""

    open: Mapping[int, Flow] = field(default_factory=dict)
    left: frozenset[int] = frozenset()


def available() -> str:
    """Why this machine cannot tell; empty if it can."""
    try:
        flows(["127.0.0.1:1"])
    except (OSError, NetlinkError) as error:
        return f"the kernel does not tell about connections ({error})"
    return ""


def flows(addresses: Iterable[str]) -> dict[str, Flows]:
    """Connections to these addresses, ``host:port`` (IPv4), by address; takes a millisecond for each.

    The kernel is asked for one port at a time, as long as there are not more than MANY: of all connections of the
    machine there can be thousands that were closed in the last minute, and to read those takes longer than many a fault
    lasts.
    """
    opened: dict[str, dict[int, Flow]] = {address: {} for address in addresses}
    left: dict[str, set[int]] = {address: set() for address in opened}
    ports = sorted({_port(address) for address in opened if address})
    if len(ports) > MANY:
        ports = [0]  # of all connections
    with DiagSocket() as diagnosis:
        diagnosis.bind()
        for port, family in product(ports, FAMILIES):
            for said in diagnosis.get_sock_stats(family=family, states=ESTABLISHED | LEFT, extensions=INFO, dport=port):
                address = f"{said['idiag_dst'].removeprefix(MAPPED)}:{said['idiag_dport']}"
                if address not in opened:
                    continue
                info = said.get_attr("INET_DIAG_INFO")
                if 1 << said["idiag_state"] & LEFT:
                    left[address].add(said["idiag_sport"])
                elif info is not None:
                    flow = Flow(max(info["tcpi_bytes_acked"] - 1, 0), info["tcpi_bytes_received"])  # SYN counts as one
                    opened[address][said["idiag_sport"]] = flow
    return {address: Flows(opened[address], frozenset(left[address])) for address in opened}


def accepted(address: str) -> dict[int, Flow]:
    """Connections that the listener at ``host:port`` (IPv4) has accepted and that neither end has closed, by the other
    port, as the listener sees them: what it has sent, and received.
    """
    found = {}
    for said in _at(address, ESTABLISHED, extensions=INFO):
        if (info := said.get_attr("INET_DIAG_INFO")) is not None:
            found[int(said["idiag_dport"])] = Flow(info["tcpi_bytes_acked"], info["tcpi_bytes_received"])
    return found


def closed(address: str) -> frozenset[int]:
    """Connections that the listener at ``host:port`` (IPv4) has closed first, in the last minute, by the other port."""
    return frozenset(int(said["idiag_dport"]) for said in _at(address, LEFT, extensions=0))


def listens(address: str) -> bool:
    """Whether anything listens at ``host:port`` (IPv4), or at that port of all addresses."""
    host, _, port = address.rpartition(":")
    with DiagSocket() as diagnosis:
        diagnosis.bind()
        for family in FAMILIES:
            for said in diagnosis.get_sock_stats(family=family, states=LISTEN, extensions=0, sport=int(port)):
                if said["idiag_src"].removeprefix(MAPPED) in (host, *ANYWHERE):
                    return True
    return False


def _at(address: str, states: int, *, extensions: int) -> list[Any]:
    """What the kernel says of connections of a listener that are in one of these states."""
    found, asked = [], {"states": states, "extensions": extensions, "sport": _port(address)}
    with DiagSocket() as diagnosis:
        diagnosis.bind()
        for family in FAMILIES:
            for said in diagnosis.get_sock_stats(family=family, **asked):
                if f"{said['idiag_src'].removeprefix(MAPPED)}:{said['idiag_sport']}" == address:
                    found.append(said)
    return found


class Traffic(Protocol):
    """Whoever can tell of the connections of tasks."""

    def flows(self, dialled: Iterable[tuple[Task, str]]) -> dict[str, Flows]:
        """Connections by address, each dialled by a task."""

    def accepted(self, listener: Task, address: str) -> dict[int, Flow]:
        """Connections that a task has accepted and that are open, as it sees them."""

    def closed(self, listener: Task, address: str) -> frozenset[int]:
        """Connections that a task, which was dialled, has closed first, in the last minute."""

    def listens(self, listener: Task, address: str) -> bool:
        """Whether a task listens there."""


class Here:
    """Traffic of processes on this machine: the kernel knows them all."""

    def flows(self, dialled: Iterable[tuple[Task, str]]) -> dict[str, Flows]:
        return flows(address for _, address in dialled)

    def accepted(self, listener: Task, address: str) -> dict[int, Flow]:
        return accepted(address)

    def closed(self, listener: Task, address: str) -> frozenset[int]:
        return closed(address)

    def listens(self, listener: Task, address: str) -> bool:
        return listens(address)


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


@dataclass
class Meter:
    """What has passed since it was made, on connections to one address; ``look`` now and then, or some are missed.

    Attributes:
        sent: bytes from the dialler, of all connections.
        received: bytes to it.
        over: connections that were there, and are not any more.
        ended: those of them that were not closed by who dialled.
    """

    sent: int = 0
    received: int = 0
    over: int = 0
    ended: int = 0
    _before: dict[int, Flow] = field(default_factory=dict)

    def look(self, now: Flows) -> None:
        """Take in what the connections say now."""
        for port, flow in now.open.items():
            before = self._before.get(port, Flow(0, 0))
            if flow.sent < before.sent or flow.received < before.received:
                before = Flow(0, 0)  # the port has been taken again
            self.sent += flow.sent - before.sent
            self.received += flow.received - before.received
        over = self._before.keys() - now.open.keys()
        self.over += len(over)
        self.ended += len(over - now.left)
        self._before = dict(now.open)

    @classmethod
    def since(cls, now: Flows) -> Meter:
        """Count from now on."""
        return cls(_before=dict(now.open))
