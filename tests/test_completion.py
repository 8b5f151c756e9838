"""L0 and runs that stop early, on simulated trainers: what is violated, what is not judged, and what stays unknown."""

from __future__ import annotations

import dataclasses
import signal
import time

import pytest

from psconform.claims import Claims
from psconform.faults.kinds import kinds
from psconform.history.build import _due
from psconform.history.manifest import Workload
from psconform.history.reasons import Cause, FailedAfterEnd, FaultMissed, Missed, NoEnd, NoProgress, Problem, TaskFailed
from psconform.history.records import Poisoned
from psconform.layout import Layout
from psconform.probe import UNIT
from psconform.report.text import explain
from psconform.runner.verdicts import judge_folder

from .mutations import rechained
from .replicas import Ring
from .simulate import Trainer
from .stories import Story
from .test_checks_recovery import CLAIMS, statuses, violated, witness

CRASH = TaskFailed("worker:0", 1, "KeyError: 'step'", ("  in train", "KeyError: 'step'"))


@pytest.fixture
def story(tmp_path):
    made = Story(tmp_path / "run", claims=dataclasses.replace(CLAIMS, liveness="attributed-error"))
    for worker in range(2):
        made.step(worker, 3)
    return made


def exited(story, name, status, **more):
    """How a task has ended; those of which nothing is said end with 0."""
    story.log.write("exit", of=name, status=status, **more)
    story.exits[name] = status


def reasons_of(judged):
    return {verdict.guarantee: verdict.reason for verdict in judged.verdicts}


def test_a_crash(story):
    exited(story, "worker:0", 1)
    judged = story.end("finished", CRASH)
    assert statuses(judged) == {"L0": "violated"}
    assert judged.exit_code == 1
    said = witness(judged, "L0")
    assert said[0].startswith("worker:0 recorded ack last, of step 2")
    assert said[1:] == ("worker:0 failed with status 1: KeyError: 'step'", "    in train")
    assert reasons_of(judged)["R1"] == "training ended by an error at step 2"


def test_a_crash_with_a_violation_before_it(tmp_path):
    story = Story(tmp_path / "run")
    story.step(0, 1, apply=[0], twice=True)
    story.put(0, 0, 0)
    story.theta[0] = story.theta[0] - story.probes[0].gradient(0)
    story.step(0, 2)
    story.step(1, 1)
    judged = story.end("finished", CRASH)
    assert {"L0", "R1"} <= violated(judged), explain(judged)
    assert "valid" not in statuses(judged).values()


@pytest.mark.parametrize(("drop_after", "found"), [(0.0, "violated"), (10.0, "unknown")])
def test_what_is_missing_of_a_record_excuses_only_what_it_may_have_said(tmp_path, drop_after, found):
    """worker:0's gradient is applied twice. With --drop-after the record that was cut may have told of an absence."""
    story = Story(tmp_path / "run", layout=Layout(ps=2, workers=2, update="async", drop_after=drop_after))
    story.step(0, 1, apply=[0], twice=True)
    story.put(0, 0, 0)
    story.theta[0] = story.theta[0] - story.probes[0].gradient(0)
    story.step(0, 2)
    exited(story, "worker:1", 0, recorded=True, recorded_bytes=10**6)
    judged = story.end("finished", CRASH)
    assert judged.history.missing
    assert statuses(judged)["R1"] == found


@pytest.mark.parametrize("cause", [Cause.OUT_OF_MEMORY, Cause.KILLED, Cause.DISK_FULL])
def test_what_the_trainer_did_not_do_itself_is_named(story, cause):
    judged = story.end("finished", TaskFailed("worker:0", -signal.SIGKILL, cause=cause))
    assert statuses(judged) == {"L0": "unknown"}
    assert cause in reasons_of(judged)["L0"]
    assert judged.exit_code == 2


def test_a_task_that_does_not_end(tmp_path):
    story = Story(tmp_path / "run")
    judged = story.finish(NoEnd(("ps:0",), 60.0))
    assert violated(judged) == {"L0"}
    assert statuses(judged)["R1"] == "valid"  # training was over
    assert witness(judged, "L0")[0].startswith("ps:0 did not end within 60 s of the last worker (exits = false")
    assert "ps:0 recorded nothing" in witness(judged, "L0")


