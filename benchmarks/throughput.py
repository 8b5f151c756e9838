"""How fast the reference trainer is beside raw TensorFlow: steps per second and worker, both measured in one run.

Both train the same linear model on the same layout, side by side and in turns: a segment of steps of the one, a segment
of the other, for several rounds, so that whatever else the machine does hits both. What counts is the ratio of the
medians. Raw sync is SyncReplicasOptimizer, raw async a loop around the train op of a GradientDescentOptimizer; neither
fetches anything. raw+read fetches the parameters in each step as well, as the reference has to: what its workers read
is what psconform judges. CPU time is user and system time of the tasks, the steadier measure where others use the
machine too. The probe is not part of this: see probe_cost.py.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib.metadata import packages_distributions, version
from itertools import product
from pathlib import Path
from typing import Any

from raw.cluster import Cluster, Segment, prepare
from rich.console import Console
from rich.table import Table

SIZES = {"600": 600, "1MB": 1 << 18, "64MB": 1 << 24}
"""Parameters of the whole model, in floats."""
LARGEST = "64MB"
TARGETS = {("sync", "600"): 0.8, ("sync", "1MB"): 0.8, ("async", "600"): 0.75, ("async", "1MB"): 0.75}
"""Least ratio of reference to raw, on the first layout."""
NOTES = """## Where the time goes

A step is one call: the gradient travels to each ps in one tensor, one row travels back, and a tensor that travels costs
more than anything that is computed. Small models are bound by the threads and calls that each tensor needs; there the
reference sends as many as raw TensorFlow. Large ones are bound by moving bytes, and the reference moves twice as many
as raw, which for this model moves gradients only. So raw+read is what to expect of it: it differs by what a step costs
besides. On the worker the reference goes over a gradient once: numpy writes it into aligned memory with the counters
behind it, which TensorFlow takes as it is, and the gradient of the linear loss is that memory; raw feeds it, which is a
copy, and TensorFlow's own gradient of the loss is another pass. In async a ps goes over the parameters once for each
push and copies nothing. In sync it copies each row before it is sent, and the first gradient of a round goes over the
parameters three times; that, beside the bytes of the read, is what is missing at 64 MB. A task of the reference keeps
memory that it has had once (reference_impl/__main__.py), where raw, from 32 MB a tensor, pays for new pages each time.

