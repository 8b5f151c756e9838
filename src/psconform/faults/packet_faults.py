"""drop, loss, delay, duplicate, reorder, corrupt: what becomes of the packets of links, in the pods that send them.

A rule for each match of each link, by name; what it has counted is the evidence. When it is taken away a rule that only
counts is put in its place, until packets have passed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from itertools import count

from ..layout import Task
from .fault import Fault
from .injectors import Injector, Scene
from .kinds import PACKETS, Amount, Kind, register


class Packets(Injector):
    """One such fault."""

    holds, lingers = False, True  # nobody is harmed before there are packets

    def __init__(self, fault: Fault, scene: Scene, *, done: str, drops: bool = False) -> None:
        """``done``: what `iptables.Mangler` does to a packet; ``drops``: a rule does it, no program looks at it."""
        super().__init__(fault, scene)
        self._wires, self._done, self._drops = scene.wires(fault), done, drops
        self._name = f"{fault.kind}-{scene.numbers[fault]}"
        self._rules: list[tuple[Task, str, tuple[str, ...]]] = []
        self._matches: list[tuple[Task, tuple[str, ...]]] = []
        self._passing: list[tuple[Task, str]] = []
        self._before, self._lasts, self._numbers = 0, False, count()

    def inject(self) -> None:
        self._lasts = True
        self._add()

    def _add(self) -> None:
        """A rule for each match; known before it is asked for, so that one of a late answer is taken away, too."""
        fault, ask, self._matches = self._fault, self._wires.ask, self._now()
        for task, match in self._matches:
            name = f"{self._name}-{next(self._numbers)}"
            self._rules.append((task, name, match))
            if self._drops:
                ask(task, do="rule", name=name, match=match, target="DROP")
            else:
                seed = f"{self._scene.seed}:{fault}:{name}"
                mangle = {"action": self._done, "amounts": self._amounts, "seed": seed}
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
        self._seen = f"{times} packets {self._done}" if times else self._seen
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


COUNTED = "packets of the target that it was done to, counted where they left"
PERCENT = {"percent": Amount("of the packets", 20, 1, 100, drawn=(20, 40))}


def _kind(
    name: str, about: str, *, done: str, amounts: dict[str, Amount] | None = None, evidence: str = COUNTED
) -> Kind:
    return register(
        Kind(
            name=name,
            of=PACKETS,
            about=about,
            evidence=evidence,
            injector=partial(Packets, done=done, drops=not amounts),
            lasts=True,
            amounts=amounts or {},
            silences=True,
        )
    )


DROP = _kind("drop", "all packets are dropped, without a word (iptables)", done="dropped")
LOSS = _kind("loss", "some packets are lost, drawn from the seed", done="lost", amounts=PERCENT)
DELAY = _kind(
    "delay",
    "packets arrive later",
    done="delayed",
    amounts={
        "ms": Amount("milliseconds", 20, 1, 60_000, drawn=(5, 20, 100)),
        "jitter_ms": Amount("up to so much more or less, of each packet, drawn from the seed", 0, 0, 60_000, (0, 5)),
    },
)
DUPLICATE = _kind("duplicate", "some packets arrive twice, drawn from the seed", done="sent twice", amounts=PERCENT)
REORDER = _kind(
    "reorder",
    "some packets are held back, drawn from the seed, and later ones pass them",
    done="passed by others",
    amounts={**PERCENT, "ms": Amount("milliseconds that they are held", 5, 1, 10_000, drawn=(5, 20, 100))},
    evidence="packets of the target that others have passed",
)
CORRUPT = _kind(
    "corrupt",
    "in some packets one bit of what they carry is turned over, drawn from the seed",
    done="damaged",
    amounts=PERCENT,
)
