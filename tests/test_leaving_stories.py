"""Stories of workers that a job goes on without: bugs that hide behind ``--drop-after``, trainers to leave alone."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from psconform import probe as loaded
from psconform.checks.leaving import leaves_as_declared
from psconform.checks.synchronous import waits_for_slowest
from psconform.claims import DEFAULTS
from psconform.faults.kinds import kinds
from psconform.history.records import Struck
from psconform.layout import Layout
from psconform.report.text import explain

from .old_folders import TASK
from .stories import Story
from .test_checks_recovery import statuses, violated, witness
from .test_leaving_rollback import Rounds

T_S = 10.0
"""Seconds that a job waits for a worker: far more than a story takes, whose clock is advanced by hand."""


class Clock:
    """The module time for the probe, whose monotonic clock goes on at once where a story says so."""

    ahead_ns = 0

    def advance(self, seconds):
        self.ahead_ns += int(seconds * 1e9)

    def monotonic_ns(self):
        return time.monotonic_ns() + self.ahead_ns

    def __getattr__(self, name):
        return getattr(time, name)


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(loaded, "time", clock)
    return clock


class Waits(Rounds):
    """Like Rounds, but who is gone on without was waited for."""

    def __init__(self, folder, *, steps=12):
        claims = replace(DEFAULTS["sync"], recovery="checkpoint", liveness="progress", reduction="none")
        Story.__init__(self, folder, layout=Layout(ps=2, workers=2, drop_after=T_S), steps=steps, claims=claims)

    def before_absence(self):
        loaded.time.advance(1.2 * T_S)


@pytest.fixture
def story(tmp_path):
    return Waits(tmp_path / "run")


def lost(story, step):
    """A round in which both ps lose what worker:1 has pushed, and say ok."""
    for worker in range(2):
        story.read(worker, step)
        story.probes[worker].push(step)
    for p in range(2):
        story.put(p, 0, step)
        story.applied[p][1] += 1
    for worker in range(2):
        story.probes[worker].ack(step, "ok", [sum(applied) for applied in story.applied])


def refused(story, until, *, resumes=False):
    """worker:1 reads and pushes, and the rounds go on without it all the same."""
    story.before_absence = lambda: None
    for step in range(story.next_step(0), until):
        story.read(1, step)
        story.probes[1].push(step)
        story.round(0)
        story.probes[1].ack(step, "failed", [sum(applied) for applied in story.applied])
        if resumes:
            story.probes[1].resume(step + 1)


def test_who_was_waited_for_may_be_gone_on_without(story):
    story.rounds(2)
    story.kill("worker:1")
    story.rounds(10, 0)
    judged = story.ends()
    assert not violated(judged), explain(judged)


def test_a_barrier_broken_before_a_rollback_is_not_excused_after_it(story):
    story.rounds(2)
    story.checkpoint("ckpt-2")
    story.rounds(2)
    lost(story, 4)
    story.round()
    story.kill("worker:1")
    story.lose_ps()
    story.restore("ckpt-2")
    story.rounds(10, 0)
    judged = story.ends()
    assert "S1" in violated(judged), explain(judged)
    assert "lacks the gradient of worker:1, step 4" in witness(judged, "S1")[0]


def test_a_late_gradient_is_not_for_a_later_round(story):
    story.rounds(3)
    story.read(1, 3)
    story.probes[1].push(3)
    story.kill("worker:1")
    story.rounds(2, 0)
    for p in range(2):
        story.theta[p] = story.theta[p] - story.probes[1].gradient(3)
    story.rounds(7, 0)
    judged = story.ends()
    assert violated(judged) == {"S1"}, explain(judged)
    assert "which only now has the gradient of worker:1, step 3" in witness(judged, "S1")[0]


def test_what_a_checkpoint_holds_cannot_be_gone_on_without(story):
    story.rounds(6)
    story.checkpoint("ckpt-6")
    story.round()
    story.kill("worker:1")
    story.lose_ps()
    story.restore("ckpt-6")
    for p in range(2):
        for step in (3, 4, 5):
            story.theta[p] = story.theta[p] + story.probes[1].gradient(step)
    story.before_absence()
    for step in (3, 4, 5):
        story.probes[0].goes_without(1, step)
    story.rounds(6, 0)
    judged = story.ends()
    assert {"R1", "R4", "S1"} & violated(judged), explain(judged)


def test_who_resumes_again_and_again_and_is_refused_was_not_taken_back(tmp_path):
    story = Waits(tmp_path / "run", steps=40)
    story.rounds(2)
    story.kill("worker:1")
    story.rounds(2, 0)
    story.back(1)
    refused(story, 40, resumes=True)
    judged = story.ends()
    assert violated(judged) == {"M2"}, explain(judged)
    assert "worker:1 was back at step 4, and 36 rounds from step 4 on went on without it" in witness(judged, "M2")[0]


def test_who_is_killed_for_good_once_back_is_owed_nothing(tmp_path):
    story = Waits(tmp_path / "run", steps=40)
    story.rounds(2)
    story.kill("worker:1")
    story.rounds(2, 0)
    story.back(1)
    story.kill("worker:1", at="8")
    story.rounds(36, 0)
    judged = story.ends()
    assert not violated(judged), explain(judged)
    assert statuses(judged)["L1"] == "valid"  # progress is owed without it


@pytest.mark.parametrize("waits", [True, False])
def test_after_a_rollback_one_is_waited_for_anew(story, waits):
    story.rounds(2)
    story.checkpoint("ckpt-2")
    story.rounds(10)
    story.kill("worker:1")
    story.before_absence()
    story.lose_ps()
    story.restore("ckpt-2")
    if not waits:
        story.before_absence = lambda: None
    story.rounds(10, 0)
    judged = story.ends()
    assert violated(judged) == (set() if waits else {"M2"}), explain(judged)


def test_in_async_one_absence_is_over_when_the_worker_pushes_again(tmp_path, clock):
    claims = replace(DEFAULTS["async"], recovery="checkpoint", liveness="progress")
    layout = Layout(ps=2, workers=2, update="async", drop_after=T_S)
    story = Story(tmp_path / "run", layout=layout, claims=claims, update="async")
    story.step(1, 3)
    story.step(0, 3)
    clock.advance(1.2 * T_S)
    story.probes[0].goes_without(1, 3)
    story.step(0, 3)
    story.step(1, 4)  # it is back; then it stops, and nobody says so
    story.step(0, 6)
    for worker in range(2):
        (story.folder / "done" / f"worker-{worker}").touch()
    for worker, probe in enumerate(story.probes):
        probe.wait_for_all()
        story.read(worker, final=True)
        probe.close()
    judged = story.end("finished")
    assert violated(judged) == {"L0"}, explain(judged)
    assert "valid" not in {status for name, status in statuses(judged).items() if name in ("R1", "A1", "M2")}


@pytest.mark.parametrize("waits", [True, False])
def test_in_async_too_one_is_waited_for_anew_after_a_rollback(tmp_path, clock, waits):
    """Who waits has trained all its steps, and reads nothing."""
    claims = replace(DEFAULTS["async"], recovery="checkpoint", liveness="progress", reduction="none")
    layout = Layout(ps=2, workers=2, update="async", drop_after=T_S)
    story = Story(tmp_path / "run", layout=layout, claims=claims, update="async")
    story.step(1, 3)
    story.step(0, 12)
    story.checkpoint("step-12")
    clock.advance(1.2 * T_S)
    story.kill("ps:1")
    story.fault("kill", "ps:1", on=False, evidence="started again")
    story.exits.clear()
    story.restore("step-12")
    clock.advance(1.2 * T_S if waits else 0.0)
    story.probes[0].goes_without(1, 3)
    story.step(1, 9)
    judged = story.finish()
    assert violated(judged) == (set() if waits else {"M2"}), explain(judged)


def test_a_round_that_went_on_without_a_slow_worker_waited_for_nobody(story):
    story.rounds(3)
    story.read(1, 3)
    story.round(0)
    story.read(0, 4)
    story.probes[1].push(3)
    story.probes[1].ack(3, "failed", [sum(applied) for applied in story.applied])
    story.rounds(8)
    judged = story.ends()
    assert waits_for_slowest(judged.history).status == "valid", explain(judged)
    assert not violated(judged), explain(judged)


@pytest.fixture
def out_for_good(tmp_path):
    """Dropped, then all is rolled back to where it was still there; it comes back, and is in no round any more."""
    story = Waits(tmp_path / "run", steps=40)
    story.rounds(2)
    story.checkpoint("ckpt-2")
    story.kill("worker:1")
    story.rounds(2, 0)
    story.lose_ps()
    story.restore("ckpt-2")
    story.back(1)
    refused(story, 40)
    return story.ends()


def test_that_it_was_waited_for_before_it_came_back_excuses_nothing(out_for_good):
    assert violated(out_for_good) == {"M2"}, explain(out_for_good)
    assert "worker:1 was back at step 2, and 38 rounds from step 2 on" in witness(out_for_good, "M2")[0]


@pytest.mark.parametrize(
    ("kind", "of", "status"),
    [
        *(("stop", of, "valid") for of in ("isolate worker:1", "worker:1", "ps:0", "isolate ps:0", "halves")),
        *(("stop", of, "violated") for of in ("worker:0", "worker:0<->ps:0", "isolate worker:0")),
        *((kind, "ps:1", "violated") for kind in ("twice", "latency")),
    ],
)
def test_who_is_held_up_by_a_fault_once_back_need_not_be_in_a_round(out_for_good, kind, of, status):
    history = out_for_good.history
    came = next(mark.at for mark in history.marks if mark.kind == "resume" and str(mark.task) == "worker:1")
    last = history.absences[-1].at
    said = {"harm": kinds()[kind].harm, "tasks": tuple(TASK.findall(of))}
    fault = Struck(kind, of, "5", "seen", "healed", on_ns=came + 1, off_ns=last, **said)
    assert leaves_as_declared(replace(history, faults=(*history.faults, fault))).status == status
    before = replace(fault, on_ns=came - 2, off_ns=came - 1)
    assert leaves_as_declared(replace(history, faults=(*history.faults, before))).status == "violated"
    soon = replace(fault, off_ns=came + 2)  # it reads after that
    assert leaves_as_declared(replace(history, faults=(*history.faults, soon))).status == "violated"


def test_a_rollback_at_the_end_excuses_nothing(tmp_path):
    story = Waits(tmp_path / "run", steps=60)
    story.rounds(2)
    story.kill("worker:1")
    story.rounds(2, 0)
    story.back(1)
    refused(story, 50)
    story.checkpoint("ckpt-50")
    refused(story, 52)
    story.lose_ps()
    story.restore("ckpt-50")
    story.probes[1].resume(50)
    refused(story, 60)
    judged = story.ends()
    assert violated(judged) == {"M2"}, explain(judged)
    assert "worker:1 was back at step 4, and 48 rounds from step 4 on" in witness(judged, "M2")[0]


def test_who_comes_in_the_middle_of_the_wait_has_no_longer_than_others(tmp_path, clock):
    story = Waits(tmp_path / "run", steps=40)
    story.rounds(2)
    story.kill("worker:1")

    def comes():
        clock.advance(0.6 * T_S)
        story.back(1)
        clock.advance(0.6 * T_S)

    story.before_absence = comes
    story.round(0)
    story.before_absence = lambda: None
    story.rounds(37, 0)  # before its gradient is ready
    judged = story.ends()
    assert not violated(judged), explain(judged)


def test_who_was_let_in_and_waited_for_once_more_was_taken_back(tmp_path, clock):
    story = Waits(tmp_path / "run", steps=40)
    story.rounds(2)
    story.kill("worker:1")
    story.rounds(2, 0)
    story.back(1)
    story.rounds(8)
    story.fault("stall", "isolate worker:1", did_ns=clock.monotonic_ns())
    story.round(0)
    story.fault("stall", "isolate worker:1", on=False, evidence="bytes came", did_ns=clock.monotonic_ns())
    story.before_absence = lambda: None
    story.rounds(27, 0)
    judged = story.ends()
    assert not violated(judged), explain(judged)


def test_who_says_that_it_does_not_know_has_not_been_heard_of(story):
    story.rounds(2)
    story.checkpoint("ckpt-2")
    story.read(1, 2)
    story.probes[1].push(2)
    story.round(0)
    story.lose_ps()
    story.restore("ckpt-2")
    story.probes[1].ack(2, "unknown")  # its push came to an end with the epoch
    story.kill("worker:1")
    story.before_absence = lambda: None  # it is still out
    story.rounds(10, 0)
    judged = story.ends()
    assert not violated(judged), explain(judged)
