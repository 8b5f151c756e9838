"""Faults of the network in real runs: they strike, that is seen on the target's own traffic, and nothing is left."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from itertools import product
from pathlib import Path

import psutil
import pytest

from psconform import judge
from psconform.api import check
from psconform.errors import PsconformError
from psconform.faults import toxiproxy_install
from psconform.launchers.local import LocalLauncher
from psconform.options import Options
from psconform.runner.plan import make_plan
from psconform.runner.proxy_setup import serve
from psconform.runner.session import Session

from .test_interrupt import below, until
from .tiers import every

SOCKETS = Path(__file__).parent / "socket_ps" / "target.toml"
DURABLE = SOCKETS.with_name("target_durable.toml")
LONG_S = 120.0


@pytest.fixture(scope="module")
def session():
    with Session() as session:
        yield session


@pytest.fixture
def write(tmp_path):
    def written(**fields):
        text = "".join(f"{name.rstrip('_')} = {json.dumps(value)}\n" for name, value in fields.items())
        path = tmp_path / "plan.toml"
        path.write_text(f"[[fault]]\n{text}", encoding="utf-8")
        return path

    return written


@pytest.mark.nightly
@pytest.mark.psconform_needs("toxiproxy")
def test_who_has_an_http_proxy_can_run_all_the_same(session, write, tmp_path, monkeypatch):
    """gRPC would dial other tasks through it, and psconform its Toxiproxy."""
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    plan = write(kind="latency", links="worker:1->ps:0", at=5, until=15, ms=2)
    run = judge(layout="ps=1,worker=2", steps=30, faults=plan, session=session, out=tmp_path / "run")
    assert run.exit_code == 0, run.explain()


@pytest.mark.engine
@pytest.mark.psconform_needs("toxiproxy")
@pytest.mark.parametrize("update", ["sync", "async"])
def test_a_stall_holds_up_exactly_whom_it_says(session, write, tmp_path, update):
    """In async the other worker trains on meanwhile; in sync everybody waits, and the fault is healed for that."""
    plan = write(kind="stall", links="worker:1<->ps:0", at=5, until=60)
    options = {"layout": "ps=1,worker=2", "steps": 80, "slow": "worker:0=20ms"}  # or it might be far ahead by then
    run = judge(DURABLE, update=update, **options, faults=plan, session=session, out=tmp_path / "run")
    assert run.exit_code == 0, run.explain()
    events = [json.loads(line) for line in (tmp_path / "run/events/psconform-0.jsonl").read_text().splitlines()]
    on, off = (event["did_ns"] for event in events if event["kind"] == "fault")
    acked = {
        worker: [
            event["step"]
            for line in (tmp_path / f"run/events/worker-{worker}.jsonl").read_text().splitlines()
            if (event := json.loads(line))["kind"] == "ack"
            and event["step"] >= 5 * (1 - worker)
            and on < event["mono_ns"] < off
        ]
        for worker in (0, 1)
    }
    assert acked[1] == []
    assert bool(acked[0]) is (update == "async")


@pytest.mark.engine
@pytest.mark.psconform_needs("toxiproxy")
def test_a_partition_and_a_kill_at_the_same_time(session, tmp_path):
    plan = tmp_path / "plan.toml"
    plan.write_text(
        '[[fault]]\nkind = "stall"\nlinks = "halves"\nat = 10\nfor = "600ms"\n'
        '[[fault]]\nkind = "kill"\ntask = "ps:1"\nat = 10\nrestart_after = "200ms"\n'
        '[[fault]]\nkind = "latency"\nlinks = "isolate worker:0"\nat = 8\nuntil = 20\nms = 5\njitter_ms = 3\n',
        encoding="utf-8",
    )
    run = judge(DURABLE, layout="ps=2,worker=2", steps=40, faults=plan, session=session, out=tmp_path / "run")
    assert run.exit_code == 0, run.explain()
    assert len(run.as_dict()["faults"]) == 3


@pytest.mark.engine
@pytest.mark.psconform_needs("toxiproxy")
def test_a_fault_that_touched_nothing_takes_nothing_from_the_others(session, write, tmp_path):
    """This ps never dials its workers, so there is nothing that could be refused."""
    plan = write(kind="refuse", links="ps:0->worker:1", at=3, for_="100ms")
    run = judge(
        str(SOCKETS),
        update="async",
        layout="ps=1,worker=2",
        steps=20,
        faults=plan,
        session=session,
        out=tmp_path / "run",
    )
    assert run.exit_code == 2
    assert (
        "when worker:1 is at step 3, for 100 ms was not observed: no connection went through the proxies"
        in run.explain()
    )
    assert "0 of 1 faults observed, too few for --require-faults all" in run.explain()
    assert run.verdicts["R1"].status == "valid"
    assert run.verdicts["L0"].status == run.verdicts["L1"].status == "not judged"


def servers(pid):
    """The Toxiproxy servers that a process has started; other tests may have theirs at the same time."""
    return below(pid, "toxiproxy-server")


def tasks_of(folder):
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("PSCONFORM_SPEC", "").startswith(str(folder)):
                found.append(process)
        except psutil.Error:
            continue
    return found


def struck(folder):
    path = folder / "events/psconform-0.jsonl"
    return path.exists() and '"fault"' in path.read_text()


@pytest.mark.engine
@pytest.mark.psconform_needs("toxiproxy")
def test_killed_in_a_partition_nothing_is_left_and_the_run_can_be_judged(write, tmp_path):
    """SIGKILL of psconform; of proxies on a server that is not its own, too."""
    with LocalLauncher(preload=None) as launcher:
        theirs = serve(launcher, log=tmp_path / "toxiproxy.log")
        for number, url in enumerate(("", theirs.url)):
            folder = tmp_path / f"run{number}"
            plan = write(kind="stall", links="isolate worker:1", at=5, for_="600s")
            command = [sys.executable, "-m", "psconform", "run", str(DURABLE), "--layout", "ps=1,worker=2"]
            environment = {**os.environ, "TOXIPROXY_URL": url}
            process = subprocess.Popen([*command, "--faults", str(plan), "--out", str(folder)], env=environment)
            until(lambda folder=folder: struck(folder), seconds=LONG_S)
            assert bool(theirs.proxies()) is bool(url)
            its_own = servers(process.pid)
            assert bool(its_own) is not bool(url)
            process.send_signal(signal.SIGKILL)
            process.wait()
            until(lambda own=its_own: not theirs.proxies() and not any(p.is_running() for p in own), seconds=LONG_S)
            until(lambda folder=folder: not tasks_of(folder), seconds=LONG_S)

            judged = check(folder)
            assert judged.exit_code == 2
            assert "psconform's own record of the run has no end event" in judged.explain()


@pytest.mark.engine
def test_without_toxiproxy_network_faults_are_refused_and_others_run(write, tmp_path, monkeypatch):
    monkeypatch.setenv("TOXIPROXY_URL", "http://127.0.0.1:9")
    with Session() as session:  # any other may have a Toxiproxy already, from a test before
        sockets = {"update": "async", "layout": "ps=1,worker=2", "steps": 20, "session": session}
        plan = write(kind="stall", links="isolate worker:1", at=5, for_="1s")
        with pytest.raises(
            PsconformError,
            match=r"toxiproxy: not found .TOXIPROXY_URL: .* network faults cannot be used; fix: unset TOXIPROXY_URL",
        ):
            judge(str(SOCKETS), faults=plan, out=tmp_path / "run", **sockets)
        plan = write(kind="stop", task="worker:1", at=5, for_="200ms")
        run = judge(str(SOCKETS), faults=plan, out=tmp_path / "other", **sockets)
        assert run.exit_code == 0, run.explain()
    assert toxiproxy_install.find().found is None


@pytest.mark.engine
@pytest.mark.psconform_needs("fuse")
def test_without_toxiproxy_faults_of_the_disk_run(write, tmp_path, monkeypatch):
    monkeypatch.setenv("TOXIPROXY_URL", "http://127.0.0.1:9")
    with Session() as session:
        plan = write(kind="read-only", at=12, for_="1s")
        options = {"layout": "ps=1,worker=2", "steps": 40, "session": session, "out": tmp_path / "disk"}
        run = judge(DURABLE, faults=plan, **options)
        assert run.exit_code == 0, run.explain()
    assert [fault["kind"] for fault in run.as_dict()["faults"]] == ["read-only"]


@pytest.mark.engine
@pytest.mark.psconform_needs("toxiproxy")
def test_who_hangs_because_toxiproxy_has_gone_is_not_accused(write, tmp_path):
    """It goes once the fault has healed: nothing that the plan knows of keeps tasks from each other."""
    text = SOCKETS.read_text(encoding="utf-8").replace("{here}", str(SOCKETS.parent))
    target = tmp_path / "target.toml"
    target.write_text(text.replace("[claims.async]", '[claims.async]\nliveness = "progress"'), encoding="utf-8")
    plan = write(kind="stall", links="worker:1->ps:0", at=10, for_="100ms")
    options = {
        "layout": "ps=1,worker=2",
        "update": "async",
        "steps": 2000,
        "patience_s": 3,
        "slow": ("worker:0=5ms", "worker:1=5ms"),
    }

    def gone(progress):
        if progress.what:
            return  # it is the calibration
        lines = (tmp_path / "run/events/psconform-0.jsonl").read_text(encoding="utf-8").splitlines()
        if any(event.get("on") is False for event in map(json.loads, lines)):
            for child in servers(os.getpid()) - of_others:
                child.kill()

    of_others = servers(os.getpid())
    with Session() as alone:
        made = make_plan(Options(str(target), out=tmp_path / "run", faults=str(plan), **options))
        alone.run(made, notify=gone)
    run = check(tmp_path / "run")
    assert not run.violated, run.explain()
    assert run.exit_code == 2
    assert "tasks could not reach each other any more: Toxiproxy at" in run.explain()
    assert "refuse the proxies" in run.verdicts["L1"].reason


@pytest.mark.engine
@pytest.mark.psconform_needs("toxiproxy")
def test_a_stall_of_answers_shows(session, write, tmp_path):
    """This ps dials nobody: what it answers is held back on connections that the worker has dialled."""
    plan = write(kind="stall", links="ps:0->worker:1", at=3, for_="600ms")
    out = tmp_path / "run"
    run = judge(SOCKETS, update="async", layout="ps=1,worker=2", steps=20, faults=plan, session=session, out=out)
    assert run.exit_code == 0, run.explain()
    (fault,) = run.as_dict()["faults"]
    assert re.fullmatch(r"\d+ bytes held back", fault["evidence"])
    assert "came through" in fault["healed"]


@pytest.mark.engine
@pytest.mark.psconform_needs("toxiproxy")
def test_a_slow_close_where_nothing_ends_proves_nothing(session, write, tmp_path):
    plan = write(kind="slow-close", links="worker:1<->ps:0", at=8, until=12)  # a time may outlast the workers
    run = judge(DURABLE, layout="ps=1,worker=2", steps=40, faults=plan, session=session, out=tmp_path / "run")
    assert run.exit_code == 2
    assert "slow-close worker:1 <-> ps:0 when worker:1 is at step 8, ms=2000, until" in run.explain()


@pytest.mark.engine
@pytest.mark.psconform_needs("toxiproxy")
@pytest.mark.parametrize(("task", "update"), every(3, product(["worker:1", "ps:0"], ["sync", "async"])))
def test_a_kill_between_a_push_and_its_acknowledgement(session, write, tmp_path, update, task):
    """The gradient is on its way or applied, and the worker has not been told; it counts once all the same."""
    plan = write(kind="kill", task=task, at="worker:1@sent:12", restart_after="100ms")
    options = {"layout": "ps=2,worker=2", "steps": 40, "session": session, "out": tmp_path / "run"}
    run = judge(DURABLE, update=update, faults=plan, **options)
    assert run.exit_code == 0, run.explain()
    (fault,) = run.as_dict()["faults"]
    assert fault["at"] == "worker:1@sent:12"
    shows = r"the process ended by signal 9; worker:1 had sent \d{3,} bytes of its push, and no answer had come"
    assert re.fullmatch(shows, fault["evidence"])
    killed = next(event["did_ns"] for event in recorded(tmp_path / "run", "psconform-0") if event["kind"] == "fault")
    told = recorded(tmp_path / "run", "worker-1*")
    assert any(event["kind"] == "push" and event["step"] == 12 and event["mono_ns"] < killed for event in told)
    assert all(event["mono_ns"] > killed for event in told if event["kind"] == "ack" and event["step"] == 12)


def recorded(folder, name):
    files = (folder / "events").glob(f"{name}.jsonl")
    return [json.loads(line) for path in files for line in path.read_text(encoding="utf-8").splitlines()]
