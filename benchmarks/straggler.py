"""What one slow worker costs: sync against async, without and with ``--slow worker:1=50ms``, on real clusters.

``python benchmarks/straggler.py`` prints the table; ``--write`` also writes docs/straggler.md and docs/straggler.svg
(needs matplotlib).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from machine import machine, paragraph, today, versions
from rich.console import Console
from rich.table import Table

from psconform import judge
from psconform.runner.session import Session

DOCS = Path(__file__).parent.parent / "docs"
LAYOUTS = ("ps=1,worker=4", "ps=2,worker=3")
UPDATES = ("sync", "async")
STRAGGLER, SECONDS, SPELLED = "worker:1", 0.05, "worker:1=50ms"
STEPS, RUNS = 100, 5
COLOURS = ("#0072B2", "#E69F00")
"""Blue and orange of Okabe and Ito: told apart with any colour vision, and in grey."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One set-up: medians over its runs. ``straggler_ms`` is worker:1, slowed or not."""

    layout: str
    update: str
    slow: bool
    straggler_ms: float
    others_ms: float
    updates_per_s: float

    @property
    def command(self) -> str:
        """The first of its runs."""
        text = f"psconform run --layout {self.layout} --update {self.update} --steps {STEPS}"
        return text + (f" --slow {SPELLED}" if self.slow else "")


def measure(layout: str, update: str, *, slow: bool, runs: int, session: Session, out: Path) -> Row:
    """Run one set-up ``runs`` times; SystemExit if a run is not valid."""
    straggler, others, rates = [], [], []
    for seed in range(runs):
        folder = out / f"{layout}-{update}-{slow}-{seed}"
        slowed = {STRAGGLER: SECONDS} if slow else {}
        run = judge(layout=layout, update=update, steps=STEPS, seed=seed, slow=slowed, session=session, out=folder)
        if not run.valid:
            raise SystemExit(run.explain())
        timing = run.as_dict()["timing"]
        times = {worker["task"]: worker["median_ms"] for worker in timing["workers"]}
        straggler.append(times.pop(STRAGGLER))
        others.append(statistics.median(times.values()))
        rates.append(timing["updates_per_s"])
    return Row(
        layout=layout,
        update=update,
        slow=slow,
        straggler_ms=statistics.median(straggler),
        others_ms=statistics.median(others),
        updates_per_s=statistics.median(rates),
    )


def page(rows: list[Row], *, where: str, runs: int) -> str:
    """docs/straggler.md."""
    lines = ["<!-- written by benchmarks/straggler.py --write -->\n", "# One slow worker\n"]
    lines.append(
        paragraph(
            "A synchronous round takes at least as long as its slowest worker (guarantee S6 of the catalogue);",
            f"asynchronous training goes on without it. To see both, {STRAGGLER} sleeps 50 ms before each gradient",
            f"(`--slow {SPELLED}`), in clusters of the reference trainer on one machine.",
            "All runs were judged valid: a straggler slows training, and breaks no promise.",
        )
    )
    lines.append("![Step time and throughput, with and without a straggler](straggler.svg)\n")
    lines += ["| layout | update | straggler | step of worker:1, ms | step of the others, ms | updates/s, all |"]
    lines += ["|---|---|---|---:|---:|---:|"]
    for row in rows:
        who = f"{STRAGGLER}, 50 ms" if row.slow else "none"
        figures = f"{row.straggler_ms:.1f} | {row.others_ms:.1f} | {row.updates_per_s:.0f}"
        lines.append(f"| {row.layout} | {row.update} | {who} | {figures} |")
    lines += ["", "## What it means\n", *(f"* {line}" for line in findings(rows)), ""]
    lines.append("## How it was measured\n")
    lines.append(
        paragraph(
            f"Medians of {runs} runs (seeds 0 to {runs - 1}) of {STEPS} steps each, in one warm session; a step is the",
            "time between two acknowledgements of one worker, updates/s the sum of the workers' own rates. The figures",
            "are those that every run prints under its verdicts, and `timing` in verdicts.json.",
        )
    )
    lines += [paragraph(where), "```sh", *(row.command for row in rows), ""]
    lines += ["python benchmarks/straggler.py --write", "```"]
    return "\n".join(lines) + "\n"


