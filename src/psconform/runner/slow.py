"""Stragglers: which workers sleep before each gradient, and for how long (``--slow worker:1=50ms``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..errors import BadInput
from ..layout import Layout, Task
from ..times import parse_seconds

MAX_S = 60.0
_PLACE = "--slow"

Slow = tuple[tuple[str, float], ...]
"""Seconds by worker, in the order of the workers."""
Spelled = str | Iterable[str] | Mapping[str, float | str]
"""``worker:1=50ms``, several of them, or ``{"worker:1": 0.05}`` (seconds, or ``"50ms"``)."""


def parse_slow(slow: Spelled, *, layout: Layout, patience_s: float) -> Slow:
    """Check and sort; raises BadInput, naming the task or the time."""
    found: dict[Task, float] = {}
    for name, value in _pairs(slow):
        task = _worker(name, layout)
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


def _pairs(slow: Spelled) -> list[tuple[str, float | str]]:
    if isinstance(slow, Mapping):
        return list(slow.items())
    pairs: list[tuple[str, float | str]] = []
    if not isinstance(slow, Iterable):
        raise BadInput(_PLACE, "must be TASK=TIME, such as worker:1=50ms", value=slow)
    for text in [slow] if isinstance(slow, str) else slow:
        name, equals, time = text.partition("=") if isinstance(text, str) else ("", "", "")
        if not equals:
            raise BadInput(_PLACE, "must be TASK=TIME, such as worker:1=50ms", value=text)
        pairs.append((name.strip(), time.strip()))
    return pairs


def _worker(name: str, layout: Layout) -> Task:
    task = Task.parse(str(name), place=_PLACE)
    if task not in layout.worker_tasks:
        problem = "only workers can be slowed" if task.job == "ps" else f"layout {layout.text} has no such worker"
        raise BadInput(_PLACE, problem, value=name, choices=map(str, layout.worker_tasks))
    return task
