"""Traffic of tasks in containers: each pod's helper is asked of the connections in its network."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..layout import Task
from .partitions import EVERYBODY
from .traffic import Flow, Flows

Ask = Callable[..., dict[str, Any]]
"""``ask(task, do=..., ...)``: a request to the helper of a task's pod, and its answer."""
PORTS = 1 << 16


class InPods:
    """As `traffic.Here`, of tasks that each have a network of their own; of EVERYBODY, all of them are asked.

    ``diverted``: what a task may believe to have dialled, by task and by the proxy that it gets to.
    """

    def __init__(
        self, ask: Ask, tasks: Sequence[Task], diverted: Mapping[tuple[Task, str], Sequence[str]] | None = None
    ) -> None:
        self._ask, self._tasks, self._diverted = ask, tuple(tasks), {} if diverted is None else diverted

    def flows(self, dialled: Iterable[tuple[Task, str]]) -> dict[str, Flows]:
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
        said = self._ask(listener, do="accepted", address=address)["open"]
        return {port: Flow(sent, received) for port, sent, received in said}

    def closed(self, listener: Task, address: str) -> frozenset[int]:
        return frozenset(self._ask(listener, do="closed", address=address)["ports"])
