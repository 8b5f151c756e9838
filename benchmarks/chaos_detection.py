"""How soon drawn fault plans find bugs, and how small they become: every seeded defect that takes a fault to show.

``python benchmarks/chaos_detection.py`` gives each defect 20 tries of 20 s of cluster time, in turn in each update mode
that it has. A try runs
one cluster after another, each with a plan drawn from the next seed (``--faults random``, all kinds), until a guarantee
is violated. What the first try finds is run again (`psconform replay`), and then shrunk. The healthy trainer gets as
many tries, in which nothing may be violated.

It resumes, as detection.py does. Exit code 1 if a defect was found in fewer than 19 of 20 tries, a plan could not be
shrunk to three faults, fewer than 95 % of what was replayed came back, or the healthy trainer was accused; 2 if tries
are missing (--budget, Ctrl-C), else 0.
"""

from __future__ import annotations

import argparse
import math
import re
import shutil
import statistics
import sys
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from detected import LEAST, Result, Results, lower_bound
from detection import Case, measure, share, stamp, where
from machine import paragraph
from rich.console import Console

from psconform import judge
from psconform.errors import PsconformError
from psconform.faults.kinds import drawn_kinds
from psconform.layout import Layout
from psconform.options import UPDATES
from psconform.runner.replay import Fails, stored_plan
from psconform.runner.session import Session
from psconform.runner.shrink import as_it_was, shrink
from psconform.runner.verdicts import judge_folder
from psconform.targets.reference import DEFECTS

STORE = Path(__file__).parent / ".detection" / "chaos.jsonl"
TRIES, WITHIN_S, MOST_FAULTS = 20, 20.0, 3
PATIENCE_S = 6.0
"""A hang is noticed after so long; whatever takes longer than this to go on again is none in 20 s."""
STEPS, CHECKPOINT_EVERY = 60, 10
LEAST_PS, LEAST_WORKERS = 1, 2
"""A small cluster is started soon; a defect that takes a larger one gets it."""
KIND = re.compile(r'kind = "([^"]+)"')
SEEDS = 1000
"""Seeds of one try: more than it has clusters."""
REPLAYED, SHRUNK = 2, 1
"""So many tries of each row are replayed, and shrunk."""
COME_BACK = 0.95


def cases_of(name: str, tries: int) -> list[Case]:
    """The tries of one defect, or of the healthy trainer (""): what it needs besides faults, for the usual length."""
    updates = DEFECTS[name].updates if name else UPDATES
    options: dict[str, Any] = {"checkpoint_every": CHECKPOINT_EVERY, "steps": STEPS}
    if name:
        defect = DEFECTS[name]
        layout = Layout(ps=max(LEAST_PS, defect.ps), workers=max(LEAST_WORKERS, defect.workers)).text
        options |= {**defect.beside, "layout": layout, "steps": max(STEPS, defect.steps)}
    options |= {"faults": "random", "patience_s": PATIENCE_S, "reduction": "mean"}
    modes = [updates[number % len(updates)] for number in range(tries)]
    return [Case(defect=name, update=update, seed=number, options=options) for number, update in enumerate(modes)]


def first_to_last(cases: list[Case]) -> list[Case]:
    """A try of every defect, then the next of every; the first tries, which take longest (`shrunk`), at the end."""
    return sorted(cases, key=lambda case: -case.seed)


