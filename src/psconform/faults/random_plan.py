"""Fault plans that are drawn: ``--faults random``, ``--faults random:stall,kill``. Same seed, same plan."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import BadInput
from ..layout import Layout, Task
from .fault import Fault
from .kinds import ENDING, KINDS, NETWORK, PROCESS
from .partitions import OF_ALL, OF_ONE, region
from .when import BEFORE_PUSH, When

RANDOM = "random"
UNDRAWN = ("slow-close", "clock")
DRAWN = tuple(name for name, kind in KINDS.items() if kind.of in (PROCESS, NETWORK) and name not in UNDRAWN)
"""What is drawn from: a poison asks for something else than recovery, of a job whose only checkpoint is damaged nobody
can ask for it, a slow close shows only beside a fault that ends connections, and a clock that jumps needs a worker that
is started cold."""
LEAST, MOST, ATTEMPTS = 6, 9, 8
EVERY = 14
"""Steps: so often something breaks, if that is neither fewer than LEAST times in all nor more than MOST."""
LONGEST_STEPS, LONGEST_S = 10, 0.8
OUTLASTS_S, LONG = (2.3, 3.0), 0.7
"""Of stalls and stops a share lasts so long, and a worker that the job may go on without is mostly away for so long:
what is wrong with a deadline shows only after it."""
UNTIL, ELSEWHERE = 0.3, 0.3
"""The share of faults that last until a step; and that strike where another worker is, so in the middle of whatever
theirs does then."""
AT_A_PHASE, WITHIN_A_STEP = 0.1, 0.7
"""The share of faults of processes that strike at a phase that the target says of itself, such as checkpointing; and of
a worker at one of a step, if workers say any: what is wrong with what it does there shows nowhere else."""
APART = 3
"""Steps between two faults that must not overlap."""
KEEPS = ("late", "throttle", "twice")
"""Faults of a process that has its connections all the same, at any time at which others strike."""
UNSURE = ("restoring",)
"""Phases that are said only if something else was lost before: a fault that waits for one may never strike."""
RESTARTS_S = (0.0, 0.2, 0.6)
AMOUNTS: dict[str, tuple[int, ...]] = {
    "ms": (5, 20, 100),
    "jitter_ms": (0, 5),
    "kB_per_s": (20, 100, 1000),
    "bytes": (0, 100, 1000),  # a cut that is not reached shows nothing
    "delay_us": (0, 100),
    "after_ms": (0, 50),
    "times": (2, 3),
    "lives_ms": (0, 100, 400),
    "percent": (20, 40),
}


def drawn_plan(
    text: str,
    *,
    layout: Layout,
    steps: int,
    seed: int,
    phases: Mapping[str, str] | None = None,
    shared: bool = False,
) -> tuple[Fault, ...]:
    """The faults that ``random`` or ``random:KIND,KIND`` stands for: up to nine, no two of one process.

    ``phases`` are those that the target says beside those of any step, and who says each: a task, or ``worker``; with
    ``shared`` its tasks have one cluster spec.

    Raises:
        BadInput: a kind that there is not, or that is not drawn.
    """
    _, _, names = text.partition(":")
    kinds = tuple(name.strip() for name in names.split(",")) if names else DRAWN
    for name in kinds:
        if name not in DRAWN:
            raise BadInput("--faults", "is no kind that can be drawn", value=name, choices=DRAWN)
    generator = random.Random(f"faults:{seed}:{layout.text}:{layout.update}:{steps}:{','.join(kinds)}")
    return draw(generator, kinds, layout=layout, steps=steps, phases=phases, shared=shared)


def draw(
    generator: random.Random,
    kinds: Sequence[str] = DRAWN,
    *,
    layout: Layout,
    steps: int,
    phases: Mapping[str, str] | None = None,
    shared: bool = False,
    least: int = 0,
    most: int = 0,
) -> tuple[Fault, ...]:
    """``least`` to ``most`` faults of these kinds, fewer where they would clash; no two of one process.

    Without bounds, one fault for every 14 steps or so, but six at least and nine at most, and among them what ends a
    ps, what ends a worker and what ends connections: nothing shows more.

    Of different sorts, as long as there are any: whatever one of them shows must not take many plans.
    """
    sorts = _sorts(kinds, layout)
    generator.shuffle(sorts)
    if not least:
        sorts.sort(key=lambda sort: not (KINDS[sort[0][0]].restarts or sort[0][0] in ENDING))
    faults: list[Fault] = []
    usual = max(LEAST, min(MOST - 1, steps // EVERY))
    for number in range(generator.randint(least or usual, most or usual + 1)):
        names, tasks = sorts[number % len(sorts)]
        for _ in range(ATTEMPTS):
            name, task = generator.choice(names), generator.choice(tasks)
            fault = _draw(generator, name, task, layout=layout, steps=steps, phases=phases or {}, shared=shared)
            pairs = ((one, other) for before in faults for one, other in ((fault, before), (before, fault)))
            if not any(_clash(one, other, layout=layout) for one, other in pairs):
                faults.append(fault)
                break
    return tuple(faults)


def _sorts(kinds: Sequence[str], layout: Layout) -> list[tuple[list[str], list[Task]]]:
    """Kinds that are alike in what they do, and whom they strike: what ends a ps, what ends a worker, and so on."""
    servers = [task for task in layout.tasks if task.job == "ps"]
    workers = list(layout.worker_tasks[1 if layout.drop_after else 0 :])  # nobody goes on without the chief
    jobs = [tasks for tasks in (servers, workers) if tasks]
    alike: dict[tuple[str, bool, str], list[str]] = {}
    for name in kinds:
        kind = KINDS[name]
        # links end, hold back, or slow down; a process is away, or there twice
        shown_by = kind.evidence if kind.of == NETWORK or name == "twice" else ""
        alike.setdefault((kind.of, kind.restarts, shown_by), []).append(name)
    return [
        (names, tasks) for (_, ends, _), names in alike.items() for tasks in (jobs if ends else [list(layout.tasks)])
    ]


def _clash(fault: Fault, other: Fault, *, layout: Layout) -> bool:
    """The same process twice; or connections are to end where another fault leaves none, so that nobody can see it."""
    if fault.task is not None and fault.task == other.task:
        return True
    ends = {task for link in fault.links for task in (link.source, link.destination)}
    touched = other.task in ends or bool(set(fault.links) & set(other.links))
    return fault.kind in ENDING and touched and not _apart(fault, other, layout=layout)


def _apart(one: Fault, other: Fault, *, layout: Layout) -> bool:
    """Whoever gets to the later of them has got past the earlier, so connections are there again.

    A round needs everybody, unless the job goes on without some; else that is sure only of what holds up that very
    worker: a ps, which all workers need, itself, or links of its own.
    """
    all_wait = layout.update == "sync" and not (layout.quorum or layout.drop_after)
    struck = [other.task] if other.task is not None else []
    needed = [str(task) == one.where or task.job == "ps" for task in struck]
    needed += [one.where in (str(link.source), str(link.destination)) for link in other.links]
    if other.kind in KEEPS:
        return other.kind != "late" or all_wait or all(needed)
    begin, end, others_begin, others_end = one.when.step, one.until, other.when.step, other.until
    if begin is None or others_begin is None or other.kind == "crash-loop":
        return False  # nobody knows when it strikes, or strikes again
    last, others_last = (until.step if until and until.step is not None else 0 for until in (end, others_end))
    after, before = begin - max(others_begin, others_last), others_begin - max(begin, last)
    alone = one.where == other.where != "worker" and all(needed)
    return (all_wait or alone) and max(after, before) >= APART


def _draw(
    generator: random.Random,
    name: str,
    task: Task,
    *,
    layout: Layout,
    steps: int,
    phases: Mapping[str, str],
    shared: bool,
) -> Fault:
    kind = KINDS[name]
    if name == "late":
        return Fault(kind=name, task=task, when=When(), lasts_s=_seconds(generator, long=False))
    when = _when(generator, task, layout=layout, steps=steps, phases={} if kind.of == NETWORK else phases)
    said: dict[str, Any] = {"kind": name, "when": when}
    if kind.restarts:
        often = 0.75 if layout.drop_after else 0.1
        long = generator.random() < often and task.job == "worker" and name != "crash-loop"
        said["restart_after_s"] = _seconds(generator, long=True) if long else generator.choice(RESTARTS_S)
    if kind.lasts:
        step = steps if when.step is None else when.step
        long = name in ("stall", "stop") and generator.random() < LONG
        if not long and step + 1 < steps and generator.random() < UNTIL:
            said["until"] = When(BEFORE_PUSH, generator.randint(step + 1, min(steps - 1, step + LONGEST_STEPS)))
        else:
            said["lasts_s"] = _seconds(generator, long=long)
    said["amounts"] = tuple((amount, _amount(generator, name, amount)) for amount in kind.amounts)
    if kind.of != NETWORK:
        return Fault(task=task, **said)
    one_way = name == "refuse"
    regions = _of_listeners(layout, one_way=one_way) if shared else _regions(layout, one_way=one_way)
    where = generator.choice(regions)
    return Fault(region=where, links=region(where, layout=layout, place="--faults"), **said)


def _seconds(generator: random.Random, *, long: bool) -> float:
    shortest, longest = OUTLASTS_S if long else (0.2, LONGEST_S)
    return round(generator.uniform(shortest, longest), 2)


def _when(generator: random.Random, task: Task, *, layout: Layout, steps: int, phases: Mapping[str, str]) -> When:
    """Before or after a push of a step, or at a phase of the target's own, which a worker must say itself."""
    said = [phase for phase, who in phases.items() if task.job != "worker" or who in (str(task), "worker")]
    said = [phase for phase in said if phase not in UNSURE]
    step = generator.randrange(steps // 4, max(1, steps * 3 // 4))  # what is lost sooner is not worth a checkpoint
    of_steps = [phase for phase in said if phases[phase] == "worker"]
    if of_steps and task.job == "worker" and generator.random() < WITHIN_A_STEP:
        return When(generator.choice(of_steps), step)
    if said and generator.random() < AT_A_PHASE:
        return When(generator.choice(said))
    when = When(generator.choice((BEFORE_PUSH, "after-push")), step)
    if generator.random() < ELSEWHERE:
        return replace(when, task=str(generator.choice(layout.worker_tasks)))
    return when


def _amount(generator: random.Random, kind: str, name: str) -> int:
    bounds = KINDS[kind].amounts[name]
    return generator.choice([value for value in AMOUNTS[name] if bounds.least <= value <= bounds.most])


def _regions(layout: Layout, *, one_way: bool) -> list[str]:
    """Every pair in each direction and in both, every task, every partition that separates anybody."""
    servers = [task for task in layout.tasks if task.job == "ps"]
    pairs = [(worker, server) for worker in layout.worker_tasks for server in servers]
    arrows = ("->",) if one_way else ("->", "<->")
    found = [f"{a}{arrow}{b}" for one, other in pairs for arrow in arrows for a, b in ((one, other), (other, one))]
    found += [f"{name} {task}" for name in OF_ONE for task in layout.tasks]
    return found + [name for name in OF_ALL if _separates(name, layout)]


def _of_listeners(layout: Layout, *, one_way: bool) -> list[str]:
    """What there is where all tasks share one cluster spec."""
    return [f"{name} {task}" for name in (("deaf",) if one_way else OF_ONE) for task in layout.tasks]


def _separates(name: str, layout: Layout) -> bool:
    try:
        region(name, layout=layout, place="--faults")
    except BadInput:
        return False
    return True
