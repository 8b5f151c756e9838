"""Short forms of fault plans, as options of ``psconform run`` spell them.

A fault strikes a task *when* somebody reaches a step or a phase of a step, or after a time::

    --kill ps:0@20                   before any worker pushes its step 20
    --kill worker:1@35               before worker:1 pushes its step 35
    --kill worker:1@after-push:35    worker:1 has the answer to its push of step 35 and has not recorded it
    --kill worker:0@checkpointing    at the first phase of that name that the trainer says (probe.at)
    --kill ps:1@1.5s                 after 1.5 s
    --kill ps:0@worker:1@20          before worker:1 pushes its step 20
    --stop worker:0@10..15           SIGSTOP before worker:0 pushes step 10, SIGCONT before anybody pushes step 15
    --stop ps:0@1s..3s               for two seconds
    --poison worker:1@20             the gradient of worker:1 at step 20 is NaN in every entry
    --poison worker:1@20=inf         ... Inf

A step is reached when ``probe.push`` is called for it, so a fault strikes between two instructions of the trainer, and
not about then. Whatever these cannot say stands in a plan (plan_file.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..errors import BadInput
from ..layout import Layout, Task
from ..times import parse_seconds
from .data_faults import POISON
from .fault import BEFORE_PUSH, MAX_S, SENT, Fault, When, refuse_twice
from .kinds import Kind
from .process_faults import KILL, STOP

RESTART_AFTER = "1s"
"""By default."""


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
    faults = [_fault(KILL, text, layout=layout, steps=steps, again=again) for text in _listed("--kill", kill)]
    faults += [_fault(STOP, text, layout=layout, steps=steps, again=None) for text in _listed("--stop", stop)]
    faults += [_poison(text, layout=layout, steps=steps) for text in _listed("--poison", poison)]
    refuse_twice(faults)
    return tuple(faults)


def _listed(option: str, texts: Iterable[str]) -> list[str]:
    found = list(texts) if isinstance(texts, Iterable) and not isinstance(texts, str) else [texts]
    for text in found:
        if not isinstance(text, str):
            raise BadInput(option, "must be text, such as worker:1@35", value=text)
    return found


def _fault(kind: Kind, text: str, *, layout: Layout, steps: int, again: float | None) -> Fault:
    place = f"--{kind.name}"
    example = "worker:0@10..15 or ps:0@1s..3s" if kind.lasts else "ps:0@20, worker:1@after-push:35 or ps:0@2s"
    task, rest = _at(text, place=place, example=example, tasks=layout.all_tasks, layout=layout)
    first, dots, last = rest.partition("..")
    if bool(dots) != kind.lasts:
        raise BadInput(place, f"must be like {example}", value=text)
    when, until = When.parse(first, place=place), When.parse(last, place=place) if dots else None
    for moment in (when, until):
        if moment is not None:
            moment.check(layout=layout, steps=steps, place=place, value=text)
    if until is not None:
        if until.phase and (until.step is None or until.phase == SENT):
            raise BadInput(place, "must end at a step or a time", value=text)
        if bool(until.phase) != bool(when.phase):
            raise BadInput(place, "must be from a step to a step, or from a time to a time", value=text)
        if (until.step or 0, until.after_s) <= (when.step or 0, when.after_s):
            raise BadInput(place, "must end after it begins", value=text)
    return Fault(kind=kind.name, task=task, when=when, until=until, restart_after_s=again)


def _poison(text: str, *, layout: Layout, steps: int) -> Fault:
    place, example = "--poison", "worker:1@20 or worker:1@20=inf"
    task, rest = _at(text, place=place, example=example, tasks=layout.worker_tasks, layout=layout)
    step, equals, value = rest.partition("=")
    if not re.fullmatch(r"[0-9]{1,9}", step):
        raise BadInput(place, f"must be TASK@STEP, such as {example}", value=text)
    if int(step) >= steps:
        raise BadInput(place, f"there are {steps} steps, 0 to {steps - 1}", value=text)
    if equals and value not in POISON.values:
        raise BadInput(place, "unknown value", value=value, choices=POISON.values)
    return Fault(kind=POISON.name, task=task, when=When(BEFORE_PUSH, int(step)), value=value or POISON.values[0])


def _at(text: str, *, place: str, example: str, tasks: Iterable[Task], layout: Layout) -> tuple[Task, str]:
    """The task before the @, one of ``tasks``, and what is behind it; raises BadInput."""
    name, at, rest = text.strip().partition("@")
    if not at or not rest:
        raise BadInput(place, f"must be TASK@WHEN, such as {example}", value=text)
    task = Task.parse(name, place=place)
    if task not in tasks:
        problem = "is for workers" if task in layout.all_tasks else f"layout {layout.text} has no such task"
        raise BadInput(place, problem, value=name, choices=map(str, tasks))
    return task, rest
