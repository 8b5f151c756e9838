"""The networks of tasks in containers, by way of the helper of each pod: its connections, and rules for its packets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..layout import Link, Task
from .partitions import EVERYBODY

if TYPE_CHECKING:  # what they import is an extra
    from .proxies import Links
    from .traffic import Flow, Flows

Ask = Callable[..., dict[str, Any]]
"""``ask(task, do=..., ...)``: a request to the helper of a task's pod, and its answer."""
PORTS = 1 << 16


@dataclass(frozen=True)
class Wires:
    """Where the packets of a link leave, and how rules tell them from others.

    Every rule is where packets leave, in the pod of the task that sends them. Between two tasks that know each other's
    address that is the source. Behind proxies each pair has a port of its own: bytes from a to b travel from a to the
    proxy that it dials for b, and, on connections that b has dialled, from b's proxy for a to b, so from the pod of the
    proxies.

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


class InPods:
    """As `traffic.Here`, of tasks that each have a network of their own; of EVERYBODY, all of them are asked.

    ``diverted``: what a task may believe to have dialled, by task and by the proxy that it gets to.
    """

    def __init__(
        self, ask: Ask, tasks: Sequence[Task], diverted: Mapping[tuple[Task, str], Sequence[str]] | None = None
    ) -> None:
        self._ask, self._tasks, self._diverted = ask, tuple(tasks), {} if diverted is None else diverted

    def flows(self, dialled: Iterable[tuple[Task, str]]) -> dict[str, Flows]:
        from .traffic import Flow, Flows

        by_task: dict[Task, list[str]] = defaultdict(list)
        addresses = []
        for dialler, address in dialled:
            addresses.append(address)
            for task in self._tasks if dialler == EVERYBODY else (dialler,):
                by_task[task].append(address)
        opened: dict[str, dict[int, Flow]] = {address: {} for address in addresses}
        left: dict[str, set[int]] = {address: set() for address in addresses}
        for task, asked in by_task.items():
            # two tasks may have taken the same port, each in its own network
            offset = PORTS * self._tasks.index(task)
            believed = {seen: address for address in asked for seen in self._diverted.get((task, address), [address])}
            for seen, said in self._ask(task, do="flows", addresses=list(believed))["flows"].items():
                address = believed[seen]
                opened[address].update((offset + port, Flow(sent, received)) for port, sent, received in said["open"])
                left[address].update(offset + port for port in said["left"])
        return {address: Flows(opened[address], frozenset(left[address])) for address in opened}

    def accepted(self, listener: Task, address: str) -> dict[int, Flow]:
        from .traffic import Flow

        said = self._ask(listener, do="accepted", address=address)["open"]
        return {port: Flow(sent, received) for port, sent, received in said}

    def closed(self, listener: Task, address: str) -> frozenset[int]:
        return frozenset(self._ask(listener, do="closed", address=address)["ports"])

    def listens(self, listener: Task, address: str) -> bool:
        return bool(self._ask(listener, do="listens", address=address)["listens"])
