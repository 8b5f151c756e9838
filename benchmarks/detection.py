"""How surely psconform finds bugs, and how rarely it cries wolf: every seeded defect, and the healthy trainer.

``python benchmarks/detection.py`` runs real clusters and prints two tables; ``--write docs/detection.md`` writes them.
``--recovery`` does it for those defects that a kill or a poison shows, and for healthy clusters whose tasks are killed;
``--network`` for those that the network shows, and for healthy clusters whose links are broken as drawn.
It resumes: results are lines of a file, and those of the same code are counted instead of being run again. Exit code 1
if a defect was found in fewer than 19 of 20 runs or anybody was accused for nothing, 2 if runs are missing (--budget,
Ctrl-C), else 0. With ``--share 1/2`` and ``--share 2/2`` two of these fill one store at the same time.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import math
import os
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from detected import LONGEST, NONE, Result, describe, is_right, page, remarks, rows_of, tables
from machine import machine, today, versions
from rich.console import Console

from psconform import judge
from psconform.defect import Defect
from psconform.errors import PsconformError
from psconform.faults.kinds import NETWORK, drawn_kinds, kinds
from psconform.layout import Layout
from psconform.options import Options
from psconform.runner.random_layouts import drawn
from psconform.runner.session import Session
from psconform.targets.reference import DEFECTS

ROOT = Path(__file__).parent.parent
STORE = Path(__file__).parent / ".detection" / "results.jsonl"
RUNS = 20
HEALTHY = {"": 300, "recovery": 200, "network": 100}
"""Runs without a defect in each series: on good days, with kills, with faults of the network."""
NO_INFLUENCE = ("report", "cli.py", "plugin.py", "doctor.py")
"""In src/psconform: what cannot change a verdict."""
_OFTEN: tuple[dict[str, Any], ...] = ({},) * 4 + (
    {"workload": "decayed-ledger"},
    {"workload": "dense-ledger"},
    {"workload": "dense-ledger", "compression": "topk"},
    {"workload": "digits", "model": "softmax"},
    {"workload": "digits", "model": "mlp"},
    {"workload": "quadratic"},
)
KINDS: dict[str, tuple[dict[str, Any], ...]] = {
    "sync": (
        *_OFTEN,
        {"quorum": 1},
        {"layout": "ps=0"},
        {"layout": "ps=0", "local_steps": 2},
        {"replication": "in-graph"},
        {"replication": "model-parallel", "workload": "digits", "model": "mlp"},
    ),
    "async": (*_OFTEN, {"staleness": 2}, {"rate": "staleness-aware"}),
}
"""What the healthy trainer runs, each as often: workloads and modes."""
STEPS = Options.steps
KILLED_STEPS = 40


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run to make: ``defect`` is empty for the healthy trainer."""

    defect: str
    update: str
    seed: int
    options: dict[str, Any]

    @property
    def key(self) -> str:
        """What a result is filed under, besides the code."""
        return key_of(self.defect, self.update, self.seed, self.options)


class RunCase(Protocol):
    """Makes one run, and keeps its folder only if something is wrong with it."""

    def __call__(self, case: Case, *, session: Session, folder: Path) -> Result: ...


def key_of(defect: str, update: str, seed: int, options: dict[str, Any]) -> str:
    """All that makes a run what it is."""
    return json.dumps([defect, update, seed, options], sort_keys=True)


