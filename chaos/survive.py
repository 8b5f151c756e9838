"""How one cluster is broken and judged."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from psconform import doctor
from psconform.api import Run
from psconform.faults.fault import SENT, Fault
from psconform.faults.kinds import kinds
from psconform.faults.plan_file import plan_text
from psconform.faults.proxy_faults import STALL
from psconform.layout import Layout
from psconform.plugin import chosen, need, tally
from psconform.targets.lookup import find_target

Judge = Callable[..., Run]
STEPS = 40
LAYOUT = find_target(chosen.target).nearest(Layout(ps=2, workers=2 if chosen.small else 3))
"""Of the clusters that are broken, as far as the target takes so many tasks."""
anywhere = pytest.mark.psconform_anywhere


def crossed(*factors: Sequence[Any]) -> list[tuple[Any, ...]]:
    """All combinations; of containers, which start cold, every second one unless all are asked for (nightly).

    Each value of each factor is still there, with half of those of the others.
    """
    places = product(*(range(len(factor)) for factor in factors))
    return [
        tuple(factor[place] for factor, place in zip(factors, at, strict=True))
        for at in places
        if not chosen.small or sum(at) % 2 == 0
    ]


def part_of(kind: str) -> str:
    """The part of the machine that a kind of fault takes, as `psconform.doctor.PARTS` names it; empty if it takes none.

    Of containers none: their image has it.
    """
    return "" if chosen.launcher == "docker" else kinds()[kind].part


def lacking(kind: str) -> str:
    """What this machine lacks for a kind of fault. Not to be asked before a test runs: it may set up a Toxiproxy."""
    part = part_of(kind)
    return doctor.lacking(part) if part else ""


def available(kinds: Sequence[str]) -> tuple[str, ...]:
    """Those of which this machine lacks nothing."""
    return tuple(kind for kind in kinds if not lacking(kind))


def trains(workload: str) -> pytest.MarkDecorator:
    """A target that does not say that it trains a workload is not asked to."""
    lacks = workload not in find_target(chosen.target).workloads
    return pytest.mark.skipif(lacks, reason=f"the target does not train {workload} (workloads in its target.toml)")


def survives(update: str) -> pytest.MarkDecorator:
    """A target that does not say that it recovers from checkpoints is not broken."""
    claims = find_target(chosen.target).claims.get(update)
    lacks = claims is None or claims.recovery != "checkpoint"
    return pytest.mark.skipif(
        lacks, reason=f'the target does not recover (recovery = "checkpoint" in [claims.{update}])'
    )


def must_survive(judge: Judge, faults: Sequence[Fault], *, folder: Path, **options: Any) -> None:
    """Run one cluster with these faults: no claimed guarantee may be violated.

    A failure prints how to run it again, and how to make it smaller. What is undecided (a fault that touched nothing,
    say) is no failure of the target: its folder is kept until ``test_undecided.py``, which fails, and keeps them all,
    if that is more than one run in a hundred. A run whose only lack is a fault of links that no task uses is decided.
    """
    kinds = [fault.kind for fault in faults] + [STALL.name for fault in faults if fault.when.phase == SENT]
    need(*filter(None, map(part_of, kinds)))
    plan = folder / "plan.toml"
    plan.write_text(plan_text(faults), encoding="utf-8")
    run = judge(faults=plan, **{"steps": STEPS, **options})
    tally.runs += 1
    tally.planned += run.coverage.planned
    tally.observed += run.coverage.observed
    if run.exit_code == 1:
        again = f"psconform replay {run.folder} --times 5\npsconform shrink {run.folder}"
        pytest.fail(f"a claimed guarantee did not hold:\n{run.explain()}\n{again}", pytrace=False)
    reasons = [verdict.reason for verdict in run.verdicts.values() if verdict.status == "unknown"]
    missed = {f"{each.kind} {each.fault}" for each in run.missed}
    if run.exit_code == 2 and (reasons or not missed or missed - set(run.unused)):
        kept = run.folder.parents[1] / f"undecided-{run.folder.parent.name}-{run.folder.name}"
        run.folder.rename(kept)  # out of what the fixture deletes once the test has passed
        tally.undecided.append((kept, [*reasons, *map(str, run.missed), str(run.coverage)][0]))
        return
    shutil.rmtree(run.folder)