Whole runs differ as rounds do, by some hundredths of raw."""
SIDES = ("reference", "raw", "raw+read")
HEADS = ("update", "parameters", "layout", "side", "steps/s", "of raw", "in rounds", "CPU, ms", "of it worker", "ps")


@dataclass(frozen=True)
class Result:
    """One configuration: medians over the rounds, and the ratios to raw in each round."""

    update: str
    size: str
    layout: str
    medians: dict[str, Segment]
    ratios: dict[str, list[float]]

    def ratio(self, side: str = "reference") -> float:
        """Ratio of the median rates, side to raw."""
        return self.medians[side].steps_per_s / self.medians["raw"].steps_per_s

    def as_dict(self) -> dict[str, Any]:
        """For machines."""
        medians = {side: {**m._asdict(), "of_raw": self.ratio(side)} for side, m in self.medians.items()}
        return {**asdict(self), "medians": medians}

    def rows(self) -> list[tuple[str, ...]]:
        """A row per side, as in HEADS."""
        rows = []
        for side, m in self.medians.items():
            spread = f"{min(self.ratios[side]):.2f} to {max(self.ratios[side]):.2f}" if side != "raw" else ""
            cpu = (f"{us / 1000:.2f}" for us in (m.cpu_us, m.worker_us, m.ps_us))
            rates = (f"{m.steps_per_s:.1f}", f"{self.ratio(side):.2f}" if side != "raw" else "", spread)
            rows.append((self.update, self.size, self.layout, side, *rates, *cpu))
        return rows


def measure(update: str, size: str, ps: int, workers: int, *, rounds: int, seconds: float) -> Result:
    """All sides in turns; a segment takes about ``seconds`` on the slowest."""
    segments: dict[str, list[Segment]] = {side: [] for side in SIDES}
    with ExitStack() as stack:
        clusters = {}
        for side in SIDES:
            clusters[side] = Cluster(side, ps=ps, workers=workers, update=update, slots=SIZES[size] // ps)
            stack.callback(clusters[side].kill)
            clusters[side].ready()
        # the first steps are slow: memory is touched, and TensorFlow learns which ops are cheap
        count = max(2, int(seconds * min(cluster.train(3).steps_per_s for cluster in clusters.values())))
        count = max(2, int(seconds * min(cluster.train(count).steps_per_s for cluster in clusters.values())))
        for turn in range(rounds):
            for side in SIDES if turn % 2 else reversed(SIDES):
                segments[side].append(clusters[side].train(count))
    medians = {side: Segment(*map(statistics.median, zip(*values, strict=True))) for side, values in segments.items()}
    ratios = {}
    for side, values in segments.items():
        ratios[side] = [ours.steps_per_s / raw.steps_per_s for ours, raw in zip(values, segments["raw"], strict=True)]
    return Result(update, size, f"ps={ps},worker={workers}", medians, ratios)


def table(results: list[Result]) -> Table:
    """For the terminal."""
    shown = Table(*HEADS, box=None)
    for row in (row for result in results for row in result.rows()):
        shown.add_row(*row)
    return shown


def page(results: list[Result], *, rounds: int, loads: list[float]) -> str:
    """docs/throughput.md."""
    about = (__doc__ or "").split("\n\n", 1)[1].strip()
    tensorflow = version(packages_distributions()["tensorflow"][0])  # tensorflow, tensorflow-cpu, ...
    where = f"{os.cpu_count()} cores, Python {platform.python_version()}, TensorFlow {tensorflow}"
    lines = [
        "<!-- written by benchmarks/throughput.py --write docs/throughput.md -->\n",
        f"# Throughput of the reference trainer\n\n{about}\n",
        f"{time.strftime('%Y-%m-%d')}, {where}; {rounds} rounds; load average {loads[0]:.1f} before, {loads[1]:.1f} "
        "after. Times are per step.\n",
        "| " + " | ".join(HEADS) + " |",
        "|" + "---|" * len(HEADS),
        *("| " + " | ".join(row) + " |" for result in results for row in result.rows()),
        *growth(results),
        "\n" + NOTES,
    ]
    return "\n".join(lines) + "\n"


def growth(results: list[Result]) -> list[str]:
    """How the rate changes with the layout: steps/s of the reference, all workers together, and of raw."""
    layouts = list(dict.fromkeys(result.layout for result in results))
    if len(layouts) < 2:
        return []
    lines = ["\n## Growth\n", "Updates per second of all workers together, and the ratio to raw.\n"]
    lines += ["| update | parameters | " + " | ".join(layouts) + " |", "|" + "---|" * (2 + len(layouts))]
    for update, size in dict.fromkeys((result.update, result.size) for result in results):
        found = {r.layout: r for r in results if (r.update, r.size) == (update, size)}
        cells = []
        for layout in layouts:
            workers = int(layout.rpartition("=")[2])
            rate = f"{found[layout].medians['reference'].steps_per_s * workers:.0f}" if layout in found else ""
            cells.append(f"{rate} ({found[layout].ratio():.2f})" if rate else "")
        lines.append(f"| {update} | {size} | " + " | ".join(cells) + " |")
    return lines


def main() -> int:
    """0 if every ratio meets its target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", nargs="+", default=["sync", "async"], choices=["sync", "async"])
    parser.add_argument("--size", nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument(
        "--layout",
        nargs="+",
        default=["1x2"],
        metavar="PSxWORKERS",
        help="as 1x1 1x4 3x2; the largest size only on the first",
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a segment")
    parser.add_argument("--json", action="store_true", help="print results as JSON")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the table as a Markdown page")
    options = parser.parse_args()
    prepare()
    results, loads = [], [os.getloadavg()[0]]
    for layout, size, update in product(options.layout, options.size, options.update):
        if layout != options.layout[0] and size == LARGEST:
            continue  # minutes each
        ps, workers = map(int, layout.split("x"))
        Console(stderr=True).print(f"{update} {size} {layout} ...")
        results.append(measure(update, size, ps, workers, rounds=options.rounds, seconds=options.seconds))
    loads.append(os.getloadavg()[0])
    if options.json:
        sys.stdout.write(json.dumps([r.as_dict() for r in results]) + "\n")
    else:
        Console(width=120).print(table(results))
    if options.write:
        options.write.write_text(page(results, rounds=options.rounds, loads=loads), encoding="utf-8")
    judged = [r for r in results if r.layout == results[0].layout]
    return int(any(r.ratio() < TARGETS.get((r.update, r.size), 0.0) for r in judged))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
