"""R3, R4, R6, R7, M1, L1, and R1, R2 across restarts: told as it should be, and with one thing wrong."""

from __future__ import annotations

import dataclasses

import pytest

from psconform.errors import Malformed
from psconform.history.reasons import FaultMissed, Missed, NoProgress, TaskFailed
from psconform.report.text import explain
from psconform.runner.verdicts import judge_folder

from .stories import CLAIMS, Story


@pytest.fixture
def story(tmp_path):
    return Story(tmp_path / "run")


def statuses(judged):
    return {v.guarantee: v.status for v in judged.verdicts if v.status in ("valid", "violated", "unknown")}


def violated(judged):
    return {name for name, status in statuses(judged).items() if status == "violated"}


def witness(judged, name):
    return next(v for v in judged.verdicts if v.guarantee == name).witness


def ps_lost(story, **restore):
    """Checkpoint, go on, lose a ps, restore."""
    story.step(0, 3)
    story.step(1, 2)
    story.checkpoint("step-3")
    story.step(0, 2)
    story.step(1, 3)
    story.kill("ps:1")
    story.fault("kill", "ps:1", on=False, evidence="started again")
    story.exits.clear()
    story.restore("step-3", **restore)
    return story.finish()


def test_a_rollback_as_it_should_be(story):
    judged = ps_lost(story)
    assert set(statuses(judged).values()) == {"valid"}, explain(judged)
    assert {"R1", "R2", "R3", "R4", "R6", "R7", "L1"} <= set(statuses(judged))
    rollback = next(v for v in judged.verdicts if v.guarantee == "R3")
    assert rollback.stats == {"rollbacks": 1, "sent_again": 5}
    assert "fault: kill ps:1 at 5: the process ended by signal 9, then started again" in explain(judged)


def test_what_is_restored_and_was_never_recorded_may_be_anything(story):
    story.step(0, 3)
    story.step(1, 2)
    story.checkpoint("step-3", record=False)
    story.step(1, 1)
    story.kill("ps:1")
    story.fault("kill", "ps:1", on=False, evidence="started again")
    story.exits.clear()
    story.restore("step-3")
    judged = story.finish()
    of_rollbacks = {name: statuses(judged).get(name) for name in ("R3", "R4", "R6", "R7")}
    assert set(of_rollbacks.values()) == {"unknown"}, explain(judged)
    assert "restored step-3 in epoch 1, which nobody recorded (probe.checkpoint)" in explain(judged)
    assert not violated(judged)


def test_what_a_new_epoch_takes_back_without_a_restore_may_be_anything(story):
    judged = ps_lost(story, record=False)
    of_rollbacks = {name: statuses(judged).get(name) for name in ("R3", "R4", "R6", "R7")}
    assert set(of_rollbacks.values()) == {"unknown"}, explain(judged)
    assert "in epoch 1 without" in explain(judged)
    assert "nobody recorded what was restored (probe.restored)" in explain(judged)
    assert not violated(judged)


def test_a_new_epoch_that_takes_nothing_back_needs_no_restore(story):
    story.step(0, 3)
    story.step(1, 2)
    story.checkpoint("step-3")
    story.kill("worker:1")
    story.epoch = 1
    story.probes[0].epoch = 1
    story.back(1)
    judged = story.finish()
    assert set(statuses(judged).values()) == {"valid"}, explain(judged)


def test_a_worker_that_came_back_as_it_should(story):
    story.step(0, 3)
    story.step(1, 2)
    story.step(1, answer=False, apply=[0])  # a push half in
    story.kill("worker:1")
    story.step(0, 2)
    story.back(1)
    judged = story.finish()
    assert set(statuses(judged).values()) == {"valid"}, explain(judged)
    assert {"R1", "R2", "R3", "L1"} <= set(statuses(judged))
    worker = judged.history.workers[1]
    assert sorted(worker.pushes.step.tolist()) == list(range(story.steps))
    assert worker.pushes.attempts.tolist() == [1, 1, 2, *[1] * (story.steps - 3)]
    assert set(worker.reads.life.tolist()) == {0, 1}


def joined(story, act):
    """worker:1 is killed at its step 2, comes back, and does as it is told."""
    story.step(0, 3)
    story.step(1, 2)
    story.kill("worker:1")
    story.back(1)
    act(story)
    return story.finish()


def test_a_joiner_that_pushes_before_it_has_read(story):
    judged = joined(story, lambda story: (story.probes[1].push(2), story.put(0, 1, 2), story.put(1, 1, 2)))
    assert "M1" in violated(judged)
    assert witness(judged, "M1") == ("worker:1, started again (1), pushed step 2 before it had read anything",)


