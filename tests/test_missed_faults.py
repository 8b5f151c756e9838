"""Faults that were not injected, observed or healed: what they excuse, what they keep out, and how they count."""

from __future__ import annotations

import dataclasses

import pytest

from psconform.checks import judge_history
from psconform.faults.kinds import kinds
from psconform.history.reasons import FaultMissed, Missed, NoEnd, NoProgress, TaskFailed
from psconform.history.records import Harm, Struck
from psconform.layout import Layout
from psconform.report.text import explain
from psconform.runner.figures import curves_of
from psconform.runner.verdicts import judge_folder
from psconform.verdict import Coverage

from .simulate import Trainer
from .stories import CLAIMS, Story
from .test_checks_recovery import ps_lost, statuses, violated, witness

CRASH = TaskFailed("worker:0", 1, "ConnectionError: lost ps:1")
MAY_HANG = dataclasses.replace(CLAIMS, liveness="may-hang")
ERROR = dataclasses.replace(CLAIMS, liveness="attributed-error")


@pytest.fixture
def story(tmp_path):
    return Story(tmp_path / "run")


def reason(judged, name):
    return next(verdict.reason for verdict in judged.verdicts if verdict.guarantee == name)


def attempted(story, kind, name):
    """It was injected, and nobody saw that it took effect."""
    story.fault(kind, name, evidence="", number=0, observed=False)
    return FaultMissed(kind, f"{name}@5", Missed.NOT_OBSERVED, number=0)


def unobserved(history):
    """The same, had psconform seen of none of the faults that it took effect."""
    return dataclasses.replace(history, faults=(), attempts=history.faults)


def found(history):
    return {verdict.guarantee for verdict in judge_history(history) if verdict.status == "violated"}


def test_what_was_not_observed_excuses_a_rollback(story):
    """The parameters were lost and restored; that somebody killed the ps may have been why."""
    history = ps_lost(story).history
    assert not found(history)
    assert not found(unobserved(history))
    assert unobserved(history).rollbacks == history.rollbacks
    assert unobserved(history).lost
    assert not unobserved(history).straight


def test_what_was_not_observed_may_have_damaged_the_newest_checkpoint(story):
    story.step(0, 2)
    story.checkpoint("step-2")
    story.step(0, 2)
    story.checkpoint("step-4")
    story.fault("truncate", "the newest checkpoint", file="step-4.index", number=0, observed=False)
    story.kill("ps:0")
    story.fault("kill", "ps:0", on=False)
    story.exits.clear()
    story.restore("step-2")
    missed = FaultMissed("truncate", "the newest checkpoint@5", Missed.NOT_OBSERVED, number=0)
    assert not violated(story.finish(missed))


def test_what_was_not_observed_may_have_damaged_any_checkpoint(story):
    """No recorded name tells whose file it was: whether a newer one should have been restored, nobody knows."""
    story.step(0, 2)
    story.checkpoint("step-2")
    story.step(0, 2)
    story.checkpoint("step-4")
    story.fault("truncate", "the newest checkpoint", file="other.index", number=0, observed=False)
    story.kill("ps:0")
    story.fault("kill", "ps:0", on=False)
    story.exits.clear()
    story.restore("step-2")
    judged = story.finish(FaultMissed("truncate", "the newest checkpoint@5", Missed.NOT_OBSERVED, number=0))
    assert statuses(judged)["R3"] == "unknown"
    assert "nobody can tell of which checkpoint other.index is" in reason(judged, "R3")


def test_a_second_process_that_was_not_observed_may_have_sent_a_gradient(story):
    doubles = next(name for name, kind in kinds().items() if kind.harm == "doubles")
    judged = story.finish(attempted(story, doubles, "worker:1"))
    first, second = judged.history.workers
    assert judged.history.sent_once(first).all()
    assert not judged.history.sent_once(second).any()


def test_what_was_not_observed_is_not_owed_an_end(tmp_path):
    """Only what took effect has to be healed before anybody owes progress."""
    story = Story(tmp_path / "run")  # claims progress
    story.fault("stop", "ps:0")
    story.fault("stop", "ps:0", on=False)
    judged = story.finish(attempted(story, "stop", "worker:1"))
    assert statuses(judged)["L1"] == "valid"


def test_it_keeps_out_what_needs_a_run_without_faults(tmp_path):
    story = Story(tmp_path / "run", layout=Layout(ps=2, workers=2), claims=dataclasses.replace(CLAIMS, barrier="full"))
    judged = story.finish(attempted(story, "stop", "worker:1"))
    assert {reason(judged, name) for name in ("L0", "S6")} == {"needs a run without faults"}


@pytest.mark.parametrize("harm", [Harm.ENDS, Harm.AWAY])
def test_it_keeps_out_what_needs_a_run_without_rollbacks_if_it_may_have_killed(tmp_path, harm):
    """C2 is about training in which every gradient is applied once; a task that only waited keeps it so."""
    history = Trainer(workload="quadratic", update="async").judge(tmp_path / "run").history
    attempt = Struck("fault", "worker:1", "5", "", "", harm=harm, tasks=("worker:1",))
    verdicts = {each.guarantee: each for each in judge_history(dataclasses.replace(history, attempts=(attempt,)))}
    assert verdicts["C2"].status == ("not judged" if harm is Harm.ENDS else "valid")


def test_a_push_before_the_answer_to_the_last_one_is_not_straight(tmp_path):
    """A fault may have held back that answer: the pushes are not surely applied in their order."""
    history = Trainer(update="async").judge(tmp_path / "run").history
    assert history.straight
    first, second = history.workers
    at = first.pushes.at.copy()
    at[3] = first.pushes.answered[2] - 1
    first = dataclasses.replace(first, pushes=dataclasses.replace(first.pushes, at=at))
    assert not dataclasses.replace(history, workers=(first, second)).straight


