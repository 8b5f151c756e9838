"""C6: that it does not matter for what is trained who runs the steps, and where."""

from __future__ import annotations

from ..history.model import History
from ..probe import MODEL
from ..verdict import Verdict, not_judged, unknown, valid, violated
from ..workloads.serial import STEP_ERROR, drift_tolerance
from .path import Path, Training, by_round, is_stable, relative, serial_path, step_residuals, training_of
from .registry import SYNC, check
from .witness import MOST

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
    if lacks := history.twin.incomplete or _missing(pairs):
        return unknown(f"the same training between-graph, in twin/, is {lacks}")
    if not stable and not largest <= TWICE * STEP_ERROR:  # who knows what roundings grow to
        return unknown(f"{said}, within {TWICE * STEP_ERROR:.0g} it would be valid", largest_distance=largest)
    return valid(f"{said}, {sum(len(mine) for mine, _ in pairs.values())} reads", largest_distance=largest)


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
