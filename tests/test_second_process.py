"""A second process of a task beside the first: what it is to the launcher, to the record, and to trainers."""

from __future__ import annotations

import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from psconform import judge
from psconform.api import check
from psconform.faults.plan_file import parse_plan
from psconform.faults.process_faults import Twice
from psconform.launchers.local import LocalLauncher
from psconform.layout import Command, Layout, Task
from psconform.runner.session import Session

from .scenes import injector_of
from .test_keeper import ends

SOCKETS = Path(__file__).parent / "socket_ps"
TASK = Task("worker", 1)
SLEEP = Command(("sleep", "1000"))


@pytest.fixture(scope="module")
def session():
    with Session() as session:
        yield session


@pytest.mark.engine
def test_it_is_not_the_task(tmp_path):
    with LocalLauncher() as launcher:
        first = launcher.start(TASK, SLEEP, log=tmp_path / "a.log")
        second = launcher.start(TASK, SLEEP, log=tmp_path / "b.log", second=True)
        assert launcher.running == (TASK,)
        assert launcher.state_of(second) not in ("", "T")
        launcher.kill_second(first)  # is none
        launcher.kill_second(second)
        (end,) = ends(launcher)
        assert (end.task, end.status, end.pid, end.second) == (TASK, -signal.SIGKILL, second, True)
        assert launcher.state_of(second) == ""
        assert launcher.running == (TASK,)
        launcher.signal(TASK, signal.SIGTERM)
        (end,) = ends(launcher)
        assert (end.pid, end.second) == (first, False)


@pytest.mark.engine
def test_both_are_stopped(tmp_path):
    with LocalLauncher() as launcher:
        pids = {launcher.start(TASK, SLEEP, log=tmp_path / "log", second=second) for second in (False, True)}
        assert {end.pid for end in launcher.stop_all()} == pids


@pytest.mark.parametrize("first", ["S", ""])
def test_one_that_is_over_before_anybody_looks_was_there_beside_a_first_that_still_is(first):
    """A busy machine: a second process that is refused takes some milliseconds."""
    processes = SimpleNamespace(running=(TASK,), state=lambda _: first, state_of=lambda _: "")
    (fault,) = parse_plan(twice(TASK, 3), place="here", layout=Layout(ps=1, workers=2), steps=9)
    both = injector_of(fault, processes=processes, start_second=lambda _: 7, recorded=lambda _: True)
    assert not both.refused()
    both.inject()
    both.second_ended(7, "failed with status 1")
    assert both.evidence() == (f"a second process of {TASK} ran beside the first" if first else "")


def twice(task, at):
    return f'[[fault]]\nkind = "twice"\ntask = "{task}"\nat = "{at}"\n'


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("update", "task", "at"),
    [
        ("sync", "worker:1", "10"),
        ("async", "worker:0", "after-push:10"),
        ("sync", "ps:1", "10"),
        ("async", "ps:0", "3"),
    ],
)
def test_the_reference_refuses_it(session, tmp_path, update, task, at):
    slow = ["worker:0=50ms", "worker:1=50ms"]  # or they may be done before the second one has failed
    options = {"update": update, "layout": "ps=2,worker=2", "steps": 40, "slow": slow}
    run = judge(faults=twice(task, at), session=session, out=tmp_path / "run", **options)
    assert run.exit_code == 0, run.explain()
    (fault,) = run.as_dict()["faults"]
    assert fault["evidence"] == f"a second process of {task} ran beside the first"
    assert f"{task} ends: cannot serve as {task} on 127.0.0.1:" in fault["healed"]
    assert fault["healed"].startswith("it failed with status 1")
    assert fault["healed"].endswith("another process has that address already")
    slug = task.replace(":", "-")
    assert f"cannot serve as {task}" not in (run.folder / f"logs/{slug}.log").read_text(encoding="utf-8")
    assert check(run.folder).verdicts == run.verdicts


@pytest.mark.nightly
def test_a_task_with_a_second_process_may_be_killed_and_come_back(session, tmp_path):
    """The third incarnation is the task's second life."""
    (tmp_path / "plan.toml").write_text(
        '[[fault]]\nkind = "twice"\ntask = "worker:1"\nat = 8\n'
        '[[fault]]\nkind = "kill"\ntask = "worker:1"\nat = 20\nrestart_after = "0s"\n',
        encoding="utf-8",
    )
    options = {"layout": "ps=1,worker=2", "steps": 40, "checkpoint_every": 5}
    run = judge(faults=tmp_path / "plan.toml", session=session, out=tmp_path / "run", **options)
    assert run.exit_code == 0, run.explain()
    assert run.verdicts["M1"].status == "valid"
    names = {path.name for path in (run.folder / "events").glob("worker-1*")}
    assert names == {"worker-1.jsonl", "worker-1.1.jsonl", "worker-1.2.jsonl"}
    assert "worker-1.1.jsonl is of a second process of worker:1, and was left out" in run.explain()


@pytest.mark.engine
def test_a_trainer_that_looks_at_nobodys_claim_is_found(session, tmp_path):
    run = judge(
        SOCKETS / "target.toml",
        update="async",
        faults=twice("worker:1", "5"),
        steps=30,
        slow=["worker:1=50ms"],  # or it may be done before the second one has pushed
        session=session,
        out=tmp_path / "run",
    )
    assert set(run.violated) == {"A1", "R1", "R2"}, run.explain()
    assert ", sent 1 time, w" in run.explain()


@pytest.mark.engine
def test_one_that_claims_nothing_leaves_it_open(session, tmp_path, monkeypatch):
    """It hangs before it has begun to record: it has touched nothing, and is killed when the run is over."""
    monkeypatch.setattr(Twice, "effect_s", 1.0)
    source = (SOCKETS / "socket_ps.py").read_text(encoding="utf-8")
    hangs = 'import os, time\nos.environ["PSCONFORM_INCARNATION"] == "1" and time.sleep(1000)\n'
    head, imports, rest = source.partition("import argparse\n")
    (tmp_path / "socket_ps.py").write_text(head + hangs + imports + rest, encoding="utf-8")
    (tmp_path / "target.toml").write_text((SOCKETS / "target.toml").read_text(encoding="utf-8"), encoding="utf-8")
    options = {"update": "async", "steps": 30, "session": session, "out": tmp_path / "run"}
    run = judge(tmp_path / "target.toml", faults=twice("worker:1", "5"), **options)
    assert run.exit_code == 2, run.explain()
    assert "fault twice worker:1 at its step 5 was not observed within 1 s: the second process neither" in run.explain()