def test_a_worker_that_exits_too_early(story):
    for probe in story.probes:
        probe.close()
    judged = story.end("finished")
    assert statuses(judged) == {"L0": "violated"}, explain(judged)
    assert witness(judged, "L0")[0] == f"worker:0 ended with status 0 after 3 of {story.steps} steps"
    assert witness(judged, "L0")[1].startswith("worker:0 recorded ack last, of step 2")
    story.manifest.dynamic_work = True
    story.manifest.write(story.folder)
    assert "L0" not in violated(judge_folder(story.folder))


def test_that_may_be_what_it_recorded_last(story):
    # of a record that psconform did not see end, and that has no end, more may have been there
    judged = story.end("finished")
    assert not violated(judged)
    assert statuses(judged)["L0"] == "unknown"


@pytest.mark.parametrize("reason", [Problem("the keeper has gone"), FaultMissed("kill", "ps:0@9", Missed.NOT_OBSERVED)])
def test_a_record_with_a_gap_says_nothing_of_it(story, reason):
    judged = story.end("stalled", NoProgress(60), reason)
    assert set(statuses(judged).values()) == {"unknown"}
    assert statuses(judged)["R1"] == "unknown"  # not "not judged": the record may not be whole up to there


def attempted(story, kind="stop", name="worker:1"):
    story.fault(kind, name, evidence="", number=0, observed=False)
    return FaultMissed(kind, f"{name}@5", Missed.NOT_OBSERVED, number=0)


def test_an_attempt_excuses_and_proves_nothing(story):
    judged = story.end("stalled", NoProgress(60), attempted(story))
    assert statuses(judged) == {"L1": "unknown"}
    assert "was injected and not observed" in reasons_of(judged)["L1"]
    assert reasons_of(judged)["L0"] == "needs a run without faults"


def test_nor_does_it_where_a_task_does_not_end(tmp_path):
    story = Story(tmp_path / "run", claims=CLAIMS)
    judged = story.finish(attempted(story), NoEnd(("ps:0",), 60.0))
    assert {*statuses(judged).values()} == {"unknown"}
    assert "stop worker:1 at 5 was injected and not observed, and then ps:0 did not end" in reasons_of(judged)["L1"]


def test_a_run_with_an_attempt_is_judged(tmp_path):
    story = Story(tmp_path / "run", claims=CLAIMS)
    judged = story.finish(attempted(story))
    assert not {"violated", "unknown"} & set(statuses(judged).values()), explain(judged)
    assert not {"L1", "R3", "R4", "R6", "R7", "M1"} & set(statuses(judged))  # they are about what was observed
    assert judged.exit_code == 2
    assert "0 of 1 faults observed, too few for --require-faults all" in explain(judged)
    for required, code in (("half", 2), ("none", 0)):
        story.manifest.require_faults = required
        story.manifest.write(story.folder)
        assert judge_folder(story.folder).exit_code == code


def test_a_fault_that_never_came_leaves_a_run_without_faults(tmp_path):
    story = Story(tmp_path / "run", claims=CLAIMS)
    story.manifest.faults.append("kill ps:0@90")
    judged = story.finish(FaultMissed("kill", "ps:0@90", Missed.NEVER_INJECTED, "training did not get there", number=0))
    assert statuses(judged)["L0"] == "valid"
    assert "fault kill ps:0@90 was never injected: training did not get there" in explain(judged)


@pytest.mark.parametrize(("how", "enough"), [(Missed.NEVER_INJECTED, True), (Missed.REFUSED, False)])
def test_only_what_was_to_come_later_is_not_required_of_a_run_that_ended(story, how, enough):
    story.kill("ps:1")
    story.manifest.faults += ["kill ps:1@3", "stop ps:0@9"]
    missed = FaultMissed("stop", "ps:0@9", how, number=1)
    judged = story.end("finished", TaskFailed("worker:0", 1, "ConnectionError: lost ps:1"), missed)
    assert judged.coverage.enough is enough
    assert statuses(judged) == {"L1": "valid"}, "the record is whole"


