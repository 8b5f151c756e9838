"""A stored run -> verdicts, and verdicts.json."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ..anomalies import Anomaly, find_anomalies
from ..checks import all_checks, judge_history
from ..history.build import load_history, outcome_counts
from ..history.manifest import PLAIN, TWIN, Manifest, write_json
from ..history.model import History
from ..history.reasons import FaultMissed, Missed
from ..probe import ORDER, Ledger
from ..verdict import Coverage, Status, Verdict, exit_code
from .figures import Curves, Timing, curves_of, timing_of


@dataclass(frozen=True)
class Judged:
    """A run and what the checks say of it."""

    folder: Path
    manifest: Manifest
    history: History
    verdicts: tuple[Verdict, ...]
    timing: Timing
    curves: Curves | None = None
    anomalies: tuple[Anomaly, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 all claimed guarantees valid, 1 one violated, 2 one unknown, or fewer faults observed than required."""
        code = exit_code(self.verdicts)
        return code if code or self.coverage.enough else 2

    @property
    def coverage(self) -> Coverage:
        """How many faults of the plan were observed."""
        planned, missed = len(self.manifest.faults), [each for each in self.history.missed if not each.observed]
        failed = {each.task for each in self.history.failed}
        later = [each for each in missed if each.how is Missed.NEVER_INJECTED or _of_any(each, failed)]
        unreached = len(later) if self.history.stops and self.history.faults else 0
        return Coverage(planned, planned - len(missed), self.manifest.require_faults, unreached)

    def names(self, status: Status) -> list[str]:
        """The guarantees with this verdict."""
        return [verdict.guarantee for verdict in self.verdicts if verdict.status == status]

    def as_dict(self) -> dict[str, Any]:
        """For --json and verdicts.json."""
        return {
            "run": self.manifest.run,
            "folder": str(self.folder),
            "target": self.manifest.target,
            "layout": {**dataclasses.asdict(self.manifest.layout)},
            "steps": self.manifest.workload.steps,
            "seed": self.manifest.workload.seed,
            "defect": self.manifest.defect,
            "status": self.manifest.status,
            "gradients": outcome_counts(self.history),
            "gaps": list(self.history.gaps),
            "notes": list(self.history.notes),
            "faults": [dataclasses.asdict(fault) for fault in self.history.faults],
            "faults_missed": [msgspec.to_builtins(missed) for missed in self.history.missed],
            "faults_unused": self.manifest.unused,
            "slips": [{**vars(slip), "task": str(slip.task), "what": slip.what.value} for slip in self.history.slips],
            "coverage": dataclasses.asdict(self.coverage),
            "slow": dict(self.manifest.workload.slow),
            "times_s": self.manifest.times_s,
            "timing": self.timing.as_dict(),
            **({"training": self.curves.summary} if self.curves is not None else {}),
            "anomalies": [dataclasses.asdict(anomaly) for anomaly in self.anomalies],
            "verdicts": [dataclasses.asdict(verdict) for verdict in self.verdicts],
            "exit_code": self.exit_code,
            "repeat": self.manifest.repeat,
        }


def _of_any(missed: FaultMissed, failed: set[str]) -> bool:
    """It could not be injected into a task that had failed by then."""
    return missed.how is Missed.REFUSED and missed.fault.partition("@")[0] in failed


def judge_folder(folder: Path, *, max_record: int = 0) -> Judged:
    """Judge a stored run; needs no TensorFlow, changes nothing.

    ``max_record``: bytes that an event file may have; 0: as in the run.

    Raises:
        BadInput: not a run folder.
        Malformed: a file in it cannot be read; names file and line.
    """
    manifest = Manifest.read(folder)
    if max_record:
        manifest.bounds = dataclasses.replace(manifest.bounds, record=max_record)
    history = load_history(folder, manifest)
    if ORDER in manifest.workload.shows:
        history = dataclasses.replace(history, plain=_plain(folder / PLAIN, manifest))
    if manifest.layout.has_twin and not manifest.workload.is_ledger:
        history = dataclasses.replace(history, twin=_twin(folder / TWIN, manifest))
    curves = _curves(history)
    anomalies = find_anomalies(history, curves.losses if curves is not None else None)
    return Judged(
        folder, manifest, history, tuple(judge_history(history)), timing_of(history), curves=curves, anomalies=anomalies
    )


def _plain(folder: Path, manifest: Manifest) -> str | None:
    """What is wrong with the plain ledger beside a decayed one; empty: nothing; None: there is none.

    Only what a decayed ledger cannot show itself counts: amounts, weights, initialisation. A wrong order, say, shows in
    both (A7), and is no reason to leave it undecided.
    """
    if not folder.is_dir():
        return None
    plain = Manifest.read(folder)
    same = msgspec.structs.replace(manifest.workload, name=Ledger.name)
    if (plain.layout, plain.workload, plain.claims) != (manifest.layout, same, manifest.claims):
        return "it is a run of another set-up"
    amounts = {check.name for check in all_checks() if manifest.workload.name not in check.workloads}
    judged = judge_folder(folder)
    if judged.history.cut:
        return judged.history.cut
    found = [v for v in judged.verdicts if v.guarantee in amounts]
    verdicts = [v for v in found if v.status in ("violated", "unknown")]
    return ", ".join(f"{verdict.guarantee} {verdict.status}" for verdict in verdicts)


def _twin(folder: Path, manifest: Manifest) -> History | str:
    """The same training between-graph, or why there is none to compare with."""
    if not folder.is_dir():
        return "was not run"
    twin = Manifest.read(folder)
    same = dataclasses.replace(manifest.layout, replication="between-graph")
    if (twin.layout, twin.workload, twin.claims) != (same, manifest.workload, manifest.claims):
        return "is a run of another set-up"
    return load_history(folder, twin)


def _curves(history: History) -> Curves | None:
    """Losses beside serial training, where there is something to compare."""
    return curves_of(history) if any(len(worker.reads) for worker in history.workers) else None


def store(judged: Judged) -> None:
    """Write verdicts.json into the run folder, and losses.json if a model was trained."""
    if judged.curves is not None:
        write_json(judged.folder / "losses.json", judged.curves.as_dict())
    write_json(judged.folder / "verdicts.json", judged.as_dict())