def run_try(case: Case, *, session: Session, folder: Path, replays: int = REPLAYED, shrinks: int = SHRUNK) -> Result:
    """Clusters until a guarantee is violated or the time is over; the folders of a try that is wrong are kept."""
    result: Result = {"defect": case.defect, "update": case.update, "seed": case.seed, "options": case.options}
    result |= {
        "violated": [],
        "seconds": 0.0,
        "clusters": 0,
        "undecided": 0,
        "faults": None,
        "shrunk": None,
        "replayed": None,
    }
    result |= {"statuses": {}, "times_s": {}, "folder": None}
    seconds = 0.0
    while seconds < WITHIN_S:
        place = folder / f"{result['clusters']:02}"
        options = {**case.options, "update": case.update, "defect": case.defect}
        try:
            run = judge(**options, seed=case.seed * SEEDS + result["clusters"], session=session, out=place)
        except KeyboardInterrupt:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        except PsconformError as error:
            return result | {"error": " ".join(str(error).split()), "folder": str(place)}
        content = run.as_dict()
        seconds += content["times_s"]["ended"]
        result |= {"clusters": result["clusters"] + 1, "seconds": round(seconds, 2)}
        result["undecided"] += run.exit_code == 2
        if run.exit_code == 1:
            result |= {"violated": sorted(run.violated), "faults": len(content["faults"]), "repeat": run.repeat}
            if case.defect and case.seed < replays:
                result["replayed"] = replayed(place, session=session, scratch=folder / "replay")
            if case.defect and case.seed < shrinks:
                result["shrunk"] = shrunk(place, session=session, scratch=folder / "shrink")
            break
        shutil.rmtree(place)
    if is_right(result):
        shutil.rmtree(folder, ignore_errors=True)
        return result
    return result | {"folder": str(folder)}


def replayed(folder: Path, *, session: Session, scratch: Path) -> bool:
    """Whether the verdict of a run comes back when its plan is run once more."""
    plan = stored_plan(folder, out=scratch)
    return Fails(judge_folder(folder), session, scratch, plan.patience_s)(plan).failed


def shrunk(folder: Path, *, session: Session, scratch: Path) -> int:
    """How many faults are left of the plan of a run, as `psconform shrink` has it; all, if it fails too rarely."""
    plan = stored_plan(folder, out=scratch)
    fails = Fails(judge_folder(folder), session, scratch, plan.patience_s)
    first = as_it_was(plan, fails, k=2, n=None)
    return len((shrink(first, fails, k=2, n=None, tell=lambda _: None) if first.taken else plan).faults)


def found(result: Result) -> bool:
    """A guarantee was violated in time."""
    return bool(result["violated"]) and result["seconds"] <= WITHIN_S


def beyond(result: Result) -> set[str]:
    """Guarantees violated that the defect is not said to break; of the healthy trainer all of them."""
    return set(result["violated"]) - (DEFECTS[result["defect"]].concerns if result["defect"] else set())


def is_right(result: Result) -> bool:
    """Found, small and for a reason; or healthy, and nothing violated."""
    if "error" in result or beyond(result) or result["replayed"] is False:
        return False
    return not result["defect"] or (found(result) and (result["shrunk"] or 0) <= MOST_FAULTS)


def describe(result: Result) -> str:
    """One line about one try."""
    text = result.get("error") or (", ".join(result["violated"]) or "nothing violated")
    text += f" after {result['seconds']:.1f} s, {result['clusters']} clusters"
    text += f", shrunk from {result['faults']} to {result['shrunk']} faults" if result["shrunk"] is not None else ""
    text += ", did not come back" if result["replayed"] is False else ""
    kept = f" ({result['folder']})" if result["folder"] else ""
    return f"{result['defect'] or 'healthy'} {result['update']} try {result['seed']}: {text}{kept}"


