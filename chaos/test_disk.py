"""A checkpoint is damaged, and then needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from psconform.faults.fault import NEWEST, Fault
from psconform.faults.when import When
from psconform.layout import Task

from .survive import STEPS, Judge, must_survive, survives

EVERY = 5
"""Steps of the chief between two checkpoints: there are some older ones when one is damaged."""


@pytest.mark.parametrize("kind", ["truncate", "flip"])
@pytest.mark.parametrize("update", [pytest.param(mode, marks=survives(mode)) for mode in ("sync", "async")])
def test_the_newest_checkpoint_is_damaged_and_a_ps_is_lost(
    judge: Judge, tmp_path: Path, update: str, kind: str
) -> None:
    """R7, R3: it is not restored, the one before it is."""
    when = When("before-push", STEPS * 3 // 4, task="worker:0")  # the chief, who has made some checkpoints by then
    faults = [
        Fault(kind=kind, region=NEWEST, when=when),
        Fault(kind="kill", task=Task("ps", 0), when=when, restart_after_s=0.2),
    ]
    must_survive(judge, faults, folder=tmp_path, layout="ps=2,worker=2", update=update, checkpoint_every=EVERY)
