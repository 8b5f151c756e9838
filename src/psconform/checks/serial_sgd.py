"""C1, C6: synchronous training equals serial training, step by step, in each mode of replication and after kills."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..history.model import FAILED, History
from ..models import Quadratic
from ..optimizers import CLIP_WHEN
from ..probe import MODEL
from ..verdict import Verdict, counted, not_judged, unknown, valid, violated
from ..workloads.rates import rate_delayed
from ..workloads.serial import STEP_ERROR, drift_tolerance
from .path import (
    Path,
    Training,
    by_round,
    is_stable,
    largest_share,
    relative,
    serial_path,
    step_residuals,
    steps_of,
    training_of,
)
from .registry import MOST, SYNC, check


@check("C1", "serial SGD", dimension="barrier", weakest=("none", "r-of-n"), updates=SYNC, needs=(MODEL,), acked=True)
def follows_serial(history: History) -> Verdict:
    """C1: sync training is serial SGD on the union batch, within floating-point tolerance, step by step.

    Every read must be one step of serial SGD (float64, mean gradient over all workers' batches) from the read
    before, within 1e-6 of the parameters' norm (more where a large learning rate makes more of the rounding of the
    gradient itself, measured by computing it in float32, too), and start at the initial parameters; the whole path
    must stay within 5e-7 sqrt(step + 1) of the serial one, unless training itself is unstable: then the path of any
    two runs drifts apart, as a nudge of the initial parameters shows, and only the steps are judged. A gradient
    taken ``--delay`` steps late is late in the serial run, too.

    A round that every worker was refused is none (S1): the parameters stay, and so do moments and the schedule.

    With ``--optimizer`` or ``--schedule`` serial training is that of the same rule (psconform.optimizers); its moments
    are those of the gradients at what the worker had read. With ``--clip-norm`` it clips what the workers should: the
    gradient of each, or their mean (``--clip-when``), all variables together.

    In a run with faults it is judged if every gradient is to count exactly once and a rollback goes to one checkpoint
    (claims ``delivery`` and ``recovery``): then the path is the serial path however often a part of it was taken back,
    and each read of a round fits, in whichever epoch it was made.

    Where workers choose samples themselves, it is that of the samples that they have recorded (R5 judges those).

    Assumes: float32; a learning rate at which one gradient moves the parameters by more than rounding does.
    """
    if lacks := _lacks(history):
        return not_judged(f"needs {lacks}")
    refused = bool(((history.outcomes == FAILED) & ~history.skipped).any())
    run = training_of(history)
    if history.untold or refused or run.doubt:
        return unknown(history.untold or run.doubt or "a gradient was refused, so its round is none of serial SGD")
    rounds = history.steps
    path = serial_path(run, run.start, rounds)
    tolerance = drift_tolerance(rounds)
    stable = is_stable(run, path)
    largest = local = 0.0
    lines: list[str] = []
    either = rounds % history.layout.accumulate > 0  # the last round, with fewer gradients, has two paths
    judged = False
    for worker in history.workers:
        read = -1
        for found in steps_of(run, worker):
            step, off = found.step, relative(found.theta - path[found.step], path[found.step])
            judged, read = judged or 0 <= read == step - 1, step
            off = 0.0 if either and step == rounds else off
            if step:
                largest, local = max(largest, off), max(local, found.off)
            if step and found.wrong:
                lines.append(
                    f"{worker} at step {step} is not one step of {run.serial} from what it read at step {step - 1}: "
                    f"off by {found.off:.2g} of the parameters' norm, allowed {found.allowed:.1g}"
                )
            elif off > tolerance[step] and (stable or step == 0) and len(lines) < MOST:
                what = "the initial parameters" if step == 0 else run.serial
                lines.append(f"{worker} at step {step} is {off:.2g} off {what}, allowed {tolerance[step]:.2g}")
    if lines:
        return violated([*_otherwise_clipped(run), *lines], largest_deviation=largest)
    if not any(worker.reads.final.any() for worker in history.workers):
        return unknown(history.no_final)
    problem = ""
    if (share := largest_share(path, history.layout.workers)) <= STEP_ERROR:
        problem = (
            f"one gradient moves the parameters by {share:.1g} of their norm at most, rounding by {STEP_ERROR:.0g}, "
        )
        norm = ", or the norm that gradients are clipped to," if history.layout.clip_norm else ""
        problem += f"so none would be missed: the learning rate{norm} is too small"
    elif not stable and not judged:
        problem = "training is unstable, so single steps are judged, and no worker read both before and after one"
    if problem:
        return unknown(problem)
    said = (
        f"largest deviation from {run.serial} {largest:.2g}" if stable else "training is unstable, so the path drifts"
    )
    said += f", of a single step {local:.2g}{_rate(run)}"
    return valid(said, largest_deviation=largest, largest_step_error=local)


def _otherwise_clipped(run: Training) -> list[str]:
    """What every step is, if gradients were not clipped, or before the average in place of after it."""
    layout = run.history.layout
    if not layout.clip_norm:
        return []
    before, after = (replace(layout, clip_when=when) for when in CLIP_WHEN)
    for other in (replace(before, clip_norm=0.0), before, after):
        tried = replace(run, history=replace(run.history, layout=other))
        if not any(step.wrong for worker in run.history.workers for step in steps_of(tried, worker)):
            clips = "" if other.clip_norm else ", not clipped"
            return [f"every step is one of {tried.serial}{clips}"]
    return []


def _lacks(history: History) -> str:
    """What it takes for this to be a promise; empty: nothing."""
    if history.claims.reduction == "none":
        return "a claim: reduction is none"
    if not history.disturbed:
        return ""
    if history.claims.recovery != "checkpoint" or history.claims.delivery != "exactly-once":
        return "a run without faults, or claims of recovery from one checkpoint and delivery exactly once"
    return "--delay 0 with faults: who comes back has not seen older parameters" if history.workload.delay else ""


def _rate(run: Training) -> str:
    """On the quadratic with plain SGD: how fast it came nearer to the optimum, and must at least in the long run."""
    model, history = run.model, run.history
    if not run.in_theory or not isinstance(model, Quadratic):
        return ""
    workload = history.workload
    ends = [np.linalg.norm(run.theta(worker, index) - model.optimum) for worker, index in history.finals]
    measured = (max(ends) / np.linalg.norm(run.start - model.optimum)) ** (1 / history.steps)
    rate, delay = workload.learning_rate, workload.delay
    theory = max(rate_delayed(curvature=float(h), learning_rate=rate, delay=delay) for h in model.curvature[[0, -1]])
    return f"; distance x {measured:.5f} per round, in theory at most {theory:.5f} in the long run"


Pairs = dict[str, tuple[dict[int, Path], dict[int, Path]]]
"""By worker: the parameters that it read at each round, and those of the same worker between-graph."""
TWICE = 2.0
"""Each of the two runs may be off serial SGD by C1's tolerance, to either side."""


