"""Whether containers say what processes say: the same seed with ``--launcher process`` and with ``--launcher docker``.

``python benchmarks/launchers.py`` runs the healthy trainer on three workloads and every seeded defect in each of its
modes, once each way, and compares the verdicts; ``--write docs/launchers.md`` writes the page. It resumes where it
stopped, as detection.py does. Exit code 1 if a defect was not found or somebody was accused for nothing, either way; 2
if runs are missing (--budget, Ctrl-C), else 0. Needs an engine and the images (`psconform images build`).
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from detected import Result, accused, describe, found, unknown, violated
from detection import Case, defect_cases, measure, of_series, share, stamp, where
from machine import paragraph
from rich.console import Console

from psconform.launchers.launcher import DOCKER, LAUNCHERS, PROCESS
from psconform.options import UPDATES
from psconform.targets.reference import DEFECTS

STORE = Path(__file__).parent / ".detection" / "launchers.jsonl"
WORKLOADS = ("ledger", "decayed-ledger", "digits")
SEEDS = 3
"""Of each healthy workload in each mode."""
STEPS = 60


def cases_of(seeds: int) -> list[Case]:
    """Everything twice, one after the other, so that a budget that runs out leaves pairs."""
    healthy = [
        Case(defect="", update=update, seed=seed, options={"workload": workload, "steps": STEPS, "reduction": "mean"})
        for workload in WORKLOADS
        for update in UPDATES
        for seed in range(seeds)
    ]
    series = {name: "" if name in of_series("") else "recovery" for name in DEFECTS}
    series |= {name: "network" for name in DEFECTS if DEFECTS[name].faults and not DEFECTS[name].kill}
    broken = [
        case
        for name, defect in DEFECTS.items()
        for update in defect.updates
        for case in defect_cases(name, update, 1, series=series[name])
    ]
    return [
        Case(defect=case.defect, update=case.update, seed=case.seed, options={**case.options, "launcher": launcher})
        for case in (*healthy, *broken)
        for launcher in LAUNCHERS
    ]


@dataclass(frozen=True)
class Pair:
    """The same run in processes and in containers."""

    process: Result
    docker: Result

    @property
    def kind(self) -> str:
        """The row that it counts in."""
        return "seeded defects" if self.process["defect"] else f"healthy, {self.process['options']['workload']}"

    @property
    def agree(self) -> bool:
        """Both say of the defect what is to be said, or of the healthy trainer that it is; nobody else is accused."""
        both = (self.process, self.docker)
        if any(accused(result) or unknown(result) for result in both):
            return False
        return not self.process["defect"] or all(map(found, both))

    @property
    def same(self) -> bool:
        """The same guarantees are judged, and each has the same verdict."""
        return bool(self.process["statuses"] == self.docker["statuses"])

    @property
    def line(self) -> str:
        """Where they differ."""
        names = sorted({*self.process["statuses"], *self.docker["statuses"]})
        said = [
            tuple(result["statuses"].get(name, "not judged") for result in (self.process, self.docker))
            for name in names
        ]
        parts = [
            f"{name} {ours} and {theirs}" for name, (ours, theirs) in zip(names, said, strict=True) if ours != theirs
        ]
        whose = f"{self.process['defect'] or 'healthy'} {self.process['update']} seed {self.process['seed']}"
        errors = [result["error"] for result in (self.process, self.docker) if "error" in result]
        return f"{whose}: {', '.join(parts + errors) or ', '.join(sorted(violated(self.process)))}"


def pairs_of(results: Iterable[Result]) -> list[Pair]:
    """Those that have been run both ways."""
    found_by: dict[tuple[str, str, int, str], dict[str, Result]] = {}
    for result in results:
        options = {**result["options"]}
        launcher = options.pop("launcher")
        found_by.setdefault((result["defect"], result["update"], result["seed"], str(options)), {})[launcher] = result
    return [Pair(each[PROCESS], each[DOCKER]) for each in found_by.values() if len(each) == len(LAUNCHERS)]


def table(pairs: list[Pair]) -> str:
    """A row for each kind, in Markdown."""
    lines = [
        "| trainer | pairs | both as they should be | the same verdict on every guarantee |",
        "|---|---:|---:|---:|",
    ]
    for kind in dict.fromkeys(pair.kind for pair in pairs):
        mine = [pair for pair in pairs if pair.kind == kind]
        lines.append(f"| {kind} | {len(mine)} | {sum(p.agree for p in mine)} | {sum(p.same for p in mine)} |")
    return "\n".join(lines)


def page(pairs: list[Pair], results: list[Result], *, asked: int, command: str) -> str:
    """docs/launchers.md."""
    about = paragraph(
        "Every run here was made twice, with the same seed: with a process for each task, and with a container for",
        "each (`--launcher docker`). *As they should be*: the healthy trainer is valid; of a",
        "[seeded defect](checks.md#seeded-defects) the check meant for it says violated, and none says so whose",
        "guarantee it does not break. A bug that breaks several guarantees need not break all of them in every run:",
        "which gradient it hits, and when, is up to the race that it is.",
    )
    lines = ["<!-- written by benchmarks/launchers.py --write -->\n", "# Containers say what processes say\n", about]
    lines += [table(pairs), ""]
    wrong, other = ([pair.line for pair in pairs if test(pair)] for test in (_wrong, _other))
    lines += ["To be looked at:\n", *(f"* {line}" for line in wrong), ""] if wrong else []
    lines += ["Not the same in processes and in containers:\n", *(f"* {line}" for line in other), ""] if other else []
    lines += [f"incomplete: {len(results)} of {asked} runs\n"] if len(results) < asked else []
    return "\n".join([*lines, paragraph(where(results)), "```sh", command, "```"]) + "\n"


def _wrong(pair: Pair) -> bool:
    return not pair.agree


def _other(pair: Pair) -> bool:
    return pair.agree and not pair.same


def main(arguments: list[str] | None = None) -> int:
    """Run what is missing, print the table; 0 if all is well."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"of each healthy workload and mode (default {SEEDS})")
    parser.add_argument("--budget", type=float, default=math.inf, metavar="MIN", help="start no run after so long")
    parser.add_argument("--store", type=Path, default=STORE, help="file of results")
    parser.add_argument("--share", type=share, metavar="K/N", default=slice(None), help="every N-th, from the K-th on")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the page, e.g. docs/launchers.md")
    options = parser.parse_args(arguments)
    if options.seeds < 1:
        parser.error("--seeds must be at least 1")
    if options.write and options.share.step:
        parser.error("--write is for all of them: without --share")
    cases = cases_of(options.seeds)[options.share]
    results = measure(
        cases,
        store=options.store,
        code=stamp(),
        deadline=time.monotonic() + 60 * options.budget,
        console=Console(stderr=True, highlight=False, markup=False, soft_wrap=True),
        say=lambda result: f"{result['options']['launcher']}: {describe(result)}",
        at_a_time=options.share.step or 1,
    )
    pairs = pairs_of(results)
    listed = [pair.line for pair in pairs if not pair.agree or not pair.same]
    sys.stdout.write(table(pairs) + "\n" + "".join(f"* {line}\n" for line in listed))
    if options.write:
        command = f"python benchmarks/launchers.py --seeds {options.seeds} --write {options.write}"
        options.write.write_text(page(pairs, results, asked=len(cases), command=command), encoding="utf-8")
    return 1 if any(map(_wrong, pairs)) else 2 if len(results) < len(cases) else 0


if __name__ == "__main__":
    sys.exit(main())