def test_workers_that_do_not_end_are_named_as_that(tmp_path):
    judged = Story(tmp_path / "run").finish(NoEnd(("worker:1",), 60.0))
    said = "worker:1 did not end within 60 s after all records were closed"
    assert witness(judged, "L0")[0] == said
    assert explain(judged).count(said) == 1, "its witness has said it"


@pytest.mark.parametrize("answered", ["once applied", "before", "never"])
@pytest.mark.parametrize("worker", [0, 1])
def test_async_goes_on_without_a_worker_that_was_killed_for_good(tmp_path, worker, answered):
    story = Story(tmp_path / "run", claims=CLAIMS)
    story.step(0, 3)
    story.step(1, 3)
    if answered != "before":
        story.step(worker, answer=False, apply=None if answered == "once applied" else ())
    story.kill(f"worker:{worker}")
    judged = story.finish()
    assert judged.exit_code == 0, explain(judged)
    assert {"R1", "R2", "A5", "L1"} <= {name for name, status in statuses(judged).items() if status == "valid"}


@pytest.mark.parametrize("whose", [0, 1])
@pytest.mark.parametrize(("how", "found"), [({"apply": [0]}, "R1"), ({"twice": True}, "R2")])
def test_and_what_is_wrong_is_found_all_the_same(tmp_path, whose, how, found):
    story = Story(tmp_path / "run", claims=CLAIMS)
    story.step(0, 2)
    story.step(1, 2)
    story.step(whose, **how)
    if "twice" in how:
        story.put(0, whose, 2)
    story.applied = [[3 if w == whose else 2 for w in (0, 1)] for _ in story.applied]
    story.kill("worker:1")
    assert found in violated(story.finish())


@pytest.mark.parametrize("liveness", ["progress", "attributed-error"])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_job_of_which_nobody_is_left_has_not_gone_on(tmp_path, workers, liveness):
    story = Story(tmp_path / "run", workers=workers, claims=dataclasses.replace(CLAIMS, liveness=liveness))
    for worker in range(workers):
        story.step(worker, 3)
    for worker in range(workers):
        story.kill(f"worker:{worker}")
    judged = story.end("finished")
    assert "valid" not in statuses(judged).values(), explain(judged)


def test_a_restore_may_have_taken_back_what_a_dead_worker_cannot_send_again(tmp_path):
    story = Story(tmp_path / "run", claims=CLAIMS)
    story.step(0, 3)
    story.step(1, 3)
    story.checkpoint("c")
    story.kill("ps:0")
    story.fault("kill", "ps:0", on=False)
    story.exits.clear()
    story.restore("c")
    story.kill("worker:1", at="6")
    judged = story.finish()
    assert not judged.history.gone
    assert "R1" not in {name for name, status in statuses(judged).items() if status == "valid"}


def test_a_final_read_that_names_no_version_is_no_crash(tmp_path):
    layout = Layout(ps=1, workers=3, quorum=2, reduction="sum")
    story = Story(tmp_path / "run", workers=3, ps=1, layout=layout, claims=Claims(**BACKUP))
    for worker in range(3):
        (story.folder / "done" / f"worker-{worker}").touch()
    for probe in story.probes:
        probe.wait_for_all()
        probe.read(story.theta, [], final=True, shards=[0])
        probe.close()
    assert "L0" in violated(story.end("finished"))


def test_sync_does_not(tmp_path):
    """Nor is a record whole of which the fault that ended it was not seen."""
    story = Story(tmp_path / "run", claims=CLAIMS, update="sync")
    story.kill("worker:1")
    assert "valid" not in statuses(story.end("finished")).values()


GANG = TaskFailed("worker:1", -signal.SIGTERM)


