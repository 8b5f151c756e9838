"""A fault of a process reaches all that its task consists of; where it cannot, that is said."""

import json
import signal
import sys
from itertools import pairwise, product
from pathlib import Path

import pytest

from psconform.launchers.local import LocalLauncher
from psconform.launchers.task_processes import TaskProcesses
from psconform.layout import Command, Task
from psconform.probe import EventLog
from psconform.runner.progress import closed

from .test_keeper import DAEMON, ends, gone, whole
from .tiers import every
from .waits import until

pytestmark = pytest.mark.engine

CASES = Path(__file__).parent / "cases"
TASK = Task("worker", 1)
NAMED = {"PSCONFORM_RUN": "run", "PSCONFORM_TASK": "worker:1", "PSCONFORM_INCARNATION": "0"}
ORPHAN = """
import os, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, [sys.executable, "-c", sys.argv[1], *sys.argv[2:]], {})
    os._exit(0)
os.wait()
open(sys.argv[2] + ".first", "w").write("up\\n")
import time; time.sleep(1000)
"""
RECORDS = """
import json, os, sys, time
file = open(sys.argv[1], "a")
file.write(json.dumps({"pid": os.getpid()}) + "\\n")
file.flush()
time.sleep(1000)
"""
FORKS = """
import os, time
print("up", flush=True)
while True:
    if os.fork() == 0:
        os.setsid()
        time.sleep(1000)
    time.sleep(0.01)
"""


