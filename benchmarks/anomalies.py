"""How surely anomalies are reported, and how rarely for nothing: every detector with its cause, and healthy runs.

``python benchmarks/anomalies.py`` runs real clusters and prints two tables; ``--write docs/anomalies.md`` writes them.
It resumes as detection.py does. Exit code 1 if a cause was reported in fewer than 19 of 20 runs or anything was
reported of a healthy run, 2 if runs are missing (--budget, Ctrl-C), else 0.
"""

from __future__ import annotations

import argparse
import math
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detected import LEAST, LONGEST, Result, lower_bound, upper_bound
from detection import Case, healthy_cases, measure, share, stamp, where
from machine import paragraph
from rich.console import Console

from psconform import judge
from psconform.errors import PsconformError
from psconform.runner.session import Session

STORE = Path(__file__).parent / ".anomalies" / "results.jsonl"
RUNS, HEALTHY = 20, 200


@dataclass(frozen=True, kw_only=True)
class Cause:
    """What makes a detector report, and which task it must name (empty: any worker).

    ``also`` are kinds that the same options may bring about, and that are no mistake.
    """

    kind: str
    task: str
    options: dict[str, Any]
    updates: tuple[str, ...] = ("sync", "async")
    also: tuple[str, ...] = ()

    @property
    def spelled(self) -> str:
        """As options of ``psconform run``."""
        words = ((name.replace("_", "-"), value) for name, value in self.options.items())
        return " ".join(f"--{name} {value}" for name, value in words)


CAUSES: dict[str, Cause] = {
    "stop": Cause(
        kind="stalled",
        task="worker:1",
        # the other one takes 275 steps meanwhile, at 10 ms or more each
        options={"layout": "ps=1,worker=2", "steps": 300, "slow": "worker:0=10ms", "stop": "worker:1@20..295"},
        updates=("async",),
        also=("straggler",),
    ),
    "slow": Cause(kind="straggler", task="worker:1", options={"steps": 60, "slow": "worker:1=50ms"}),
    "learning rate": Cause(
        kind="diverging",
        task="",
        options={"steps": 40, "workload": "quadratic", "learning_rate": 3.0},
        also=("non-finite",),  # in async, where staleness makes it grow faster
    ),
    "poison": Cause(kind="non-finite", task="worker:1", options={"steps": 40, "poison": "worker:1@20"}),
}


def cause_cases(runs: int) -> list[Case]:
    """Runs of every cause in its modes, with the seeds 0, 1, ...; ``defect`` is the cause's name."""
    return [
        Case(defect=name, update=update, seed=seed, options=cause.options)
        for name, cause in CAUSES.items()
        for update in cause.updates
        for seed in range(runs)
    ]


def run_case(case: Case, *, session: Session, folder: Path) -> Result:
    """One real cluster; its folder is kept if something was reported that should not, or not what should."""
    result = {"defect": case.defect, "update": case.update, "seed": case.seed, "options": case.options}
    try:
        run = judge(**case.options, update=case.update, seed=case.seed, session=session, out=folder)
    except KeyboardInterrupt:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    except PsconformError as error:
        return result | {"error": " ".join(str(error).split()), "folder": str(folder), "anomalies": [], "times_s": {}}
    reported = [[anomaly.kind, anomaly.task, str(anomaly)] for anomaly in run.anomalies]
    result |= {"anomalies": reported, "times_s": run.as_dict()["times_s"], "repeat": run.repeat, "folder": str(folder)}
    if is_right(result):
        shutil.rmtree(folder, ignore_errors=True)
        result["folder"] = None
    return result


def found(result: Result) -> bool:
    """The detector meant for the cause has named the task."""
    cause = CAUSES[result["defect"]]
    return any(kind == cause.kind and cause.task in ("", task) for kind, task, _ in result["anomalies"])


def besides(result: Result) -> list[str]:
    """What was reported and is not of the cause; of a healthy run all that was."""
    cause = CAUSES.get(result["defect"])
    return [text for kind, _, text in result["anomalies"] if cause is None or kind not in (cause.kind, *cause.also)]


def is_right(result: Result) -> bool:
    """Reported, or healthy and silent."""
    return "error" not in result and not besides(result) and (not result["defect"] or found(result))


def describe(result: Result) -> str:
    """One line about one run."""
    text = result.get("error") or "; ".join(text for _, _, text in result["anomalies"]) or "silent"
    kept = f" ({result['folder']})" if result["folder"] else ""
    return f"{result['defect'] or 'healthy'} {result['update']} seed {result['seed']}: {text}{kept}"


