"""A checkpoint is damaged, and then needed; the disk fails for a while, and a ps is lost meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from psconform.faults.checkpoint_faults import FLIP, TRUNCATE
from psconform.faults.fault import FOLDER, NEWEST, Fault, When
from psconform.faults.kinds import kinds
from psconform.faults.process_faults import KILL
from psconform.layout import Task

from .survive import LAYOUT, STEPS, Judge, anywhere, crossed, must_survive, survives

EVERY = 5
"""Steps of the chief between two checkpoints: there are some older ones when one is damaged."""
LASTING = [name for name, kind in kinds().items() if kind.mounts]
BOTH = ("sync", "async")


def in_modes(*kinds: str) -> pytest.MarkDecorator:
    """Each kind in each update mode."""
    cases = [pytest.param(*case, marks=survives(case[0])) for case in crossed(BOTH, kinds)]
    return pytest.mark.parametrize(("update", "kind"), cases)


@anywhere
@in_modes(TRUNCATE.name, FLIP.name)
def test_the_newest_checkpoint_is_damaged_and_a_ps_is_lost(
    judge: Judge, tmp_path: Path, update: str, kind: str
) -> None:
    """R7, R3: it is not restored, the one before it is."""
    when = When("before-push", STEPS * 3 // 4, task="worker:0")  # the chief, who has made some checkpoints by then
    faults = [
        Fault(kind=kind, region=NEWEST, when=when),
        Fault(kind=KILL.name, task=Task("ps", 0), when=when, restart_after_s=0.2),
    ]
    must_survive(judge, faults, folder=tmp_path, layout=LAYOUT.text, update=update, checkpoint_every=EVERY)


def of_disk(kind: str) -> Fault:
    """From a checkpoint to a few after it, as the chief gets there."""
    when, until = (When("before-push", STEPS * part // 10, task="worker:0") for part in (3, 6))
    return Fault(kind=kind, region=FOLDER, when=when, until=until, amounts=kinds()[kind].usual)


@anywhere
@in_modes(*LASTING)
def test_the_disk_fails_for_a_while(judge: Judge, tmp_path: Path, update: str, kind: str) -> None:
    """R1, R2, L1: training goes on, and ends with everything applied once."""
    must_survive(judge, [of_disk(kind)], folder=tmp_path, layout=LAYOUT.text, update=update, checkpoint_every=EVERY)


@in_modes(*reversed(LASTING))
def test_a_ps_is_lost_while_the_disk_fails(judge: Judge, tmp_path: Path, update: str, kind: str) -> None:
    """R3, R7: it is restored as soon as that can be done, from the newest checkpoint that became durable."""
    when = When("before-push", STEPS // 2, task="worker:0")
    faults = [of_disk(kind), Fault(kind=KILL.name, task=Task("ps", 0), when=when, restart_after_s=0.2)]
    must_survive(judge, faults, folder=tmp_path, layout=LAYOUT.text, update=update, checkpoint_every=EVERY)
