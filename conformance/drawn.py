"""What Hypothesis draws: layouts, step counts, reductions, read patterns, seeds; and how one example is judged."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import strategies as st

from psconform.api import Run, check
from psconform.errors import PsconformError
from psconform.plugin import chosen
from psconform.targets.lookup import find_target

Judge = Callable[..., Run]
Numbers = st.SearchStrategy[int]
MOST_PS, MOST_WORKERS = (2, 3) if chosen.small else (3, 4)
NONE, ONE, USUAL_STEPS = st.just(0), st.just(1), st.integers(2, 60)
Span = tuple[int, int]
"""The least and the most tasks of a job."""
NO_PS, UP_TO_3, UP_TO_4 = (0, 0), (1, MOST_PS), (1, MOST_WORKERS)
SOME, SEVERAL = (2, MOST_WORKERS - 1), (2, MOST_WORKERS)


@dataclass(frozen=True)
class Example:
    """One real cluster."""

    update: str
    ps: int
    workers: int
    steps: int
    seed: int
    reduction: str = "mean"
    reads: int = 1
    read_every: int = 1
    workload: str = "ledger"
    model: str = "softmax"
    gpus: int = 0
    mode: tuple[tuple[str, Any], ...] = ()


def examples(
    update: str,
    *,
    ps: Span = UP_TO_3,
    workers: Span = UP_TO_4,
    steps: Numbers = USUAL_STEPS,
    reads: Numbers = ONE,
    read_every: Numbers = ONE,
    workload: str = "ledger",
    models: tuple[str, ...] = ("softmax",),
    reductions: tuple[str, ...] = (),
    gpus: Numbers = NONE,
    **mode: st.SearchStrategy[Any],
) -> st.SearchStrategy[Example]:
    """Clusters of one update mode, within what the target supports; ``mode`` are other options of a run."""
    target = find_target(chosen.target)
    reductions = reductions or (target.reductions if update == "sync" else ("mean",))
    return st.builds(
        Example,
        update=st.just(update),
        ps=_tasks("ps", ps) if "ps" in target.exchanges and ps != NO_PS else NONE,
        workers=_tasks("workers", workers),
        steps=steps,
        seed=st.integers(0, 2**31 - 1),
        reduction=st.sampled_from(reductions),
        reads=reads,
        read_every=read_every,
        workload=st.just(workload),
        model=st.sampled_from(models),
        gpus=gpus,
        mode=st.fixed_dictionaries(mode).map(lambda drawn: tuple(drawn.items())),
    )


def _tasks(job: str, span: Span) -> Numbers:
    """As many as the test and the target take; a test that needs more than the target takes is skipped as it draws."""
    (least, most), (fewest, limit) = span, find_target(chosen.target).span(job)
    if least > limit:
        return st.builds(pytest.skip, st.just(f"the target takes at most {limit} {job} (max_{job} in its target.toml)"))
    return st.integers(max(least, fewest), max(min(most, limit), fewest))


anywhere = pytest.mark.psconform_anywhere
"""Of a test of what a trainer computes, not of how its tasks start, meet and die: of containers only in nightly."""


def offers(workload: str) -> pytest.MarkDecorator:
    """A target that does not say that it trains a workload is not asked to."""
    target = find_target(chosen.target)
    lacks = workload not in target.workloads or (workload == "decayed-ledger" and "ps" not in target.exchanges)
    return pytest.mark.skipif(lacks, reason=f"the target does not train {workload} (workloads in its target.toml)")


def takes(mode: str) -> pytest.MarkDecorator:
    """A target whose commands do not contain the placeholder of a mode cannot be told to run in it."""
    lacks = mode not in find_target(chosen.target).modes
    return pytest.mark.skipif(lacks, reason=f"no command of the target takes {{{mode}}}")


def heeds_due() -> pytest.MarkDecorator:
    """A target that does not say that its workers may run out of data is not given too little of it."""
    lacks = not find_target(chosen.target).batches
    return pytest.mark.skipif(lacks, reason="workers of the target do not heed probe.due (no batches = true)")


def averages() -> pytest.MarkDecorator:
    """A target that only sums gradients does not average replicas."""
    lacks = "mean" not in find_target(chosen.target).reductions
    return pytest.mark.skipif(lacks, reason="the target has no mean (reductions in its target.toml)")


def exchanges(kind: str) -> pytest.MarkDecorator:
    """A target with parameter servers has no replicas, one without has nothing else."""
    lacks = kind not in find_target(chosen.target).exchanges
    return pytest.mark.skipif(lacks, reason=f"the target does not exchange gradients by {kind}")


def needs(update: str) -> pytest.MarkDecorator:
    """A target that claims nothing in this update mode has nothing to be judged."""
    lacks = update not in find_target(chosen.target).claims
    return pytest.mark.skipif(lacks, reason=f"the target claims nothing in {update} (no [claims.{update}])")


def recovers(update: str) -> pytest.MarkDecorator:
    """A target that does not say that it recovers from checkpoints is not killed."""
    claims = find_target(chosen.target).claims.get(update)
    lacks = claims is None or claims.recovery != "checkpoint"
    return pytest.mark.skipif(
        lacks, reason=f'the target does not recover (recovery = "checkpoint" in [claims.{update}])'
    )


def says(phase: str) -> pytest.MarkDecorator:
    """Nobody can strike at a phase that a target never says (a target.toml does not tell)."""
    lacks = phase not in (find_target(chosen.target).phases or {})
    return pytest.mark.skipif(lacks, reason=f"the target does not say when it is {phase}")


def must_hold(judge: Judge, example: Example) -> Run:
    """Run one cluster: every claimed guarantee must be valid, and a second look at the stored run must agree."""
    try:
        run = _judged(judge, example)
    except PsconformError as error:  # its trainer does not start, say: there is no more to see in this code
        pytest.fail(str(error), pytrace=False)
    if not run.valid:
        pytest.fail(f"a claimed guarantee did not hold:\n{run.explain()}", pytrace=False)
    again = check(run.folder)
    assert again.verdicts == run.verdicts, f"judged again, the stored run gives other verdicts: {run.folder}"
    shutil.rmtree(run.folder)
    return run


def _judged(judge: Judge, example: Example) -> Run:
    return judge(
        layout=f"ps={example.ps},worker={example.workers}" + (f",gpus={example.gpus}" if example.gpus else ""),
        emulate_gpus=example.gpus > 0,
        update=example.update,
        reduction=example.reduction,
        steps=example.steps,
        seed=example.seed,
        reads=example.reads,
        read_every=min(example.read_every, example.steps),
        workload=example.workload,
        model=example.model,
        **dict(example.mode),
    )
