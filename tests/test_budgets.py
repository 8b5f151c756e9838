"""L2: training is as fast again after a fault. L3: faults that are spaced; violated in test_checks_recovery.py."""

from __future__ import annotations

import dataclasses
import json

import pytest

from psconform.checks.throughput import BACK_S, LEAST
from psconform.history.reasons import TaskFailed
from psconform.layout import Layout
from psconform.runner.verdicts import judge_folder

from .mutations import rechained
from .stories import CLAIMS, Story, stretched
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
    judged = story.end("finished", TaskFailed("worker:0", 1, "gave up"))
    assert {"L1", "L3"} <= violated(judged)


def test_the_first_of_its_kind_that_is_not_survived_is_no_budget(story):
    """Three times a ps was lost, and that was survived; the worker that dies then is the first one."""
    story.step(1)
    story.spaced()
    story.step(0)
    story.kill("worker:1")
    story.fault("kill", "worker:1", on=False)
    judged = story.end("finished", TaskFailed("worker:0", 1, "gave up"))
    assert "L3" not in statuses(judged)
    assert "L1" in violated(judged)


@pytest.mark.parametrize(("times", "between"), [(2, 1), (4, 0)])
def test_fewer_faults_or_several_at_once_say_nothing_of_budgets(story, times, between):
    """Four faults with no update between them are one."""
    story.step(1)
    story.spaced(times=times, between=between)
    judged = story.end("finished", TaskFailed("worker:0", 1, "gave up"))
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


def test_up_to_a_bound_on_staleness_a_worker_may_be_faster_before(tmp_path):
    layout = Layout(ps=2, workers=2, update="async", staleness=30)
    claims = dataclasses.replace(CLAIMS, staleness="bounded")
    story = Story(tmp_path / "run", steps=3 * LEAST, layout=layout, claims=claims)
    story.long_after(LEAST + 2)
    story.finish()
    assert "L2" not in statuses(stretched(story.folder, pause_s=BACK_S + 1, slower=1e4))


def test_a_last_fault_that_lasts_much_longer_is_no_budget(story):
    story.step(1)
    story.spaced()
    story.finish()
    story.end("finished", TaskFailed("worker:0", 1, "gave up"))
    path = story.folder / "events/psconform-0.jsonl"
    events = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    last = max(i for i, event in enumerate(events) if event["kind"] == "fault")
    for event in events[last:]:
        event["mono_ns"] += int(1e11)
    path.write_bytes(b"".join(rechained([json.dumps(event).encode() for event in events])))
    judged = judge_folder(story.folder)
    assert "L3" not in statuses(judged)
    assert "L1" in violated(judged)
