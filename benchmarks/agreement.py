"""Whether verdicts on foreign trainers agree with what their own parameter servers logged, under drawn faults.

Three trainers over sockets (benchmarks/foreign/trainer.py) and two on TensorFlow's ParameterServerStrategy
(benchmarks/foreign/strategy.py), none of them written for psconform's habits, each under drawn fault plans. Each ps
logs what it applies; from that log alone an oracle says whether each gradient is in the parameters as often as it
should be, and whether training came to its end. A run agrees if it is violated in a guarantee about delivery only where
the log shows a gradient that is lost or doubled, and valid only where it shows none.
"""

from __future__ import annotations

import argparse
import pickle
import shutil
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psconform.api import Run, judge
from psconform.errors import PsconformError
from psconform.history.manifest import Manifest
from psconform.history.reasons import Missed

SOCKETS, TENSORFLOW = ("fragile", "retry", "checkpoint"), ("strategy", "strategy-checkpoint")
STEPS = 40
PATIENCE_S = {**dict.fromkeys(SOCKETS, 10.0), **dict.fromkeys(TENSORFLOW, 60.0)}  # which takes its time to start
TRIED = (Missed.NOT_OBSERVED, Missed.NOT_HEALED, Missed.LEFT_UNHEALED)
HOW_IT_ENDED = frozenset(("L0", "L1", "L2", "L3"))


@dataclass(frozen=True)
class Truth:
    """What the logs of the parameter servers say."""

    lost: int
    doubled: int
    anew: int  # parameter servers that have begun anew
    complete: bool


def applied_by(log: Path) -> tuple[Counter[tuple[str, ...]], int]:
    """What is in the parameters of a ps, by its log, and how often they have begun anew.

    A line for each gradient: the worker, its step and, of a trainer that claims at-least-once, the number of the
    sending, each of which may be applied once; then the coordinator, if there is one: one that has been replaced can
    change only parameters that are not read any more.
    """
    applied: list[tuple[str, ...]] = []
    saved: dict[str, list[tuple[str, ...]]] = {}
    coordinator: tuple[str, ...] = ()
    starts = 0
    for line in log.read_text(encoding="ascii").splitlines() if log.exists() else ():  # else it came up too late
        first, *others = line.split()
        if first == "save":
            saved[others[0]] = list(applied)
        elif first in ("start", "restore"):
            applied = list(saved[others[0]]) if first == "restore" else []
            starts, coordinator = starts + (first == "start"), tuple(others[1:])
        elif tuple(others[2:]) == coordinator:
            applied.append((first, *others[:2]))
    return Counter(applied), max(0, starts - 1)


def truth_of(run: Run) -> Truth:
    """From the logs alone, and from how each task ended."""
    manifest = Manifest.read(run.folder)
    due = {(str(w), str(step)) for w in range(manifest.layout.workers) for step in range(manifest.workload.steps)}
    lost = doubled = anew = 0
    for ps in range(manifest.layout.ps):
        applied, more = applied_by(run.folder / f"applied-{ps}.log")
        anew += more
        state = run.folder / f"state-{ps}"
        if state.exists():
            applied = Counter((str(worker), str(step)) for worker, step in pickle.loads(state.read_bytes())[1])
        lost += len(due - {gradient[:2] for gradient in applied})
        doubled += sum(count > 1 for count in applied.values())
    ended = all((run.folder / "done" / f"worker-{w}").is_file() for w in range(manifest.layout.workers))
    dead = any(f.read_text() for f in (run.folder / "done").iterdir())
    return Truth(lost, doubled, anew, complete=ended and not dead)


def agrees(run: Run, truth: Truth) -> bool:
    """Whether a verdict is what the logs say; an undecided one is neither right nor wrong."""
    wrong = truth.doubled or truth.anew or (truth.complete and truth.lost)
    if run.exit_code == 0:
        return not wrong
    about_delivery = set(run.violated) - HOW_IT_ENDED
    return bool(wrong) if about_delivery else not truth.complete


def main() -> int:
    """0 if every decided run agrees, and at least 95 of 100 are decided."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=25, help="drawn plans for each trainer")
    parser.add_argument("--style", nargs="+", default=list(PATIENCE_S), choices=PATIENCE_S)
    parser.add_argument("--first", type=int, default=0, metavar="SEED")
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    for style in options.style:
        target = Path(__file__).parent / "foreign" / f"{style}.toml"
        for seed in range(options.first, options.first + options.runs):
            out = Path(tempfile.mkdtemp(prefix="psconform-agreement-"))
            layout = f"ps={1 + seed % 3},worker={2 + seed % 2}"
            given: dict[str, Any] = {"layout": layout, "update": "async", "steps": STEPS, "seed": seed}
            given["patience_s"] = PATIENCE_S[style]
            failed_alone = False
            try:
                run = judge(target, out=out, faults="random", **given)
            except PsconformError as error:
                outcome, more = "failed", str(error)
            else:
                truth = truth_of(run)
                decided = run.exit_code in (0, 1)
                failed_alone = "L0" in run.violated  # before any fault: the folder shows why
                outcome = "undecided" if not decided else "right" if agrees(run, truth) else "WRONG"
                said = " ".join(run.violated) or ("valid" if decided else "unknown")
                seen = [f"{missed.fault} {missed.how}" for missed in run.missed if missed.how in TRIED]
                more = "; ".join([said, str(run.coverage), *seen, str(truth)])
            counts[outcome] += 1
            kept = outcome != "right" or failed_alone
            sys.stdout.write(f"{style} {seed} {layout}: {outcome}; {more}{f' ({out})' if kept else ''}\n")
            sys.stdout.flush()
            if not kept:
                shutil.rmtree(out)
    sys.stdout.write(f"{dict(counts)}\n")
    return 0 if not counts["WRONG"] and counts["right"] >= 0.95 * counts.total() else 1


if __name__ == "__main__":
    sys.exit(main())
