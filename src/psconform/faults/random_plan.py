"""Fault plans that are drawn: ``--faults random``, ``--faults random:stall,kill``. Same seed, same plan."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from ..errors import BadInput
from ..layout import Layout
from .fault import Fault
from .kinds import ENDING, KINDS, NETWORK, PROCESS
from .partitions import OF_ALL, OF_ONE, region
from .when import BEFORE_PUSH, When

RANDOM = "random"
DRAWN = tuple(name for name, kind in KINDS.items() if kind.of in (PROCESS, NETWORK) and not kind.asked)
"""What is drawn from: a clock that jumps needs a worker that is started cold, a poison asks for something else than
recovery, and of a job whose only checkpoint is damaged nobody can ask for it."""
MOST = 3
LONGEST_STEPS, LONGEST_S = 10, 1.5
RESTARTS_S = (0.0, 0.2, 1.0)
AMOUNTS: dict[str, tuple[int, ...]] = {
    "ms": (5, 20, 100),
    "jitter_ms": (0, 5),
    "kB_per_s": (20, 100, 1000),
    "bytes": (0, 100, 1000),  # a cut that is not reached shows nothing
    "delay_us": (0, 100),
    "after_ms": (0, 50),
    "times": (2, 3),
    "lives_ms": (0, 100, 400),
}


def drawn_plan(text: str, *, layout: Layout, steps: int, seed: int) -> tuple[Fault, ...]:
    """The faults that ``random`` or ``random:KIND,KIND`` stands for: one to three, no two of one process.

    Raises:
        BadInput: a kind that there is not, or that is not drawn.
    """
    _, _, names = text.partition(":")
    kinds = tuple(name.strip() for name in names.split(",")) if names else DRAWN
    for name in kinds:
        if name not in DRAWN:
            raise BadInput("--faults", "is no kind that can be drawn", value=name, choices=DRAWN)
    generator = random.Random(f"faults:{seed}:{layout.text}:{layout.update}:{steps}:{','.join(kinds)}")
    return draw(generator, kinds, layout=layout, steps=steps)


def draw(generator: random.Random, kinds: Sequence[str] = DRAWN, *, layout: Layout, steps: int) -> tuple[Fault, ...]:
    """One to three faults of these kinds, no two of one process."""
    faults: list[Fault] = []
    for _ in range(generator.randint(1, MOST)):
        fault = _draw(generator, generator.choice(kinds), layout=layout, steps=steps)
        if not any(_clash(one, other) for before in faults for one, other in ((fault, before), (before, fault))):
            faults.append(fault)
    return tuple(faults)


def _clash(fault: Fault, other: Fault) -> bool:
    """The same process twice; or connections are to end where another fault leaves none, so that nobody can see it."""
    if fault.task is not None and fault.task == other.task:
        return True
    ends = {task for link in fault.links for task in (link.source, link.destination)}
    return fault.kind in ENDING and (other.task in ends or bool(set(fault.links) & set(other.links)))


def _draw(generator: random.Random, name: str, *, layout: Layout, steps: int) -> Fault:
    kind = KINDS[name]
    if name == "late":
        lasts_s = round(generator.uniform(0.2, LONGEST_S), 2)
        return Fault(kind=name, task=generator.choice(layout.tasks), when=When(), lasts_s=lasts_s)
    step = generator.randrange(max(1, steps * 3 // 4))
    when = When(generator.choice((BEFORE_PUSH, "after-push")), step)
    said: dict[str, Any] = {"kind": name, "when": when}
    if kind.restarts:
        said["restart_after_s"] = generator.choice(RESTARTS_S)
    if kind.lasts:
        if step + 1 < steps and generator.random() < 0.5:
            said["until"] = When(BEFORE_PUSH, generator.randint(step + 1, min(steps - 1, step + LONGEST_STEPS)))
        else:
            said["lasts_s"] = round(generator.uniform(0.2, LONGEST_S), 2)
    said["amounts"] = tuple((amount, _amount(generator, name, amount)) for amount in kind.amounts)
    if kind.of != NETWORK:
        return Fault(task=generator.choice(layout.tasks), **said)
    where = generator.choice(_regions(layout, one_way=name == "refuse"))
    return Fault(region=where, links=region(where, layout=layout, place="--faults"), **said)


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


def _separates(name: str, layout: Layout) -> bool:
    try:
        region(name, layout=layout, place="--faults")
    except BadInput:
        return False
    return True
