"""L1 and L3 where an error that names its cause is enough: which end is one, and whose doing it was."""

from __future__ import annotations

import dataclasses
import signal
import time

import pytest

from psconform import probe as loaded
from psconform.history.reasons import Cause, FaultMissed, Missed, NoEnd, NoProgress, Problem, TaskFailed
from psconform.layout import Layout

from .stories import CLAIMS, Story
from .test_checks_recovery import statuses, violated, witness
from .test_leaving_stories import Clock

CLAIMED = dataclasses.replace(CLAIMS, liveness="attributed-error")
FAILED = "worker:0 failed with status 1"
STOPPED = NoProgress(3)
ONEDNN = (
    "I0000 00:00:1795581683.314673   21429 port.cc:153] oneDNN custom operations are on. You may see slightly "
    "different numerical results due to floating-point round-off errors from different computation orders."
)
CUINIT = (
    "E0000 00:00:1795581686.446311   21429 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error: "
    "Failed call to cuInit: UNKNOWN ERROR (303)"
)


@pytest.fixture
def story(tmp_path):
    return Story(tmp_path / "run", claims=CLAIMED)


def _struck(story):
    story.step(0, 3)
    story.kill("ps:1")
    story.fault("kill", "ps:1", on=False)
    story.exits.clear()


@pytest.mark.parametrize("ended", ["finished", "stalled"])
@pytest.mark.parametrize(
    "last",
    [
        "worker starts",
        "step 60, loss 0.3",
        "2026-01-01 00:00:00.1: I tensorflow/core/platform/port.cc:153] oneDNN is on: round-off errors",
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
        ONEDNN,
        CUINIT,
    ],
)
def test_an_end_whose_log_names_no_error(story, last, ended):
    _struck(story)
    judged = story.end(ended, TaskFailed("worker:0", 1, last), *([STOPPED] if ended == "stalled" else []))
    assert "L1" in violated(judged)
    assert witness(judged, "L1") == (f"{FAILED}, and its log names no error; it ends: {last}",)


def test_an_end_without_a_word(story):
    _struck(story)
    judged = story.end("finished", TaskFailed("worker:0", 1))
    assert witness(judged, "L1") == (f"{FAILED}, and its log names no error",)


@pytest.mark.parametrize("last", ["oneDNN custom operations are on.", "ConnectionResetError: [Errno 104]", ""])
def test_an_end_by_a_signal_names_nothing(story, last):
    _struck(story)
    end = "worker:0 was ended by signal 11"
    judged = story.end("finished", TaskFailed("worker:0", -11, last))
    assert witness(judged, "L1")[0].startswith(f"{end}, which psconform did not send")


@pytest.mark.parametrize(
    "last",
    [
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "tensorflow.python.framework.errors_impl.UnavailableError: Socket closed",
        "2026-11-25 04:27:02,910 ps:0 ends: cannot serve as ps:0 on 127.0.0.1:26491: another process has that address",
        "ps:1 has not answered for 10 s, giving up",
        "RuntimeError: CUDA error: device-side assert triggered",
        "lost ps:1",
        "timed out",
    ],
)
def test_an_end_whose_log_names_an_error(story, last):
    _struck(story)
    assert statuses(story.end("finished", TaskFailed("worker:0", 1, last)))["L1"] == "valid"


@pytest.mark.parametrize("last", ["    [[{{node sync_token_q_EnqueueMany}}]]", "=" * 60])
def test_the_end_of_a_longer_message_says_nothing(story, last):
    _struck(story)
    judged = story.end("finished", TaskFailed("worker:0", 1, last))
    assert statuses(judged)["L1"] == "unknown"
    assert last in next(v for v in judged.verdicts if v.guarantee == "L1").reason


def test_each_task_that_failed_owes_its_error(story):
    _struck(story)
    judged = story.end("finished", TaskFailed("worker:0", 1, "lost ps:1"), TaskFailed("worker:1", 3))
    assert witness(judged, "L1") == ("worker:1 failed with status 3, and its log names no error",)


GAVE_UP = TaskFailed("worker:0", 1, "third failure of ps:0, giving up")


@pytest.mark.parametrize("claims", [CLAIMS, CLAIMED])
@pytest.mark.parametrize("ended", ["finished", "stalled"])
def test_the_third_of_spaced_faults_is_fatal_whatever_l1_accepts(tmp_path, claims, ended):
    story = Story(tmp_path / "run", claims=claims)
    story.step(1, 2)
    story.spaced(between=2)
    story.probes[0].push(6)
    judged = story.end(ended, GAVE_UP, *([STOPPED] if ended == "stalled" else []))
    assert violated(judged) == ({"L1", "L3"} if claims is CLAIMS else {"L3"})
    assert witness(judged, "L3")[0] == "survived kill ps:0 at 0, kill ps:0 at 1; not kill ps:0 at 2"
    assert str(GAVE_UP) in witness(judged, "L3")


