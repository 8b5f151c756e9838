"""Faults of a drawn plan that would undo, or hide, what another of them brings about are apart."""

from __future__ import annotations

import pytest

from psconform.faults.random_plan import drawn_plan
from psconform.layout import Layout

ENDS = ("kill", "term", "crash-loop")
SEEDS = range(200)


def plans(**layout):
    cluster = Layout(ps=1, workers=2, **layout)
    return [drawn_plan("random", layout=cluster, steps=60, seed=seed, sent=True) for seed in SEEDS]


@pytest.mark.parametrize("update", ["sync", "async"])
def test_a_ps_is_seldom_lost_soon_after_what_a_rollback_would_undo(update):
    begun = [
        (fault.when.step, other.when.step)
        for plan in plans(update=update)
        for fault in plan
        for other in plan
        if fault.kind in ("twice", "stall") and other.kind in ENDS and other.task.job == "ps"
    ]
    known = [(begins, lost) for begins, lost in begun if begins is not None and lost is not None]
    undone = [lost for begins, lost in known if begins - 3 < lost < begins + 10]
    assert len(known) > len(SEEDS)
    assert len(undone) < 0.05 * len(known)


def test_a_worker_that_is_to_be_gone_without_leaves_while_nothing_holds_the_others_up():
    left = 0
    for plan in plans(update="sync", drop_after=0.5):
        for fault in plan:
            if fault.kind not in ENDS or fault.task.job != "worker" or fault.restart_after_s < 0.5:
                continue
            left += 1
            others = [other for other in plan if other is not fault and other.kind not in ("late", "throttle", "twice")]
            assert all(abs(other.when.step - fault.when.step) >= 3 for other in others if other.when.step is not None)
    assert left > 0.9 * len(SEEDS)


@pytest.mark.parametrize("kinds", ["stall,kill", "twice,kill"])
def test_in_a_short_job_too_there_is_what_was_asked_for(kinds):
    cluster = Layout(ps=1, workers=2, update="sync")
    for seed in range(40):
        plan = drawn_plan(f"random:{kinds}", layout=cluster, steps=6, seed=seed)
        assert {fault.kind for fault in plan} == set(kinds.split(","))
