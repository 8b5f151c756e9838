"""Whether verdicts on foreign trainers agree with what their own parameter servers logged, under drawn faults.

Three trainers over sockets (benchmarks/foreign/trainer.py) and one on TensorFlow's ParameterServerStrategy
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

STYLES = ("fragile", "retry", "checkpoint", "strategy")
STEPS = 40
PATIENCE_S = {"strategy": 40.0}  # a task that was killed has to load TensorFlow again
USUAL_PATIENCE_S = 10.0
TRIED = (Missed.NOT_OBSERVED, Missed.NOT_HEALED, Missed.LEFT_UNHEALED)
HOW_IT_ENDED = frozenset(("L0", "L1", "L2", "L3"))


@dataclass(frozen=True)
class Truth:
    """What the logs of the parameter servers say."""

    lost: int
    doubled: int
    anew: int  # parameter servers that have begun anew
    complete: bool


def truth_of(run: Run) -> Truth:
    """From the logs alone, and from how each task ended."""
    manifest = Manifest.read(run.folder)
    due = {(worker, step) for worker in range(manifest.layout.workers) for step in range(manifest.workload.steps)}
    lost = doubled = anew = 0
    for ps in range(manifest.layout.ps):
        log = run.folder / f"applied-{ps}.log"
        lines = log.read_text(encoding="ascii").splitlines() if log.exists() else []
        lines = lines or ["start"]  # it came up too late
        starts = [number for number, line in enumerate(lines) if line == "start"]
        anew += len(starts) - 1
        last = [tuple(map(int, line.split())) for line in lines[starts[-1] + 1 :]]
        state = run.folder / f"state-{ps}"
        applied = Counter(pickle.loads(state.read_bytes())[1] if state.exists() else last)
        lost += len(due - {gradient[:2] for gradient in applied})
        # who claims at-least-once logs the number of a sending as well: each of them may be applied once
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
    parser.add_argument("--style", nargs="+", default=list(STYLES), choices=STYLES)
    parser.add_argument("--first", type=int, default=0, metavar="SEED")
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    for style in options.style:
        target = Path(__file__).parent / "foreign" / f"{style}.toml"
        for seed in range(options.first, options.first + options.runs):
            out = Path(tempfile.mkdtemp(prefix="psconform-agreement-"))
            layout = f"ps={1 + seed % 3},worker={2 + seed % 2}"
            given: dict[str, Any] = {"layout": layout, "update": "async", "steps": STEPS, "seed": seed}
            given["patience_s"] = PATIENCE_S.get(style, USUAL_PATIENCE_S)
            try:
                run = judge(target, out=out, faults="random", **given)
            except PsconformError as error:
                outcome, more = "failed", str(error)
            else:
                truth = truth_of(run)
                decided = run.exit_code in (0, 1)
                outcome = "undecided" if not decided else "right" if agrees(run, truth) else "WRONG"
                said = " ".join(run.violated) or ("valid" if decided else "unknown")
                seen = [f"{missed.fault} {missed.how}" for missed in run.missed if missed.how in TRIED]
                more = "; ".join([said, str(run.coverage), *seen, str(truth)])
            counts[outcome] += 1
            kept = outcome != "right"
            sys.stdout.write(f"{style} {seed} {layout}: {outcome}; {more}{f' ({out})' if kept else ''}\n")
            sys.stdout.flush()
            if not kept:
                shutil.rmtree(out)
    sys.stdout.write(f"{dict(counts)}\n")
    return 0 if not counts["WRONG"] and counts["right"] >= 0.95 * counts.total() else 1


if __name__ == "__main__":
    sys.exit(main())
