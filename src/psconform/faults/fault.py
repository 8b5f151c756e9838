"""A fault: an immutable value that says what strikes whom, when, and until when."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ..errors import BadInput
from ..layout import Layout, Link, Task
from ..times import parse_seconds, spell
from .kinds import NETWORK, kinds

BEFORE_PUSH = "before-push"
SENT = "sent"
"""A push has been sent, and not been answered: psconform holds the answers back, so the network must be proxied."""
AFTER_PUSH = "after-push"
PHASES = (BEFORE_PUSH, SENT, AFTER_PUSH)
"""Phases of each step that need no word of the trainer's; it may say others."""
MAX_S = 3600.0
_PHASE = re.compile(r"[a-z][a-z-]{1,40}")


@dataclass(frozen=True, order=True)
class When:
    """A phase, of one step or of any, or (then without a phase) seconds after the tasks were started.

    ``task`` is the worker that must get to that phase; empty: see ``Fault.where``.
    """

    phase: str = ""
    step: int | None = None
    after_s: float = 0.0
    task: str = ""

    def __str__(self) -> str:
        if not self.phase:
            return spell(self.after_s)
        who = f"{self.task}@" if self.task else ""
        if self.step is None:
            return who + self.phase
        return who + (str(self.step) if self.phase == BEFORE_PUSH else f"{self.phase}:{self.step}")

    def words(self, who: str) -> str:
        """``worker:1 is at step 35``, ``2 s after the start``; ``who``: see ``Fault.where``."""
        if not self.phase:
            return f"{spell(self.after_s, unit_after=' ')} after the start" if self.after_s else "at the start"
        task = "the first worker" if who == "worker" else who
        step = f"step {self.step}" if self.step is not None else ""
        said = {BEFORE_PUSH: f"is at {step}", SENT: f"has sent its push of {step}", AFTER_PUSH: f"has pushed {step}"}
        return f"{task} {said.get(self.phase, f'says {self.phase}' + f' of {step}' * bool(step))}"

    @property
    def said(self) -> str:
        """The phase at which the probe tells that it is there."""
        return BEFORE_PUSH if self.phase == SENT else self.phase

    @classmethod
    def parse(cls, text: str, *, place: str) -> When:
        """Read a step, ``PHASE``, ``PHASE:STEP``, one of these behind ``worker:1@``, or a time; raises BadInput."""
        who, at, rest = text.rpartition("@")
        if at:
            found = cls.parse(rest, place=place)
            if not re.fullmatch(r"worker:[0-9]{1,4}", who) or not found.phase:
                raise BadInput(place, "must be WORKER@STEP or WORKER@PHASE, such as worker:0@20", value=text)
            return replace(found, task=who)
        if re.fullmatch(r"[0-9]{1,9}", text):
            return cls(BEFORE_PUSH, int(text))
        phase, colon, step = text.partition(":")
        if _PHASE.fullmatch(phase) and phase not in ("ms", "us"):
            if colon and not re.fullmatch(r"[0-9]{1,9}", step):
                raise BadInput(place, "must be PHASE:STEP, such as after-push:35", value=text)
            if phase in PHASES and not colon:
                raise BadInput(place, f"needs a step, such as {phase}:35", value=text)
            return cls(phase, int(step) if colon else None)
        seconds = parse_seconds(text, place=place)
        if not 0 <= seconds <= MAX_S:
            raise BadInput(place, f"the time must be between 0 and {MAX_S:.0f} s", value=text)
        return cls(after_s=seconds)

    def check(self, *, layout: Layout, steps: int, place: str, value: object) -> None:
        """Raises BadInput if no task ever gets there."""
        if self.task and self.task not in map(str, layout.worker_tasks):
            raise BadInput(place, f"layout {layout.text} has no such worker", value=value)
        if self.step is not None and self.step >= steps:
            raise BadInput(place, f"there are {steps} steps, 0 to {steps - 1}", value=value)


NEWEST, FOLDER = "the newest checkpoint", "the folder for checkpoints"
"""What faults of the disk are of: those that damage a file, and those that last."""