@pytest.mark.parametrize(
    ("peer", "found"),
    [
        (GANG, "valid"),
        (TaskFailed("worker:1", -signal.SIGABRT), "valid"),
        (TaskFailed("worker:1", -signal.SIGSEGV), "violated"),
        (TaskFailed("worker:1", -signal.SIGKILL, cause=Cause.KILLED), "violated"),
        (TaskFailed("worker:1", 3), "violated"),
    ],
)
def test_one_task_that_names_the_cause_explains_its_peers(story, peer, found):
    story.kill("ps:1")
    judged = story.end("finished", TaskFailed("worker:0", 1, "ConnectionError: lost ps:1"), peer)
    assert statuses(judged) == {"L1": found}


def test_without_one_that_names_it_the_peers_are_not_explained(story):
    story.kill("ps:1")
    assert violated(story.end("finished", GANG)) == {"L1"}


def test_a_run_in_the_place_of_which_calibration_failed(story):
    story.manifest.calibration = True
    judged = story.end("finished", CRASH)
    assert statuses(judged) == {"L0": "violated"}
    assert reasons_of(judged)["A1"] == "needs a calibration that comes to its end"


def test_an_error_before_the_first_step_is_judged_too(tmp_path):
    story = Story(tmp_path / "run", claims=dataclasses.replace(CLAIMS, liveness="attributed-error"))
    story.kill("ps:1")
    judged = story.end(
        "finished", TaskFailed("worker:0", 1, "ConnectionError: lost ps:1"), TaskFailed("worker:1", 1, "x")
    )
    assert "L1" in violated(judged)  # worker:1 names no error
    story.manifest.reasons = [TaskFailed("worker:0", 1, "ConnectionError: lost ps:1")]
    story.manifest.write(story.folder)
    assert statuses(judge_folder(story.folder)) == {"L1": "valid"}


def test_a_worker_that_pushed_and_never_read(story):
    """What must not show is looked for in the reads that there are."""
    story.probes[0].close()  # what it has not pushed must not show
    path = story.folder / "events" / "worker-1.jsonl"
    kept = [line for line in path.read_bytes().splitlines() if b'"kind":"read"' not in line]
    path.write_bytes(b"".join(rechained(kept)))
    judged = story.end("finished", CRASH)
    assert not [verdict.reason for verdict in judged.verdicts if "crashed" in verdict.reason]


@pytest.mark.parametrize(("steps", "found"), [(1, "valid"), (3, "unknown")])
def test_an_error_long_after_the_faults_is_another_one(tmp_path, steps, found):
    story = Story(tmp_path / "run", claims=dataclasses.replace(CLAIMS, liveness="attributed-error"))
    story.step(0, 3)
    story.step(1, 3)
    story.fault("stop", "ps:0", did_ns=time.monotonic_ns())
    story.fault("stop", "ps:0", on=False, did_ns=time.monotonic_ns())
    story.step(0, steps)
    judged = story.end("finished", CRASH)
    assert statuses(judged)["L1"] == found, explain(judged)


@pytest.mark.parametrize(("name", "found"), [("worker:1", "unknown"), ("worker:0", "valid"), ("ps:1", "valid")])
def test_an_error_of_a_worker_that_no_fault_concerned_is_another_one(story, name, found):
    story.fault("stop", name, did_ns=time.monotonic_ns())
    judged = story.end("finished", CRASH)
    assert statuses(judged)["L1"] == found, explain(judged)


@pytest.mark.parametrize("status", [-signal.SIGKILL, 137])
def test_a_crash_counts_beside_a_peer_that_a_supervisor_has_killed(story, status):
    peer = TaskFailed("worker:1", status, cause=Cause.KILLED)
    assert violated(story.end("finished", CRASH, peer)) == {"L0"}


def test_an_old_record_of_a_killed_task_accuses_nobody(story):
    assert statuses(story.end("finished", TaskFailed("worker:0", -signal.SIGKILL))) == {"L0": "unknown"}


def test_a_calibration_that_does_not_say_why_it_did_not_complete_is_unknown(tmp_path):
    story = Story(tmp_path / "run")
    story.manifest.calibration = True
    assert statuses(story.finish()) == {"L0": "unknown"}


@pytest.mark.parametrize(
    "trainer", [Trainer(workload="quadratic"), Ring(local_steps=2)], ids=["a model", "local steps"]
)
def test_whatever_is_trained_it_has_to_complete(tmp_path, trainer):
    assert statuses(trainer.judge(tmp_path / "run"))["L0"] == "valid"