def test_so_it_is_where_a_fault_was_to_come_after_it(story):
    story.spaced()
    story.probes[0].push(3)
    judged = story.end("finished", GAVE_UP, FaultMissed("kill", "ps:0@9", Missed.NEVER_INJECTED))
    assert statuses(judged)["L1"] == "valid"
    assert "L3" in violated(judged)


def test_a_third_fault_that_was_not_healed_is_another(story):
    story.spaced(times=2)
    story.step(0)
    story.kill("ps:0", at="2")
    story.probes[0].push(3)
    judged = story.end("finished", GAVE_UP)
    assert statuses(judged)["L1"] == "valid"
    assert "L3" not in statuses(judged)


def test_who_had_failed_before_is_no_budget(story):
    """worker:1 takes no step after the first fault; worker:0 does after each."""
    story.step(1, 2)
    story.spaced(between=2)
    story.step(0)
    judged = story.end("finished", TaskFailed("worker:1", 1, "lost ps:0"))
    assert {name: statuses(judged)[name] for name in ("L1", "L3")} == {"L1": "valid", "L3": "valid"}


def test_who_failed_between_the_last_two_may_have_done_so_before_the_last(story):
    """worker:1 records nothing for much longer than its steps take before the last fault strikes."""
    story.step(1)
    story.spaced(times=2)
    story.step(1)
    story.step(0)
    told = story.log.write
    later = time.monotonic_ns() + 10**12
    story.log.write = lambda kind, **more: told(kind, **more, **({"did_ns": later} if kind == "fault" else {}))
    story.kill("ps:0", at="2")
    story.fault("kill", "ps:0", at="2", on=False)
    story.exits.clear()
    judged = story.end("finished", TaskFailed("worker:1", 1, "lost ps:0"))
    assert statuses(judged)["L3"] == "unknown"
    assert "may have been before kill ps:0 at 2" in next(v for v in judged.verdicts if v.guarantee == "L3").reason


def reason(judged):
    return next(verdict.reason for verdict in judged.verdicts if verdict.guarantee == "L1")


@pytest.mark.parametrize("cause", [Cause.OUT_OF_MEMORY, Cause.DISK_FULL])
def test_an_end_that_the_machine_has_brought_about_is_unknown(story, cause):
    """After a fault, too, the OOM killer or a full disk says nothing of the trainer."""
    _struck(story)
    judged = story.end("finished", TaskFailed("worker:0", -signal.SIGKILL, "lost ps:1", cause=cause))
    assert statuses(judged) == {"L1": "unknown"}
    assert cause in reason(judged)


def test_a_sigkill_that_neither_psconform_nor_the_machine_has_sent_names_nothing(story):
    """A trainer may kill its own tasks: that is no error that a log names."""
    _struck(story)
    judged = story.end("finished", TaskFailed("worker:0", -signal.SIGKILL, "lost ps:1", cause=Cause.KILLED))
    assert witness(judged, "L1") == (
        "worker:0 was ended by signal 9, which psconform did not send; its log ends: lost ps:1",
    )


@pytest.mark.parametrize(("block", "found"), [((), "violated"), (("Fatal Python error: Aborted",), "valid")])
def test_a_task_that_aborts_itself_says_why(story, block, found):
    """SIGABRT after a fatal message is an error that the log names; any other SIGABRT is not."""
    _struck(story)
    judged = story.end("finished", TaskFailed("worker:0", -signal.SIGABRT, "Fatal Python error: Aborted", block))
    assert statuses(judged) == {"L1": found}


@pytest.mark.parametrize("claims", [CLAIMS, CLAIMED])
def test_after_a_fault_workers_may_not_end_too_early(tmp_path, claims):
    """Whatever is claimed: no error was named, and training did not go on to its end."""
    story = Story(tmp_path / "run", claims=claims)
    _struck(story)
    for probe in story.probes:
        probe.close()
    judged = story.end("finished")
    assert witness(judged, "L1") == tuple(
        f"worker:{w} ended with status 0 after {n} of 12 steps" for w, n in ((0, 3), (1, 0))
    )


def test_who_ended_too_early_is_named_beside_those_that_hang(story):
    """worker:0 ends, and worker:1 waits for what never comes."""
    _struck(story)
    story.probes[0].close()
    judged = story.end("stalled", STOPPED)
    assert "worker:0 ended with status 0 after 3 of 12 steps" in witness(judged, "L1")