def of_run(run, task, incarnation=0):
    name = f"{task}.{incarnation}.jsonl" if incarnation else f"{task}.jsonl"
    return [json.loads(line) for line in (run.folder / "events" / name).read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(("case", "update"), every(3, product(["setsid-wrapper", "daemon"], ["sync", "async"])))
def test_a_kill_reaches_the_trainer_wherever_it_runs(judge, case, update):
    run = judge(CASES / case / "target.toml", update=update, layout="ps=1,worker=2", steps=60, kill="worker:1@35")
    assert run.exit_code == 0, run.explain()
    assert max(event.get("step", 0) for event in of_run(run, "worker-1")) == 35
    assert [event["kind"] for event in of_run(run, "worker-1", 1)][-1] == "end"


@pytest.mark.parametrize(("case", "kind"), every(3, product(["setsid-wrapper", "daemon"], ["stop", "throttle"])))
def test_a_stop_reaches_it_too(judge, case, kind):
    target = CASES / case / "target.toml"
    faults = f'[[fault]]\nkind = "{kind}"\ntask = "worker:1"\nat = 20\nfor = "600ms"\n'
    run = judge(target, update="async", layout="ps=1,worker=2", steps=200, slow={"worker:1": 0.01}, faults=faults)
    assert run.exit_code == 0, run.explain()
    on, off = (event["did_ns"] for event in of_run(run, "psconform-0") if event["kind"] == "fault")
    times = [on, *(event["mono_ns"] for event in of_run(run, "worker-1") if on < event["mono_ns"] < off), off]
    longest = max(later - earlier for earlier, later in pairwise(times))
    assert longest > (0.5e9 if kind == "stop" else 0.15e9)


@pytest.mark.parametrize("after", ["0s", "1s"])
def test_a_record_that_goes_on_shows_that_a_kill_missed(judge, after):
    """Nothing tells which process records, so no second one is started beside it."""
    target = CASES / "daemon" / "hidden.toml"
    options = {"update": "async", "layout": "ps=1,worker=2", "steps": 60, "restart_after": after}
    run = judge(target, **options, kill="worker:1@35")
    assert run.exit_code == 2, run.explain()
    assert "did not end the process that records: worker-1.jsonl grew by" in run.explain()
    assert not run.as_dict()["faults"]
    assert not (run.folder / "events" / "worker-1.1.jsonl").exists()
    assert of_run(run, "worker-1")[-1]["kind"] == "end"


@pytest.fixture
def launcher():
    with LocalLauncher() as cold:
        yield cold


@pytest.mark.parametrize("warm", [False, True])
def test_a_daemon_of_a_task_dies_with_it(tmp_path, warm):
    with LocalLauncher(preload=("json",) if warm else None) as launcher:
        command = Command((sys.executable, "-c", DAEMON, str(tmp_path / "pid")), env=NAMED)
        first = launcher.start(TASK, command, log=tmp_path / "log")
        other = launcher.start(Task("worker", 0), Command(("sleep", "1000")), log=tmp_path / "other")
        daemon = int(whole(tmp_path / "pid"))
        launcher.signal(TASK, signal.SIGSTOP)
        until(lambda: launcher.state(TASK) == "T")
        assert {state(daemon), state(first)} == {"T"}
        launcher.signal(TASK, signal.SIGCONT)
        until(lambda: "T" not in (state(daemon), state(first)))
        launcher.signal(TASK, signal.SIGKILL)
        assert [end.status for end in ends(launcher)] == [-signal.SIGKILL]
        assert gone(first, daemon)
        assert not gone(other)


def state(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_what_only_the_record_names_is_found_if_it_has_the_record_open(launcher, tmp_path):
    record = tmp_path / "record"
    command = Command((sys.executable, "-c", ORPHAN, RECORDS, str(record)), record=str(record))
    first = launcher.start(TASK, command, log=tmp_path / "log")
    daemon = json.loads(whole(record))["pid"]
    whole(Path(f"{record}.first"))
    other = TaskProcesses(launcher._keeper.pid, first, record=str(tmp_path / "copy"))
    Path(other.record).write_bytes(record.read_bytes())
    assert set(other.states()) == {first}
    assert launcher.ask(TASK, daemon, 0)
    launcher.signal(TASK, signal.SIGKILL)
    ends(launcher)
    assert gone(first, daemon)


def test_a_record_that_names_psconform_or_nobody_harms_nobody(launcher, tmp_path):
    first = launcher.start(TASK, Command(("sleep", "1000")), log=tmp_path / "log")
    log = EventLog(tmp_path / "own", run="run", task="worker:1", incarnation=0)
    for text in ("", "{}", '{"pid": "x"}\n', '{"pid": 4194304}\n', "[]"):
        (tmp_path / "odd").write_text(text)
        assert set(TaskProcesses(launcher._keeper.pid, first, record=str(tmp_path / "odd")).states()) == {first}
    assert set(TaskProcesses(launcher._keeper.pid, first, record=str(tmp_path / "own")).states()) == {first}
    log.close()


def test_what_forks_while_it_is_killed_does_not_escape(launcher, tmp_path):
    command = Command((sys.executable, "-c", FORKS), env=NAMED)
    for number in range(5):
        first = launcher.start(TASK, command, log=tmp_path / str(number))
        whole(tmp_path / str(number))
        launcher.signal(TASK, signal.SIGKILL)
        ends(launcher)
        assert not TaskProcesses.started(launcher._keeper.pid, first, NAMED, "").states()


@pytest.mark.parametrize("update", ["sync", "async"])
def test_an_abort_after_the_record_was_closed_is_a_note(judge, tmp_path, update):
    """As of a framework that aborts when its interpreter ends."""
    text = (
        (CASES / "setsid-wrapper" / "target.toml")
        .read_text(encoding="utf-8")
        .replace("{here}/../..", f"{CASES.parent}")
    )
    target = tmp_path / "target.toml"
    target.write_text(text.replace("setsid --wait", "").replace("echo finished", "kill -ABRT $$"), encoding="utf-8")
    run = judge(target, update=update, layout="ps=1,worker=2", steps=20)
    assert run.exit_code == 0, run.explain()
    assert "worker:1 was ended by signal 6 after it had closed its record" in str(run.as_dict()["notes"])


def test_a_record_that_was_not_closed_does_not_count_as_closed(tmp_path):
    log = EventLog(tmp_path / "a", run="run", task="worker:1", incarnation=0)
    assert not closed(tmp_path / "a")
    log.close(reason="atexit")
    assert not closed(tmp_path / "a")
    assert not closed(tmp_path / "none")
    EventLog(tmp_path / "b", run="run", task="worker:1", incarnation=0).close()
    assert closed(tmp_path / "b")
