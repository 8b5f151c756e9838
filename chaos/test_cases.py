"""Every kind of fault, on every role, in every update mode: pairs of these in ci, all of them in nightly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from psconform.faults.clock_faults import CLOCK
from psconform.faults.fault import Fault, When
from psconform.faults.kinds import NETWORK, kinds
from psconform.faults.partitions import region
from psconform.faults.process_faults import KILL, LATE
from psconform.faults.proxy_faults import REFUSE, SLOW_CLOSE, STALL
from psconform.layout import Layout, Task
from psconform.plugin import chosen, need
from psconform.targets.lookup import find_target

from .covering import UPDATE, Case, factors_of
from .survive import LAYOUT, STEPS, Judge, crossed, must_survive, part_of, survives

THREE = Layout(ps=3, workers=3)
"""A ring of fewer separates nobody."""
TARGET = find_target(chosen.target)


def cases() -> list[Case]:
    """A pairwise covering array; in nightly the whole product; in quick every eighth row of the array.

    Of containers every sixteenth: what they have of their own is in `test_containers`.
    """
    factors = factors_of(TARGET, chosen.launcher)
    if chosen.size == "nightly":
        return factors.product()
    if chosen.size == "ci":
        return factors.pairs()
    return factors.pairs()[:: 16 if chosen.small else 8]


def faults_of(kind: str, role: str, moment: str) -> list[Fault]:
    """One fault of this kind; with a slow close its task is killed, for it shows only if a connection ends."""
    faults = [fault_of(kind, role, moment)]
    if kind == SLOW_CLOSE.name:
        when = When(moment, STEPS // 3 + 1)
        faults.append(Fault(kind=KILL.name, task=Task.parse(role), when=when, restart_after_s=0.2))
    return faults


def fault_of(kind: str, role: str, moment: str) -> Fault:
    """One fault of this kind: of the task, or of its links, what it sends or both directions."""
    when = When() if kind == LATE.name else When("before-push" if kind == SLOW_CLOSE.name else moment, STEPS // 3)
    said: dict[str, Any] = {"kind": kind, "when": when, "amounts": kinds()[kind].usual}
    if kinds()[kind].lasts:
        # until somebody has died, and some time after; a worker tells of its clock at its next step
        said["lasts_s"] = {SLOW_CLOSE.name: 5.0, CLOCK.name: 2.0}.get(kind, 0.5)
    if kinds()[kind].restarts:
        said["restart_after_s"] = 0.2
    if kinds()[kind].of != NETWORK:
        return Fault(task=Task.parse(role), **said)
    where = f"mute {role}" if moment == "before-push" else f"isolate {role}"
    if TARGET.shared and kind == REFUSE.name:
        where = f"deaf {role}"  # who has dialled is not known, so only who is dialled can refuse
    return Fault(region=where, links=region(where, layout=LAYOUT, place="case"), **said)


@pytest.mark.parametrize(
    ("kind", "role", "update", "moment"),
    [pytest.param(*case, marks=survives(case[2]), id="-".join(case)) for case in cases()],
)
def test_a_fault_of_a_role(judge: Judge, tmp_path: Path, kind: str, role: str, update: str, moment: str) -> None:
    """R1 to R4, R6, R7, L1, S1, S3 to S5, A1, A2, A5 to A7, C3."""
    faults = faults_of(kind, role, moment)
    must_survive(judge, faults, folder=tmp_path, layout=LAYOUT.text, update=update, checkpoint_every=7)


ALL = ("all ps", "halves", "ring")
"""What strikes more than one task, or its links, at once."""


@pytest.mark.parametrize(
    ("update", "what"), [pytest.param(*case, marks=survives(case[0])) for case in crossed(UPDATE, ALL)]
)
def test_many_are_struck_at_once(judge: Judge, tmp_path: Path, update: str, what: str) -> None:
    """R1, R3, R4, L1: no ps has anything any more; or the network falls into parts."""
    layout = THREE if what == "ring" else LAYOUT
    least = THREE if what == "ring" else Layout(ps=2, workers=2)
    if what != "all ps" and TARGET.nearest(least) != least:
        pytest.skip(f"needs {least.text}, and the target takes {TARGET.nearest(least).text} (its target.toml)")
    if what != "all ps" and TARGET.shared:
        pytest.skip('all tasks share one cluster spec (cluster_spec = "shared")')
    at = When("before-push", STEPS // 3, task="worker:0")
    if what == "all ps":
        servers = [task for task in layout.tasks if task.job == "ps"]
        faults = [Fault(kind=KILL.name, task=task, when=at, restart_after_s=0.2) for task in servers]
    else:
        links = region(what, layout=layout, place="case")
        faults = [Fault(kind=STALL.name, region=what, links=links, when=at, lasts_s=0.5)]
    must_survive(judge, faults, folder=tmp_path, layout=layout.text, update=update, checkpoint_every=7)


if left_out := factors_of(TARGET, chosen.launcher).left_out:

    @pytest.mark.parametrize(("name", "reason"), [pytest.param(*case, id=case[0]) for case in left_out])
    def test_what_is_left_out(name: str, reason: str) -> None:
        """Nothing is left out in silence."""
        if name in kinds() and kinds()[name].asked:
            need(part_of(name))
        pytest.skip(reason)