def test_a_joiner_that_pushes_for_another_step_than_it_has_read(story):
    def act(story):
        story.read(1, 1)
        story.probes[1].push(2)
        story.put(0, 1, 2), story.put(1, 1, 2)

    judged = joined(story, act)
    assert "M1" in violated(judged)
    assert "pushed step 2 first, and had read for step 1" in witness(judged, "M1")[0]


@pytest.mark.parametrize(("done", "wrong"), [((2, 2), False), ((3, 2), True)])
def test_a_joiner_reads_a_complete_round(tmp_path, done, wrong):
    claims = dataclasses.replace(CLAIMS, barrier="full")
    story = Story(tmp_path / "run", claims=claims, update="sync")
    for worker, steps in enumerate(done):
        story.step(worker, steps)
    story.kill("worker:1")
    story.back(1)
    story.step(1)
    judged = story.finish()
    assert ("M1" in violated(judged)) == wrong
    if wrong:
        assert "first read ps:0 at step 2 with round 2 half in: without worker:1" in witness(judged, "M1")[0]
    else:
        assert statuses(judged)["M1"] == "valid"


def test_a_round_that_lacks_what_is_lost_for_good_is_complete(tmp_path):
    claims = dataclasses.replace(CLAIMS, barrier="full")
    story = Story(tmp_path / "run", claims=claims, update="sync")
    story.step(0, 3)
    story.step(1, 2)
    for applied in story.applied:
        applied[1] = 3  # they take it for there
    story.probes[1].push(2)
    story.probes[1].ack(2, "ok", [6, 6])
    story.kill("worker:1")
    story.back(1)
    story.step(1)
    judged = story.finish()
    assert "R1" in violated(judged)
    assert statuses(judged)["M1"] != "violated"


def test_no_idempotence_on_retry(story):
    story.step(1, 3)
    story.step(1, answer=False)
    story.kill("worker:1")
    story.back(1, step=3)
    for p in range(2):
        story.applied[p][1] = 3
    story.step(1)  # the same gradient once more, applied once more
    assert violated(story.finish()) >= {"R1", "R2"}


def test_acknowledged_before_applied(story):
    story.step(1, 3)
    story.step(1, apply=[])
    story.kill("worker:1")
    for p in range(2):
        story.applied[p][1] = 4
    story.back(1)
    judged = story.finish()
    assert "R1" in violated(judged)
    assert any("was lost" in line for line in witness(judged, "R1"))


def test_restore_of_the_second_newest_checkpoint(story):
    story.step(0, 2)
    story.checkpoint("step-2")
    story.step(0, 2)
    story.checkpoint("step-4")
    story.kill("ps:0")
    story.fault("kill", "ps:0", on=False)
    story.exits.clear()
    story.restore("step-2")
    judged = story.finish()
    assert violated(judged) == {"R3"}
    assert "though step-4 was durable before" in witness(judged, "R3")[0]


def test_only_the_failed_shard_restored(story):
    judged = ps_lost(story, shards=[1])
    assert violated(judged) == {"R4"}
    assert any("ps:0 was not restored from it" in line for line in witness(judged, "R4"))


def test_only_the_failed_shard_restored_is_no_fault_of_who_says_so(tmp_path):
    story = Story(tmp_path / "run", claims=dataclasses.replace(CLAIMS, recovery="partial"))
    judged = ps_lost(story, shards=[1])
    assert not violated(judged), explain(judged)
    assert "R4" not in statuses(judged)


@pytest.mark.parametrize(
    ("cut", "says"), [(-1, "near its end"), (0, "near its start"), (None, "marks who initialised")]
)
def test_a_torn_checkpoint_restored(story, cut, says):
    story.step(0, 3)
    story.step(1, 2)
    story.checkpoint("step-3")
    theta = story.kept["step-3"][0][1]
    nonce = (len(theta) - 1) // 2
    lost = {-1: slice(nonce + 1, None), 0: slice(0, nonce), None: slice(nonce, nonce + 1)}[cut]
    theta[lost] = 0.0
    story.step(0, 2)
    story.kill("ps:1")
    story.fault("kill", "ps:1", on=False, evidence="started again")
    story.exits.clear()
    story.restore("step-3")
    judged = story.finish()
    assert "R7" in violated(judged)
    assert says in witness(judged, "R7")[0]
    assert "read ps:1" in witness(judged, "R7")[0]


