"""Faults of processes that plans have beside kill and stop: what tests/test_fault_kinds.py does not say of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from psconform.errors import BadInput
from psconform.faults.plan_file import parse_plan
from psconform.layout import Layout
from psconform.options import Options
from psconform.probe import EventLog
from psconform.runner.fault_setup import ran_out
from psconform.runner.plan import make_plan
from psconform.runner.progress import Records

DURABLE = Path(__file__).parent / "socket_ps" / "target_durable.toml"


@pytest.fixture
def run(judge):
    """A run of a trainer that survives, with one fault or several."""

    def made(update, plan, *, exit_code=0, **options):
        options = {"layout": "ps=1,worker=2", "steps": 40, "slow": {"worker:1": 0.01}, **options}
        run = judge(DURABLE, update=update, faults=f"[[fault]]\n{plan}\n", **options)
        assert run.exit_code == exit_code, run.explain()
        return run

    return made


def events(run):
    lines = (run.folder / "events/psconform-0.jsonl").read_text(encoding="utf-8").splitlines()
    return [event for event in map(json.loads, lines) if event["kind"] == "fault"]


@pytest.mark.engine
@pytest.mark.parametrize(("update", "task"), [("sync", "worker:0"), ("async", "ps:0")])
def test_a_task_that_comes_late(run, update, task):
    done = run(update, f'kind = "late"\ntask = "{task}"\nat = "0s"\nfor = "1s"')
    (fault,) = done.as_dict()["faults"]
    assert (fault["of"], fault["evidence"], fault["healed"]) == (task, "it was not there", "started")
    on, off = (event["mono_ns"] for event in events(done))
    log = done.folder / "logs" / f"{task.replace(':', '-')}.log"
    assert log.exists()
    assert off - on >= 1e9
    assert done.verdicts["L1"].status == "valid"


@pytest.mark.engine
def test_all_workers_may_come_late(run):
    done = run("sync", 'kind = "late"\ntask = "worker"\nat = "0s"\nfor = "500ms"')
    assert [fault["of"] for fault in done.as_dict()["faults"]] == ["worker:0", "worker:1"]
    assert done.verdicts["R1"].status == "valid"


def test_a_task_comes_late_once(tmp_path):
    """It would be started twice, and its trainer accused of what two processes of one task do."""
    late = '[[fault]]\nkind = "late"\ntask = "{}"\nat = "0s"\nfor = "{}"\n'
    faults = late.format("ps", "500ms") + late.format("ps:0", "1s")
    with pytest.raises(BadInput, match="fault 2: would end late ps:0"):
        make_plan(Options(faults=faults, layout="ps=1,worker=2", out=tmp_path / "run"))


@pytest.mark.engine
def test_a_task_that_is_stopped_is_not_stopped_again(run):
    """The end of the first would end the second, which would count for a time in which it trained."""
    stop = 'kind = "stop"\ntask = "worker:1"\nat = 10\n'
    done = run("async", f'{stop}for = "500ms"\n[[fault]]\n{stop}for = "2s"', exit_code=2)
    assert "could not be injected: worker:1 was stopped already" in done.explain()


@pytest.mark.engine
@pytest.mark.parametrize("update", ["sync", "async"])
def test_a_worker_that_runs_out_of_data_by_a_plan(run, update):
    done = run(update, 'kind = "out-of-data"\ntask = "worker:1"\nat = 20')
    assert done.verdicts["M2"].status == "valid"
    assert done.verdicts["L1"].status == "valid"
    assert "--batches" not in done.repeat


@pytest.mark.engine
def test_out_of_data_that_it_never_gets_to_proves_nothing(run):
    """The worker is killed for good before."""
    plan = 'kind = "out-of-data"\ntask = "worker:1"\nat = 30\n'
    plan += '[[fault]]\nkind = "kill"\ntask = "worker:1"\nat = 10\nrestart_after = "never"'
    done = run("async", plan, exit_code=2, patience_s=3)
    assert "fault out-of-data worker:1 at its step 30 was never injected: training did not get there" in done.explain()


@pytest.mark.parametrize(
    ("task", "step", "says"),
    [
        ("worker", 20, "must leave one worker that has a batch"),
        ("worker:1", 0, "must have data for one step"),
        ("worker:0", 20, "worker:0 runs out of data twice"),
    ],
)
def test_a_plan_of_too_little_data_is_refused(tmp_path, task, step, says):
    path = tmp_path / "plan.toml"
    path.write_text(f'[[fault]]\nkind = "out-of-data"\ntask = "{task}"\nat = {step}\n', encoding="utf-8")
    batches = "worker:0=9" if "twice" in says else ()
    with pytest.raises(BadInput, match=says):
        make_plan(Options(faults=path, layout="ps=1,worker=2", batches=batches, out=tmp_path / "run"))


def test_only_the_task_itself_runs_out_of_data(tmp_path):
    """What a second process has pushed says nothing, nor what is no event."""
    (tmp_path / "events").mkdir()
    own = ['{"kind":"push","step":3}', '["push"]', '{"kind":"push"}', '{"kind":"push","step":null}', '{"kind":"push"']
    (tmp_path / "events/worker-1.jsonl").write_text("\n".join(own), encoding="utf-8")
    (tmp_path / "events/worker-1.1.jsonl").write_text('{"kind":"push","step":19}\n', encoding="utf-8")
    (fault,) = parse_plan(
        '[[fault]]\nkind = "out-of-data"\ntask = "worker:1"\nat = 20', place="plan", layout=Layout(), steps=40
    )
    log = EventLog(tmp_path / "psconform-0.jsonl", run="r", task="psconform:0", incarnation=0)
    assert ran_out([fault], tmp_path, log, without={"worker-1.1.jsonl"}) != []
    assert ran_out([fault], tmp_path, log) == []


def test_a_push_recorded_with_its_answer_counts_as_both(tmp_path):
    """probe.update: for data that runs out, and for what tells a slow start from a hang."""
    (fault,) = parse_plan(
        '[[fault]]\nkind = "out-of-data"\ntask = "worker:1"\nat = 20', place="plan", layout=Layout(), steps=40
    )
    log = EventLog(tmp_path / "psconform-0.jsonl", run="run", task="psconform:0", incarnation=0)
    path = tmp_path / "events" / "worker-1.jsonl"
    path.parent.mkdir()
    path.write_text('{"kind":"update","step":19,"outcome":"ok"}\n', encoding="ascii")
    assert ran_out([fault], tmp_path, log) == []
    records = Records()
    assert records.look([path])
    assert records.acked == 1
    log.close()


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (("stop", "throttle"), "would end stop worker:1@5"),
        (("throttle", "throttle"), "would end throttle worker:1@5"),
        (("clock", "clock"), "would end clock worker:1@5"),
    ],
)
def test_faults_that_would_end_each_other_are_refused(tmp_path, plan, says):
    entries = [
        f'[[fault]]\nkind = "{kind}"\ntask = "worker:1"\nat = {step}\nfor = "1s"\n'
        for kind, step in zip(plan, (5, 9), strict=True)
    ]
    with pytest.raises(BadInput, match=says):
        make_plan(Options(faults="".join(entries), layout="ps=1,worker=2", out=tmp_path / "run"))