@dataclass(frozen=True)
class Row(Results):
    """All tries of one defect, or of the healthy trainer."""

    @property
    def smallest(self) -> list[int]:
        """Faults that were left of what was shrunk."""
        return [result["shrunk"] for result in self.results if result["shrunk"] is not None]

    @property
    def bad(self) -> bool:
        """Missed too often, not small, or healthy and accused."""
        if not self.defect:
            return self.count(lambda result: result["violated"]) > 0
        missed = self.count(found) < LEAST * len(self.results)
        return missed or any(faults > MOST_FAULTS for faults in self.smallest)

    @property
    def line(self) -> str:
        """The row of the table."""
        hits, tries = self.count(found), len(self.results)
        seconds = [result["seconds"] for result in self.results if found(result)]
        clusters = [result["clusters"] for result in self.results if found(result)]
        by = Counter(name for result in self.results for name in result["violated"])
        names = ", ".join(f"{name} {count}" for name, count in by.most_common()) or "-"
        sizes = ", ".join(map(str, self.smallest)) or "-"
        typical = [f"{statistics.median(given):.1f}" if given else "-" for given in (seconds, clusters)]
        slowest = f"{max(seconds):.1f}" if seconds else "-"
        figures = f"{hits} of {tries} | {lower_bound(hits, tries):.1%} | {typical[0]} | {slowest} | {typical[1]}"
        return f"| `{self.defect}` | {self.update} | {figures} | {names} | {sizes} |"


def rows_of(results: list[Result]) -> list[Row]:
    """One row per defect, in the order of the registry, the healthy trainer last."""
    rows = []
    for name in (*names(), ""):
        mine = tuple(sorted((each for each in results if each["defect"] == name), key=lambda each: each["seed"]))
        modes = ", ".join(dict.fromkeys(result["update"] for result in mine))
        rows += [Row(name, modes, mine)] if mine else []
    return rows


def names() -> list[str]:
    """The defects of a trainer that recovers, for the others are refused with faults; and that a drawn kind shows."""
    return [
        name
        for name, defect in DEFECTS.items()
        if defect.recovers and set(KIND.findall(defect.plan)) <= set(drawn_kinds())
    ]


def replays(rows: list[Row]) -> tuple[int, int]:
    """How many verdicts came back, of how many that were replayed."""
    said = [result["replayed"] for row in rows for result in row.results if result["replayed"] is not None]
    return sum(said), len(said)


def tables(rows: list[Row]) -> str:
    """Both tables, in Markdown."""
    head = f"| defect | modes | found in {WITHIN_S:.0f} s | rate at least (95 %) | s (median) | s (most) "
    lines = [f"{head}| clusters (median) | violated, in tries | shrunk to faults |"]
    lines += ["|---|---|---:|---:|---:|---:|---:|---|---:|", *(row.line for row in rows if row.defect)]
    back, of = replays(rows)
    lines += ["", f"Replayed once, the verdict came back in {back} of {of} runs.", ""]
    lines += [
        "| healthy trainer, modes | tries | clusters | violated | undecided clusters |",
        "|---|---:|---:|---:|---:|",
    ]
    for row in (row for row in rows if not row.defect):
        clusters, undecided = (sum(result[name] for result in row.results) for name in ("clusters", "undecided"))
        accused = row.count(lambda result: result["violated"])
        lines.append(f"| {row.update} | {len(row.results)} | {clusters} | {accused} | {undecided} |")
    return "\n".join(lines)


def remarks(rows: list[Row], *, asked: int) -> list[str]:
    """Each try that is not as it should be, and what has not been run yet."""
    lines = [describe(result) for row in rows for result in row.results if not is_right(result)]
    done = sum(len(row.results) for row in rows)
    return lines + ([f"incomplete: {done} of {asked} tries"] if done < asked else [])