def findings(rows: list[Row]) -> list[str]:
    """What the table says, in words; SystemExit if it does not say it."""
    lines = []
    for layout in LAYOUTS:
        by = {(row.update, row.slow): row for row in rows if row.layout == layout}
        sync, free = by["sync", True], by["async", True]
        if sync.others_ms < SECONDS * 1e3 or free.others_ms > SECONDS * 1e3 / 2:
            raise SystemExit(f"{layout}: others' steps of {sync.others_ms} ms (sync), {free.others_ms} ms (async)?")
        calm, busy = by["sync", False], by["async", False]
        lines.append(
            f"{layout}, sync: everybody waits. The others' step goes from {calm.others_ms:.1f} to "
            f"{sync.others_ms:.1f} ms, throughput to {sync.updates_per_s / calm.updates_per_s:.0%} of what it was."
        )
        lines.append(
            f"{layout}, async: only {STRAGGLER} is slow. The others' step goes from {busy.others_ms:.1f} to "
            f"{free.others_ms:.1f} ms, throughput to {free.updates_per_s / busy.updates_per_s:.0%} of what it was."
        )
    lines.append("All tasks share the cores of one machine: a worker that sleeps leaves its share to the others.")
    return lines


def draw(rows: list[Row], path: Path) -> None:
    """docs/straggler.svg: bars by set-up, without and with the straggler."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    matplotlib.rcParams["svg.hashsalt"] = "psconform"  # the same figures give the same file
    groups = [(layout, update) for layout in LAYOUTS for update in UPDATES]
    figure, panels = pyplot.subplots(1, 2, figsize=(11, 4.2))
    wanted = (("others_ms", "step of the other workers, ms (median)"), ("updates_per_s", "updates/s, all workers"))
    for axes, (name, title) in zip(panels, wanted, strict=True):
        for shift, slow in ((-0.2, False), (0.2, True)):
            by = {(row.layout, row.update): getattr(row, name) for row in rows if row.slow is slow}
            label = f"{STRAGGLER} sleeps 50 ms a step" if slow else "no straggler"
            places = [index + shift for index in range(len(groups))]
            bars = axes.bar(
                places,
                [by[group] for group in groups],
                0.38,
                label=label,
                color=COLOURS[slow],
                hatch="//" if slow else "",
                edgecolor="white",
            )
            axes.bar_label(bars, fmt="%.1f" if name == "others_ms" else "%.0f", padding=2, fontsize=9)
        axes.set_xticks(range(len(groups)), [f"{update}\n{layout}" for layout, update in groups], fontsize=9)
        axes.set_title(title, fontsize=11)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(y=0.12)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=2, frameon=False)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def show(rows: list[Row]) -> None:
    """The table on standard output."""
    table = Table("layout", "update", "straggler", "worker:1, ms", "others, ms", "updates/s", box=None)
    for row in rows:
        figures = (f"{row.straggler_ms:.1f}", f"{row.others_ms:.1f}", f"{row.updates_per_s:.0f}")
        table.add_row(row.layout, row.update, SPELLED if row.slow else "none", *figures)
    Console().print(table)


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=RUNS, help=f"runs of each set-up (default {RUNS})")
    parser.add_argument("--write", action="store_true", help="write docs/straggler.md and docs/straggler.svg")
    options: Any = parser.parse_args(arguments)
    where = f"{machine()}; {versions()}; {today()}."
    with tempfile.TemporaryDirectory(prefix="psconform-") as folder, Session() as session:
        rows = [
            measure(layout, update, slow=slow, runs=options.runs, session=session, out=Path(folder))
            for layout in LAYOUTS
            for update in UPDATES
            for slow in (False, True)
        ]
    show(rows)
    text = page(rows, where=where, runs=options.runs)
    if options.write:
        draw(rows, DOCS / "straggler.svg")
        (DOCS / "straggler.md").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