def test_after_a_fault_each_task_has_to_end(story):
    """Training came to its end, and a task did not."""
    _struck(story)
    judged = story.finish(NoEnd(("ps:0",), 60.0))
    assert violated(judged) == {"L1"}
    assert witness(judged, "L1")[0].startswith("after kill ps:1 at 5: ")
    assert any(line.startswith("ps:0 did not end within 60 s") for line in witness(judged, "L1"))


def test_a_record_with_a_gap_proves_no_progress(story):
    """What the record lacks may be how training ended."""
    _struck(story)
    judged = story.finish(Problem("the keeper has gone"))
    assert statuses(judged)["L1"] == "unknown"
    assert reason(judged) == "incomplete: the keeper has gone"


CRASH = TaskFailed("worker:0", 1, "KeyError: 'step'", ("KeyError: 'step'",))


def stopped(story, name, *, healed=True, later_s=0.0):
    now = time.monotonic_ns() + int(later_s * 1e9)
    story.fault("stop", name, did_ns=now)
    if healed:
        story.fault("stop", name, on=False, did_ns=now)


def test_one_failure_that_no_fault_explains_explains_no_other(story):
    """worker:1 was stopped and fails without a word; that worker:0 fails, too, may be another error."""
    story.step(0, 3)
    stopped(story, "worker:1")
    judged = story.end("finished", CRASH, TaskFailed("worker:1", 3))
    assert witness(judged, "L1") == ("worker:1 failed with status 3, and its log names no error",)


def test_what_was_not_observed_may_explain_an_error(story):
    """A fault of worker:1 took effect, one of worker:0 may have."""
    story.step(0, 3)
    stopped(story, "worker:1")
    story.fault("stop", "worker:0", evidence="", number=0, observed=False)
    judged = story.end("finished", CRASH, FaultMissed("stop", "worker:0@5", Missed.NOT_OBSERVED, number=0))
    assert statuses(judged) == {"L1": "valid"}


def test_an_error_of_a_ps_is_taken_for_the_faults(story):
    """A ps records no steps, so nobody knows what it went through."""
    story.step(0, 3)
    stopped(story, "worker:1")
    assert statuses(story.end("finished", TaskFailed("ps:0", 1, CRASH.log, CRASH.block))) == {"L1": "valid"}


@pytest.mark.parametrize(("later_s", "found"), [(0.05, "valid"), (10.0, "unknown")])
def test_a_fault_just_after_the_last_record_may_explain_the_error(story, later_s, found):
    """worker:0 has survived a first fault; the second one strikes when it has recorded its last event."""
    stopped(story, "ps:0")
    story.step(0, 3)
    stopped(story, "ps:0", healed=False, later_s=later_s)
    assert statuses(story.end("finished", CRASH)) == {"L1": found}


def test_a_worker_lives_as_long_as_it_records_anything(monkeypatch, story):
    """It had its last answer before the second fault, and sent its last gradient after it."""
    clock = Clock()
    monkeypatch.setattr(loaded, "time", clock)
    stopped(story, "ps:0")
    story.step(0, 3)
    stopped(story, "ps:0", healed=False, later_s=1.0)
    clock.advance(2.0)
    story.step(0, answer=False)
    assert statuses(story.end("finished", CRASH))["L1"] == "valid"


def test_a_fault_that_strikes_who_records_nothing_any_more_may_explain_its_error(story):
    """It may have waited for an answer all the time."""
    story.step(0, 3)
    stopped(story, "ps:0", later_s=10.0)
    assert statuses(story.end("finished", CRASH)) == {"L1": "valid"}


def test_it_is_the_last_fault_that_has_to_be_survived(story):
    """Three gradients were accepted since the first one was healed, and one since the second."""
    stopped(story, "ps:0")
    story.step(0, 2)
    stopped(story, "ps:1")
    story.step(0)
    assert statuses(story.end("finished", CRASH)) == {"L1": "valid"}


@pytest.mark.parametrize(
    ("layout", "found"),
    [
        (Layout(ps=2, workers=2, update="async"), "unknown"),
        (Layout(ps=2, workers=2, update="async", staleness=2), "valid"),
        (Layout(ps=2, workers=2), "valid"),
    ],
)
def test_where_workers_wait_for_each_other_a_fault_concerns_them_all(tmp_path, layout, found):
    """worker:1 is stopped, and worker:0 fails."""
    story = Story(tmp_path / "run", claims=CLAIMED, layout=layout)
    stopped(story, "worker:1")
    assert statuses(story.end("finished", CRASH))["L1"] == found


def test_a_fault_of_no_task_concerns_them_all(story):
    """As that psconform's own proxies are gone."""
    story.step(0, 3)
    stopped(story, "the proxies", healed=False)
    assert statuses(story.end("finished", CRASH)) == {"L1": "valid"}
