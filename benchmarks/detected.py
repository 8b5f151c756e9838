"""Results of benchmarks/detection.py: what one says, what many say together, and the page in docs/."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from machine import paragraph

from psconform.defect import Defect
from psconform.layout import NAMED, Layout
from psconform.options import Options
from psconform.targets.reference import DEFECTS

STEPS = Options.steps
LONGEST = 60
"""The most steps of a healthy run; one with a defect has the usual number."""
LEAST = 19 / 20
MOST_S = 20.0
"""A cluster that takes longer than this is reported."""
CONFIDENCE = 0.95
NONE = Defect("", "", "")

Result = dict[str, Any]
"""One line of the store."""


def lower_bound(found: int, runs: int, *, confidence: float = CONFIDENCE) -> float:
    """The smallest rate that is compatible with ``found`` of ``runs``: one-sided, exact (Clopper and Pearson)."""
    if not 0 <= found <= runs:
        raise ValueError(f"{found} of {runs}")
    if found == 0:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(60):  # the chance of so many or more grows with the rate
        middle = (low + high) / 2
        chance = sum(_binomial(k, runs, middle) for k in range(found, runs + 1))
        low, high = (low, middle) if chance > 1 - confidence else (middle, high)
    return low


def upper_bound(found: int, runs: int, *, confidence: float = CONFIDENCE) -> float:
    """The largest rate that is compatible with ``found`` of ``runs``; for 0 of n it is 1 - (1 - confidence)^(1/n)."""
    return 1.0 - lower_bound(runs - found, runs, confidence=confidence)


def _binomial(k: int, n: int, rate: float) -> float:
    """The chance of k of n, by logarithms: the coefficients of a thousand runs do not fit a float."""
    ways = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return math.exp(ways + k * math.log(rate) + (n - k) * math.log1p(-rate))


def violated(result: Result) -> set[str]:
    """The checks that say so."""
    return {name for name, status in result["statuses"].items() if status == "violated"}


def unknown(result: Result) -> bool:
    """Nothing was violated and something undecided, or the run could not be made."""
    return "error" in result or (not violated(result) and "unknown" in result["statuses"].values())


def found(result: Result) -> bool:
    """The check meant for the defect has found it."""
    return DEFECTS[result["defect"]].meant_in(result["update"]) in violated(result)


def accused(result: Result) -> set[str]:
    """Checks violated that the trainer of this run does not break."""
    defect = DEFECTS.get(result["defect"], NONE)
    return violated(result) - defect.concerns


def is_right(result: Result) -> bool:
    """Found and nobody else accused; or healthy, and valid."""
    return not accused(result) and not unknown(result) and (not result["defect"] or found(result))


@dataclass(frozen=True)
class Results:
    """All results of one defect in one mode, or of the healthy trainer."""

    defect: str
    update: str
    results: tuple[Result, ...]

    def count(self, condition: Callable[[Result], object]) -> int:
        """How many results are so."""
        return sum(bool(condition(result)) for result in self.results)


@dataclass(frozen=True)
class Row(Results):
    """What the table of them says."""

    @property
    def seconds(self) -> list[float]:
        """Cluster time of each run."""
        return [result["times_s"]["ended"] for result in self.results if result["times_s"]]

    @property
    def bad(self) -> bool:
        """Too many missed, or somebody accused for nothing."""
        missed = bool(self.defect) and self.count(found) < LEAST * len(self.results)
        return missed or self.count(accused) > 0


def rows_of(results: Iterable[Result]) -> list[Row]:
    """One row per defect and mode, in the order of the registry, the healthy trainer last, sync first."""
    everything = list(results)
    places = [(name, update) for name, defect in DEFECTS.items() for update in defect.updates]
    rows = []
    for name, update in [*places, ("", "sync"), ("", "async")]:
        mine = tuple(r for r in everything if (r["defect"], r["update"]) == (name, update))
        rows += [Row(name, update, mine)] if mine else []
    return rows


def tables(rows: list[Row]) -> str:
    """Both tables, in Markdown."""
    lines = ["| defect | mode | check | found | rate at least (95 %) | accused otherwise | cluster, s (median) |"]
    lines += ["|---|---|---|---:|---:|---:|---:|"]
    for row in (row for row in rows if row.defect):
        hits, runs = row.count(found), len(row.results)
        figures = f"{hits} of {runs} | {lower_bound(hits, runs):.1%} | {row.count(accused)} | {_median(row.seconds)}"
        lines.append(f"| `{row.defect}` | {row.update} | {DEFECTS[row.defect].meant_in(row.update)} | {figures} |")
    lines += ["", "| healthy trainer | runs | violated | false alarms at most (95 %) | unknown | cluster, s (median) |"]
    lines += ["|---|---:|---:|---:|---:|---:|"]
    healthy = [row for row in rows if not row.defect]
    together = Row("", "both modes", tuple(result for row in healthy for result in row.results))
    for row in [*healthy, together] if healthy else []:
        runs, alarms = len(row.results), row.count(violated)
        figures = f"{runs} | {alarms} | {upper_bound(alarms, runs):.1%} | {row.count(unknown)} | {_median(row.seconds)}"
        lines.append(f"| {row.update} | {figures} |")
    return "\n".join(lines)


def remarks(rows: list[Row], *, asked: int) -> list[str]:
    """What has to be looked at: each run that is not as it should be, slow clusters, and what has not been run yet."""
    lines = [describe(result) for row in rows for result in row.results if not is_right(result)]
    seconds = [second for row in rows for second in row.seconds]
    slow = sum(second > MOST_S for second in seconds)
    if slow:
        lines.append(f"{slow} clusters took longer than {MOST_S:.0f} s, the slowest {max(seconds):.1f} s")
    done = sum(len(row.results) for row in rows)
    return lines + ([f"incomplete: {done} of {asked} runs"] if done < asked else [])


def page(rows: list[Row], *, asked: int, where: str, command: str, series: str = "") -> str:
    """docs/detection.md, docs/detection-recovery.md or docs/detection-network.md."""
    total = sum(len(row.results) for row in rows)
    slowest = max((second for row in rows for second in row.seconds), default=0.0)
    kind = {"": "", "recovery": " of recovery", "network": " that only the network shows"}[series]
    title = f"# How surely bugs{kind} are found"
    lines = ["<!-- written by benchmarks/detection.py --write -->\n", f"{title}\n"]
    lines.append(
        paragraph(
            "A verdict is worth what its errors are rare: bugs that are missed, and healthy trainers that are accused.",
            f"This page counts both on {total} real TensorFlow clusters of the reference trainer, with and without its",
            f"[seeded defects](checks.md#seeded-defects){kind}.",
            ""
            if series
            else "Those that take a fault are counted with `--recovery` and `--network`, in tables of their own.",
        )
    )
    lines.append(
        paragraph(
            "*Found* means that the check meant for the defect says violated; *accused otherwise* counts runs in which",
            "a check says so whose guarantee the defect does not break (must be 0).",
            {"": _of_good_days, "recovery": _of_recoveries, "network": _of_networks}[series](rows),
            "Bounds are one-sided and exact (Clopper and Pearson); for 0 of n, 1 - 0.05^(1/n).",
        )
    )
    lines += [tables(rows), ""]
    lines.append(f"The slowest cluster took {slowest:.1f} s from the start of its first task to the end of its last.\n")
    if noted := remarks(rows, asked=asked):
        lines += ["To be looked at:\n", *(f"* {line}" for line in noted), ""]
    lines += [paragraph(where), "```sh", command, "```"]
    return "\n".join(lines) + "\n"


def _of_good_days(rows: list[Row]) -> str:
    return (
        f"Defects run on {Layout.parse(NAMED['default']).text} for {STEPS} steps, or what they need beyond it, with "
        "the seeds 0, 1, ..., which decide what is struck. The healthy trainer runs on drawn layouts (1 to 3 ps, 1 to "
        f"4 workers), 2 to {LONGEST} steps, reductions, 1 to 3 reads before a gradient and, in async, reads every 1 to "
        f"5 steps, on drawn workloads and in drawn modes: {_kinds(rows)}."
    )


def _of_recoveries(rows: list[Row]) -> str:
    struck = [task for row in rows if not row.defect for result in row.results for task in result["options"]["kill"]]
    kinds = Counter("the chief" if task.startswith("worker:0@") else task.partition(":")[0] for task in struck)
    several = sum(len(result["options"]["kill"]) > 1 for row in rows if not row.defect for result in row.results)
    counts = ", ".join(f"{kind} {count} times" for kind, count in kinds.most_common()) or "none"
    return (
        f"Defects run on {Layout.parse(NAMED['default']).text} for {STEPS} steps and are shown by a fault "
        "([which](checks.md#seeded-defects)). The healthy trainer runs on drawn layouts (1 to 3 ps, 2 to 4 workers), "
        f"at most 40 steps, a checkpoint every 3 to 15, workloads {_kinds(rows)}; one task or two ({several} times) "
        f"are killed, at a drawn step, before a push or after its answer, or while the chief initialises or writes a "
        f"checkpoint, and started again at once: {counts}."
    )


def _of_networks(rows: list[Row]) -> str:
    return (
        f"Defects run on {Layout.parse(NAMED['default']).text} for {STEPS} steps and are shown by faults of the "
        "network ([which](checks.md#seeded-defects)). The healthy trainer runs on drawn layouts (1 to 3 ps, 2 to 4 "
        f"workers), at most 40 steps, a checkpoint every 3 to 15, workloads {_kinds(rows)}, with faults of the "
        "network that are drawn from the seed (`--faults random:...`)."
    )


def _kinds(rows: list[Row]) -> str:
    """What the healthy runs were, with how many of each."""
    kinds = Counter(_kind(result["options"]) for row in rows if not row.defect for result in row.results)
    return ", ".join(f"{kind} {count}" for kind, count in kinds.most_common()) or "none"


def _kind(options: dict[str, Any]) -> str:
    words = [options.get("workload", "ledger"), options.get("compression", ""), options.get("replication", "")]
    words += [name for name in ("quorum", "staleness", "rate", "local_steps") if name in options]
    words += ["all-reduce"] if options["layout"].startswith("ps=0") else []
    return " ".join(filter(None, words)).replace("_", " ")


def _median(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.2f}" if seconds else "-"


def describe(result: Result) -> str:
    """One line about one run."""
    words = {"violated": sorted(violated(result)), "accused for nothing": sorted(accused(result))}
    text = "; ".join(f"{word} {', '.join(names)}" for word, names in words.items() if names)
    counts = Counter(result["statuses"].values())
    text = result.get("error") or text or ", ".join(f"{count} {status}" for status, count in counts.items())
    kept = f" ({result['folder']})" if result["folder"] else ""
    return f"{result['defect'] or 'healthy'} {result['update']} seed {result['seed']}: {text}{kept}"