def test_fence_missing(story):
    """A push of before is applied after the restore: in turn, so that nothing is doubled in the end."""
    story.step(1, 3)
    story.checkpoint("step-3")
    story.step(1, answer=False, apply=[])
    story.kill("ps:0")
    story.fault("kill", "ps:0", on=False)
    story.exits.clear()
    story.restore("step-3", resume=False)
    story.put(0, 1, 3)
    story.put(1, 1, 3)
    for worker, probe in enumerate(story.probes):
        probe.resume(3 if worker else 0)
    story.read(1, 3)
    story.probes[1].push(3)
    story.probes[1].ack(3, "ok", [0, 0])
    judged = story.finish()
    assert violated(judged) == {"R6"}
    assert "pushed before that" in witness(judged, "R6")[0]


@pytest.mark.parametrize(("before", "wrong"), [(0, False), (1, True)])
def test_what_was_pushed_since_a_rollback_may_show_in_the_first_read(story, before, wrong):
    """Three gradients were sent after the restore, and before any read; or the first of them not, though it shows."""
    story.step(1, 6)
    story.checkpoint("step-6")
    story.step(1, before, answer=False, apply=[])
    story.kill("ps:0")
    story.fault("kill", "ps:0", on=False)
    story.exits.clear()
    story.restore("step-6")
    for step in (6, 7, 8):
        story.put(0, 1, step), story.put(1, 1, step)
        if step >= 6 + before:
            story.probes[1].push(step)
            story.probes[1].ack(step, "ok", [story.next_step(1)] * 2)
    assert violated(story.finish()) & {"R4", "R6"} == ({"R6"} if wrong else set())


def test_silent_reset(story):
    story.step(0, 3)
    story.step(1, 4)
    story.kill("ps:1")
    story.fault("kill", "ps:1", on=False)
    story.exits.clear()
    story.theta[1] = story.theta[1] * 0 + (story.theta[1] == story.theta[1].max()) * story.theta[1]
    judged = story.finish()
    assert {"R1", "R3"} <= violated(judged)
    assert "no restore was recorded between them" in witness(judged, "R3")[0]


def test_a_hang_after_a_fault(story):
    story.step(0, 3)
    story.kill("worker:1", at="after-push:2")
    story.fault("kill", "worker:1", at="after-push:2", on=False)
    (story.folder / "logs" / "worker-0.log").write_text("one\nwaiting for worker:1\n")
    judged = story.end("stalled", NoProgress(60))
    assert violated(judged) == {"L1"}
    lines = witness(judged, "L1")
    assert lines[0] == "after kill worker:1 at after-push:2: the process ended by signal 9"
    assert "worker:0 recorded ack last, of step 2; its log ends: waiting for worker:1" in lines


def test_a_hang_without_a_fault(story):
    story.step(0, 3)
    judged = story.end("stalled", NoProgress(60))
    assert statuses(judged) == {"L0": "violated"}
    assert witness(judged, "L0")[0] == "stopped: no task made progress for 60 s"
    assert {v.reason for v in judged.verdicts if v.guarantee in ("A1", "R1")} == {"training hung at step 2"}


@pytest.mark.parametrize(("claim", "found"), [("progress", "violated"), ("attributed-error", "valid")])
def test_an_error_that_says_why(tmp_path, claim, found):
    story = Story(tmp_path / "run", claims=dataclasses.replace(CLAIMS, liveness=claim))
    story.step(0, 3)
    story.step(1, 3)
    story.kill("ps:1")
    story.fault("kill", "ps:1", on=False)
    judged = story.end("finished", TaskFailed("worker:0", 1, "ps:1 is gone"))
    assert statuses(judged)["L1"] == found
    assert set(statuses(judged)) == {"L1"}  # the rest is not judged: there are no final reads


def test_an_error_before_another_fault_of_the_plan_is_judged(tmp_path):
    story = Story(tmp_path / "run", claims=dataclasses.replace(CLAIMS, liveness="attributed-error"))
    story.step(0, 3)
    story.step(1, 3)
    story.kill("ps:1")
    story.fault("kill", "ps:1", on=False)
    missing = FaultMissed("kill", "worker:1@9", Missed.NEVER_INJECTED, "training did not get there")
    judged = story.end("finished", TaskFailed("worker:0", 1, "ps:1 is gone"), missing)
    assert statuses(judged) == {"L1": "valid"}
    assert judged.exit_code == 0  # the second fault was to come after training had ended
    assert "1 of 2 faults observed (1 were to come after training had ended)" in explain(judged)


