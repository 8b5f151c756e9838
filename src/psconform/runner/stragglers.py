"""Workers that are not like the others: stragglers (``--slow worker:1=50ms``), and those with fewer batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..errors import BadInput
from ..faults.data_faults import OUT_OF_DATA
from ..faults.fault import Fault
from ..layout import Layout, Task
from ..options import Counted, Spelled
from ..times import parse_seconds

MAX_S = 60.0
MAX_DIGITS = 18
"""Of a whole number: Python refuses to read one of some thousand."""
_PLACE = "--slow"

Slow = tuple[tuple[str, float], ...]
"""Seconds by worker, in the order of the workers."""


def parse_slow(slow: Spelled, *, layout: Layout, patience_s: float) -> Slow:
    """Check and sort; raises BadInput, naming the task or the time."""
    found: dict[Task, float] = {}
    for name, value in _pairs(slow, place=_PLACE, example="TASK=TIME, such as worker:1=50ms"):
        task = _worker(name, layout, place=_PLACE, what="slowed")
        if task in found:
            raise BadInput(_PLACE, f"names {task} twice", value=name)
        seconds = parse_seconds(value, place=_PLACE)
        if not 0 <= seconds <= MAX_S:  # false for NaN, too
            raise BadInput(_PLACE, f"the time of {task} must be between 0 and {MAX_S:.0f} s", value=value)
        if seconds >= patience_s:
            hint = "Give more --patience"
            raise BadInput(_PLACE, f"{task} would be taken for stalled after {patience_s:g} s", value=value, hint=hint)
        found[task] = seconds
    return tuple((str(task), seconds) for task, seconds in sorted(found.items()))


def parse_batches(batches: Counted, *, layout: Layout, steps: int) -> tuple[tuple[str, int], ...]:
    """Steps that workers have data for, where that is fewer than there are; raises BadInput, naming the task."""
    place, found = "--batches", dict[Task, int]()
    for name, value in _pairs(batches, place=place, example="TASK=N, such as worker:1=50"):
        task = _worker(name, layout, place=place, what="short of batches")
        if task in found:
            raise BadInput(place, f"names {task} twice", value=name)
        short = isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= MAX_DIGITS
        number = int(value) if short else value
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number < steps:
            raise BadInput(place, f"of {task} must be between 1 and {steps - 1}, less than --steps", value=value)
        found[task] = number
    return _leaves_one(found, layout, place=place)


def with_faults(
    batches: tuple[tuple[str, int], ...], faults: Iterable[Fault], *, layout: Layout
) -> tuple[tuple[str, int], ...]:
    """The same with the workers that run out of data by a fault; raises BadInput, naming the task."""
    found = {Task.parse(task): number for task, number in batches}
    for fault in faults:
        if fault.kind != OUT_OF_DATA.name or fault.task is None or fault.when.step is None:
            continue
        if fault.task in found:
            raise BadInput(fault.place, f"{fault.task} runs out of data twice", value=str(fault))
        if not fault.when.step:
            raise BadInput(fault.place, f"{fault.task} must have data for one step at least", value=str(fault))
        found[fault.task] = fault.when.step
    return _leaves_one(found, layout, place="--faults")


def without_faults(batches: tuple[tuple[str, int], ...], faults: Iterable[Fault]) -> tuple[tuple[str, int], ...]:
    """What is left of it without these faults."""
    given = {str(fault.task) for fault in faults if fault.kind == OUT_OF_DATA.name}
    return tuple(pair for pair in batches if pair[0] not in given)


def _leaves_one(found: Mapping[Task, int], layout: Layout, *, place: str) -> tuple[tuple[str, int], ...]:
    if len(found) == layout.workers:
        raise BadInput(place, "must leave one worker that has a batch for every step", value=" ".join(map(str, found)))
    return tuple((str(task), number) for task, number in sorted(found.items()))


def _pairs(given: Spelled | Counted, *, place: str, example: str) -> list[tuple[str, float | str]]:
    if isinstance(given, Mapping):
        return list(given.items())
    pairs: list[tuple[str, float | str]] = []
    if not isinstance(given, Iterable):
        raise BadInput(place, f"must be {example}", value=given)
    for text in [given] if isinstance(given, str) else given:
        name, equals, time = text.partition("=") if isinstance(text, str) else ("", "", "")
        if not equals:
            raise BadInput(place, f"must be {example}", value=text)
        pairs.append((name.strip(), time.strip()))
    return pairs


def _worker(name: str, layout: Layout, *, place: str, what: str) -> Task:
    task = Task.parse(str(name), place=place)
    if task not in layout.worker_tasks:
        problem = f"only workers can be {what}" if task.job == "ps" else f"layout {layout.text} has no such worker"
        raise BadInput(place, problem, value=name, choices=map(str, layout.worker_tasks))
    return task
