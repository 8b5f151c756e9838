"""Faults that only containers have, each on each role, in each update mode (``--psconform-launcher docker``)."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from psconform.faults.fault import Fault
from psconform.faults.kinds import KINDS, usual_amounts
from psconform.faults.partitions import region
from psconform.faults.when import When
from psconform.faults.words import CONTAINER, PACKETS
from psconform.layout import Layout, Task
from psconform.plugin import chosen

from .survive import STEPS, Judge, must_survive, survives

LAYOUT = Layout(ps=2, workers=2)
ROLES = ("worker:1", "ps:0", "worker:0", "ps:1")
UPDATES = ("sync", "async")
NO_NAMES = "dns"
Case = tuple[str, str, str]
"""Kind, role, update mode."""


def cases() -> list[Case]:
    """In nightly (so with the clusters of ci) each kind on each role in each mode; else on one role in each mode."""
    kinds = [name for name, kind in KINDS.items() if kind.of in (CONTAINER, PACKETS)]
    if chosen.profile == "nightly":
        return list(product(kinds, ROLES, UPDATES))
    return [
        (kind, ROLES[(number + turn) % len(ROLES)], update)
        for number, kind in enumerate(kinds)
        for turn, update in enumerate(UPDATES)
    ]


def faults_of(kind: str, role: str) -> list[Fault]:
    """One of this kind, from a third of the way. Where no name is found somebody must be dialled anew."""
    at = When("before-push", STEPS // 3, task="worker:0")
    said: dict[str, Any] = {"kind": kind, "when": at, "amounts": usual_amounts(kind)}
    if KINDS[kind].lasts:
        said["lasts_s"] = 2.0 if kind == NO_NAMES else 0.5
    if KINDS[kind].restarts:
        said["restart_after_s"] = 0.2
    if KINDS[kind].of == PACKETS:
        where = f"isolate {role}"
        return [Fault(region=where, links=region(where, layout=LAYOUT, place="case"), **said)]
    if kind != NO_NAMES:
        return [Fault(task=Task.parse(role), **said)]
    who, other = ("worker:0", role) if role.startswith("ps") else (role, "ps:0")
    lost = Fault(kind="kill", task=Task.parse(other), when=When("before-push", at.step, task=who), restart_after_s=0.2)
    return [Fault(task=Task.parse(who), **said), lost]


if chosen.launcher == "docker":

    @pytest.mark.parametrize(
        ("kind", "role", "update"),
        [pytest.param(*case, marks=survives(case[2]), id="-".join(case)) for case in cases()],
    )
    def test_a_fault_of_a_container(judge: Judge, tmp_path: Path, kind: str, role: str, update: str) -> None:
        """R1 to R4, R6, R7, L1, S1, S3 to S5, A1, A2, A5 to A7, C3."""
        must_survive(
            judge, faults_of(kind, role), folder=tmp_path, layout=LAYOUT.text, update=update, checkpoint_every=7
        )
