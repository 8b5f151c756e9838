"""C6: that it does not matter for what is trained who runs the steps, and where."""

from __future__ import annotations

from ..history.model import History
from ..verdict import Verdict, not_judged, unknown, valid, violated
from ..workloads.serial import STEP_ERROR, drift_tolerance
from .convergence import Path, Training, by_round, is_stable, relative, serial_path, step_residuals, training_of
from .witness import MOST

TWICE = 2.0
"""Each of the two runs may be off serial SGD by C1's tolerance, to either side."""


def same_as_between_graph(history: History) -> Verdict:
    """C6: in-graph = between-graph = model-parallel on the same data and seeds, within floating-point tolerance.

    Every read, round by round, must be that of the same worker in a run between-graph, within twice what C1 allows each
    of them, 2 x 5e-7 sqrt(step + 1) of the parameters' norm. Where training is unstable the paths of any two runs drift
    apart; then what a step adds must be the same, each from where its own run stood, within 2 x 1e-6.

    Assumes: float32; a run between-graph with the same layout, samples and seeds, which ``psconform run`` makes first
    and keeps in ``twin/``.
    """
    if history.layout.replication == "between-graph":
        return not_judged("needs --replication in-graph or model-parallel")
    if isinstance(history.twin, str):
        return unknown(f"the same training between-graph, in twin/, {history.twin}")
    run, twin = training_of(history), training_of(history.twin.finite)
    stable = is_stable(run, serial_path(run, run.start, history.steps))
    allowed = TWICE * drift_tolerance(history.steps)
    others = {worker.index: worker for worker in twin.history.workers}
    largest, compared, lines, missing = 0.0, 0, list[str](), list[str]()
    for worker in history.workers:
        mine, its = by_round(run, worker), by_round(twin, others[worker.index]) if worker.index in others else {}
        apart = _apart(mine, its) if stable else _steps_apart(run, twin, mine, its)
        for step, off in sorted(apart.items()):
            limit = float(allowed[step]) if stable or step == 0 else TWICE * STEP_ERROR
            largest, compared = max(largest, off), compared + 1
            if off > limit and len(lines) < MOST:
                what = f"{worker} at step {step} is {off:.2g} off what it is" if stable or step == 0 else ""
                what = what or f"{worker} at step {step} has taken a step {off:.2g} off that"
                lines.append(f"{what} between-graph, allowed {limit:.2g}")
        missing += [f"{worker} at step {step}" for step in sorted(mine.keys() - its.keys())[:1]]
    stats = {"largest_distance": largest}
    if lines:
        return violated(lines, **stats)
    if history.twin.gaps:
        return unknown(f"the same training between-graph, in twin/, is {history.twin.incomplete}", **stats)
    if missing or not compared:
        return unknown(f"the same training between-graph has no read of {', '.join(missing) or 'any worker'}", **stats)
    what = "largest distance from between-graph" if stable else "training is unstable, largest distance of a step"
    return valid(f"{what} {largest:.2g}, {compared} reads", **stats)


def _apart(mine: dict[int, Path], its: dict[int, Path]) -> dict[int, float]:
    """By round that both have: relative distance."""
    return {step: relative(mine[step] - its[step], its[step]) for step in mine.keys() & its.keys()}


def _steps_apart(run: Training, twin: Training, mine: dict[int, Path], its: dict[int, Path]) -> dict[int, float]:
    """By round that both have: how differently the step to it was taken; for the first, how far they start apart."""
    first, second = step_residuals(run, mine), step_residuals(twin, its)
    steps = {k: relative(first[k] - second[k], its[k - 1]) for k in first.keys() & second.keys()}
    return {**{k: off for k, off in _apart(mine, its).items() if k == 0}, **steps}