def test_the_third_of_spaced_faults_is_not_survived(story):
    story.spaced()
    judged = story.end("finished", TaskFailed("worker:0", 1, "this was the third fault"))
    assert violated(judged) == {"L1", "L3"}
    assert witness(judged, "L3")[0] == "survived kill ps:0 at 0, kill ps:0 at 1; not kill ps:0 at 2"


VIOLATED = {
    "R3": test_restore_of_the_second_newest_checkpoint,
    "R4": test_only_the_failed_shard_restored,
    "R6": test_fence_missing,
    "R7": test_a_torn_checkpoint_restored,
    "M1": test_a_joiner_that_pushes_before_it_has_read,
    "L1": test_a_hang_after_a_fault,
    "L3": test_the_third_of_spaced_faults_is_not_survived,
}
"""Guarantees that only a fault shows, and where each is violated."""


def test_the_lives_of_a_task_must_say_which_they_are(story):
    story.step(0, 3)
    story.kill("worker:1")
    story.back(1)
    story.finish()
    path = story.folder / "events" / "worker-1.1.jsonl"
    path.rename(path.with_name("worker-1.2.jsonl"))
    with pytest.raises(Malformed, match=r"is incarnation 1 of worker:1, not 2"):
        judge_folder(story.folder)


def test_what_was_recorded_after_done_without_a_resumption_is_malformed(story):
    probe = story.probes[1]
    story.step(1)
    probe.wait_for_all()
    probe._done = False
    story.step(1)
    with pytest.raises(Malformed, match="goes on after done"):
        story.finish()


def cells(odd):
    names = ("variable", "peer", "step", "head", "tail")
    return list(zip(*(getattr(odd, name).tolist() for name in names), strict=True))


def columns(judged):
    """What a worker's record says, whatever its lives."""
    worker = judged.history.workers[1]
    reads, pushes, odd = worker.reads, worker.pushes, worker.reads.odd
    order = pushes.step.argsort(kind="stable")
    return {
        **{name: getattr(reads, name).tolist() for name in ("step", "final", "clock", "nonce", "versions")},
        **{name: getattr(pushes, name)[order].tolist() for name in ("step", "outcome", "width", "versions", "read")},
        "acked": worker.acked.tolist(),
        "odd": [sorted(cells(odd.at(read))) for read in range(len(reads))],
    }


@pytest.mark.parametrize("cuts", [(), (1,), (4,), (2, 5, 9), tuple(range(1, 12))])
def test_a_record_in_several_lives_says_what_one_record_says(tmp_path, cuts):
    """Torn gradients on ps:1 (applied at the head only) make for odd cells, which each life has to tell again."""
    told = []
    for name, lives in (("one", ()), ("several", cuts)):
        story = Story(tmp_path / name)
        story.theta = [theta * 0 + (theta != 0) * 7 for theta in story.theta]  # the same nonce in both
        for step in range(story.steps):
            if step in lives:
                story.kill("worker:1", at=str(step))
                story.back(1)
            story.step(1)
            if step % 3 == 0:
                slot = story.steps + step
                story.theta[1][slot] = 0.0
        told.append(columns(story.finish()))
    assert told[0] == told[1]


@pytest.mark.parametrize(
    ("damaged", "found"),
    [
        ("step-4.data-00000-of-00001", "valid"),
        ("step-4", "valid"),
        ("step-2.index", "violated"),
        ("step-40.index", "unknown"),
    ],
)
def test_a_checkpoint_that_a_fault_has_damaged_is_not_the_newest(story, damaged, found):
    """Nobody can be asked to restore it; of any other one everybody can, if it is known which one was damaged."""
    story.step(0, 2)
    story.checkpoint("step-2")
    story.step(0, 2)
    story.checkpoint("step-4")
    story.fault("truncate", "the newest checkpoint", file=damaged)
    story.kill("ps:0")
    story.fault("kill", "ps:0", on=False)
    story.exits.clear()
    story.restore("step-2")
    judged = story.finish()
    assert violated(judged) == ({"R3"} if found == "violated" else set())
    assert statuses(judged)["R3"] == found


def test_a_successor_that_records_an_old_checkpoint_again_is_not_excused(story):
    story.step(0, 2)
    story.checkpoint("step-2")
    story.step(0, 2)
    story.checkpoint("step-4")
    story.kill("worker:0")
    story.back(0)
    _, applied = story.kept["step-2"]
    story.probes[0].checkpoint("step-2", applied)
    story.restore("step-2")
    judged = story.finish()
    assert violated(judged) == {"R3"}, explain(judged)
    assert "though step-4 was durable before" in witness(judged, "R3")[0]
