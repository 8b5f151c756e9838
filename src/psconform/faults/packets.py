"""drop, loss, delay, duplicate, reorder, corrupt: what becomes of the packets of links, in the pods that send them.

A rule for each match of each link, by name; what it has counted is the evidence. When it is taken away a rule that only
counts is put in its place, until packets have passed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import count

from ..layout import Task
from .fault import Fault
from .injectors import Injector
from .wires import Wires

DONE = {
    "drop": "dropped",
    "loss": "lost",
    "delay": "delayed",
    "duplicate": "sent twice",
    "reorder": "passed by others",
    "corrupt": "damaged",
}
"""What is done to a packet, in words."""


class Packets(Injector):
    """One such fault."""

    holds, lingers = False, True  # nobody is harmed before there are packets

    def __init__(self, fault: Fault, wires: Wires, *, number: int, seed: int) -> None:
        self._fault, self._wires, self._seed = fault, wires, seed
        self._name = f"{fault.kind}-{number}"
        self._rules: list[tuple[Task, str, tuple[str, ...]]] = []
        self._matches: list[tuple[Task, tuple[str, ...]]] = []
        self._passing: list[tuple[Task, str]] = []
        self._seen, self._before, self._lasts, self._numbers = "", 0, False, count()

    def inject(self) -> None:
        self._lasts = True
        self._add()

    def _add(self) -> None:
        """A rule for each match; known before it is asked for, so that one of a late answer is taken away, too."""
        fault, ask, self._matches = self._fault, self._wires.ask, self._now()
        for task, match in self._matches:
            name = f"{self._name}-{next(self._numbers)}"
            self._rules.append((task, name, match))
            if fault.kind == "drop":
                ask(task, do="rule", name=name, match=match, target="DROP")
            else:
                mangle = {"kind": fault.kind, "amounts": dict(fault.amounts), "seed": f"{self._seed}:{fault}:{name}"}
                ask(task, do="rule", name=name, match=match, mangle=mangle)

    def _now(self) -> list[tuple[Task, tuple[str, ...]]]:
        return [match for link in self._fault.links for match in self._wires.matches(link)]

    def _follow(self) -> None:
        """Who listens at another address by now is struck there."""
        if self._now() == self._matches:
            return
        self._before += self._counted((task, name) for task, name, _ in self._rules)
        old = list(self._rules)
        self._add()
        for rule in old:
            task, name, _ = rule
            self._wires.ask(task, do="unrule", name=name)
            self._rules.remove(rule)

    def evidence(self) -> str:
        if not self._lasts:
            return self._seen
        self._follow()
        times = self._before + self._counted((task, name) for task, name, _ in self._rules)
        self._seen = f"{times} packets {DONE[self._fault.kind]}" if times else self._seen
        return self._seen

    def heal(self) -> None:
        ask = self._wires.ask
        self.evidence()
        self._lasts = False
        for task, name, match in self._rules:
            ask(task, do="unrule", name=name)
            ask(task, do="rule", name=f"{name}-after", match=match)
        self._passing = [(task, f"{name}-after") for task, name, _ in self._rules]

    def healed(self) -> str:
        """Packets pass again, on each link that the target uses."""
        passed = self._counted(self._passing)
        if not passed:
            return ""
        self._forget()
        return f"{passed} packets passed"

    def gone(self) -> str:
        left = [name for task in {task for task, _, _ in self._rules} for name in self._names(task)]
        if any(name in left for _, name, _ in self._rules):
            return ""
        self._forget()
        return "its rules are gone, no packet came since"

    def _forget(self) -> None:
        for task, name in self._passing:
            self._wires.ask(task, do="unrule", name=name)
        self._passing = []

    def _counted(self, rules: Iterable[tuple[Task, str]]) -> int:
        by_task: dict[Task, list[str]] = defaultdict(list)
        for task, name in rules:
            by_task[task].append(name)
        found = ((self._names(task), names) for task, names in by_task.items())
        return sum(counts.get(name, 0) for counts, names in found for name in names)

    def _names(self, task: Task) -> dict[str, int]:
        return dict(self._wires.ask(task, do="counted")["packets"])


class Rate(Injector):
    """rate: a token bucket for all that a task sends."""

    holds, lingers, alone = False, True, "slow to send"

    def __init__(self, fault: Fault, wires: Wires) -> None:
        assert fault.task is not None
        self._task, self._wires, self._kbit = fault.task, wires, dict(fault.amounts)["kbit_per_s"]
        self._seen = ""

    def refused(self) -> str:
        there = self._wires.ask(self._task, do="interface")["there"]
        return "" if there else f"{self._task} was not connected"

    def inject(self) -> None:
        self._wires.ask(self._task, do="rate", kbit=self._kbit)

    def evidence(self) -> str:
        times = self._waited()
        self._seen = f"packets had to wait {times} times" if times > 0 else self._seen
        return self._seen

    def over(self) -> str:
        """Another fault has taken its interface away, and the bucket with it."""
        return "its interface was taken away, and the token bucket with it" if self._waited() < 0 else ""

    def heal(self) -> None:
        self.evidence()
        self._wires.ask(self._task, do="unrate")

    def healed(self) -> str:
        return "the token bucket is gone" if self._waited() < 0 else ""

    def _waited(self) -> int:
        return int(self._wires.ask(self._task, do="waited")["times"])
