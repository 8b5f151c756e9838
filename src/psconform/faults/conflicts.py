"""Faults of one plan that must not be together: one would hide, or undo, what the other shows."""

from __future__ import annotations

from ..history.records import Harm
from ..layout import Layout, Task
from .fault import SENT, Fault
from .kinds import PACKETS, Kind, kinds

APART = 3
"""Steps between two faults that must not overlap."""


def clash(fault: Fault, other: Fault, *, layout: Layout, shows: int) -> bool:
    """The same process twice; or connections are to end where another fault leaves none, so that nobody can see it.

    Or somebody's connections to where a task was would stay open (see ``_half_open``).
    Or what is wrong would be undone within the ``shows`` steps that it takes to show (see ``_undone``); or a worker is
    to be gone without just where the others are held up. Or a push is to be sent, and not answered, while another fault
    asks for more than that from the task that sends it. Or replicas may be gone, with their connections, before the
    other fault strikes.
    """
    if fault.task is not None and fault.task == other.task:
        return True
    kind, others = kinds()[fault.kind], kinds()[other.kind]
    if kind.of == others.of == PACKETS and set(fault.links) & set(other.links):
        return True  # what one has let through the other never sees
    last = layout.all_reduce and kind.effect == "ends"
    if (last and not _comes_before(other, fault.when.step)) or (
        shows and _undone(fault, other, layout=layout, shows=shows)
    ):
        return True
    if _half_open(fault, other) or _half_open(other, fault):
        return True
    begins, strikes = fault.when.step, other.when.step
    gone = skips(layout) and ends_worker(kind, fault.task) and not others.keeps_connections
    if gone and begins is not None and strikes is not None and abs(strikes - begins) < APART:
        return True  # whoever is held up goes on without nobody
    ends = _ends(fault)
    touched = other.task in ends or bool(set(fault.links) & set(other.links))
    if fault.when.phase == SENT:  # to all ps
        touched = other.task is not None and (other.task.job == "ps" or other.task in ends)
        touched = touched or bool(ends & _ends(other))
    return kind.effect == "ends" and touched and not _apart(fault, other, layout=layout)


def _half_open(fault: Fault, other: Fault) -> bool:
    """A task moves to another address while its peers may not hear that their connections to the old one have ended.

    They go on sending to it, and wait for answers, for longer than anybody calls no hang (docs/faults.md).
    """
    silences = kinds()[other.kind].silences and (other.task is not None or fault.task in _ends(other))
    return kinds()[fault.kind].moves and silences


def _undone(fault: Fault, other: Fault, *, layout: Layout, shows: int) -> bool:
    """A second process begins, or bytes are held back, where a rollback comes after it.

    Or connections of that second process end: it need not be one that dials again. A second process does not live
    through the loss of a ps, and what it did is taken back, however much later that is.
    """
    kind, others = kinds()[fault.kind], kinds()[other.kind]
    twice, begins, strikes = kind.harm is Harm.DOUBLES, fault.when.step, other.when.step
    if others.restarts and str(other.task).startswith("ps:"):
        if twice and strikes is not None:
            return begins is None or begins - APART < strikes
        if begins is None or strikes is None or kind.effect != "holds":
            return False  # nobody knows when; or it shows at once
        over = fault.until.step if fault.until and fault.until.step is not None else begins
        return (others.repeats or begins - APART < strikes) and strikes < over + shows
    if not twice or others.effect != "ends" or begins is None or strikes is None:
        return False
    needs = {fault.task, *(task for task in layout.tasks if task.job == "ps")}
    ended = any({link.source, link.destination} <= needs for link in other.links)
    return ended and begins - APART < strikes < begins + shows


def _comes_before(fault: Fault, step: int | None) -> bool:
    """It is over, for sure, some steps before that one."""
    if kinds()[fault.kind].first:
        return True
    if step is None or fault.when.step is None or kinds()[fault.kind].repeats:
        return False
    last = fault.until.step if fault.until and fault.until.step is not None else fault.when.step
    return max(last, fault.when.step) + APART <= step


def _ends(fault: Fault) -> set[Task]:
    """Both ends of all links that it is of."""
    return {task for link in fault.links for task in (link.source, link.destination)}


def _apart(one: Fault, other: Fault, *, layout: Layout) -> bool:
    """Whoever gets to the later of them has got past the earlier, so connections are there again.

    A round needs everybody, unless the job goes on without some; else that is sure only of what holds up that very
    worker: a ps, which all workers need, itself, or links of its own.
    """
    waits = all_wait(layout)
    struck = [other.task] if other.task is not None else []
    needed = [str(task) == one.where or task.job == "ps" for task in struck]
    needed += [one.where in (str(link.source), str(link.destination)) for link in other.links]
    kind, others = kinds()[one.kind], kinds()[other.kind]
    if others.keeps_connections:
        return not others.first or waits or all(needed)
    if others.effect in kind.excludes and set(one.links) & set(other.links):
        return False
    begin, end, others_begin, others_end = one.when.step, one.until, other.when.step, other.until
    if begin is None or others_begin is None:
        return False  # nobody knows when it strikes
    last, others_last = (until.step if until and until.step is not None else 0 for until in (end, others_end))
    after, before = begin - max(others_begin, others_last), others_begin - max(begin, last)
    if others.repeats:
        after = 0  # nobody knows when it strikes for the last time
    alone = one.where == other.where != "worker" and all(needed)
    return (waits or alone) and max(after, before) >= APART


def ends_worker(kind: Kind, task: Task | None) -> bool:
    """It takes a worker away."""
    return kind.restarts and task is not None and task.job == "worker"


def skips(layout: Layout) -> bool:
    """Rounds may go by without a worker, which then never gets to those steps: only the chief surely does."""
    return layout.update == "sync" and layout.drop_after > 0


def leavers(layout: Layout) -> tuple[Task, ...]:
    """Workers that may be away: nobody goes on without the chief."""
    return layout.worker_tasks[1 if layout.drop_after else 0 :]


def all_wait(layout: Layout) -> bool:
    """A round needs everybody."""
    return layout.update == "sync" and not (layout.quorum or layout.drop_after)
