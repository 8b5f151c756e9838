"""The plans of a series: one after another seed, the layouts drawn if asked for (``--repeat N --random-layouts``)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import BadInput
from ..history.manifest import STEPS
from ..layout import Layout
from ..targets.defects import DEFECTS, Defect
from ..targets.reference import find_target
from .plan import MAX_SEED, Plan, make_plan

MAX_RUNS = 10_000
PS, WORKERS, READS, READ_EVERY = 3, 4, 3, 5
"""The most of each that is drawn."""
LEAST_STEPS = 2
_DRAWN = {"layout": "default", "reads": 1, "read_every": 1}


def make_plans(target: str, *, out: Path, repeat: int, random_layouts: bool = False, **options: Any) -> list[Plan]:
    """``repeat`` plans with the seeds seed, seed + 1, ... and the folders ``out``/0001, ``out``/0002, ...

    With ``random_layouts`` each is drawn by ``drawn``; options are those of ``make_plan``. Raises BadInput.
    """
    if not 1 <= repeat <= MAX_RUNS:
        raise BadInput("--repeat", f"must be between 1 and {MAX_RUNS}", value=repeat)
    width = max(4, len(str(repeat)))
    seed = int(options.pop("seed", 0))
    if 0 <= seed <= MAX_SEED < seed + repeat - 1:
        raise BadInput("--seed", f"must leave room for {repeat} seeds up to {MAX_SEED}", value=seed)
    if random_layouts:
        for name, usual in _DRAWN.items():
            if options.get(name, usual) != usual:
                option = f"--{name.replace('_', '-')}"
                raise BadInput(option, "is drawn with --random-layouts, so it cannot be given", value=options[name])
    plans = []
    for i in range(repeat):
        changed = drawn(seed, i, **_limits(target, options)) if random_layouts else {}
        folder = out / f"{i + 1:0{width}}"
        plans.append(make_plan(target, out=folder, seed=seed + i, **{**options, **changed}))
    return plans


def drawn(
    seed: int,
    i: int,
    *,
    update: str,
    steps: int,
    needs: Defect,
    slowest: int = 0,
    bounded: bool = False,
    replicas: bool = False,
) -> dict[str, Any]:
    """Layout, steps, reads and read_every of run ``i``: the same whenever ``seed`` and ``i`` are.

    Args:
        seed: of the series.
        i: number of the run, from 0.
        update: in sync a worker reads each round, so ``read_every`` stays 1; with a defect, too: one that strikes
            some of the reads would not show in a worker that happens to leave those out.
        steps: the most.
        needs: what the defect needs to show.
        bounded: with --staleness a worker reads at each step.
        replicas: without parameter servers.
        slowest: the highest index of a worker that is a straggler, and so must be there.
    """
    most = max(WORKERS, needs.workers)
    least = max(LEAST_STEPS, needs.steps, -(-needs.gradients // most))
    if steps < least:
        raise BadInput("--steps", f"must be at least {least} to draw from with --random-layouts", value=steps)
    fewest = max(needs.workers, slowest + 1, -(-needs.gradients // steps))
    if fewest > most:
        raise BadInput("--slow", f"--random-layouts draws at most {most} workers", value=f"worker:{slowest}")
    generator = random.Random(f"{seed}:{i}")
    shape = Layout(
        ps=0 if replicas or needs.all_reduce else generator.randint(needs.ps, max(PS, needs.ps)),
        workers=generator.randint(fewest, most),
    )
    length = generator.randint(max(least, -(-needs.gradients // shape.workers)), steps)
    reads, every = generator.randint(1, READS), generator.randint(1, min(READ_EVERY, length))
    often = update == "sync" or bool(needs.title) or bounded
    return {"layout": shape.text, "steps": length, "reads": reads, "read_every": 1 if often else every}


def _limits(target: str, options: dict[str, Any]) -> dict[str, Any]:
    needs, local_steps = DEFECTS.get(options.get("defect", ""), Defect("", "")), int(options.get("local_steps", 1))
    if "local_steps" in needs.mode:
        needs = replace(needs, steps=max(needs.steps, local_steps))
    return {
        "update": options.get("update", "sync"),
        "steps": options.get("steps", STEPS),
        "needs": replace(needs, workers=max(needs.workers, int(options.get("quorum", 0)))),
        "bounded": options.get("staleness") is not None,
        "replicas": local_steps > 1 or find_target(target).exchanges == ("all-reduce",),
        "slowest": _last_straggler((*options.get("slow", ()), *options.get("batches", ()))),
    }


def _last_straggler(slow: Sequence[str]) -> int:
    indices = [text.partition("=")[0].strip().removeprefix("worker:") for text in slow]
    return max((int(index) for index in indices if index.isdecimal()), default=0)
