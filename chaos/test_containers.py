"""Faults that only containers have, each on each role, in each update mode (``--psconform-launcher docker``)."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from psconform.faults.container_faults import DNS
from psconform.faults.fault import Fault, When
from psconform.faults.kinds import PACKETS, kinds
from psconform.faults.partitions import region
from psconform.faults.process_faults import KILL
from psconform.layout import Layout, Task
from psconform.plugin import chosen

from .survive import STEPS, Judge, must_survive, survives

LAYOUT = Layout(ps=2, workers=2)
ROLES = ("worker:1", "ps:0", "worker:0", "ps:1")
UPDATES = ("sync", "async")
FROM = (STEPS // 4, STEPS // 2, STEPS * 3 // 4)
"""Steps at which faults of a cluster strike. It trains on for three times as long: where nothing is waited for, forty
steps take half a second, and what has not healed by the end of the run is undecided."""
Struck = tuple[str, str]
"""Kind, role."""


def cases() -> list[tuple[tuple[Struck, ...], str]]:
    """In nightly each kind on each role in each mode, alone; else on one role in each mode, three kinds a cluster."""
    names = [name for name, kind in kinds().items() if kind.in_containers]
    if chosen.profile == "nightly":
        return [(((kind, role),), update) for kind, role, update in product(names, ROLES, UPDATES)]
    apart = (len(names) + len(FROM) - 1) // len(FROM)  # packets first: what takes a task away comes last
    found = []
    for turn, update in enumerate(UPDATES):
        struck = [(kind, ROLES[(number + turn) % len(ROLES)]) for number, kind in enumerate(names)]
        found += [(tuple(struck[first::apart]), update) for first in range(apart)]
    return found


def faults_of(kind: str, role: str, step: int) -> list[Fault]:
    """One of this kind, from that step on. Where no name is found somebody must be dialled anew."""
    at = When("before-push", step, task="worker:0")
    said: dict[str, Any] = {"kind": kind, "when": at, "amounts": kinds()[kind].usual}
    if kinds()[kind].lasts:
        said["lasts_s"] = 2.0 if kind == DNS.name else 0.5
    if kinds()[kind].restarts:
        said["restart_after_s"] = 0.2
    if kinds()[kind].of == PACKETS:
        where = f"isolate {role}"
        return [Fault(region=where, links=region(where, layout=LAYOUT, place="case"), **said)]
    if kind != DNS.name:
        return [Fault(task=Task.parse(role), **said)]
    who, other = ("worker:0", role) if role.startswith("ps") else (role, "ps:0")
    lost = Fault(
        kind=KILL.name, task=Task.parse(other), when=When("before-push", at.step, task=who), restart_after_s=0.2
    )
    return [Fault(task=Task.parse(who), **said), lost]


if chosen.launcher == "docker":

    @pytest.mark.parametrize(
        ("struck", "update"),
        [pytest.param(*case, marks=survives(case[1]), id="-".join((*sum(case[0], ()), case[1]))) for case in cases()],
    )
    def test_faults_of_containers(judge: Judge, tmp_path: Path, struck: tuple[Struck, ...], update: str) -> None:
        """R1 to R4, R6, R7, L1, S1, S3 to S5, A1, A2, A5 to A7, C3."""
        faults = [fault for of, step in zip(struck, FROM, strict=False) for fault in faults_of(*of, step)]
        options = {"layout": LAYOUT.text, "update": update, "steps": 3 * STEPS, "checkpoint_every": 7}
        must_survive(judge, faults, folder=tmp_path, **options)
