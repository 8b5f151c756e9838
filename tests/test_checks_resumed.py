"""C1 and R4 on a model that is rolled back: told as it should be, and with a part of the state lost."""

from __future__ import annotations

import dataclasses

import pytest

from psconform.report.text import explain

from .rounds import CLAIMS, Rounds
from .test_checks_recovery import statuses, violated, witness

RULES = pytest.mark.parametrize(
    ("optimizer", "schedule"),
    [
        ("adam", "halving"),
        ("momentum", "constant"),
        ("sgd", "halving"),
        ("sgd", "constant"),
        ("sgd", "warm-up"),
        ("adam", "cosine"),
    ],
)


def rolled_back(folder, *, before=60, lost=5, steps=76, weights=(0.5, 0.5), more=None, options=None, **restored):
    """Train, checkpoint, train, lose a ps, restore, train."""
    story = Rounds(folder / "run", steps=steps, **options or {})
    story.train(before - 3)
    story.train(weights=weights)
    story.train(2)
    story.checkpoint("kept")
    story.train(lost)
    story.lose("kept", **restored)
    if more is not None:
        more(story)
    return story.finish()


def reason(judged, name):
    return next(v.reason for v in judged.verdicts if v.guarantee == name)


@RULES
@pytest.mark.parametrize("workload", ["digits", "quadratic"])
def test_a_rollback_as_it_should_be(tmp_path, optimizer, schedule, workload):
    judged = rolled_back(tmp_path, options={"optimizer": optimizer, "schedule": schedule, "workload": workload})
    assert set(statuses(judged).values()) == {"valid"}, explain(judged)
    assert {"C1", "R4"} <= set(statuses(judged))


@pytest.mark.parametrize("schedule", ["halving", "warm-up", "cosine"])
@pytest.mark.parametrize("late", [0, 1])
def test_a_schedule_that_begins_one_update_late(tmp_path, schedule, late):
    story = Rounds(tmp_path / "run", optimizer="sgd", schedule=schedule, workload="digits", steps=70)
    story.updates = -late if schedule != "warm-up" else late  # before the first one there is no rate
    judged = story.finish()
    assert violated(judged) == ({"C1"} if late else set()), explain(judged)


def test_twice_and_to_the_very_beginning(tmp_path):
    story = Rounds(tmp_path / "run")
    story.checkpoint("begin")
    for _ in range(2):
        story.train(3)
        story.lose("begin")
    judged = story.finish()
    assert set(statuses(judged).values()) == {"valid"}, explain(judged)
    assert reason(judged, "R4").startswith("2 rollbacks")


def test_lost_moments(tmp_path):
    for optimizer in ("adam", "momentum"):
        (tmp_path / optimizer).mkdir()
        judged = rolled_back(tmp_path / optimizer, moments=True, options={"optimizer": optimizer})
        assert violated(judged) == {"R4", "C1"}, explain(judged)
        first = witness(judged, "R4")[0]
        assert first.startswith("worker:0 restored kept in epoch 1; worker:0 at step 61, version 61, read what is ")
        assert first.endswith("the optimizer's moments did not come back with the parameters but began at zero")


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize(("before", "shows"), [(60, 61), (40, 51)])
def test_a_counter_that_begins_again(tmp_path, before, shows, optimizer):
    """Of the schedule alone it may show only later, when the rate should have halved; Adam corrects by it at once."""
    judged = rolled_back(tmp_path, before=before, updates=True, options={"optimizer": optimizer})
    assert violated(judged) == {"R4", "C1"}, explain(judged)
    first = witness(judged, "R4")[0]
    assert f"at step {before + 1 if optimizer == 'adam' else shows}, " in first
    assert first.endswith("the number of updates did not come back with the parameters but began at zero")


def test_both(tmp_path):
    judged = rolled_back(tmp_path, moments=True, updates=True)
    assert witness(judged, "R4")[0].endswith(
        "the optimizer's moments and the number of updates did not come back with the parameters but began at zero"
    )


def test_one_shard_not_restored(tmp_path):
    judged = rolled_back(tmp_path, shards=[1])
    assert violated(judged) == {"R4", "C1"}, explain(judged)
    assert witness(judged, "R4")[0].endswith("the parameters of that round did not come back")


def test_a_part_that_nobody_can_name(tmp_path):
    def halved(story):
        story.moments[0] = story.moments[0] / 2

    judged = rolled_back(tmp_path, more=halved)
    assert violated(judged) == {"R4", "C1"}, explain(judged)
    assert witness(judged, "R4")[0].endswith("optimizer state did not come back with the parameters")


def test_what_went_wrong_before_the_rollback_is_not_its_fault(tmp_path):
    judged = rolled_back(tmp_path, weights=(0.5, 0.0), moments=True)
    assert violated(judged) == {"C1"}, explain(judged)
    assert statuses(judged)["R4"] == "unknown"


def test_what_goes_wrong_later_for_another_reason_is_not_its_fault(tmp_path):
    def later(story):
        story.train(4)
        story.train(weights=(0.5, 0.0))

    judged = rolled_back(tmp_path, more=later)
    assert violated(judged) == {"C1"}, explain(judged)
    assert statuses(judged)["R4"] == "valid"


def test_plain_sgd_has_nothing_beside_its_parameters(tmp_path):
    judged = rolled_back(tmp_path, moments=True, updates=True, options={"optimizer": "sgd", "schedule": "constant"})
    assert set(statuses(judged).values()) == {"valid"}, explain(judged)


@pytest.mark.parametrize(
    ("changed", "lacks"),
    [({"recovery": "none"}, "C1 R4"), ({"recovery": "partial"}, "C1 R4"), ({"delivery": "at-least-once"}, "C1")],
)
def test_who_promises_less_is_not_judged_by_it(tmp_path, changed, lacks):
    judged = rolled_back(tmp_path, moments=True, options={"claims": dataclasses.replace(CLAIMS, **changed)})
    assert not set(lacks.split()) & set(statuses(judged)), explain(judged)
