"""L3: faults that are spaced; the one that is violated stands in test_checks_recovery.py."""

from __future__ import annotations

import pytest

from .stories import Story
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


@pytest.mark.parametrize(("times", "between"), [(2, 1), (4, 0)])
def test_fewer_faults_or_several_at_once_say_nothing_of_budgets(story, times, between):
    """Four faults with no update between them are one."""
    story.step(1)
    story.spaced(times=times, between=between)
    judged = story.end("finished", "worker:0 failed with status 1; its log ends: gave up")
    assert "L3" not in statuses(judged)
    assert "L1" in violated(judged)