def tables(results: list[Result]) -> str:
    """Both tables, in Markdown."""
    lines = ["| cause | mode | anomaly | reported | rate at least (95 %) | something else reported |"]
    lines += ["|---|---|---|---:|---:|---:|"]
    for name, cause in CAUSES.items():
        for update in cause.updates:
            mine = [r for r in results if (r["defect"], r["update"]) == (name, update)]
            if mine:
                hits, runs, other = sum(map(found, mine)), len(mine), sum(bool(besides(r)) for r in mine)
                what = f"{cause.kind}, {cause.task or 'any worker'}"
                bound = f"{lower_bound(hits, runs):.1%}"
                lines.append(f"| `{cause.spelled}` | {update} | {what} | {hits} of {runs} | {bound} | {other} |")
    lines += [
        "",
        "| healthy trainer | runs | something reported | false alarms at most (95 %) |",
        "|---|---:|---:|---:|",
    ]
    healthy = [result for result in results if not result["defect"]]
    for update in ("sync", "async", "both modes") if healthy else ():
        mine = [result for result in healthy if update in ("both modes", result["update"])]
        alarms = sum(bool(besides(result)) for result in mine)
        bound = f"{upper_bound(alarms, len(mine)):.1%}" if mine else "-"
        lines.append(f"| {update} | {len(mine)} | {alarms} | {bound} |")
    return "\n".join(lines)


def is_bad(results: list[Result]) -> bool:
    """A cause was reported too rarely, or something of a healthy run."""
    for name, cause in CAUSES.items():
        for update in cause.updates:
            mine = [r for r in results if (r["defect"], r["update"]) == (name, update)]
            if sum(map(found, mine)) < LEAST * len(mine):
                return True
    return any(besides(result) for result in results if not result["defect"])


def page(results: list[Result], *, remarks: list[str], where: str, command: str) -> str:
    """docs/anomalies.md."""
    lines = ["<!-- written by benchmarks/anomalies.py --write -->\n", "# How surely anomalies are reported\n"]
    lines.append(
        paragraph(
            "`psconform run` reports NaN and Inf, stalled tasks, stragglers and diverging loss, with the task and",
            f"since when. This page counts how often, on {len(results)} real TensorFlow clusters of the reference",
            "trainer: *reported* means the right anomaly of the right task. The healthy runs are drawn as those of",
            f"[detection](detection.md), 2 to {LONGEST} steps in all modes; in them every detector must be silent.",
            "Bounds are one-sided and exact (Clopper and Pearson).",
        )
    )
    lines += [tables(results), ""]
    if remarks:
        lines += ["To be looked at:\n", *(f"* {line}" for line in remarks), ""]
    lines += [paragraph(where), "```sh", command, "```"]
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Measure what is missing, print the tables; 0 if all is well."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=RUNS, help=f"runs of each cause and mode (default {RUNS})")
    parser.add_argument("--healthy", type=int, default=HEALTHY, help=f"healthy runs (default {HEALTHY})")
    parser.add_argument("--budget", type=float, default=math.inf, metavar="SECONDS", help="start no run after so long")
    parser.add_argument("--store", type=Path, default=STORE, help="file of results")
    parser.add_argument("--share", type=share, metavar="K/N", default=slice(None), help="every N-th, from the K-th on")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the page, e.g. docs/anomalies.md")
    options = parser.parse_args(arguments)
    if options.runs < 0 or options.healthy < 0:
        parser.error("--runs and --healthy must not be negative")
    if options.write and options.share.step:
        parser.error("--write is for all of them: without --share")
    cases = [*cause_cases(options.runs), *healthy_cases(options.healthy)][options.share]
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    results = measure(
        cases,
        store=options.store,
        code=stamp(),
        deadline=time.monotonic() + options.budget,
        console=console,
        run=run_case,
        right=is_right,
        say=describe,
        at_a_time=options.share.step or 1,
    )
    remarks = [describe(result) for result in results if not is_right(result)]
    remarks += [f"incomplete: {len(results)} of {len(cases)} runs"] if len(results) < len(cases) else []
    sys.stdout.write(tables(results) + "\n" + "".join(f"* {line}\n" for line in remarks))
    if options.write:
        command = f"python benchmarks/anomalies.py --runs {options.runs} --healthy {options.healthy}"
        text = page(results, remarks=remarks, where=where(results), command=f"{command} --write {options.write}")
        options.write.write_text(text, encoding="utf-8")
    return 1 if is_bad(results) else 2 if len(results) < len(cases) else 0


if __name__ == "__main__":
    sys.exit(main())
