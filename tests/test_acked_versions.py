"""Acknowledgements by a version that the next read is below (A7), where some of them name none, or not as many."""

from __future__ import annotations

import pytest

from psconform.report.text import explain

from .stories import Story
from .test_checks_under_faults import answered, statuses


def again(story, versions):
    """worker:1 sends its last gradient once more, and is only answered."""
    story.read(1, 2)
    story.probes[1].push(2)
    story.probes[1].ack(2, "ok", versions)


@pytest.mark.parametrize("versions", [None, [5, 5]])
@pytest.mark.parametrize("came_back", [False, True])
@pytest.mark.parametrize(("named", "status"), [(9, "violated"), (7, "valid")])
def test_a_version_too_high_beside_an_answer_without_one(tmp_path, versions, came_back, named, status):
    story = Story(tmp_path / "run")
    story.step(0, 3)
    story.step(1, 3)
    again(story, versions)
    if came_back:
        story.kill("worker:1")
        story.back(1)
        story.step(1)
    answered(story, story.next_step(1), [named + came_back] * 2)
    story.step(1)
    judged = story.finish()
    assert statuses(judged)["A7"] == status, explain(judged)


def test_widths_that_differ_say_nothing(tmp_path):
    story = Story(tmp_path / "run")
    story.step(0, 3)
    story.step(1, 3)
    again(story, [6])
    answered(story, 3, [7, 7])
    story.step(1)
    judged = story.finish()
    assert statuses(judged)["A7"] == "valid", explain(judged)