def test_a_fault_after_which_the_record_went_on_was_not_observed(story):
    """The process was seen to end, and another of the same task trained on: it proves nothing of recovery."""
    story.fault("kill", "ps:1", number=0)
    judged = story.finish(FaultMissed("kill", "ps:1@5", Missed.RECORD_WENT_ON, "it grew", number=0))
    assert [fault.of for fault in judged.history.attempts] == ["ps:1"]
    assert not judged.history.faults
    assert "L1" not in statuses(judged)
    assert not violated(judged)
    assert "0 of 1 faults observed" in explain(judged)


@pytest.mark.parametrize("kind", ["term", "stop"])
def test_who_ends_with_0_may_have_heeded_a_signal_that_nobody_saw(tmp_path, kind):
    """SIGTERM was sent to worker:0, which ended early; SIGSTOP is no reason to."""
    story = Story(tmp_path / "run", claims=ERROR)
    story.step(0, 3)
    story.step(1, 3)
    story.fault("stop", "ps:0")
    story.fault("stop", "ps:0", on=False)
    missed = attempted(story, kind, "worker:0")
    story.probes[0].close()
    judged = story.end("stalled", NoProgress(60), missed)
    assert any("worker:0 ended with status 0" in line for line in witness(judged, "L1")) is (kind == "stop")


@pytest.mark.parametrize(("claims", "gap"), [(MAY_HANG, True), (ERROR, False)])
def test_a_task_that_does_not_end_after_a_fault_is_l1s_where_it_is_claimed(tmp_path, claims, gap):
    """Training was over. Where nothing is claimed of how it ends, nothing else can say that a task did not."""
    story = Story(tmp_path / "run", claims=claims)
    story.fault("stop", "ps:0")
    story.fault("stop", "ps:0", on=False)
    judged = story.finish(NoEnd(("ps:0",), 60.0))
    assert statuses(judged)["R1"] == ("unknown" if gap else "valid")
    assert violated(judged) == (set() if gap else {"L1"})


@pytest.mark.parametrize("how", [Missed.NOT_HEALED, Missed.LEFT_UNHEALED])
def test_what_was_not_healed_was_observed(story, how):
    story.fault("stop", "worker:1", number=0)
    judged = story.finish(FaultMissed("stop", "worker:1@5", how, number=0))
    assert str(judged.coverage) == "1 of 1 faults observed"


def test_what_was_to_come_after_the_end_is_not_required(tmp_path):
    """An error after the first of three faults ends training: the second was not seen, the third had no time."""
    story = Story(tmp_path / "run", claims=ERROR)
    story.step(0, 3)
    story.kill("ps:1")
    missed = attempted(story, "stop", "worker:1")
    story.manifest.faults.append("kill ps:0@90")
    never = FaultMissed("kill", "ps:0@90", Missed.NEVER_INJECTED, number=1)
    judged = story.end("finished", CRASH, missed, never)
    assert judged.coverage == Coverage(3, 1, "all", 1)
    assert judged.exit_code == 2
    story.manifest.require_faults = "half"
    story.manifest.write(story.folder)
    judged = judge_folder(story.folder)
    assert statuses(judged) == {"L1": "valid"}
    assert judged.exit_code == 0
    assert "1 of 3 faults observed (1 were to come after training had ended)" in explain(judged)


def test_of_a_run_that_came_to_its_end_every_fault_is_required(story):
    story.fault("stop", "ps:0", number=0)
    story.fault("stop", "ps:0", on=False, number=0)
    story.manifest.faults[1:] = ["kill ps:0@90"]
    judged = story.finish(FaultMissed("kill", "ps:0@90", Missed.NEVER_INJECTED, number=1))
    assert judged.coverage == Coverage(2, 1, "all", 0)
    assert judged.exit_code == 2


def test_of_a_run_that_no_fault_has_ended_every_fault_is_required(story):
    story.step(0, 3)
    story.manifest.faults.append("kill ps:0@90")
    judged = story.end("finished", CRASH, FaultMissed("kill", "ps:0@90", Missed.NEVER_INJECTED, number=0))
    assert judged.coverage == Coverage(1, 0, "all", 0)
    assert judged.exit_code == 1  # L0 is violated, whatever was observed


@pytest.mark.parametrize(
    ("coverage", "enough"),
    [
        (Coverage(2, 2, "all"), True),
        (Coverage(2, 1, "all"), False),
        (Coverage(2, 1, "all", 1), True),
        (Coverage(4, 2, "half"), True),
        (Coverage(3, 1, "half"), False),
        (Coverage(3, 1, "half", 1), True),
        (Coverage(3, 0, "half", 1), False),
        (Coverage(2, 0, "none"), True),
        (Coverage(0, 0, "all"), True),
    ],
)
def test_the_share_that_is_required(coverage, enough):
    """Of the faults that training got to."""
    assert coverage.enough is enough
    assert ("too few for --require-faults" in str(coverage)) is not enough


def test_a_run_that_lost_a_worker_for_good_is_not_compared_with_serial_training(tmp_path):
    """Half of its updates are missing by the fault's doing: C2 over seeds leaves it out."""
    history = Trainer(workload="digits", update="async", workers=2, steps=4).judge(tmp_path / "run").history
    assert curves_of(history).accuracy is not None
    kill = Struck("kill", "worker:1", "5", "", "", harm=Harm.ENDS, tasks=("worker:1",))
    without = dataclasses.replace(history, faults=(kill,))
    assert without.gone
    assert curves_of(without).accuracy is None
