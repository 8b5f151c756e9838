"""Every kind of fault, on every role, in every update mode: pairs of these in ci, all of them in nightly."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from allpairspy import AllPairs

from psconform.faults.fault import Fault
from psconform.faults.kinds import KINDS, NETWORK, usual_amounts
from psconform.faults.partitions import region
from psconform.faults.random_plan import DRAWN
from psconform.faults.when import When
from psconform.layout import Layout, Task
from psconform.plugin import chosen

from .survive import STEPS, Judge, must_survive, survives

SLOW_CLOSE = "slow-close"
ROLE = ("worker:0", "worker:1", "ps:0", "ps:1")
"""worker:0 is the chief."""
MOMENT = ("before-push", "sent", "after-push")
"""``sent``: and not acknowledged."""
UPDATE = ("sync", "async")
LAYOUT = Layout(ps=2, workers=3)
KIND = (*DRAWN, SLOW_CLOSE, *(name for name, kind in KINDS.items() if kind.asked and not kind.lacks))
FACTORS = (KIND, ROLE, UPDATE, MOMENT)
Case = tuple[str, str, str, str]


def cases() -> list[Case]:
    """A pairwise covering array; in nightly the whole product; in quick every eighth row of the array."""
    if chosen.profile == "nightly":
        return [case for case in product(*FACTORS) if _may_be(case)]
    rows = [tuple(row) for row in AllPairs([list(factor) for factor in FACTORS], filter_func=_may_be)]
    return rows if chosen.profile == "ci" else rows[::8]


def faults_of(kind: str, role: str, moment: str) -> list[Fault]:
    """One fault of this kind; with a slow close its task is killed, for it shows only if a connection ends."""
    faults = [fault_of(kind, role, moment)]
    if kind == SLOW_CLOSE:
        when = When(moment, STEPS // 3 + 1)
        faults.append(Fault(kind="kill", task=Task.parse(role), when=when, restart_after_s=0.2))
    return faults


def _may_be(row: Sequence[str]) -> bool:
    """Some kinds are of workers alone; a row may lack its end."""
    return len(row) < 2 or not KINDS[row[0]].asked or row[1].startswith("worker")


def fault_of(kind: str, role: str, moment: str) -> Fault:
    """One fault of this kind: of the task, or of its links, what it sends or both directions."""
    when = When() if kind == "late" else When("before-push" if kind == SLOW_CLOSE else moment, STEPS // 3)
    said: dict[str, Any] = {"kind": kind, "when": when, "amounts": usual_amounts(kind)}
    if KINDS[kind].lasts:
        said["lasts_s"] = 5.0 if kind == SLOW_CLOSE else 0.5  # until somebody has died, and some time after
    if KINDS[kind].restarts:
        said["restart_after_s"] = 0.2
    if KINDS[kind].of != NETWORK:
        return Fault(task=Task.parse(role), **said)
    where = f"mute {role}" if moment == "before-push" else f"isolate {role}"
    return Fault(region=where, links=region(where, layout=LAYOUT, place="case"), **said)


@pytest.mark.parametrize(
    ("kind", "role", "update", "moment"),
    [pytest.param(*case, marks=survives(case[2]), id="-".join(case)) for case in cases()],
)
def test_a_fault_of_a_role(judge: Judge, tmp_path: Path, kind: str, role: str, update: str, moment: str) -> None:
    """R1 to R4, R6, R7, L1, S1, S3, A5, C3."""
    faults = faults_of(kind, role, moment)
    must_survive(judge, faults, folder=tmp_path, layout=LAYOUT.text, update=update, checkpoint_every=7)
