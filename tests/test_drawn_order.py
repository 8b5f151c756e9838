"""What drawn plans are made of, and that faults which would undo, or hide, what others bring about are apart."""

from __future__ import annotations

import pytest

from psconform.faults.fault_generator import drawn_plan
from psconform.faults.kinds import kinds
from psconform.layout import Layout

from .test_fault_plans import LAYOUT, STEPS, drawn_for

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


def test_a_quota_is_so_small_that_a_task_which_mostly_waits_notices():
    cluster = Layout(ps=1, workers=2)
    drawn = [drawn_plan("random", layout=cluster, steps=60, seed=seed, containers=True) for seed in SEEDS]
    found = [dict(fault.amounts)["percent"] for plan in drawn for fault in plan if fault.kind == "cpu-quota"]
    assert set(found) == {5, 10}


@pytest.mark.parametrize("update", ["sync", "async"])
def test_a_second_process_is_there_in_nearly_all_plans_and_outlives_them(update):
    """A ps that is lost after it has begun takes back what it did; a connection that ends may end it."""

    def ends(second, other):
        begins, strikes = second.when.step, other.when.step
        if strikes is None:
            return False
        if other.kind in ENDS and other.task.job == "ps":
            return begins is None or strikes > begins - 3
        of = {str(second.task), "ps:0"}
        own = any({str(link.source), str(link.destination)} <= of for link in other.links)
        return (
            own and kinds()[other.kind].effect == "ends" and begins is not None and begins - 3 < strikes < begins + 10
        )

    drawn = plans(update=update)
    seconds = [(fault, plan) for plan in drawn for fault in plan if fault.kind == "twice"]
    outlived = [fault for fault, plan in seconds if not any(ends(fault, other) for other in plan)]
    assert len(seconds) > 0.95 * len(drawn)
    assert len(outlived) > 0.85 * len(drawn)


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


@pytest.mark.parametrize("update", ["sync", "async"])
def test_most_stalls_hold_a_push_from_its_beginning(update):
    stalls = [fault for fault in drawn_for(Layout(ps=2, workers=3, update=update)) if fault.kind == "stall"]
    own = [f for f in stalls if f.when.task in {str(t) for link in f.links for t in (link.source, link.destination)}]
    assert sum(fault.when.phase == "before-push" for fault in own) > 0.8 * len(stalls)


def test_a_cut_between_a_push_and_its_answer_lets_none_of_it_through():
    cuts = [fault for fault in drawn_for(LAYOUT) if fault.kind == "cut" and fault.when.phase == "sent"]
    assert cuts
    assert all(dict(fault.amounts) == {"bytes": 0} for fault in cuts)


@pytest.mark.parametrize("drop_after", [0.5, 2.0, 3.0])
def test_where_rounds_go_by_without_a_worker_faults_strike_at_steps_of_the_chief(drop_after):
    """Of a worker that is gone without the steps go by, and whatever waits for it there never strikes."""
    faults = drawn_for(Layout(ps=2, workers=3, update="sync", drop_after=drop_after))
    waits = [fault for fault in faults if fault.kind != "late" and not fault.links]
    assert {fault.where for fault in waits} == {"worker:0"}
    assert {fault.where for fault in faults if fault.links} <= {"worker:0", "worker"}
    away = [f.restart_after_s for f in faults if f.kind in ("kill", "term") and f.task.job == "worker"]
    assert sum(seconds > drop_after for seconds in away) > 0.8 * len(away)
    assert max(away) < drop_after + 1


def test_of_workers_that_die_some_are_away_for_longer_than_a_deadline():
    died = [fault for fault in drawn_for(LAYOUT, 400) if fault.kind in ("kill", "term") and fault.task.job == "worker"]
    assert 0.03 < sum(fault.restart_after_s > 2 for fault in died) / len(died) < 0.3


def test_sent_is_drawn_where_it_can_be_reached(tmp_path):
    def phases(kinds="random", **given):
        plans = (drawn_plan(kinds, layout=LAYOUT, steps=STEPS, seed=seed, **given) for seed in range(50))
        return {fault.when.phase for plan in plans for fault in plan}

    assert "sent" in phases(sent=True)
    assert "sent" in phases("random:reset", sent=True)
    assert "sent" not in phases()
    assert "sent" not in phases(sent=True, shared=True)
    assert "sent" not in phases("random:kill,stall", sent=True)


def test_ps_and_workers_are_struck_alike():
    drawn = [f for seed in range(500) for f in drawn_plan("random:kill", layout=LAYOUT, steps=STEPS, seed=seed)]
    share = sum(fault.task.job == "ps" for fault in drawn) / len(drawn)
    assert 0.4 < share < 0.6
