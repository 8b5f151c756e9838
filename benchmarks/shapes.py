"""How surely the bugs of the example trainers are found, and that they are valid without: docs/shapes.md, many seeds.

``python benchmarks/shapes.py`` runs every example of docs/shapes.md as a reader would, with a seed, and prints two
tables; ``--write docs/shapes-detection.md`` writes them, a name (``gang``) leaves out the others. It runs as many
commands at a time as there are CPUs. Exit code 1 if an example without a bug was not valid, if a bug was found in fewer
than 19 of 20 runs, or if a guarantee was violated that docs/shapes.md does not name for it; else 0.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from detected import LEAST, lower_bound, upper_bound
from machine import machine, paragraph, today, versions
from rich.console import Console

from psconform.errors import PsconformError
from psconform.runner.verdicts import judge_folder

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "shapes.md"
LINE = re.compile(r"^(?:BUG=(?P<bug>[\w-]+) )?psconform run (?P<words>[^#\n]*?) *(?:# (?P<violated>[\w ]+))?$", re.M)
LONGEST_S = 600
RUNS, HEALTHY = 20, 10


@dataclass(frozen=True)
class Example:
    """A command of docs/shapes.md: the arguments of ``psconform run``, a bug or none, and what it violates."""

    words: str
    bug: str
    violated: tuple[str, ...]

    @property
    def name(self) -> str:
        """The folder of the trainer, or ``reference`` with its options."""
        target, _, options = self.words.partition(" ")
        return Path(target).parent.name or options

    def run(self, folder: Path, *more: str) -> Outcome:
        """Run it into this folder, with more arguments."""
        words = [sys.executable, "-m", "psconform", "run", *shlex.split(self.words), "--out", str(folder), *more]
        environment = {**os.environ, "BUG": self.bug}
        try:
            done = subprocess.run(
                words, check=False, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LONGEST_S
            )
            judged = judge_folder(folder)
        except subprocess.TimeoutExpired:
            return Outcome(self, (), False, f"not done after {LONGEST_S} s")
        except PsconformError as error:
            return Outcome(self, (), False, f"{error}\n{done.stderr}")
        return Outcome(self, tuple(judged.names("violated")), done.returncode == 0, done.stdout)


@dataclass(frozen=True)
class Outcome:
    """What came of one run: the guarantees that are violated, whether it is valid, and what psconform said."""

    example: Example
    violated: tuple[str, ...]
    valid: bool
    text: str

    @property
    def found(self) -> bool:
        """A guarantee that the bug breaks is violated."""
        return bool({*self.violated} & {*self.example.violated})

    @property
    def besides(self) -> bool:
        """A guarantee is violated that the bug does not break."""
        return bool({*self.violated} - {*self.example.violated})

    @property
    def right(self) -> bool:
        """Found, and nothing else accused; or valid."""
        return not self.besides and (self.found if self.example.bug else self.valid)


def examples(page: str) -> list[Example]:
    """Those of a page."""
    return [
        Example(found["words"], found["bug"] or "", tuple((found["violated"] or "").split()))
        for found in LINE.finditer(page)
    ]


def measure(wanted: Iterable[tuple[Example, int]], console: Console) -> list[Outcome]:
    """Run each of these with its seed; a run that is not as it should be is shown at once."""

    def one(job: tuple[Example, int]) -> Outcome:
        example, seed = job
        with tempfile.TemporaryDirectory(prefix="psconform-shapes-") as scratch:
            outcome = example.run(Path(scratch) / "run", "--seed", str(seed))
        if not outcome.right:
            bug = f"BUG={example.bug} " if example.bug else ""
            verdict = "valid" if outcome.valid else f"violated: {' '.join(outcome.violated) or 'nothing'}"
            console.print(f"{bug}psconform run {example.words} --seed {seed}: {verdict}", soft_wrap=True, markup=False)
            console.print(outcome.text, markup=False)
        return outcome

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(one, wanted))


def tables(outcomes: list[Outcome]) -> str:
    """Both tables, in Markdown."""
    by_example: dict[Example, list[Outcome]] = {}
    for outcome in outcomes:
        by_example.setdefault(outcome.example, []).append(outcome)
    lines = ["| trainer | bug | violates | found | rate at least (95 %) | something else violated |"]
    lines += ["|---|---|---|---:|---:|---:|"]
    for example, runs in ((example, runs) for example, runs in by_example.items() if example.bug):
        hits, besides = sum(run.found for run in runs), sum(run.besides for run in runs)
        figures = f"{hits} of {len(runs)} | {lower_bound(hits, len(runs)):.1%} | {besides}"
        lines.append(f"| {example.name} | `{example.bug}` | {', '.join(example.violated)} | {figures} |")
    lines += [
        "",
        "| healthy trainer | runs | valid | violated | false alarms at most (95 %) |",
        "|---|---:|---:|---:|---:|",
    ]
    healthy = [("`" + example.words + "`", runs) for example, runs in by_example.items() if not example.bug]
    healthy += [("all", [run for _, runs in healthy for run in runs])] if healthy else []
    for name, runs in healthy:
        alarms = sum(bool(run.violated) for run in runs)
        figures = f"{len(runs)} | {sum(run.valid for run in runs)} | {alarms} | {upper_bound(alarms, len(runs)):.1%}"
        lines.append(f"| {name} | {figures} |")
    return "\n".join(lines)


def bad(outcomes: list[Outcome]) -> bool:
    """A healthy run is not valid, something else is violated, or a bug is found too rarely."""
    by_bug: dict[Example, list[bool]] = {}
    for outcome in (outcome for outcome in outcomes if outcome.example.bug):
        by_bug.setdefault(outcome.example, []).append(outcome.found)
    missed = any(sum(found) < LEAST * len(found) for found in by_bug.values())
    return missed or any(outcome.besides or not (outcome.example.bug or outcome.valid) for outcome in outcomes)


def main(arguments: list[str] | None = None) -> int:
    """Run all, print the tables; 0 if all is well."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="trainers (default: all)")
    parser.add_argument("--runs", type=int, default=RUNS, help=f"seeds of each bug (default {RUNS})")
    parser.add_argument("--healthy", type=int, default=HEALTHY, help=f"of each healthy example (default {HEALTHY})")
    parser.add_argument("--write", type=Path, help="write the tables into this file")
    given = parser.parse_args(arguments)
    known = examples(PAGE.read_text(encoding="utf-8"))
    if unknown := {*given.names} - {example.name for example in known}:
        parser.error(f"no example is called {', '.join(sorted(unknown))}")
    chosen = [example for example in known if not given.names or example.name in given.names]
    wanted = [(example, seed) for example in chosen for seed in range(given.runs if example.bug else given.healthy)]
    before = machine()
    console = Console()
    console.print(f"{len(wanted)} runs")
    outcomes = measure(wanted, console)
    console.print(tables(outcomes), soft_wrap=True, markup=False)
    if given.write:
        given.write.write_text(page(outcomes, where=f"{before}; {versions()}; {today()}"), encoding="utf-8")
    return int(bad(outcomes))


def page(outcomes: list[Outcome], *, where: str) -> str:
    """The file in docs/."""
    about = paragraph(
        "Each example of [shapes](shapes.md), with the seeds 0, 1, 2 and so on.",
        "*Found*: one of the guarantees that the bug breaks is violated.",
        "Bounds are one-sided and exact (Clopper and Pearson).",
    )
    command = "```sh\npython benchmarks/shapes.py --write docs/shapes-detection.md\n```\n"
    head = "<!-- written by benchmarks/shapes.py --write -->\n\n# How surely bugs of the example trainers are found\n\n"
    return f"{head}{about}\n{tables(outcomes)}\n\n{paragraph(where + '.')}\n{command}"


if __name__ == "__main__":
    sys.exit(main())