def test_who_failed_beside_a_hang_is_named_once(story):
    """Of the others it is said what they did last."""
    judged = story.end("stalled", CRASH, NoProgress(60))
    said = [line.partition(" recorded ")[0] for line in witness(judged, "L0") if " recorded " in line]
    assert sorted(said) == ["ps:0", "ps:1", "worker:0", "worker:1"]


def test_who_failed_has_not_ended_with_0(story):
    """Its record is closed, and steps are missing: that is the crash, and nothing else."""
    story.probes[0].close()
    exited(story, "worker:0", 1)
    judged = story.end("finished", CRASH)
    assert not any("ended with status 0" in line for line in witness(judged, "L0"))


@pytest.mark.parametrize(("closed", "found"), [(True, set()), (False, {"L0"})])
def test_where_rounds_do_not_wait_for_all_the_last_may_come_too_late(tmp_path, closed, found):
    """The rounds are over before worker:0 has taken all its steps: it closes its record, or it did not end so."""
    story = Story(tmp_path / "run", layout=Layout(ps=2, workers=2, quorum=1))
    story.step(0, 3)
    story.step(1, story.steps)
    story.probes[1].close()
    if closed:
        story.probes[0].close()
    exited(story, "worker:0", 0, recorded=True, recorded_bytes=1)
    assert violated(story.end("finished")) == found


BACKUP = {"barrier": "r-of-n", "reduction": "sum", "delivery": "at-most-once"}


@pytest.mark.parametrize(("rounds", "last"), [(12, "ok"), (12, "unknown"), (6, "ok")])
@pytest.mark.parametrize("counted", ["no versions", "rounds", "gradients"])
def test_with_a_quorum_final_reads_say_whether_the_rounds_are_over(tmp_path, rounds, last, counted):
    """worker:2 is late in every round; the last answer of the last round may be lost; a ps may count gradients."""
    layout = Layout(ps=1, workers=3, quorum=2, reduction="sum")
    story = Story(tmp_path / "run", workers=3, ps=1, layout=layout, claims=Claims(**BACKUP))

    def version(number):
        return None if counted == "no versions" else [number * (2 if counted == "gradients" else 1)]

    for step in range(rounds):
        for worker in (0, 1):
            story.probes[worker].read(story.theta, version(step), step=step, shards=[0])
        for worker in (0, 1):
            story.probes[worker].push(step)
            story.theta[0] = story.theta[0] - story.probes[worker].gradient(step)
        for worker in (0, 1):
            outcome = last if (worker, step) == (1, rounds - 1) else "ok"
            story.probes[worker].ack(step, outcome, version(step + 1) if outcome == "ok" else None)
    story.probes[2].read(story.theta, version(rounds), step=0, shards=[0])
    for worker in range(3):
        (story.folder / "done" / f"worker-{worker}").touch()
    for probe in story.probes:
        probe.wait_for_all()
        probe.read(story.theta, version(rounds), final=True, shards=[0])
        probe.close()
    assert violated(story.end("finished")) == (set() if rounds == story.steps else {"L0"})


def test_who_has_data_for_fewer_steps_has_not_ended_too_early(tmp_path):
    """With --batches worker:1=3 it has taken all that it had, and worker:0 crashes later."""
    story = Story(tmp_path / "run", workload=Workload(steps=12, unit=UNIT, batches=(("worker:1", 3),)))
    story.step(0, 4)
    story.step(1, 3)
    story.probes[1].close()
    judged = story.end("finished", CRASH)
    assert not any("ended with status 0" in line for line in witness(judged, "L0")), explain(judged)


def test_a_gradient_that_need_not_show_was_due_where_it_was_pushed(story):
    """A poisoned one was refused: who has pushed it owes the others all the same."""
    story.read(0, 3)
    story.probes[0].push(3)
    story.probes[0].ack(3, "failed")
    history = story.end("finished", CRASH).history
    poisoned = dataclasses.replace(history, poisons=(Poisoned(0, 3, "nan", seeded=True, at=0),))
    assert poisoned.excused[0, 3]
    assert _due(poisoned, poisoned.workers[0]) == story.steps


