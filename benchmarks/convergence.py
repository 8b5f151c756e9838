"""How near training on a cluster comes to serial training (C1, C2), on real clusters and the digits.

``python benchmarks/convergence.py`` prints four tables: sync against serial SGD step by step, async against serial by
the equivalence test, the same test on a planted convergence bug, and what the textbooks' mitigations do to the excess
of async. ``--write`` also writes docs/convergence.md. Exit code 1 if one of the first three is not as it should be.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from machine import machine, paragraph, today, versions
from rich.console import Console
from rich.table import Table

from psconform import judge
from psconform.api import Run
from psconform.options import MODELS
from psconform.runner.session import Session
from psconform.workloads.equivalence import ACCURACY, Equivalence

DOCS = Path(__file__).parent.parent / "docs"
STEPS = 200
ASYNC = "ps=2,worker=4"
PLANTED: dict[str, Any] = {"model": "mlp", "delay": 50, "learning_rate": 0.5}
"""Every gradient is 50 steps old, at a large learning rate."""
MITIGATED: dict[str, Any] = {"model": "mlp", "delay": 3}
"""About as stale as 16 workers: 3 steps of 4 workers, and what 4 workers are by themselves."""
BY_RATE = tuple((rate, 16) for rate in (0.8, 0.4, 0.2, 0.1))
BY_BATCH = tuple((0.025 * batch, batch) for batch in (32, 16, 8, 4))
BATCH_ALONE = tuple((0.2, batch) for batch in (32, 16, 8, 4))


@dataclass(frozen=True)
class Section:
    """One table of the page."""

    title: str
    text: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    good: bool = True


@dataclass
class Bench:
    """Runs clusters, and says which."""

    session: Session
    out: Path
    console: Console
    made: int = 0

    def run(self, **options: Any) -> Run:
        """One digits run; SystemExit if a guarantee did not hold."""
        self.made += 1
        self.console.print(f"{self.made}: {options}")
        options = {"workload": "digits", "steps": STEPS, **options}
        run = judge("reference", session=self.session, out=self.out / f"{self.made:04}", **options)
        if not run.valid:
            raise SystemExit(run.explain())
        return run

    def reached(self, seeds: int, **options: Any) -> list[dict[str, float]]:
        """What the runs of several seeds reached, and serial training beside them."""
        runs = [self.run(update="async", layout=ASYNC, seed=seed, **options) for seed in range(seeds)]
        return [run.as_dict()["training"] for run in runs]


def sync(bench: Bench) -> Section:
    """C1 over models and layouts; one with ps=0 exchanges gradients by all-reduce."""
    rows, worst = [], 0.0
    for model, ps, workers in product(MODELS, (1, 2, 3, 0), (1, 2, 3, 4)):
        run = bench.run(model=model, layout=f"ps={ps},worker={workers}", seed=workers)
        stats = run.verdicts["C1"].stats
        worst = max(worst, stats["largest_deviation"])
        off, step = (f"{stats[name]:.1e}" for name in ("largest_deviation", "largest_step_error"))
        rows.append((model, str(ps) if ps else "all-reduce", str(workers), off, step, run.verdicts["C1"].status))
    text = (
        f"Largest relative distance of any read from serial SGD on the union batch in float64, over {STEPS} steps, and "
        "of a single step from where the run itself stood. Allowed are 5e-7 x sqrt(step + 1), which is "
        f"{5e-7 * (STEPS + 1) ** 0.5:.1e} in the end, and 1e-6 for a step. Largest of all: {worst:.1e}."
    )
    return Section("C1: sync is serial SGD", text, ("model", "ps", "workers", "whole path", "one step", "C1"), (*rows,))


def equivalence(bench: Bench, seeds: int) -> Section:
    """C2: healthy async training, by the test."""
    rows, good = [], True
    for model in MODELS:
        found = bench.reached(seeds, model=model)
        result = ACCURACY.judge([run["accuracy"] - run["serial_accuracy"] for run in found])
        good &= result.outcome == "equivalent"
        rows.append((model, *_accuracies(found), *_result(result)))
    text = (
        f"{ASYNC}, {STEPS} steps, learning rate 0.1, batches of 16: accuracy on the 450 test digits, asynchronous less "
        f"serial with as many updates, paired by seed. Two one-sided t tests, {seeds} pairs, margin "
        f"{ACCURACY.margin} (9 digits), level 0.05 each: equivalent if the 90 % interval lies inside the margin."
    )
    return Section("C2: async reaches the same accuracy", text, _COLUMNS, (*rows,), good)


def planted(bench: Bench, seeds: int) -> Section:
    """C2: a convergence bug, by the same test."""
    found = bench.reached(seeds, **PLANTED)
    result = ACCURACY.judge([run["accuracy"] - run["serial_accuracy"] for run in found])
    options = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in PLANTED.items())
    text = (
        "The same test where every gradient is taken at the parameters of 50 steps ago, at a large learning rate. "
        f"`psconform run --workload digits --update async --layout {ASYNC} {options} --repeat {seeds}` shows it; it "
        "exits with 1."
    )
    rows = (("mlp", *_accuracies(found), *_result(result)),)
    return Section("A planted bug is rejected", text, _COLUMNS, rows, result.outcome == "different")


def mitigations(bench: Bench, seeds: int) -> Iterator[Section]:
    """The excess of the training loss over serial, by learning rate and batch."""
    columns = ("learning rate", "batch", "excess, median", "least", "most")
    for title, settings in (
        ("A smaller learning rate shrinks the excess of async", BY_RATE),
        ("So does a smaller batch, with the learning rate in proportion", BY_BATCH),
        ("A smaller batch alone", BATCH_ALONE),
    ):
        rows = []
        for rate, batch in settings:
            found = bench.reached(seeds, learning_rate=rate, batch=batch, **MITIGATED)
            excess = sorted(run["loss"] - run["serial_loss"] for run in found)
            middle = statistics.median(excess)
            rows.append((f"{rate:g}", str(batch), *(f"{value:.3g}" for value in (middle, excess[0], excess[-1]))))
        text = (
            f"Training loss reached, less that of serial training with as many updates (nats), {seeds} seeds; mlp, "
            f"{ASYNC}, {STEPS} steps, --delay {MITIGATED['delay']}."
        )
        if settings is BATCH_ALONE:
            text += (
                " At one and the same learning rate more noise is not less staleness: whether this helps depends on "
                "the learning rate, so of the two mitigations the batch counts with the rate in proportion."
            )
        yield Section(title, text, columns, (*rows,))


_COLUMNS = ("model", "async accuracy", "serial", "difference", "90 % interval", "p", "result")


def _accuracies(found: list[dict[str, float]]) -> tuple[str, str]:
    mine, serial = (statistics.fmean(run[name] for run in found) for name in ("accuracy", "serial_accuracy"))
    return f"{mine:.4f}", f"{serial:.4f}"


def _result(result: Equivalence) -> tuple[str, ...]:
    interval = f"{result.low:+.4f} to {result.high:+.4f}"
    return f"{result.mean:+.4f}", interval, f"{result.p:.1g}", result.outcome


def page(sections: list[Section], *, where: str) -> str:
    """docs/convergence.md."""
    lines = ["<!-- written by benchmarks/convergence.py --write -->\n", "# How near to serial training\n"]
    lines.append(paragraph("Handwritten digits on real clusters of the reference trainer.", where))
    for section in sections:
        lines += [f"## {section.title}\n", paragraph(section.text)]
        lines += ["| " + " | ".join(section.columns) + " |", "|" + "---|" * len(section.columns)]
        lines += ["| " + " | ".join(row) + " |" for row in section.rows] + [""]
    return "\n".join(lines)


def show(section: Section, console: Console) -> None:
    """The same on a terminal."""
    table = Table(*section.columns, title=section.title)
    for row in section.rows:
        table.add_row(*row)
    console.print(table)


def main() -> int:
    """Measure, print, and write the page if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write docs/convergence.md")
    parser.add_argument("--seeds", type=int, default=ACCURACY.n, help=f"of the mitigations (default: {ACCURACY.n})")
    options = parser.parse_args()
    console, where = Console(), f"{today()}, {machine()}; {versions()}."
    with tempfile.TemporaryDirectory(prefix="psconform-convergence-") as folder, Session() as session:
        bench = Bench(session, Path(folder), Console(stderr=True))
        sections = [sync(bench), equivalence(bench, ACCURACY.n), planted(bench, ACCURACY.n)]
        sections += mitigations(bench, options.seeds)
    for section in sections:
        show(section, console)
    if options.write:
        (DOCS / "convergence.md").write_text(page(sections, where=where), encoding="utf-8")
    return 0 if all(section.good for section in sections) else 1


if __name__ == "__main__":
    sys.exit(main())
