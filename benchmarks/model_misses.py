"""Whether the checks miss, or invent, a violation: many schedules of each mutant, judged by the checks and the oracle.

    python benchmarks/model_misses.py [--runs 100] [--seed 0] [NAME ...]

A run counts as *broken* if the oracle says that a guarantee is violated and that the record shows it. Of such a run the
checks must say *violated* of one of those guarantees, or *unknown*; a run of which they say neither is *missed*. A run
that the checks accuse of nothing but what the oracle says was kept is *invented*. The guarantee that the checks name
need not be the one that the oracle names first: one bug breaks several, and a run in which one is violated is violated.
A run in which a mutant does what the healthy model does with the same seed is *untouched*, and is not judged.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import sys
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

from model_mutants import MUTANTS, Mutant, mutated

from psconform.runner.verdicts import Judged, judge_folder
from psconform.simulation.cluster import Cluster
from psconform.simulation.oracle import Truth, truths
from psconform.simulation.record import Recorded
from psconform.simulation.schedule import Schedule, draw
from psconform.simulation.trace import Log, Read, Trace

RUNS = 100
COLUMNS = ("untouched", "broken", "violated", "other", "unknown", "missed", "invented", "crashed")
LISTED = 8
"""Seeds of a row that are named."""


@dataclass
class Row:
    """What came of the runs of a mutant: how many of each column, and which ones are wrong, with the guarantees."""

    mutant: Mutant
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


class Fingerprint(Trace):
    """All that a record would be made of, as one number."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0
        self._logs: dict[int, tuple[int, Log]] = {}  # by identity; the first one is 0, and so on

    def add(self, *what: object) -> None:
        """And this."""
        self.number = hash((self.number, what))

    def tell(self, now: float, what: object) -> None:
        """Something happened; what a read shows is the beginning of a log, and that is added once, in the end."""
        if not isinstance(what, Read):
            self.add(now, repr(what))
            return
        which = (self._logs.setdefault(id(view.log), (len(self._logs), view.log))[0] for view in what.views)
        self.add(now, what[:4], what[5:], *which, *(view.length for view in what.views))

    def done(self, now: float, worker: int) -> None:
        """A worker has its last answer."""
        self.add(now, "done", worker)

    def closed(self, now: float, worker: int) -> None:
        """A worker has ended."""
        self.add(now, "closed", worker)

    def killed(self, now: float, task: str) -> None:
        """A task was killed."""
        self.add(now, "killed", task)

    def finish(self, cluster: Cluster) -> int:
        """The run is over; the number."""
        self.add(cluster.world.now, cluster.status, *cluster.world.machines)
        for _, log in self._logs.values():
            self.add(log.nonce, *log.entries)
        return self.number


def fingerprint(schedule: Schedule, made: Any = Cluster, *parts: Any) -> int:
    """What happens in a run of this model, as one number."""
    trace = Fingerprint()
    cluster = made(schedule, trace, *parts)
    cluster.run()
    return trace.finish(cluster)


@cache
def _healthy(seed: int, mode: str) -> int:
    return fingerprint(draw(seed, mode=mode))


def compared(mutant: Mutant, seeds: range) -> Row:
    """Simulate and judge a schedule of each seed."""
    row = Row(mutant)
    made, parts = mutated(mutant)
    with tempfile.TemporaryDirectory(prefix="psconform-misses-") as scratch:
        for seed in seeds:
            folder = Path(scratch) / str(seed)
            try:
                if fingerprint(draw(seed, mode=mutant.mode), made, parts) == _healthy(seed, mutant.mode):
                    row.counts["untouched"] += 1
                    continue
                trace = Recorded(folder, draw(seed, mode=mutant.mode))
                cluster = made(trace.schedule, trace, parts)
                cluster.run()
            except Exception:  # a task of the mutant has crashed: nothing that a real run would not notice
                row.counts["crashed"] += 1
                continue
            trace.finish(cluster)
            word, names = _compare(truths(cluster), judge_folder(folder))
            row.counts[word] += 1
            row.counts["broken"] += word in ("violated", "other", "unknown", "missed")
            if word in ("missed", "invented"):
                row.wrong.append(f"{word} by seed {seed}: {' '.join(names)}")
            shutil.rmtree(folder)
    return row


def _compare(truth: dict[str, Truth], judged: Judged) -> tuple[str, list[str]]:
    """A column, and the guarantees that put the run into it."""
    shown = [name for name, each in truth.items() if not each.held and each.shown]
    violated = judged.names("violated")
    if not shown:
        held = [name for name in violated if name in truth and truth[name].held]
        return ("invented", violated) if held and len(held) == len(violated) else ("kept", [])
    if {*shown} & {*violated}:
        return "violated", shown
    if violated:
        return "other", shown
    return ("unknown" if judged.exit_code == 2 else "missed"), shown


def main() -> None:
    """Print a row for each mutant, and the runs that are wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="of mutants; default: all")
    parser.add_argument("--runs", type=int, default=RUNS, help=f"schedules of each (default {RUNS})")
    parser.add_argument("--seed", type=int, default=0, help="of the first (default 0)")
    given = parser.parse_args()
    seeds = range(given.seed, given.seed + given.runs)
    logging.disable(logging.WARNING)  # slips of mutants
    chosen = [mutant for mutant in MUTANTS if not given.names or mutant.name in given.names]
    total: Counter[str] = Counter()
    sys.stdout.write(f"| mutant | {' | '.join(COLUMNS)} |\n|---|{'---:|' * len(COLUMNS)}\n")
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for row in pool.map(partial(compared, seeds=seeds), chosen):
            sys.stdout.write(_line(f"`{row.mutant.name}`", row.counts))
            sys.stdout.writelines(f"    {line}\n" for line in row.wrong[:LISTED])
            total.update(row.counts)
    sys.stdout.write(_line("in all", total))
    sys.exit(bool(total["missed"] or total["invented"]))


def _line(name: str, counts: Counter[str]) -> str:
    return f"| {name} | {' | '.join(str(counts[each] or '.') for each in COLUMNS)} |\n"


if __name__ == "__main__":
    main()