@dataclass(frozen=True, order=True, kw_only=True)
class Fault:
    """A fault of one task, or of some links between tasks. ``kinds.kinds`` says what each kind does.

    Attributes:
        kind: the name of its kind.
        task: whom it strikes; None: links.
        region: of faults of the network, which links those are, as it was said: ``worker:1->ps:0``, ``halves``; of
            those of the disk ``NEWEST`` or ``FOLDER``.
        links: the same, each by itself.
        when: when it strikes.
        until: when it is healed; None: after ``lasts_s``, or it is no lasting state.
        lasts_s: seconds that it lasts.
        restart_after_s: of those that end a process, seconds until it is started again; None: never.
        value: what a poisoned gradient is full of.
        amounts: parameters of the kind by name, such as ``(("ms", 50),)``.
        written: where it was said, such as ``plan.toml: fault 2``, if not by an option of its own.
    """

    kind: str
    when: When
    task: Task | None = None
    region: str = ""
    links: tuple[Link, ...] = ()
    until: When | None = None
    lasts_s: float | None = None
    restart_after_s: float | None = None
    value: str = ""
    amounts: tuple[tuple[str, int], ...] = ()
    written: str = field(default="", compare=False, repr=False)

    def __str__(self) -> str:
        value = "" if self.value in ("", *kinds()[self.kind].values[:1]) else f"={self.value}"
        value += "".join(f" {name}={amount}" for name, amount in self.amounts)
        end = f"..{self.until}" if self.until else f"+{spell(self.lasts_s)}" if self.lasts_s is not None else ""
        return f"{self.of}@{self.when}{value}{end}"

    @property
    def of(self) -> str:
        """Which task or region it is of, as plans have it."""
        return str(self.task) if self.task is not None else self.region

    @property
    def words(self) -> str:
        """For people: ``reset ps:0 <-> worker:0 when worker:1 is at step 35, for 340 ms``."""
        return f"{self.what}, {self.ends}" if self.ends else self.what

    @property
    def what(self) -> str:
        """The same without its parameters and its end."""
        value = f"={self.value}" if self.value in kinds()[self.kind].values[1:] else ""
        return f"{self.kind}{value} {self.whom} {self._begins}"

    @property
    def whom(self) -> str:
        """Which task or links it is of, for people: ``ps:0 <-> worker:0``."""
        return re.sub("<?->", r" \g<0> ", self.of)

    @property
    def _begins(self) -> str:
        """When, in words: ``when worker:1 is at step 35``, ``at its step 35``, ``2 s after the start``."""
        own = self.where == str(self.task)
        if own and self.when.phase == BEFORE_PUSH:
            return f"at its step {self.when.step}"
        when = self.when.words("it" if own else self.where)
        return f"when {when}" if self.when.phase else when

    @property
    def ends(self) -> str:
        """Its parameters and its end, in words: ``ms=50, for 340 ms``, ``started again after 1 s``."""
        said = [f"{name}={amount}" for name, amount in self.amounts if amount]
        if self.until is not None:
            who = "it" if self.ends_where == str(self.task) else self.ends_where
            said.append(f"until {self.until.words(who)}")
        elif self.lasts_s is not None:
            said.append(f"for {spell(self.lasts_s, unit_after=' ')}")
        elif self.restart_after_s is not None:
            said.append(f"started again after {spell(self.restart_after_s, unit_after=' ')}")
        elif kinds()[self.kind].restarts:
            said.append("never started again")
        return ", ".join(said)

    @property
    def option(self) -> str:
        """The option that says it."""
        short = kinds()[self.kind].option and self.lasts_s is None
        return f"--{self.kind}" if short else "--faults"

    @property
    def place(self) -> str:
        """Where it was said: what an error about it names."""
        return self.written or self.option

    @property
    def outside(self) -> bool:
        """Psconform strikes it while the run goes on."""
        return kinds()[self.kind].injector is not None

    @property
    def proxied(self) -> bool:
        """It needs proxies between the tasks."""
        return kinds()[self.kind].of == NETWORK or self.when.phase == SENT

    @property
    def heals(self) -> bool:
        """Psconform ends it."""
        return self.until is not None or self.lasts_s is not None or self.restart_after_s is not None

    @property
    def outage_s(self) -> float:
        """How long somebody is away, as far as that is a time."""
        if self.until is not None:
            return max(0.0, self.until.after_s - self.when.after_s)
        return (self.lasts_s or self.restart_after_s or 0.0) * dict(self.amounts).get("times", 1)

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The task that it strikes, or those between which its links are; none of the disk."""
        ends = {task for link in self.links for task in (link.source, link.destination)}
        return tuple(sorted(ends)) if self.task is None else (self.task,)

    @property
    def where(self) -> str:
        """Who must get there for it to strike: a worker, or ``worker`` for whichever comes first.

        That worker is named, or the one that is struck, or the only one at an end of the links (a ps has no steps), or
        of faults of the disk the chief, worker:0, which makes checkpoints.
        """
        if self.when.task:
            return self.when.task
        if self.region in (NEWEST, FOLDER):
            return "worker:0"
        workers = [task for task in self.tasks if task.job == "worker"]
        return str(workers[0]) if len(workers) == 1 else "worker"

    @property
    def ends_where(self) -> str:
        """Who must get there for it to be healed; of one that is asked for it the same as for its beginning."""
        usual = str(self.task) if kinds()[self.kind].asked else "worker"
        return self.until.task or usual if self.until is not None else usual

    @property
    def strikes(self) -> list[dict[str, str | int | None]]:
        """The phases that matter to it, for the probe: [{task, phase, step}].

        Of a fault of links the worker stops once more, when it has the answer to its next push: bytes have passed by
        then, and psconform looks while the connection that shows it is there. A worker with few steps left would be
        gone before the next look.
        """
        found: list[dict[str, str | int | None]] = []
        for task, when in ((self.where, self.when), (self.ends_where, self.until)):
            if when is None or not when.phase:
                continue
            found.append({"task": task, "phase": when.said, "step": when.step})
            if self.links and when.step is not None and when.phase in PHASES:
                answered = when.step + (when.phase == AFTER_PUSH)
                found.append({"task": task, "phase": AFTER_PUSH, "step": answered})
        return found


def refuse_twice(faults: Sequence[Fault]) -> None:
    """Raises BadInput where two faults would strike the same, there and then."""
    for number, fault in enumerate(faults):
        if replace(fault, value="") in [replace(other, value="") for other in faults[:number]]:
            raise BadInput(fault.place, "is given twice", value=str(fault))
