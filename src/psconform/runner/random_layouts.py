"""The plans of a series: one after another seed, the layouts drawn if asked for (``--repeat N --random-layouts``)."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..defect import Defect
from ..errors import BadInput
from ..layout import MAX_TASKS, Layout
from ..options import OPTIONS, Options
from ..targets.lookup import find_target
from ..targets.reference import DEFECTS
from .plan import MAX_SEED, Plan, make_plan

MAX_RUNS = 10_000
PS, WORKERS, READS, READ_EVERY, GPUS = 3, 4, 3, 5, 4
"""The most of each that is drawn."""
LEAST_STEPS = 2


def make_plans(options: Options, *, repeat: int, random_layouts: bool = False) -> list[Plan]:
    """``repeat`` plans with the seeds seed, seed + 1, ... and the folders ``out``/0001, ``out``/0002, ...

    With ``random_layouts`` each is drawn by ``drawn``. Raises BadInput.
    """
    seed = options.seed
    if not isinstance(repeat, int) or isinstance(repeat, bool):
        raise BadInput("--repeat", "must be a whole number", value=repeat)
    if not 1 <= repeat <= MAX_RUNS:
        raise BadInput("--repeat", f"must be between 1 and {MAX_RUNS}", value=repeat)
    width = max(4, len(str(repeat)))
    if 0 <= seed <= MAX_SEED < seed + repeat - 1:
        raise BadInput("--seed", f"must leave room for {repeat} seeds up to {MAX_SEED}", value=seed)
    for name in ("layout", "reads", "read_every") if random_layouts else ():
        option, value = OPTIONS[name], getattr(options, name)
        if value != option.default:
            raise BadInput(option.flag, "is drawn with --random-layouts, so it cannot be given", value=value)
    plans = []
    for i in range(repeat):
        changed = drawn(seed, i, **_limits(options)) if random_layouts else {}
        folder = Path(options.out or ".") / f"{i + 1:0{width}}"
        plans.append(make_plan(replace(options, out=folder, seed=seed + i, **changed)))
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
    fewest_ps: int = 1,
    last_step: int = 0,
    emulated: bool = False,
    ps: tuple[int, int] = (1, MAX_TASKS),
    workers: tuple[int, int] = (1, MAX_TASKS),
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
        slowest: the highest index of a worker that an option names, and which so must be there.
        fewest_ps: so many ps must be there.
        last_step: the last step that an option names.
        emulated: workers have GPUs, which are none.
        ps: the least and the most that the target takes.
        workers: the same.
    """
    most = min(max(WORKERS, needs.workers, workers[0]), workers[1])
    most_ps = min(max(PS, needs.ps, ps[0]), ps[1])
    least = max(LEAST_STEPS, needs.steps, -(-needs.gradients // most), last_step + 1)
    if steps < least:
        raise BadInput("--steps", f"must be at least {least} to draw from with --random-layouts", value=steps)
    fewest = max(needs.workers, slowest + 1, -(-needs.gradients // steps), workers[0])
    least_ps = max(needs.ps, fewest_ps, ps[0])
    if fewest > most:
        raise BadInput("--random-layouts", f"draws at most {most} workers", value=f"worker:{fewest - 1}")
    if least_ps > most_ps:
        raise BadInput("--random-layouts", f"draws at most {most_ps} ps", value=f"ps:{least_ps - 1}")
    generator = random.Random(f"{seed}:{i}")
    shape = Layout(
        ps=0 if replicas or needs.all_reduce else generator.randint(least_ps, most_ps),
        workers=generator.randint(fewest, most),
    )
    length = generator.randint(max(least, -(-needs.gradients // shape.workers)), steps)
    reads, every = generator.randint(1, READS), generator.randint(1, min(READ_EVERY, length))
    if emulated:
        shape = replace(shape, gpus=generator.randint(max(1, needs.gpus), max(GPUS, needs.gpus)))
    often = update == "sync" or bool(needs.title) or bounded
    return {"layout": shape.text, "steps": length, "reads": reads, "read_every": 1 if often else every}


def _limits(options: Options) -> dict[str, Any]:
    needs, target = DEFECTS.get(options.defect, Defect("", "", "")), find_target(str(options.target))
    if "local_steps" in needs.mode:
        needs = replace(needs, steps=max(needs.steps, options.local_steps))
    struck = [text for given in (options.kill, options.stop, options.poison) for text in _listed(given)]
    slow, batches = _listed(options.slow), _listed(options.batches)
    steps = [step for text in struck for step in _steps(text)] + [_number(text.partition("=")[2]) for text in batches]
    drops = options.drop_after not in (Options.drop_after, 0)
    others = 1 if batches or drops else 0  # beside the one that leaves, or waits for it
    return {
        "update": options.update,
        "steps": options.steps,
        "needs": replace(needs, workers=max(needs.workers, options.quorum)),
        "bounded": options.staleness is not None,
        "replicas": options.local_steps > 1 or target.exchanges == ("all-reduce",),
        "slowest": max(others, *(_index(text, "worker") for text in ("", *slow, *batches, *struck))),
        "fewest_ps": 1 + max(_index(text, "ps") for text in ("", *struck)),
        "last_step": max(steps, default=0),
        "emulated": options.emulate_gpus,
        "ps": target.span("ps"),
        "workers": target.span("workers"),
    }


def _listed(given: Any) -> list[str]:
    """The texts of an option; whatever is no text is refused by who reads it."""
    if isinstance(given, Mapping):
        return [f"{name}={value}" for name, value in given.items()]
    return [given] if isinstance(given, str) else [text for text in given if isinstance(text, str)]


def _index(text: str, job: str) -> int:
    """The index of the task of this job with which a text begins; 0 if it does not."""
    match = re.match(rf"\s*{job}:([0-9]{{1,4}})\s*[@=]", text)
    return int(match[1]) if match else 0


def _steps(text: str) -> list[int]:
    """The steps in ``TASK@STEP``, ``TASK@PHASE:STEP..STEP``, ``TASK@STEP=VALUE``."""
    times = text.partition("@")[2].partition("=")[0].split("..")
    return [_number(time.rpartition(":")[2]) for time in times]


def _number(text: str) -> int:
    return int(text) if re.fullmatch(r"\s*[0-9]{1,9}\s*", text) else 0
