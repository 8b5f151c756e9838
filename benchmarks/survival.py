"""Whether the reference trainer survives drawn fault plans: 500 of them, over its modes; 100 in containers.

``python benchmarks/survival.py`` runs real clusters and prints a table; ``--write docs/survival.md`` writes it;
``--launcher docker`` runs them in containers, with what only those have among the faults. It
resumes where it stopped, as detection.py does. Exit code 1 if a guarantee was violated or more than one run in a
hundred was undecided, 2 if runs are missing (--budget, Ctrl-C), else 0.
"""

from __future__ import annotations

import argparse
import math
import random
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from detected import Result, upper_bound
from detection import Case, measure, run_case, share, stamp, where
from machine import paragraph
from rich.console import Console

from psconform.launchers.launcher import DOCKER, LAUNCHERS, PROCESS

STORE = Path(__file__).parent / ".detection" / "survival.jsonl"
RUNS, STEPS = 500, 40
IN_CONTAINERS = 100
UNDECIDED = 0.01
MODES: dict[str, dict[str, Any]] = {
    "sync": {"update": "sync"},
    "sync, sum": {"update": "sync", "reduction": "sum"},
    "sync, digits": {"update": "sync", "workload": "digits"},
    "sync, digits, adam": {"update": "sync", "workload": "digits", "optimizer": "adam"},
    "async": {"update": "async"},
    "async, staleness 3": {"update": "async", "staleness": 3},
    "async, staleness-aware rate": {"update": "async", "rate": "staleness-aware"},
    "async, digits": {"update": "async", "workload": "digits"},
    "sync, drop after 500ms": {"update": "sync", "drop_after": "500ms"},
    "async, drop after 500ms": {"update": "async", "drop_after": "500ms"},
}


def cases_of(runs: int, *, launcher: str = PROCESS) -> list[Case]:
    """Each drawn from its own seed: mode, layout, how often there is a checkpoint; and the plan, by psconform."""
    cases = []
    for seed in range(runs):
        generator = random.Random(f"survival:{seed}")
        mode = list(MODES)[seed % len(MODES)]
        options = {key: value for key, value in MODES[mode].items() if key != "update"}
        options |= {"layout": f"ps={generator.randint(1, 3)},worker={generator.randint(2, 3)}", "steps": STEPS}
        options |= {"faults": "random", "checkpoint_every": generator.randint(3, 15)}
        options |= {"launcher": launcher} if launcher != PROCESS else {}
        cases.append(Case(defect="", update=str(MODES[mode]["update"]), seed=seed, options=options))
    return cases


def mode_of(result: Result) -> str:
    """The name of its mode."""
    return list(MODES)[int(result["seed"]) % len(MODES)]


def ended(result: Result) -> str:
    """``violated``, ``undecided`` or ``survived``."""
    statuses = set(result["statuses"].values())
    if "violated" in statuses:
        return "violated"
    return "undecided" if "unknown" in statuses or "error" in result else "survived"


def describe(result: Result) -> str:
    """One line about one run."""
    names = [name for name, status in result["statuses"].items() if status == "violated"]
    text = result.get("error") or f"{ended(result)} {', '.join(names)}".strip()
    kept = f" ({result['folder']})" if result["folder"] else ""
    return f"{mode_of(result)} seed {result['seed']}: {text}{kept}"


def table(results: list[Result]) -> str:
    """A row for each mode, and one for all, in Markdown."""
    lines = ["| mode | runs | survived | violated | undecided | violated at most (95 %) |"]
    lines += ["|---|---:|---:|---:|---:|---:|"]
    for name in (*MODES, "all modes"):
        mine = Counter(ended(result) for result in results if name in (mode_of(result), "all modes"))
        if runs := mine.total():
            bound = f"{upper_bound(mine['violated'], runs):.1%}"
            counts = " | ".join(str(mine[status]) for status in ("survived", "violated", "undecided"))
            lines.append(f"| {name} | {runs} | {counts} | {bound} |")
    return "\n".join(lines)


