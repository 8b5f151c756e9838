"""How many pushes the model simulates in a second, without a record and without judging.

    python benchmarks/model_speed.py

A push is a gradient that a worker sends to one ps, with its answer and the read that follows. Each process simulates a
run of its own; with one process, and with one for each CPU. docs/model.md has the figures.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from psconform.simulation.cluster import Cluster
from psconform.simulation.schedule import Schedule

WORKERS, STEPS, TIMES = 4, 2500, 3


def simulated(mode: str) -> int:
    """Simulate a run; how many pushes there were."""
    Cluster(Schedule(mode=mode, workers=WORKERS, steps=STEPS, compute_s=0.0)).run()
    return WORKERS * STEPS


def per_second(mode: str, processes: int) -> float:
    """The best of some tries; the first one warms up."""
    with ProcessPoolExecutor(processes) as pool:
        return max(_once(pool, [mode] * processes) for _ in range(TIMES + 1))


def _once(pool: ProcessPoolExecutor, modes: Sequence[str]) -> float:
    began = time.perf_counter()
    pushes = sum(pool.map(simulated, modes))
    return pushes / (time.perf_counter() - began)


def main() -> None:
    """Print a table."""
    cpus = os.cpu_count() or 1
    lines = [f"| mode | 1 process | {cpus} processes |", "|---|---:|---:|"]
    for mode in ("sync", "async"):
        one, all_of_them = per_second(mode, 1), per_second(mode, cpus)
        lines.append(f"| {mode} | {one:,.0f} | {all_of_them:,.0f} |")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
