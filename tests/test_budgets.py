"""L2: training is as fast again after a fault. L3: faults that are spaced; violated in test_checks_recovery.py."""

from __future__ import annotations

import pytest

from psconform.checks.throughput import BACK_S, LEAST

from .stories import Story, stretched
from .test_checks_recovery import statuses, violated


@pytest.fixture
def story(tmp_path):
    return Story(tmp_path / "run")


def test_three_spaced_faults_are_survived(story):
    story.spaced()
    judged = story.finish()
    assert statuses(judged)["L3"] == "valid"
    assert violated(judged) == set()


def test_what_was_accepted_between_two_faults_and_rolled_back_later_counts(story):
    """No checkpoint was durable meanwhile: each rollback goes back to the beginning, and all is answered again."""
    story.checkpoint("first")
    for number in range(3):
        story.step(0, 2)
        story.kill("ps:0", at=str(number))
        story.fault("kill", "ps:0", at=str(number), on=False)
        story.restore("first")
    story.exits.clear()
    story.step(0)
    judged = story.end("finished", "worker:0 failed with status 1; its log ends: gave up")
    assert {"L1", "L3"} <= violated(judged)


def test_the_first_of_its_kind_that_is_not_survived_is_no_budget(story):
    """Three times a ps was lost, and that was survived; the worker that dies then is the first one."""
    story.step(1)
    story.spaced()
    story.step(0)
    story.kill("worker:1")
    story.fault("kill", "worker:1", on=False)
    judged = story.end("finished", "worker:0 failed with status 1; its log ends: gave up")
    assert "L3" not in statuses(judged)
    assert "L1" in violated(judged)


@pytest.mark.parametrize(("times", "between"), [(2, 1), (4, 0)])
def test_fewer_faults_or_several_at_once_say_nothing_of_budgets(story, times, between):
    """Four faults with no update between them are one."""
    story.step(1)
    story.spaced(times=times, between=between)
    judged = story.end("finished", "worker:0 failed with status 1; its log ends: gave up")
    assert "L3" not in statuses(judged)
    assert "L1" in violated(judged)


@pytest.mark.parametrize(
    ("pause_s", "slower", "status"),
    [
        (BACK_S + 1, 1.0, "valid"),
        (BACK_S + 1, 2.0, "valid"),
        (BACK_S + 1, 1e4, "violated"),
        (0.0, 1.0, None),
    ],
)
def test_training_is_as_fast_again_some_time_after_the_fault(tmp_path, pause_s, slower, status):
    story = Story(tmp_path / "run", steps=3 * LEAST)
    story.long_after(LEAST + 2)
    assert "L2" not in statuses(story.finish())  # it was over too soon
    judged = stretched(story.folder, pause_s=pause_s, slower=slower)
    assert statuses(judged).get("L2") == status
    assert violated(judged) == ({"L2"} if status == "violated" else set())