def page(results: list[Result], *, asked: int, command: str, launcher: str = PROCESS) -> str:
    """docs/survival.md, or docs/survival-containers.md."""
    where_else = "" if launcher == PROCESS else ", of packets and of containers"
    minutes = sum(result["times_s"].get("ended", 0.0) for result in results) / 60
    about = paragraph(
        f"Five faults or more of processes and of the network{where_else}, drawn from the seed (`--faults random`,",
        "all kinds), strike the reference trainer while it trains; the layout (1 to 3 ps, 2 or 3 workers) and the",
        "interval of checkpoints are drawn, too. *Violated*: a guarantee did not hold, hangs among them. *Undecided*:",
        "nothing can be said, mostly because a fault was not seen to touch anything. The bound is one-sided and exact",
        "(Clopper and",
        f"Pearson). The clusters ran for {minutes:.0f} minutes in all.",
    )
    title = "# What the reference trainer survives" + ("" if launcher == PROCESS else " in containers")
    lines = ["<!-- written by benchmarks/survival.py --write -->\n", f"{title}\n"]
    lines += [about, table(results), ""]
    noted = [describe(result) for result in results if ended(result) != "survived"]
    noted = [line.partition(" (/")[0] for line in noted]  # where the folders lie is of no use to others
    noted += [f"incomplete: {len(results)} of {asked} runs"] if len(results) < asked else []
    lines += ["To be looked at:\n", *(f"* {line}" for line in noted), ""] if noted else []
    return "\n".join([*lines, paragraph(where(results)), "```sh", command, "```"]) + "\n"


def in_shares(options: argparse.Namespace) -> None:
    """Make the runs in several processes at the same time, each a share of them, into the same store."""
    same = (f"--{name}={getattr(options, name)}" for name in ("runs", "launcher", "budget", "store"))
    command = [sys.executable, __file__, *same]
    shares = [
        subprocess.Popen([*command, "--share", f"{first}/{options.at_once}"], stdout=subprocess.DEVNULL)
        for first in range(1, options.at_once + 1)
    ]
    for process in shares:
        with suppress(KeyboardInterrupt):  # they get it, too, and have stored what has finished
            process.wait()


def main(arguments: list[str] | None = None) -> int:
    """Run what is missing, print the table; 0 if all is well."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, help=f"drawn plans (default {RUNS}, in containers {IN_CONTAINERS})")
    parser.add_argument("--launcher", choices=LAUNCHERS, default=PROCESS, help=f"where tasks run (default {PROCESS})")
    parser.add_argument("--budget", type=float, default=math.inf, metavar="MIN", help="start no run after so long")
    parser.add_argument("--store", type=Path, default=STORE, help="file of results")
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="runs at the same time (default 1)")
    parser.add_argument("--share", type=share, metavar="K/N", default=slice(None), help="every N-th, from the K-th on")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the page, e.g. docs/survival.md")
    options = parser.parse_args(arguments)
    options.runs = (IN_CONTAINERS if options.launcher == DOCKER else RUNS) if options.runs is None else options.runs
    if options.runs < 1:
        parser.error("--runs must be at least 1")
    if options.at_once < 1:
        parser.error("--at-once must be at least 1")
    if options.at_once > 1 and options.share.step:
        parser.error("--at-once makes shares itself: without --share")
    if options.write and options.share.step:
        parser.error("--write is for all of them: without --share")
    cases = cases_of(options.runs, launcher=options.launcher)[options.share]
    if options.at_once > 1:
        in_shares(options)
    results = measure(
        cases,
        store=options.store,
        code=stamp(),
        deadline=time.monotonic() + 60 * options.budget,
        console=Console(stderr=True, highlight=False, markup=False, soft_wrap=True),
        run=run_case,
        right=lambda result: ended(result) == "survived",
        say=describe,
        at_a_time=options.share.step or options.at_once,
    )
    sys.stdout.write(table(results) + "\n")
    if options.write:
        launched = "" if options.launcher == PROCESS else f" --launcher {options.launcher}"
        command = f"python benchmarks/survival.py --runs {options.runs}{launched} --write {options.write}"
        text = page(results, asked=len(cases), command=command, launcher=options.launcher)
        options.write.write_text(text, encoding="utf-8")
    counts = Counter(map(ended, results))
    if counts["violated"] or counts["undecided"] > UNDECIDED * len(results):
        return 1
    return 2 if len(results) < len(cases) else 0


if __name__ == "__main__":
    sys.exit(main())