@check(
    "C6",
    "replication",
    dimension="barrier",
    weakest=("none", "r-of-n"),
    updates=SYNC,
    needs=(MODEL,),
    acked=True,
    faults="no rollback",
)
def same_as_between_graph(history: History) -> Verdict:
    """C6: in-graph = between-graph = model-parallel on the same data and seeds, within floating-point tolerance.

    Every read, round by round, must be that of the same worker in a run between-graph, within twice what C1 allows each
    of them: 2 x 5e-7 sqrt(step + 1) of the parameters' norm. Where training itself is unstable the paths of any two
    runs drift apart; then it is valid if what each step adds is the same within 2 x 1e-6, and else unknown.

    Assumes: float32; a run between-graph with the same layout, samples and seeds, which ``psconform run`` makes first
    and keeps in ``twin/``.
    """
    if history.layout.replication == "between-graph":
        return not_judged("needs --replication in-graph or model-parallel")
    if isinstance(history.twin, str):
        return unknown(f"the same training between-graph, in twin/, {history.twin}")
    run, twin = training_of(history), training_of(history.twin.finite)
    others = {worker.index: by_round(twin, worker) for worker in twin.history.workers}
    pairs = {str(worker): (by_round(run, worker), others.get(worker.index, {})) for worker in history.workers}
    stable = is_stable(run, serial_path(run, run.start, history.steps))
    lines, largest = _compared(pairs, history.steps) if stable else ([], _steps_apart(run, twin, pairs))
    said = f"largest distance from between-graph {largest:.2g}"
    if not stable:
        said = f"training is unstable, so paths drift apart; largest distance of a single step {largest:.2g}"
    if lines:
        return violated(lines, largest_distance=largest)
    cut = history.twin.cut and f"incomplete: {history.twin.cut}"
    if lacks := history.twin.incomplete or cut or _missing(pairs):
        return unknown(f"the same training between-graph, in twin/, is {lacks}")
    if not stable and not largest <= TWICE * STEP_ERROR:  # who knows what roundings grow to
        return unknown(f"{said}, within {TWICE * STEP_ERROR:.0g} it would be valid", largest_distance=largest)
    return valid(f"{said}, {counted(sum(len(mine) for mine, _ in pairs.values()), 'read')}", largest_distance=largest)


def _compared(pairs: Pairs, steps: int) -> tuple[list[str], float]:
    """What differs by more than roundings, and the largest relative distance."""
    allowed, largest, lines = TWICE * drift_tolerance(steps), 0.0, list[str]()
    for worker, (mine, its) in pairs.items():
        for step in sorted(mine.keys() & its.keys()):
            off = relative(mine[step] - its[step], its[step])
            largest = max(largest, off)
            if off > allowed[step] and len(lines) < MOST:
                lines.append(f"{worker} at step {step} is {off:.2g} off between-graph, allowed {allowed[step]:.2g}")
    return lines, largest


def _missing(pairs: Pairs) -> str:
    """What there is nothing to compare with; empty: nothing is missing."""
    found = [f"{name} at step {k}" for name, (mine, its) in pairs.items() for k in sorted(mine.keys() - its.keys())[:1]]
    if not any(mine for mine, _ in pairs.values()):
        found = ["any worker"]
    return f"without a read of {', '.join(found)}" if found else ""


def _steps_apart(run: Training, twin: Training, pairs: Pairs) -> float:
    """How differently a single step was taken at most, each from where its own run stood; relative to that."""
    largest = 0.0
    for mine, its in pairs.values():
        first, second = step_residuals(run, mine), step_residuals(twin, its)
        apart = [relative(first[k] - second[k], its[k - 1]) for k in first.keys() & second.keys()]
        largest = max([largest, *apart])
    return largest
