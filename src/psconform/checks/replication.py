"""C6: that it does not matter for what is trained who runs the steps, and where."""

from __future__ import annotations

from ..history.model import History
from ..verdict import Verdict, not_judged, unknown, valid, violated
from ..workloads.serial import drift_tolerance
from .convergence import by_round, is_stable, relative, serial_path, training_of
from .witness import MOST

TWICE = 2.0
"""Each of the two runs may be off serial SGD by C1's tolerance, to either side."""


def same_as_between_graph(history: History) -> Verdict:
    """C6: in-graph = between-graph = model-parallel on the same data and seeds, within floating-point tolerance.

    Every read, round by round, must be that of the same worker in a run between-graph, within twice what C1 allows each
    of them: 2 x 5e-7 sqrt(step + 1) of the parameters' norm. Where training itself is unstable the paths of any two
    runs drift apart, and it is unknown; C1 judges single steps there.

    Assumes: float32; a run between-graph with the same layout, samples and seeds, which ``psconform run`` makes first
    and keeps in ``twin/``.
    """
    if history.layout.replication == "between-graph":
        return not_judged("needs --replication in-graph or model-parallel")
    if isinstance(history.twin, str):
        return unknown(f"the same training between-graph, in twin/, {history.twin}")
    run, twin = training_of(history), training_of(history.twin.finite)
    if not is_stable(run, serial_path(run, run.start, history.steps)):
        return unknown("training is unstable, so the paths of any two runs drift apart")
    allowed = TWICE * drift_tolerance(history.steps)
    others = {worker.index: by_round(twin, worker) for worker in twin.history.workers}
    largest, compared, lines, missing = 0.0, 0, list[str](), list[str]()
    for worker in history.workers:
        mine, its = by_round(run, worker), others.get(worker.index, {})
        for step in sorted(mine.keys() & its.keys()):
            off = relative(mine[step] - its[step], its[step])
            largest, compared = max(largest, off), compared + 1
            if off > allowed[step] and len(lines) < MOST:
                lines.append(f"{worker} at step {step} is {off:.2g} off between-graph, allowed {allowed[step]:.2g}")
        missing += [f"{worker} at step {step}" for step in sorted(mine.keys() - its.keys())[:1]]
    stats = {"largest_distance": largest}
    if lines:
        return violated(lines, **stats)
    if history.twin.gaps or missing or not compared:
        lacks = history.twin.incomplete or f"without a read of {', '.join(missing) or 'any worker'}"
        return unknown(f"the same training between-graph, in twin/, is {lacks}", **stats)
    return valid(f"largest distance from between-graph {largest:.2g}, {compared} reads", **stats)