def page(rows: list[Row], *, asked: int, place: str, command: str) -> str:
    """docs/chaos-detection.md."""
    about = paragraph(
        "Nobody who looks for a bug knows which fault shows it. Here each [seeded defect](checks.md#seeded-defects) of",
        "recovery and of the network is looked for by plans that are drawn (`--faults random`, all kinds, from",
        "successive seeds), in its update modes in turn: one real cluster after another, until a guarantee is violated",
        f"or {WITHIN_S:.0f} s of cluster time are over. That is `times_s.ended` in manifest.json: from before the",
        "first task is started until the last has ended, with what a hang takes to be noticed. What ends later than",
        "that counts as a miss.",
    )
    how = paragraph(
        f"All run with {STEPS} steps, a checkpoint every {CHECKPOINT_EVERY} and `--patience {PATIENCE_S:.0f}`; each",
        f"defect on {LEAST_PS} ps and {LEAST_WORKERS} workers, or as many as it takes, the healthy trainer on the",
        "default layout; and with what a defect needs besides faults (a workload, an optimizer, `--drop-after`: see",
        "its entry). *Violated* are the guarantees in question, with the tries in which each was; *shrunk* is what",
        f"`psconform shrink` leaves of the plan of the first {SHRUNK}, which must be at most {MOST_FAULTS} faults. Of",
        f"each defect, the first {REPLAYED} are run once more with the same plan, as `psconform replay` does.",
        "Poisoned gradients, workers that run out of data and damaged checkpoints are no faults that are drawn: the",
        "defects that take one are counted in [detection.md](detection.md) and",
        "[detection-recovery.md](detection-recovery.md). The rate is at least so much, one-sided and exact (Clopper",
        "and Pearson).",
    )
    lines = ["<!-- written by benchmarks/chaos_detection.py --write -->\n", "# How soon drawn faults find bugs\n"]
    lines += [about, how, tables(rows), ""]
    if noted := [line.partition(" (/")[0] for line in remarks(rows, asked=asked)]:  # folders are of no use to others
        lines += ["To be looked at:\n", *(f"* {line}" for line in noted), ""]
    return "\n".join([*lines, paragraph(place), "```sh", command, "```"]) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Run what is missing, print the tables; 0 if all is well."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tries", type=int, default=TRIES, help=f"of each defect (default {TRIES})")
    parser.add_argument("--only", metavar="DEFECT", choices=(*names(), "healthy"), help="this defect, or healthy")
    parser.add_argument("--budget", type=float, default=math.inf, metavar="MIN", help="start no try after so long")
    parser.add_argument("--store", type=Path, default=STORE, help="file of results")
    parser.add_argument("--replay", type=int, default=REPLAYED, metavar="N", help=f"of each (default {REPLAYED})")
    parser.add_argument("--shrink", type=int, default=SHRUNK, metavar="N", help=f"of each (default {SHRUNK})")
    parser.add_argument("--share", type=share, metavar="K/N", default=slice(None), help="every N-th, from the K-th on")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the page, e.g. docs/chaos-detection.md")
    options = parser.parse_args(arguments)
    if options.tries < 1:
        parser.error("--tries must be at least 1")
    if options.write and options.share.step:
        parser.error("--write is for all of them: without --share")
    wanted = {"healthy": ""}.get(options.only, options.only)
    asked = [name for name in (*names(), "") if wanted in (None, name)]
    cases = [case for name in asked for case in cases_of(name, options.tries)][options.share]
    results = measure(
        first_to_last(cases),
        store=options.store,
        code=stamp(),
        deadline=time.monotonic() + 60 * options.budget,
        console=Console(stderr=True, highlight=False, markup=False, soft_wrap=True),
        run=partial(run_try, replays=options.replay, shrinks=options.shrink),
        right=is_right,
        say=describe,
        at_a_time=options.share.step or 1,
    )
    rows = rows_of(results)
    sys.stdout.write(tables(rows) + "\n" + "".join(f"* {line}\n" for line in remarks(rows, asked=len(cases))))
    if options.write:
        given = f"--tries {options.tries}" + (f" --only {options.only}" if options.only else "")
        command = f"python benchmarks/chaos_detection.py {given} --write {options.write}"
        text = page(rows, asked=len(cases), place=where(results), command=command)
        options.write.write_text(text, encoding="utf-8")
    back, of = replays(rows)
    return 1 if any(row.bad for row in rows) or back < COME_BACK * of else 2 if len(results) < len(cases) else 0


if __name__ == "__main__":
    sys.exit(main())
