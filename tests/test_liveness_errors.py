"""L1 and L3 where an error that names its cause is enough: which end is one, and whose doing it was."""

from __future__ import annotations

import dataclasses
import time

import pytest

from psconform.history.reasons import FaultMissed, Missed, NoProgress, TaskFailed

from .stories import CLAIMS, Story
from .test_checks_recovery import statuses, violated, witness

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
