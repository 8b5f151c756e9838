"""Many runs, one after another in one warm session, and what they say together."""

from __future__ import annotations

import shutil
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, get_args

from ..anomalies import Anomaly
from ..errors import BadInput, PsconformError
from ..files import create
from ..history.manifest import write_json
from ..probe import SAMPLES
from ..verdict import Status, Verdict
from ..workloads.equivalence import ACCURACY, Equivalence, EquivalenceTest
from .calibrate import NotLinear
from .figures import quantile
from .plan import Plan
from .progress import Notify
from .session import Session
from .verdicts import judge_folder, store

SUMMARY = "summary.json"
UNMADE = (BadInput.exit_code, PsconformError.exit_code)
"""Exit codes of a run that could not be made or read: for want of something, or by a fault of psconform's own."""
WORST_FIRST = (1, *reversed(UNMADE), 2, 0)
STATUSES: tuple[Status, ...] = get_args(Status)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One run of a series. ``error`` is what kept it from being judged, ``kept`` whether its folder is still there."""

    number: int
    plan: Plan
    exit_code: int
    verdicts: tuple[Verdict, ...] = ()
    times_s: dict[str, float] = field(default_factory=dict)
    updates_per_s: float = 0.0
    error: str = ""
    kept: bool = True
    training: dict[str, float | None] = field(default_factory=dict)
    anomalies: tuple[Anomaly, ...] = ()

    def names(self, status: Status) -> list[str]:
        """The guarantees with this verdict."""
        return [verdict.guarantee for verdict in self.verdicts if verdict.status == status]

    def as_dict(self) -> dict[str, Any]:
        """For --json and summary.json."""
        workload = self.plan.workload
        return {
            "run": self.number,
            "folder": str(self.plan.out) if self.kept else None,
            "layout": self.plan.layout.text,
            "steps": workload.steps,
            "seed": workload.seed,
            "reads": workload.reads,
            "read_every": workload.read_every,
            "exit_code": self.exit_code,
            "violated": self.names("violated"),
            "unknown": self.names("unknown"),
            "error": self.error,
            "times_s": self.times_s,
            "updates_per_s": self.updates_per_s,
            "anomalies": [asdict(anomaly) for anomaly in self.anomalies],
            **({"training": self.training} if self.training else {}),
            "repeat": self.plan.repeat,
        }


Done = Callable[[Outcome], None]


@dataclass
class Series:
    """What has been run so far. ``interrupted`` is the folder of the run that Ctrl-C ended."""

    plans: Sequence[Plan]
    out: Path
    outcomes: list[Outcome] = field(default_factory=list)
    interrupted: Path | None = None
    total_s: float = 0.0

    @property
    def exit_code(self) -> int:
        """The worst there was: 1 a guarantee violated, 4 or 3 a run failed, 2 one unknown, 0 all valid; 130
        interrupted."""
        found = {outcome.exit_code for outcome in self.outcomes}
        if self.equivalence is not None:
            found.add({"equivalent": 0, "different": 1, "undecided": 2}[self.equivalence.outcome])
        return 130 if self.interrupted else next((code for code in WORST_FIRST if code in found), 0)

    @property
    def equivalence(self) -> Equivalence | None:
        """C2 over all seeds: does async training reach the accuracy of serial training? None: not asked, or not whole.

        The number of pairs is that of the runs asked for, fixed before the first of them.
        """
        plan = self.plans[0]
        if SAMPLES not in plan.workload.shows or plan.layout.update != "async" or len(self.plans) < 2:
            return None
        if len({each.workload.seed for each in self.plans}) < len(self.plans):
            return None  # a replay: the runs are of one seed, and say nothing of others
        pairs = [(o.training.get("accuracy"), o.training.get("serial_accuracy")) for o in self.outcomes]
        differences = [mine - serial for mine, serial in pairs if mine is not None and serial is not None]
        if len(differences) < len(self.plans):
            return None
        return EquivalenceTest(n=len(self.plans), margin=ACCURACY.margin).judge(differences)

    @property
    def guarantees(self) -> dict[str, Counter[str]]:
        """By guarantee: how often each verdict."""
        counts: dict[str, Counter[str]] = {}
        for outcome in self.outcomes:
            for verdict in outcome.verdicts:
                counts.setdefault(verdict.guarantee, Counter())[verdict.status] += 1
        return counts

    @property
    def titles(self) -> dict[str, str]:
        """The title of each guarantee."""
        return {verdict.guarantee: verdict.title for outcome in self.outcomes for verdict in outcome.verdicts}

    @property
    def not_valid(self) -> list[Outcome]:
        """The runs to look at."""
        return [outcome for outcome in self.outcomes if outcome.exit_code]

    def spread(self, name: str) -> dict[str, float]:
        """Minimum, median, p95 and maximum of a time over all judged runs, or nothing."""
        values = [outcome.times_s[name] for outcome in self.outcomes if name in outcome.times_s]
        if not values:
            return {}
        middle = round(statistics.median(values), 3)
        return {"min": min(values), "median": middle, "p95": quantile(values, 0.95), "max": max(values)}

    def as_dict(self) -> dict[str, Any]:
        """For --json and summary.json."""
        plan, titles = self.plans[0], self.titles
        codes = Counter(outcome.exit_code for outcome in self.outcomes)
        guarantees = {
            name: {"title": titles[name], **{status: counts[status] for status in STATUSES}}
            for name, counts in self.guarantees.items()
        }
        return {
            "folder": str(self.out),
            "target": plan.target.name,
            **plan.layout.options,
            "defect": plan.defect,
            "slow": dict(plan.workload.slow),
            "batches": dict(plan.workload.batches),
            "asked_for": len(self.plans),
            "judged_or_failed": len(self.outcomes),
            "interrupted": str(self.interrupted) if self.interrupted else None,
            "exit_code": self.exit_code,
            "exit_codes": {str(code): codes[code] for code in sorted(WORST_FIRST)},
            "guarantees": guarantees,
            "times_s": {
                "cluster": self.spread("ended"),
                "first_ack": self.spread("first_ack"),
                "total": round(self.total_s, 3),
            },
            **({"equivalence": asdict(self.equivalence)} if self.equivalence is not None else {}),
            "not_valid": [outcome.as_dict() for outcome in self.not_valid],
            "runs": [outcome.as_dict() for outcome in self.outcomes],
        }


def run_series(series: Series, session: Session, *, notify: Notify, done: Done, keep_valid: bool = True) -> None:
    """Run all plans and fill ``series``; stores summary.json whatever happens. Ctrl-C ends it without an exception.

    Raises:
        NotLinear: the target cannot be judged at all, so no other run could be.
    """
    began, folder = time.monotonic(), series.out
    _claim(series.out)
    try:
        for number, plan in enumerate(series.plans, start=1):
            folder = plan.out
            outcome = _one(number, plan, session, notify, keep_valid)
            series.outcomes.append(outcome)
            done(outcome)
    except KeyboardInterrupt:
        series.interrupted = folder
    finally:
        series.total_s = time.monotonic() - began
        if series.outcomes or series.interrupted:
            write_json(series.out / SUMMARY, series.as_dict())
        else:
            (series.out / SUMMARY).unlink(missing_ok=True)


def _claim(folder: Path) -> None:
    """Of two series at once into one folder, one gets it; raises BadInput for the other."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        create(folder.absolute() / SUMMARY)
    except OSError as error:
        raise BadInput("--out", f"is taken, or cannot be made ({error.strerror})", value=str(folder)) from None


def _one(number: int, plan: Plan, session: Session, notify: Notify, keep_valid: bool) -> Outcome:
    try:
        manifest = session.run(plan, notify=notify)
        judged = judge_folder(plan.out)
    except NotLinear:
        raise
    except PsconformError as error:
        kept = plan.out.exists()
        return Outcome(
            number=number, plan=plan, exit_code=error.exit_code, error=" ".join(str(error).split()), kept=kept
        )
    kept = keep_valid or judged.exit_code != 0
    if kept:
        store(judged)
    else:
        shutil.rmtree(plan.out, ignore_errors=True)
    return Outcome(
        number=number,
        plan=plan,
        exit_code=judged.exit_code,
        verdicts=judged.verdicts,
        times_s=dict(manifest.times_s),
        updates_per_s=judged.timing.updates_per_s,
        training=judged.curves.summary if judged.curves is not None else {},
        anomalies=judged.anomalies,
        kept=kept,
    )