def test_of_a_record_that_was_cut_nobody_knows_how_many_steps_there_were(story):
    """worker:0 ended with 0 after a fault, and had recorded more than there is."""
    story.fault("stop", "ps:0")
    story.fault("stop", "ps:0", on=False)
    exited(story, "worker:0", 0, recorded=True, recorded_bytes=10**6)
    judged = story.end("finished")
    assert {*statuses(judged).values()} == {"unknown"}, explain(judged)


def test_who_was_stopped_has_not_ended_too_early(story):
    """psconform ended a run that hung; of worker:0, which had closed its record, with SIGTERM, which it heeds."""
    story.probes[0].close()
    exited(story, "worker:0", 0, stopped=True)
    judged = story.end("stalled", NoProgress(60))
    assert not any("ended with status 0" in line for line in witness(judged, "L0"))


def test_the_end_of_a_second_process_is_not_the_tasks(story):
    """worker:0 hangs; a second process of it, that psconform has started, ends with 0."""
    doubles = next(name for name, kind in kinds().items() if kind.harm == "doubles")
    story.fault(doubles, "worker:1")
    story.probes[0].close()
    exited(story, "worker:0", -signal.SIGTERM, stopped=True)
    exited(story, "worker:0", 0, incarnation=1, second=True)
    judged = story.end("stalled", NoProgress(60))
    assert not any("ended with status 0" in line for line in witness(judged, "L1"))


def test_nor_is_it_a_gap_how_a_second_process_has_ended(tmp_path):
    story = Story(tmp_path / "run", claims=CLAIMS)
    doubles = next(name for name, kind in kinds().items() if kind.harm == "doubles")
    story.fault(doubles, "worker:1")
    exited(story, "worker:1", 0)
    exited(story, "worker:1", -signal.SIGKILL, incarnation=1, second=True)
    judged = story.finish()
    assert not judged.history.gaps


def test_what_psconform_ends_has_not_failed(tmp_path):
    """A ps serves until it is stopped."""
    story = Story(tmp_path / "run", claims=CLAIMS)
    exited(story, "ps:0", -signal.SIGTERM, stopped=True)
    judged = story.finish()
    assert {*statuses(judged).values()} == {"valid"}, explain(judged)


def test_a_failure_after_the_record_was_closed_is_a_note(tmp_path):
    """Training was over, and nothing of it is missing."""
    story = Story(tmp_path / "run", claims=CLAIMS)
    exited(story, "worker:1", 1)
    judged = story.finish(FailedAfterEnd("worker:1", 1, "Aborted"))
    assert {*statuses(judged).values()} == {"valid"}, explain(judged)
    assert "worker:1 failed with status 1 after it had closed its record; its log ends: Aborted" in judged.history.notes


def test_a_failure_that_nobody_explains_is_a_gap(tmp_path):
    story = Story(tmp_path / "run", claims=CLAIMS)
    exited(story, "worker:1", 1)
    assert story.finish().history.gaps == ("worker:1 failed with status 1",)


@pytest.mark.parametrize("status", ["failed", "interrupted", "running"])
def test_a_run_without_an_end_is_not_judged_valid(tmp_path, status):
    story = Story(tmp_path / "run", claims=CLAIMS)
    story.finish()
    story.manifest.status = status
    story.manifest.write(story.folder)
    judged = judge_folder(story.folder)
    assert {*statuses(judged).values()} == {"unknown"}
    assert f"the run is {status}, not finished" in judged.history.gaps


def test_a_crash_before_the_first_step_says_so(tmp_path):
    """Nothing was trained, and that is the crash's doing."""
    story = Story(tmp_path / "run")
    judged = story.end("finished", CRASH)
    assert statuses(judged) == {"L0": "violated"}
    assert reasons_of(judged)["R1"] == "training ended by an error before the first step"


def test_a_hang_says_so(story):
    judged = story.end("stalled", NoProgress(60))
    assert statuses(judged) == {"L0": "violated"}
    assert reasons_of(judged)["R1"] == "training hung at step 2"
