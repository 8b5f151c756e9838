"""A stored run -> verdicts, and verdicts.json."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..checks import judge_history
from ..history.build import load_history, outcome_counts
from ..history.manifest import Manifest, write_json
from ..history.model import History
from ..verdict import Verdict, exit_code


@dataclass(frozen=True)
class Judged:
    """A run and what the checks say of it."""

    folder: Path
    manifest: Manifest
    history: History
    verdicts: tuple[Verdict, ...]

    @property
    def exit_code(self) -> int:
        """0 all claimed guarantees valid, 1 one violated, 2 none violated but one unknown."""
        return exit_code(self.verdicts)

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
            "times_s": self.manifest.times_s,
            "verdicts": [dataclasses.asdict(verdict) for verdict in self.verdicts],
            "exit_code": self.exit_code,
            "repeat": self.manifest.repeat,
        }


def judge_folder(folder: Path) -> Judged:
    """Judge a stored run; needs no TensorFlow, changes nothing.

    Raises:
        BadInput: not a run folder.
        Malformed: a file in it cannot be read; names file and line.
    """
    manifest = Manifest.read(folder)
    history = load_history(folder, manifest)
    return Judged(folder, manifest, history, tuple(judge_history(history)))


def store(judged: Judged) -> None:
    """Write verdicts.json into the run folder."""
    write_json(judged.folder / "verdicts.json", judged.as_dict())