def stamp(root: Path = ROOT) -> str:
    """Hash over the sources that can influence a verdict: results of other code are not counted."""
    digest = hashlib.sha256()
    for top in ("src/psconform", "reference_impl"):
        for path in sorted((root / top).rglob("*.py")):
            place = path.relative_to(root / top)
            if top == "src/psconform" and place.parts[0] in NO_INFLUENCE:
                continue
            digest.update(f"{top}/{place.as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def of_series(series: str) -> list[str]:
    """The defects that are counted in it; one that shows by kills or by the network is in both."""
    shown = {
        "": lambda defect: not (defect.recovers or defect.poison),
        "recovery": lambda defect: bool(defect.kill or defect.poison),
        "network": lambda defect: bool(defect.faults),
    }
    return [name for name, defect in DEFECTS.items() if shown[series](defect)]


def defect_cases(name: str, update: str, runs: int, *, series: str = "") -> list[Case]:
    """Runs of one defect: the default layout and length, or what it needs beyond them."""
    needs = DEFECTS[name]
    layout = needs.layout
    steps = max(STEPS, needs.steps, -(-needs.gradients // Layout.parse(layout).workers))
    shown_by = needs.network_options if series == "network" else needs.options
    options = {"layout": layout, "steps": steps, "reduction": "mean", **shown_by}
    return [Case(defect=name, update=update, seed=seed, options=options) for seed in range(runs)]


def healthy_cases(runs: int) -> list[Case]:
    """Runs of the healthy trainer, each drawn from its own seed: workload, mode, layout, length, read pattern."""
    cases = []
    for seed in range(runs):
        generator = random.Random(f"healthy:{seed}")
        update = ("sync", "async")[seed % 2]
        reduction = generator.choice(("mean", "sum")) if update == "sync" else "mean"
        kind = generator.choice(KINDS[update])
        options = drawn(seed, 0, update=update, steps=LONGEST, needs=NONE, bounded="staleness" in kind)
        workers = Layout.parse(options["layout"]).workers
        if "quorum" in kind:
            kind = {**kind, "quorum": generator.randint(1, workers)}
        if kind.get("layout") == "ps=0":
            kind = {**kind, "layout": f"ps=0,worker={workers}"}
        if "local_steps" in kind:
            kind = {**kind, "local_steps": generator.randint(2, 9)}
            reduction = "mean"
        cases.append(Case(defect="", update=update, seed=seed, options={**options, "reduction": reduction, **kind}))
    return cases


def healthy_recoveries(runs: int) -> list[Case]:
    """Runs of the healthy trainer in which up to two tasks are killed, at a step, or while the chief does something."""
    cases = []
    for seed in range(runs):
        generator = random.Random(f"killed:{seed}")
        update = ("sync", "async")[seed % 2]
        options = drawn(seed, 0, update=update, steps=KILLED_STEPS, needs=Defect("", "", "", workers=2, steps=20))
        kill = []
        for task in generator.sample(Layout.parse(options["layout"]).tasks, generator.randint(1, 2)):
            places = [f"{phase}{generator.randrange(options['steps'])}" for phase in ("", "after-push:")]
            # the chief says these: whoever else dies then dies while it waits for the chief, or the chief for it
            places += ["initialising", "checkpointing"] if task.job == "ps" or task.index == 0 else []
            kill.append(f"{task}@{generator.choice(places)}")
        options |= {"kill": kill, "restart_after": 0.0, "checkpoint_every": generator.randint(3, 15)}
        options |= {"workload": generator.choice(("ledger", "ledger", "digits")), "read_every": 1}
        cases.append(Case(defect="", update=update, seed=seed, options={**options, "reduction": "mean"}))
    return cases


def healthy_networks(runs: int) -> list[Case]:
    """Runs of the healthy trainer in which one to some faults of the network strike, drawn from the seed."""
    faults = "random:" + ",".join(name for name in drawn_kinds() if kinds()[name].of == NETWORK)
    cases = []
    for seed in range(runs):
        generator = random.Random(f"broken:{seed}")
        update = ("sync", "async")[seed % 2]
        options = drawn(seed, 0, update=update, steps=KILLED_STEPS, needs=Defect("", "", "", workers=2, steps=20))
        options |= {"faults": faults, "checkpoint_every": generator.randint(3, 15)}
        options |= {"workload": generator.choice(("ledger", "ledger", "digits")), "read_every": 1}
        cases.append(Case(defect="", update=update, seed=seed, options={**options, "reduction": "mean"}))
    return cases


def load(store: Path, code: str) -> dict[str, Result]:
    """Results of this code so far; a line cut off by a crash is left out, whatever else is wrong is an error."""
    results: dict[str, Result] = {}
    text = store.read_text(encoding="utf-8") if store.exists() else ""
    for line in text.splitlines(keepends=True):
        if line.endswith("\n"):
            result = json.loads(line)
            if result["code"] == code:
                results[key_of(*(result[name] for name in ("defect", "update", "seed", "options")))] = result
    return results


def append(store: Path, result: Result) -> None:
    """One line, in one write, nobody else meanwhile; a line that was cut off before it is removed."""
    store.parent.mkdir(parents=True, exist_ok=True)
    with store.open("ab+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        data = file.read()
        file.truncate(data.rfind(b"\n") + 1)
        file.write(json.dumps(result).encode() + b"\n")


def share(text: str) -> slice:
    """Which of the cases ``K/N`` stands for; raises `argparse.ArgumentTypeError`."""
    first, slash, count = text.partition("/")
    if not (slash and first.isdecimal() and count.isdecimal() and 1 <= int(first) <= int(count)):
        raise argparse.ArgumentTypeError(f"{text!r} is not K/N with K from 1 to N, e.g. 1/2")
    return slice(int(first) - 1, None, int(count))


def run_case(case: Case, *, session: Session, folder: Path) -> Result:
    """One real cluster. The folder of a run that is as it should be is deleted, any other is kept and named."""
    options = {**case.options, "update": case.update, "seed": case.seed, "defect": case.defect}
    result = {"defect": case.defect, "update": case.update, "seed": case.seed, "options": case.options}
    try:
        run = judge(**options, session=session, out=folder)
    except KeyboardInterrupt:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    except PsconformError as error:
        return result | {"error": " ".join(str(error).split()), "folder": str(folder), "statuses": {}, "times_s": {}}
    result["statuses"] = {name: verdict.status for name, verdict in run.verdicts.items()}
    result |= {"times_s": run.as_dict()["times_s"], "repeat": run.repeat, "folder": str(folder)}
    if is_right(result):
        shutil.rmtree(folder, ignore_errors=True)
        result["folder"] = None
    return result


def pending(cases: list[Case], results: dict[str, Result]) -> Iterator[Case]:
    """What has not been run yet, the rows in turn, so that a budget that runs out leaves them all equally long."""
    rows: dict[tuple[str, str], list[Case]] = {}
    for case in cases:
        rows.setdefault((case.defect, case.update), []).append(case)
    longest = max(map(len, rows.values()), default=0)
    for position in range(longest):
        for row in rows.values():
            share = position * len(row) // longest, (position + 1) * len(row) // longest
            yield from (case for case in row[slice(*share)] if case.key not in results)


def measure(
    cases: list[Case],
    *,
    store: Path,
    code: str,
    deadline: float,
    console: Console,
    run: RunCase | None = None,
    right: Callable[[Result], bool] = is_right,
    say: Callable[[Result], str] = describe,
    at_a_time: int = 1,
) -> list[Result]:
    """Run what is missing until the deadline or Ctrl-C; returns the results of these cases.

    Args:
        cases: what to run.
        store: file of results.
        code: hash of the code that they are of.
        deadline: of time.monotonic(): no run is started after it.
        console: for progress.
        run: makes one run, by default `run_case`.
        right: a result is as it should be; any other is told at once.
        say: one line about a result.
        at_a_time: how many of these run at the same time; kept with the results, for the times are of a busy machine.
    """
    results = load(store, code)
    todo = list(pending(cases, results))
    console.print(f"{len(cases)} runs, {len(cases) - len(todo)} of them in {store} (code {code})")
    base = store.parent / "runs"
    try:
        with Session() as session:
            for number, case in enumerate(todo, start=1):
                if time.monotonic() > deadline:
                    console.print("the budget is spent")
                    break
                folder = base / f"{case.defect or 'healthy'}-{case.update}-{case.seed}-{os.urandom(2).hex()}"
                result = (run or run_case)(case, session=session, folder=folder)
                result |= {"code": code, "date": today(), "at_a_time": at_a_time}
                append(store, result)
                results[case.key] = result
                if not right(result) or number % 20 == 0:
                    console.print(f"{number} of {len(todo)}: {say(result)}")
    except KeyboardInterrupt:
        console.print("interrupted; what has finished is stored")
    return [results[case.key] for case in cases if case.key in results]


def where(results: list[Result]) -> str:
    """What the results are of: machine, versions, day, code, and how many ran at the same time."""
    at_once = max((result.get("at_a_time", 1) for result in results), default=1)
    busy = f", {at_once} clusters at a time" if at_once > 1 else ""
    return f"{machine()}{busy}; {versions()}; {today()}; code {stamp()}."


def main(arguments: list[str] | None = None) -> int:
    """Measure what is missing, print the tables; 0 if all is well."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=RUNS, help=f"runs of each defect and mode (default {RUNS})")
    series = parser.add_mutually_exclusive_group()
    for name, about in (("recovery", "defects that a kill or a poison shows"), ("network", "that the network shows")):
        series.add_argument(f"--{name}", dest="series", action="store_const", const=name, default="", help=about)
    usual = ", ".join(f"{number} {f'with --{name}' if name else ''}".strip() for name, number in HEALTHY.items())
    parser.add_argument("--healthy", type=int, default=None, help=f"runs without defect (default {usual})")
    parser.add_argument("--only", metavar="DEFECT", choices=DEFECTS, help="this defect, and no healthy runs")
    parser.add_argument("--budget", type=float, default=math.inf, metavar="SECONDS", help="start no run after so long")
    parser.add_argument("--store", type=Path, default=STORE, help="file of results")
    parser.add_argument("--share", type=share, metavar="K/N", default=slice(None), help="every N-th, from the K-th on")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the page, e.g. docs/detection.md")
    options = parser.parse_args(arguments)
    if options.healthy is None:
        options.healthy = HEALTHY[options.series]
    if options.runs < 0 or options.healthy < 0:
        parser.error("--runs and --healthy must not be negative")
    if options.write and options.share.step:
        parser.error("--write is for all of them: without --share")
    series, names = options.series, [options.only] if options.only else of_series(options.series)
    cases = [
        case
        for name in names
        for update in DEFECTS[name].updates
        for case in defect_cases(name, update, options.runs, series=series)
    ]
    healthy = {"": healthy_cases, "recovery": healthy_recoveries, "network": healthy_networks}[series]
    cases += [] if options.only else healthy(options.healthy)
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    cases = cases[options.share]
    results = measure(
        cases,
        store=options.store,
        code=stamp(),
        deadline=time.monotonic() + options.budget,
        console=console,
        at_a_time=options.share.step or 1,
    )
    rows = rows_of(results)
    sys.stdout.write(tables(rows) + "\n" + "".join(f"* {line}\n" for line in remarks(rows, asked=len(cases))))
    if options.write:
        given = f"--{series} " if series else ""
        given += f"--runs {options.runs} --healthy {options.healthy}"
        given += f" --only {options.only}" if options.only else ""
        command = f"python benchmarks/detection.py {given} --write {options.write}"
        text = page(rows, asked=len(cases), where=where(results), command=command, series=series)
        options.write.write_text(text, encoding="utf-8")
    return 1 if any(row.bad for row in rows) else 2 if len(results) < len(cases) else 0


if __name__ == "__main__":
    sys.exit(main())
