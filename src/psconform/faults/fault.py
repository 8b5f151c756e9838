"""Faults: immutable values, how the command line spells them, and what they need to strike.

A fault strikes a task *when* somebody reaches a step or a phase of a step, or after a time::

    --kill ps:0@20                   before any worker pushes its step 20
    --kill worker:1@35               before worker:1 pushes its step 35
    --kill worker:1@after-push:35    worker:1 has the answer to its push of step 35 and has not recorded it
    --kill worker:0@checkpointing    at the first phase of that name that the trainer says (probe.at)
    --kill ps:1@1.5s                 after 1.5 s
    --stop worker:0@10..15           SIGSTOP before worker:0 pushes step 10, SIGCONT before anybody pushes step 15
    --stop ps:0@1s..3s               for two seconds
    --poison worker:1@20             the gradient of worker:1 at step 20 is NaN in every entry
    --poison worker:1@20=inf         ... Inf

A step is reached when ``probe.push`` is called for it, so a fault strikes between two instructions of the trainer, and
not about then.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ..errors import BadInput
from ..layout import Layout, Task
from ..times import parse_seconds, spell

BEFORE_PUSH = "before-push"
PHASES = (BEFORE_PUSH, "after-push")
"""Phases that the probe says by itself, of each step; a trainer may say others."""
MAX_S = 3600.0
RESTART_AFTER = "1s"
"""By default."""
POISONS = ("nan", "inf")
"""What a poisoned gradient is full of."""
_PHASE = re.compile(r"[a-z][a-z-]{1,40}")


@dataclass(frozen=True, order=True)
class When:
    """A phase, of one step or of any, or (then without a phase) seconds after the tasks were started."""

    phase: str = ""
    step: int | None = None
    after_s: float = 0.0

    def __str__(self) -> str:
        if not self.phase:
            return spell(self.after_s)
        if self.step is None:
            return self.phase
        return str(self.step) if self.phase == BEFORE_PUSH else f"{self.phase}:{self.step}"

    @classmethod
    def parse(cls, text: str, *, place: str) -> When:
        """Read a step, ``PHASE``, ``PHASE:STEP`` or a time; raises BadInput."""
        if re.fullmatch(r"\d{1,9}", text):
            return cls(BEFORE_PUSH, int(text))
        phase, colon, step = text.partition(":")
        if _PHASE.fullmatch(phase) and phase not in ("ms", "us"):
            if colon and not re.fullmatch(r"\d{1,9}", step):
                raise BadInput(place, "must be PHASE:STEP, such as after-push:35", value=text)
            if phase in PHASES and not colon:
                raise BadInput(place, f"needs a step, such as {phase}:35", value=text)
            return cls(phase, int(step) if colon else None)
        seconds = parse_seconds(text, place=place)
        if not 0 <= seconds <= MAX_S:
            raise BadInput(place, f"the time must be between 0 and {MAX_S:.0f} s", value=text)
        return cls(after_s=seconds)


@dataclass(frozen=True, order=True)
class Fault:
    """A fault of one task: ``kill`` (SIGKILL), ``stop`` (SIGSTOP, SIGCONT at ``until``) or ``poison``.

    A killed task is started again after ``restart_after_s``; None: never. A poisoned one is given a gradient full of
    ``value`` by its probe, which knows that from spec.json: nobody strikes it.
    """

    kind: str
    task: Task
    when: When
    until: When | None = None
    restart_after_s: float | None = None
    value: str = ""

    def __str__(self) -> str:
        value = "" if self.value in ("", POISONS[0]) else f"={self.value}"
        return f"{self.task}@{self.when}{value}" + (f"..{self.until}" if self.until else "")

    @property
    def of_process(self) -> bool:
        """It strikes a process, which is to survive it; else what that process computes."""
        return self.kind != "poison"

    @property
    def outage_s(self) -> float:
        """How long its task is away, as far as that is a time."""
        if self.kind == "kill":
            return self.restart_after_s or 0.0
        return self.until.after_s - self.when.after_s if self.until is not None else 0.0

    @property
    def where(self) -> str:
        """Who must get there for it to strike: a task, or ``worker`` for whichever comes first (a ps has no steps)."""
        return str(self.task) if self.task.job == "worker" else "worker"

    @property
    def strikes(self) -> list[dict[str, str | int | None]]:
        """The phases that matter to it, for the probe: [{task, phase, step}]."""
        found: list[dict[str, str | int | None]] = []
        for task, when in ((self.where, self.when), ("worker", self.until)):
            if when is not None and when.phase:
                found.append({"task": task, "phase": when.phase, "step": when.step})
        return found


def parse_faults(
    *,
    kill: Iterable[str] = (),
    stop: Iterable[str] = (),
    poison: Iterable[str] = (),
    restart_after: str | float | None,
    layout: Layout,
    steps: int,
) -> tuple[Fault, ...]:
    """The faults that these options spell; ``restart_after`` is a time, or ``never``.

    Raises:
        BadInput: naming the option, the value, and what it may be.
    """
    again: float | None = None
    if restart_after is not None and restart_after != "never":
        again = parse_seconds(restart_after, place="--restart-after")
        if not 0 <= again <= MAX_S:
            raise BadInput("--restart-after", f"must be never, or between 0 and {MAX_S:.0f} s", value=restart_after)
    faults = [_fault("kill", text, layout=layout, steps=steps, again=again) for text in _listed("--kill", kill)]
    if not faults and restart_after not in (None, RESTART_AFTER):
        raise BadInput("--restart-after", "is for --kill", value=restart_after)
    faults += [_fault("stop", text, layout=layout, steps=steps, again=None) for text in _listed("--stop", stop)]
    faults += [_poison(text, layout=layout, steps=steps) for text in _listed("--poison", poison)]
    for number, fault in enumerate(faults):
        if replace(fault, value="") in [replace(other, value="") for other in faults[:number]]:
            raise BadInput(f"--{fault.kind}", "is given twice", value=str(fault))
    return tuple(faults)


def _listed(option: str, texts: Iterable[str]) -> list[str]:
    found = list(texts) if isinstance(texts, Iterable) and not isinstance(texts, str) else [texts]
    for text in found:
        if not isinstance(text, str):
            raise BadInput(option, "must be text, such as worker:1@35", value=text)
    return found


def _fault(kind: str, text: str, *, layout: Layout, steps: int, again: float | None) -> Fault:
    place = f"--{kind}"
    example = "ps:0@20, worker:1@after-push:35 or ps:0@2s" if kind == "kill" else "worker:0@10..15 or ps:0@1s..3s"
    task, rest = _at(text, place=place, example=example, tasks=layout.tasks, layout=layout)
    first, dots, last = rest.partition("..")
    if bool(dots) != (kind == "stop"):
        raise BadInput(place, f"must be like {example}", value=text)
    when, until = When.parse(first, place=place), When.parse(last, place=place) if dots else None
    for moment in (when, until):
        if moment is not None and moment.step is not None and moment.step >= steps:
            raise BadInput(place, f"there are {steps} steps, 0 to {steps - 1}", value=text)
    if until is not None:
        if until.phase and until.step is None:
            raise BadInput(place, "must end at a step or a time", value=text)
        if bool(until.phase) != bool(when.phase):
            raise BadInput(place, "must be from a step to a step, or from a time to a time", value=text)
        if (until.step or 0, until.after_s) <= (when.step or 0, when.after_s):
            raise BadInput(place, "must end after it begins", value=text)
    return Fault(kind, task, when, until, again)


def _poison(text: str, *, layout: Layout, steps: int) -> Fault:
    place, example = "--poison", "worker:1@20 or worker:1@20=inf"
    task, rest = _at(text, place=place, example=example, tasks=layout.worker_tasks, layout=layout)
    step, equals, value = rest.partition("=")
    if not re.fullmatch(r"\d{1,9}", step):
        raise BadInput(place, f"must be TASK@STEP, such as {example}", value=text)
    if int(step) >= steps:
        raise BadInput(place, f"there are {steps} steps, 0 to {steps - 1}", value=text)
    if equals and value not in POISONS:
        raise BadInput(place, "unknown value", value=value, choices=POISONS)
    return Fault("poison", task, When(BEFORE_PUSH, int(step)), value=value or POISONS[0])


def _at(text: str, *, place: str, example: str, tasks: Iterable[Task], layout: Layout) -> tuple[Task, str]:
    """The task before the @, one of ``tasks``, and what is behind it; raises BadInput."""
    name, at, rest = text.strip().partition("@")
    if not at or not rest:
        raise BadInput(place, f"must be TASK@WHEN, such as {example}", value=text)
    task = Task.parse(name, place=place)
    if task not in tasks:
        problem = "is for workers" if task in layout.tasks else f"layout {layout.text} has no such task"
        raise BadInput(place, problem, value=name, choices=map(str, tasks))
    return task, rest
