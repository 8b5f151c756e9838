"""--batches, --drop-after and M2: how they are spelled, what M2 makes of a record, and real clusters that go on."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from psconform.checks import judge_history
from psconform.checks.leaving import leaves_as_declared
from psconform.errors import BadInput, Malformed
from psconform.faults.cli_syntax import parse_faults
from psconform.history.manifest import Workload
from psconform.history.reasons import TaskFailed
from psconform.history.records import Absence, Harm, Mark, Struck
from psconform.layout import Layout, Task
from psconform.options import UPDATES, Options
from psconform.probe import UNIT
from psconform.report.text import explain
from psconform.runner.plan import make_plan
from psconform.runner.verdicts import judge_folder

from .simulate import Trainer
from .stories import Story
from .test_checks_recovery import statuses, violated, witness

STEPS, T = 40, 2.0
LEAVER = Task("worker", 1)
KILLED = Struck("kill", str(LEAVER), "20", "the process ended by signal 9", "", harm=Harm.ENDS)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"batches": "worker:1"}, "--batches: must be TASK=N, such as worker:1=50, got 'worker:1'"),
        ({"batches": "ps:0=5"}, "--batches: only workers can be short of batches"),
        ({"batches": "worker:7=5"}, "--batches: layout ps=2,worker=3 has no such worker"),
        ({"batches": {"worker:1": 0}}, "--batches: of worker:1 must be between 1 and 199"),
        ({"batches": {"worker:1": 200}}, "--batches: of worker:1 must be between 1 and 199"),
        ({"batches": ["worker:1=5", "worker:1=6"]}, "--batches: names worker:1 twice"),
        ({"batches": {f"worker:{w}": 5 for w in range(3)}}, "--batches: must leave one worker"),
        ({"batches": "worker:1=5", "quorum": 2}, "--batches: excludes --quorum"),
        ({"batches": "worker:1=5", "workload": "digits"}, "--batches: needs --workload ledger"),
        ({"batches": "worker:1=5", "defect": "drop-gradient"}, "--batches: defect drop-gradient is not about it"),
        ({"defect": "leaves-the-round"}, "--batches: defect leaves-the-round needs it, got 'none'. Give --batches"),
        ({"batches": "worker:1=5", "kill": "worker:1@5"}, "--kill: worker:1 has data for 5 steps (--batches), got"),
        ({"batches": "worker:1=5", "poison": "worker:1@7"}, "--poison: worker:1 has data for 5 steps (--batches)"),
        (
            {"drop_after": "2s", "workload": "digits"},
            "--drop-after: needs --workload ledger or decayed-ledger or dense-ledger",
        ),
        ({"drop_after": "2s", "workload": "quadratic"}, "--drop-after: needs --workload ledger"),
        ({"drop_after": "-1s"}, "--drop-after: must be between 100ms and 3600 s (0: the job waits), got '-1 s'"),
        ({"drop_after": "2"}, "--drop-after: the time must be a number with its unit"),
        ({"drop_after": "1ms"}, "--drop-after: must be between 100ms and 3600 s"),
        ({"drop_after": float("nan")}, "--drop-after: must be between 100ms and 3600 s"),
        ({"drop_after": "2s", "quorum": 2}, "--drop-after: excludes --quorum"),
        ({"drop_after": "2s", "update": "async", "staleness": 2}, "--drop-after: excludes --staleness"),
        ({"drop_after": "2s", "layout": "ps=1,worker=1"}, "--drop-after: needs at least two workers"),
        ({"drop_after": "2s", "checkpoint_every": 0}, "--drop-after: needs a job that recovers"),
        (
            {"drop_after": "2s", "defect": "second-newest", "kill": "ps:0@20"},
            "--drop-after: defect second-newest has no",
        ),
        ({"defect": "drops-early", "kill": "worker:1@30"}, "--drop-after: defect drops-early needs it"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, options, says):
    with pytest.raises(BadInput, match=re.escape(says)):
        make_plan(Options(out=tmp_path, **options))


def test_who_was_never_told_of_due_is_not_accused(tmp_path):
    path = tmp_path / "target.toml"
    path.write_text('name = "mine"\n[jobs.ps]\ncommand = ["x"]\n[jobs.worker]\ncommand = ["x"]\n[claims.sync]\n')
    says = "--batches: workers of target mine do not heed it, got 'worker:1=5'. If they look at probe.due"
    with pytest.raises(BadInput, match=re.escape(says)):
        make_plan(Options(str(path), out=tmp_path, batches="worker:1=5"))
    path.write_text("batches = true\n" + path.read_text())
    assert make_plan(Options(str(path), out=tmp_path, batches="worker:1=5")).workload.batches == (("worker:1", 5),)


def test_spelling(tmp_path):
    plan = make_plan(
        Options(out=tmp_path, batches=["worker:2=7", "worker:1=50"], drop_after="1.5s", kill="worker:1@20")
    )
    assert plan.workload.batches == (("worker:1", 50), ("worker:2", 7))
    assert plan.layout.drop_after == 1.5
    assert plan.checkpoint_every == 50
    assert "--drop-after 1.5s" in plan.repeat
    assert "--batches worker:1=50 --batches worker:2=7" in plan.repeat
    assert make_plan(Options(out=tmp_path, drop_after=T)).checkpoint_every == 50
    assert make_plan(Options(out=tmp_path, batches="worker:1=5")).checkpoint_every == 0
    assert parse_faults(kill="worker:1@20", restart_after="never", layout=plan.layout, steps=50)[0].until is None


@pytest.fixture(scope="module", params=UPDATES)
def healthy(request, tmp_path_factory):
    """A history in which both workers have pushed all their steps; tests make others of it by `replace`."""
    return Trainer(update=request.param, steps=STEPS, seed=3).judge(tmp_path_factory.mktemp("healthy") / "run").history


@pytest.fixture(scope="module")
def sync(tmp_path_factory):
    return Trainer(steps=STEPS, seed=3).judge(tmp_path_factory.mktemp("sync") / "run").history


def dropping(history, *absences, **changes):
    return replace(history, layout=replace(history.layout, drop_after=T), absences=absences, **changes)


def gone_on_without(history, step, after_s, worker=1):
    """Said ``after_s`` seconds after the push that the wait is counted from."""
    sync = history.layout.update == "sync"
    pushes = history.workers[1 - worker if sync else worker].pushes
    at = pushes.at[pushes.step == (step if sync else step - 1)].min()
    return Absence(worker, step, int(at) + int(after_s * 1e9))


def without(history, worker, *steps):
    """The same as if these steps had never been pushed."""
    outcomes = history.outcomes.copy()
    outcomes[worker, list(steps)] = 0
    mine = history.workers[worker]
    keep = ~np.isin(mine.acked, steps)
    never = replace(mine, acked=mine.acked[keep], acked_ns=mine.acked_ns[keep])
    found = replace(history, workers=(*history.workers[:worker], never, *history.workers[worker + 1 :]))
    found.__dict__["outcomes"] = outcomes  # a cached property
    return found


def test_who_does_not_leave_is_not_judged(healthy):
    assert leaves_as_declared(healthy).status == "not judged"
    assert leaves_as_declared(replace(healthy, faults=(KILLED,))).status == "not judged"


def test_a_worker_that_was_waited_for_may_be_dropped(healthy):
    verdict = leaves_as_declared(dropping(healthy, gone_on_without(healthy, 20, T + 0.1)))
    assert verdict.status == "valid"
    assert verdict.reason == "1 worker(s) gone on without"


def test_one_that_was_not_is_missed(healthy):
    verdict = leaves_as_declared(dropping(healthy, gone_on_without(healthy, 20, 0.5 * T)))
    assert verdict.status == "violated"
    assert "went on without worker:1 at step 20 after 1.00 s, and is declared to wait 2 s" in verdict.witness[0]


def test_only_the_first_round_of_an_absence_is_waited_for(sync):
    first, soon = gone_on_without(sync, 20, T), [gone_on_without(sync, step, 0.0) for step in (21, 22)]
    assert leaves_as_declared(dropping(sync, first, *soon)).status == "valid"
    again = gone_on_without(sync, 30, 0.0)
    verdict = leaves_as_declared(dropping(sync, first, *soon, again))
    assert [line for line in verdict.witness if "step 30" in line]
    assert len(verdict.witness) == 1


def test_nobody_goes_on_without_a_worker_unless_that_is_declared(healthy):
    verdict = leaves_as_declared(replace(healthy, absences=(gone_on_without(healthy, 20, 60.0),)))
    assert verdict.status == "violated"
    assert "is declared to wait for it" in verdict.witness[0]


def test_who_goes_on_says_so(healthy):
    gone = range(20, STEPS)
    silent = without(dropping(healthy, faults=(KILLED,)), 1, *gone)
    verdict = leaves_as_declared(silent)
    assert verdict.status == "violated"
    assert "worker:1, which was killed for good, and nobody said so" in verdict.witness[0]
    said = [gone_on_without(healthy, 20, T)]
    if healthy.layout.update == "sync":
        said += [gone_on_without(healthy, step, 0.0) for step in gone[1:]]
    assert leaves_as_declared(without(dropping(healthy, *said, faults=(KILLED,)), 1, *gone)).status == "valid"


def test_who_comes_back_is_taken_back(sync):
    back = Mark(LEAVER, 1, "resume", 0, 5, step=12)
    said = [gone_on_without(sync, step, T if step == 10 else 0.0) for step in range(10, STEPS)]
    for absences, status in ((said, "violated"), (said[:4], "valid")):
        kept = without(dropping(sync, *absences, marks=(back,)), 1, *(absence.step for absence in absences))
        verdict = leaves_as_declared(kept)
        assert verdict.status == status
    verdict = leaves_as_declared(without(dropping(sync, *said, marks=(back,)), 1, *range(10, STEPS)))
    assert "worker:1 was back at step 12, and 28 rounds from step 12 on went on without it" in verdict.witness[0]
    late = replace(back, step=STEPS - 5)  # then it may be over before it is let in
    assert leaves_as_declared(without(dropping(sync, *said, marks=(late,)), 1, *range(10, STEPS))).status == "valid"


def short(history, number):
    return replace(history, workload=replace_batches(history.workload, number))


def replace_batches(workload, number):
    import msgspec

    return msgspec.structs.replace(workload, batches=(("worker:1", number),))


def test_a_worker_has_no_more_gradients_than_data(healthy):
    assert leaves_as_declared(without(short(healthy, 20), 1, *range(20, STEPS))).status == "violated"  # they are pushed
    verdict = leaves_as_declared(short(healthy, 20))
    assert verdict.witness == ("worker:1 pushed step 20, and had data for 20 step(s)",)
    assert leaves_as_declared(short(healthy, STEPS)).reason == "1 worker(s) ran out of data"


def test_training_that_stops_with_the_data_of_a_worker(healthy):
    stalled = replace(
        short(healthy, STEPS - 1), ended="stalled", last_words={"worker:0": "worker:0 recorded push last"}
    )
    pushes = stalled.workers[1].pushes
    fewer = replace(pushes, step=pushes.step[:-1])
    stalled = replace(stalled, workers=(stalled.workers[0], replace(stalled.workers[1], pushes=fewer)))
    verdict = leaves_as_declared(stalled)
    assert verdict.witness == (
        f"worker:1 had pushed its {STEPS - 1} batches, and then training stopped",
        "worker:0 recorded push last",
    )


def test_training_that_stops_for_want_of_a_worker_that_it_may_do_without(healthy):
    stalled = dropping(healthy, ended="stalled", faults=(KILLED,))
    verdict = leaves_as_declared(stalled)
    assert any("worker:1 was killed for good, and training stopped" in line for line in verdict.witness)


def test_nobody_owes_training_where_a_ps_is_gone_for_good(healthy):
    """It stopped, or ended, for want of that."""
    lost = replace(KILLED, of="ps:0")
    stalled = dropping(healthy, ended="stalled", faults=(KILLED, lost))
    assert leaves_as_declared(stalled).reason == f"{lost.what} was not healed, so nobody owes progress"
    ended = dropping(healthy, ended="finished", faults=(KILLED, lost), stops=(TaskFailed("worker:0", 1),))
    assert leaves_as_declared(ended).status == "unknown"
    if healthy.layout.update == "async":  # in sync each round tells
        assert leaves_as_declared(replace(ended, faults=(KILLED,), stops=())).status == "violated"


def test_an_incomplete_record_is_called_nothing(sync):
    short_of = dropping(sync, gone_on_without(sync, 20, T), gaps=("psconform's own record is missing",))
    assert next(v for v in judge_history(short_of) if v.guarantee == "M2").status == "unknown"


def ran_dry(folder):
    """A history in which worker:1 had data for two steps, and pushed no more."""
    story = Story(folder, workload=Workload(steps=12, unit=UNIT, batches=(("worker:1", 2),)))
    story.step(1, 2)
    story.step(0, 12)
    for worker in range(2):
        (story.folder / "done" / f"worker-{worker}").touch()
    for worker, probe in enumerate(story.probes):
        probe.wait_for_all()
        story.read(worker, final=True)
        probe.close()
    return story.end("finished").history


def test_a_worker_that_has_run_dry_lacks_nothing(tmp_path):
    verdicts = judge_history(ran_dry(tmp_path / "run"))
    assert {v.status for v in verdicts} == {"valid", "not judged"}, verdicts
    assert {"R1", "A1", "A5", "M2"} <= {v.guarantee for v in verdicts if v.status == "valid"}


def told_without(tmp_path, act):
    story = Story(tmp_path / "run", layout=Layout(ps=2, workers=2, update="async", drop_after=T))
    story.step(0, 3)
    story.step(1, 2)
    act(story)
    story.kill("worker:1")
    story.probes[0].goes_without(1, 2)
    for _ in range(story.steps - 3):
        story.step(0)
    for worker in range(2):
        (story.folder / "done" / f"worker-{worker}").touch()
    story.probes[0].wait_for_all()
    story.read(0, final=True)
    story.probes[0].close()
    return story


def test_a_run_that_ends_without_a_worker_is_complete(tmp_path):
    """Only M2 minds that nobody waited: no time passes in a story."""
    judged = told_without(tmp_path, lambda _: None).end("finished")
    assert violated(judged) == {"M2"}
    assert set(statuses(judged).values()) == {"valid", "violated"}, explain(judged)
    assert {"R1", "A5", "L1"} <= {name for name, status in statuses(judged).items() if status == "valid"}
    assert "after 0.0" in witness(judged, "M2")[0]


def test_what_it_had_acknowledged_before_must_still_be_there(tmp_path):
    judged = told_without(tmp_path, lambda story: story.step(1, apply=[0])).end("finished")
    assert "R1" in violated(judged)


def test_an_absence_of_nobody_is_malformed(tmp_path):
    story = told_without(tmp_path, lambda story: story.probes[0]._event("without", worker=5, step=2))
    with pytest.raises(Malformed, match="step 2 of worker:5 is none of this run"):
        story.end("finished")


@pytest.mark.tensorflow
@pytest.mark.parametrize("update", UPDATES)
def test_nothing_of_a_worker_that_is_out_is_let_in(monkeypatch, update):
    """And the step that is taken in its place is no gradient, and counts as one that was refused."""
    from psconform.reference_impl.cluster import tf, tf1
    from psconform.reference_impl.modes.full_ps import FullConfig
    from psconform.reference_impl.recovery import recoverable_ps

    # a ps in this process
    monkeypatch.setattr(recoverable_ps.RecoverableShard, "device", lambda _: tf.device("/device:CPU:0"))
    config = FullConfig(slots=8, workers=2, update=update, reduction="sum", drop_after=T)
    with tf.Graph().as_default():
        ps = recoverable_ps.RecoverableShard(0, config)
        sent = tf1.placeholder(tf.float32, [len(ps.blank(0))])
        state, limits = tf1.placeholder(tf.float32, ps.shape), tf1.placeholder(tf.int32, [2])
        push = [ps.push(sent, worker, pull=True) for worker in range(2)]
        stand_in, restore, limit = ps.push(sent, 1, pull=True, gated=False), ps.restore(state), ps.limit(limits)
        look = ps.look()
        with tf1.Session() as session:
            session.run(ps.control.initializer)
            session.run(restore, {state: ps.packed(np.zeros(8, np.float32), (0, 0), 1, {})})
            session.run(limit, {limits: [recoverable_ps.OPEN, 0]})

            def send(op, message):
                message[-3:] = 1, 0, 0
                session.run(op, {sent: message})
                return ps.looked(session.run(look)).applied

            own = ps.blank(1)
            ps.write(own, np.ones(8, np.float32), 0, 0)
            assert send(push[1], own) == (0, 0)
            assert send(stand_in, ps.nothing(1)) == (0, 1)
            ps.write(first := ps.blank(0), np.full(8, 2.0, np.float32), 0, 0)
            assert send(push[0], first) == (1, 1)
            rows = session.run(ps.state)
    row = rows[1] if update == "sync" else rows[0]
    assert ps.theta(row).tolist() == [-2.0] * 8
    assert (ps.refused(row, 0), ps.refused(row, 1)) == (0, 1)


@pytest.mark.nightly
@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("every", [0, 10])
def test_a_worker_without_data_keeps_nobody_waiting(judge, update, every):
    run = judge("reference", update=update, steps=30, batches={"worker:1": 12, "worker:2": 1}, checkpoint_every=every)
    assert run.exit_code == 0, run.explain()
    assert run.verdicts["M2"].reason == "2 worker(s) ran out of data"
    assert "43 gradients" in run.verdicts["R1"].reason


@pytest.mark.nightly
@pytest.mark.parametrize("update", UPDATES)
def test_a_job_ends_without_a_worker_that_is_gone_for_good(judge, update):
    kill = {"kill": "worker:1@10", "restart_after": "never", "steps": 25}
    run = judge("reference", update=update, drop_after="2s", **kill)
    assert run.exit_code == 0, run.explain()
    assert run.verdicts["M2"].reason == "1 worker(s) gone on without"
    assert run.verdicts["L1"].status == "valid"
    said = [json.loads(line) for line in (run.folder / "events" / "worker-0.jsonl").read_text().splitlines()]
    steps = [event["step"] for event in said if event["kind"] == "without"]
    assert steps == (list(range(10, 25)) if update == "sync" else [10])


@pytest.mark.nightly
@pytest.mark.parametrize("fault", ["worker:1", "worker:1 and ps:0", "worker:1 and worker:0"])
def test_a_worker_that_returns_is_taken_back(judge, fault):
    """Also if meanwhile the servers forget who is away, or the chief does."""
    kill = ["worker:1@10", *([f"{fault.split()[2]}@60"] if " " in fault else [])]
    slow = {"worker:0": 0.02}  # else the others might be through with it before it is back
    run = judge("reference", drop_after="500ms", kill=kill, restart_after="2s", steps=400, slow=slow)
    assert run.exit_code == 0, run.explain()
    assert "gone on without" in run.verdicts["M2"].reason
    assert run.verdicts["M1"].status == "valid"
    assert judge_folder(run.folder).history.accepted[1, -50:].any()  # on a busy machine it may be away once more


@pytest.mark.nightly
def test_after_a_rollback_a_worker_is_waited_for_anew_in_async_too(judge):
    """The chief has trained all its steps, and waits; the time for which the ps is away is not the worker's."""
    slow, options = {"worker:0": 0.09, "worker:1": 1.0}, {"drop_after": "1500ms", "batches": {"worker:1": 6}}
    kill = {"kill": "ps:0@worker:1@3", "restart_after": "2s", "checkpoint_every": 1}
    run = judge("reference", layout="ps=1,worker=2", update="async", steps=30, slow=slow, **options, **kill)
    assert run.exit_code == 0, run.explain()


@pytest.mark.nightly
@pytest.mark.parametrize(("update", "steps"), [("sync", 30), ("async", 3)])
def test_one_that_is_always_too_slow_is_taken_back_each_time(judge, update, steps):
    """It was never killed, so nobody tells it but the servers."""
    slow = {"worker:1": 1.0}
    run = judge("reference", layout="ps=2,worker=2", update=update, drop_after="500ms", steps=steps, slow=slow)
    assert run.exit_code == 0, run.explain()
    history = judge_folder(run.folder).history
    assert sum(str(mark.task) == "worker:1" and mark.kind == "resume" for mark in history.marks) > 1
    assert update == "sync" or history.accepted.all()


@pytest.mark.nightly
@pytest.mark.parametrize(
    "options", [{"drop_after": "10s", "restart_after": "never"}, {"restart_after": "10s"}], ids=["dropped", "returns"]
)
def test_whoever_is_declared_to_be_away_for_longer_than_the_patience_is_waited_for(judge, options):
    """Nobody moves for ten seconds, of which psconform and the trainer both know."""
    run = judge("reference", layout="ps=1,worker=2", steps=30, patience_s=8.0, kill="worker:1@10", **options)
    assert run.valid, run.explain()
