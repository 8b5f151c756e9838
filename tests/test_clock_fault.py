"""Clocks that jump: the library that makes them, the evidence, and real clusters that must not mind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from psconform import judge
from psconform.errors import PsconformError
from psconform.faults import faketime
from psconform.faults.control import Arrival, _ahead_s
from psconform.faults.fault import Fault, When
from psconform.faults.kinds import kinds
from psconform.launchers.local import LocalLauncher
from psconform.layout import Command, Task
from psconform.parts import FAKETIME
from psconform.runner.session import Session

from .scenes import injector_of
from .test_keeper import ends, until, whole
from .waits import HANG_S, only_one_cleans

SOCKETS = Path(__file__).parent / "socket_ps"
TASK = Task("worker", 1)
LOOKS = """
import subprocess, sys, time
for line in ("+0", "+3600", "-7200", "+0"):
    open(sys.argv[1], "w").write(line)
    before, ours = time.monotonic(), time.time() - time.monotonic()
    time.sleep(0.02)  # with libfaketime 0.9.10 as it is: OSError
    assert 0.02 <= time.monotonic() - before < 60
    print(line, round(ours - float(sys.argv[2])))
"""


THREADS = """
import collections, ctypes, json, sys, threading, time
from pathlib import Path
from psconform.faults import faketime

class Spec(ctypes.Structure):
    _fields_ = [("s", ctypes.c_long), ("ns", ctypes.c_long)]

look = ctypes.CDLL(None).clock_gettime  # several at once: ctypes lets go of the GIL
offsets, ours = Path(sys.argv[1]), float(sys.argv[2])
history, over, counts = [0], False, collections.Counter()

def ahead():
    \"\"\"Which of the offsets since before the last change the clock shows; None: none of them.\"\"\"
    spec, began = Spec(), max(0, len(history) - 2)
    before = time.monotonic()
    look(0, ctypes.byref(spec))
    after, wall = time.monotonic(), spec.s + spec.ns / 1e9 - ours
    return next((s for s in history[began:] if before + s - 0.1 <= wall <= after + s + 0.1), None)

def looks():
    mine = collections.Counter()
    while not over:
        mine[ahead() is not None] += 1
    counts.update({str(known): count for known, count in mine.items()})

threads = [threading.Thread(target=looks) for _ in range(4)]
sys.setswitchinterval(1e-4)  # or this thread waits its turn at the GIL
for thread in threads:
    thread.start()
again = 0
for seconds in (3600, 0, -7200, 0, 10**9, 5) * 3:
    history.append(seconds)
    faketime.write(offsets, seconds)
    time.sleep(0.01)
    while ahead() != seconds:
        again += 1
        faketime.write(offsets, seconds)
        time.sleep(0.01)
over = True
for thread in threads:
    thread.join()
print(json.dumps(counts | {"again": again}))
"""


@pytest.fixture(scope="module")
def session():
    with Session() as session:
        yield session


@pytest.fixture
def plan(tmp_path):
    def written(text):
        path = tmp_path / "plan.toml"
        path.write_text(f'[[fault]]\nkind = "clock"\n{text}', encoding="utf-8")
        return path

    return written


@pytest.fixture(params=[find for find in (faketime.of_system, faketime.of_package) if find()] or [faketime.find])
def library(request, monkeypatch):
    """Each library that this machine has, as if it were the only one."""
    path = request.param()
    monkeypatch.setattr(faketime, "find", lambda: path)
    return path


def faked(tmp_path):
    """What a process with a clock of its own is given."""
    library = faketime.find()
    faketime.write(tmp_path / "clock", 0)
    return faketime.environment(str(faketime.copy(library, tmp_path)), str(tmp_path / "clock"), {})


def left_by(pid):
    return [path for path in (name.format(pid=pid) for name in faketime.REMAINS) if Path(path).exists()]


@pytest.mark.engine
@pytest.mark.psconform_needs("faketime")
@pytest.mark.usefixtures("library")
def test_the_wall_clock_jumps_and_nothing_else_does(tmp_path):
    command = (sys.executable, "-c", LOOKS, str(tmp_path / "clock"), str(time.time() - time.monotonic()))
    with LocalLauncher() as launcher:
        faking = Command(command, faked(tmp_path), remains=faketime.REMAINS)
        pid = launcher.start(TASK, faking, log=tmp_path / "log")
        (end,) = ends(launcher)
    assert end.status == 0, (tmp_path / "log").read_text()
    assert (tmp_path / "log").read_text().splitlines() == ["+0 0", "+3600 3600", "-7200 -7200", "+0 0"]
    assert not left_by(pid)


@pytest.mark.engine
@pytest.mark.psconform_needs("faketime")
def test_threads_that_look_at_once_see_the_old_time_or_the_new_one(library, tmp_path):
    """With the package's library nearly so; and what it misses is there once the file is written again."""
    command = [sys.executable, "-c", THREADS, str(tmp_path / "clock"), str(time.time() - time.monotonic())]
    environment = os.environ | faked(tmp_path)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    counts = json.loads(done.stdout)
    assert counts["True"] > 1000
    if library.name == faketime.NAME:
        assert (counts.get("False", 0), counts["again"]) == (0, 0)
    assert counts.get("False", 0) <= counts["True"] / 1000


def test_a_file_is_never_read_half(tmp_path):
    for seconds, line in ((3600, "+3600\n"), (-5, "-5\n"), (0, "+0\n")):
        faketime.write(tmp_path / "clock", seconds)
        assert (tmp_path / "clock").read_text() == line
    faketime.write(tmp_path / "clock", 0)
    assert (tmp_path / "clock").read_text() == "+0.0\n"  # the same, and yet not: or it would not be read again
    assert [path.name for path in tmp_path.iterdir()] == ["clock"]


def test_what_was_preloaded_before_still_is():
    env = faketime.environment("/lib.so", "/clock", {"LD_PRELOAD": "/other.so"})
    assert env["LD_PRELOAD"] == "/lib.so:/other.so"


OWNER = """
import os, sys, time
from pathlib import Path
from psconform.faults import faketime
from psconform.launchers.local import LocalLauncher
from psconform.layout import Command, Task
folder = Path(sys.argv[1])
with LocalLauncher() as launcher:
    env = faketime.environment(str(faketime.copy(faketime.find(), folder)), str(folder / "clock"), {})
    argv = (sys.executable, "-c", "import time; print('up', flush=True); time.sleep(1000)")
    log = folder / "log"
    pid = launcher.start(Task("ps", 0), Command(argv, env, remains=faketime.REMAINS), log=log)
    while not log.read_text().endswith("up\\n"):
        time.sleep(0.01)
    print(pid, flush=True)
    time.sleep(1000)
"""


@pytest.mark.engine
@pytest.mark.psconform_needs("faketime")
def test_nothing_is_left_of_a_psconform_that_was_killed(tmp_path):
    faked(tmp_path)
    with subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        owner.send_signal(signal.SIGKILL)
    until(lambda: not left_by(pid) and not Path(f"/proc/{pid}").exists())


@pytest.mark.engine
@pytest.mark.psconform_needs("faketime")
def test_clean_deletes_what_is_left_where_the_keeper_was_killed_too(tmp_path):
    faked(tmp_path)
    with subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        keeper = psutil.Process(pid).parent()
        assert keeper is not None
        owner.send_signal(signal.SIGSTOP)  # or it would end what its keeper has left
        keeper.kill()
        owner.kill()
    command = [sys.executable, "-m", "psconform.cli", "clean"]
    with only_one_cleans():
        subprocess.run(command, capture_output=True, timeout=HANG_S, check=True)
    until(lambda: not left_by(pid) and not Path(f"/proc/{pid}").exists())


@pytest.mark.engine
@pytest.mark.psconform_needs("faketime")
def test_a_task_that_is_killed_leaves_nothing(tmp_path):
    with LocalLauncher() as launcher:
        argv = (sys.executable, "-c", "import time; print('up', flush=True); time.sleep(1000)")
        log = tmp_path / "log"
        pid = launcher.start(TASK, Command(argv, faked(tmp_path), remains=faketime.REMAINS), log=log)
        whole(log)
        launcher.signal(TASK, signal.SIGKILL)
        assert [end.status for end in ends(launcher)] == [-signal.SIGKILL]
        assert not left_by(pid)


class Running:
    """Processes of which one runs."""

    running = (TASK,)

    def __init__(self):
        self.letter = "S"

    def signal(self, task, number):
        raise AssertionError

    def state(self, task):
        return self.letter


@pytest.mark.parametrize("jump_s", [3600, -3600, 1, -1, 10**9])
def test_only_its_own_clock_shows_it(tmp_path, jump_s):
    fault = Fault(kind="clock", task=TASK, when=When("before-push", 3), lasts_s=1.0, amounts=(("jump_s", jump_s),))
    processes = Running()
    jumps = injector_of(fault, clock=lambda task: tmp_path / "clock", processes=processes)

    def heard(ahead_s, task="worker:1"):
        jumps.heard(Arrival(task, "before-push", 4, None, ahead_s))

    heard(float(jump_s))  # before it was brought about: that is no effect of ours
    jumps.inject()
    assert (tmp_path / "clock").read_text() == f"{jump_s:+d}\n"
    heard(None)
    heard(0.0)
    heard(float(jump_s), task="worker:0")
    assert jumps.evidence() == ""
    assert (tmp_path / "clock").read_text() == f"{jump_s:+d}.0\n"  # written again, for it may have missed it
    heard(jump_s + 0.01)
    assert jumps.evidence() == f"its clock is {abs(jump_s):.1f} s {'ahead' if jump_s > 0 else 'behind'}"
    jumps.heal()
    heard(float(jump_s))  # said before that
    assert jumps.healed() == ""
    heard(0.0)
    assert jumps.healed() == "its clock is 0.0 s ahead"


def test_a_clock_ends_with_its_process(tmp_path):
    fault = Fault(kind="clock", task=TASK, when=When("before-push", 3), lasts_s=1.0, amounts=(("jump_s", 5),))
    processes = Running()
    jumps = injector_of(fault, clock=lambda task: tmp_path / "clock", processes=processes)
    jumps.inject()
    jumps.heal()
    assert jumps.healed() == ""
    processes.letter = ""
    assert jumps.healed() == "the process with that clock has ended"


def test_an_older_probe_tells_nothing():
    assert _ahead_s(None, None) is None
    assert _ahead_s("x", 3) is None


def test_it_is_refused_where_there_is_no_library(monkeypatch, plan, tmp_path):
    monkeypatch.setattr(faketime, "FOLDERS", (str(tmp_path),))
    monkeypatch.setattr(faketime, "PACKAGE", "no_such_package")
    assert kinds()["clock"].lacks.startswith("faketime: there is no libfaketime, so ")
    with pytest.raises(PsconformError, match=f"fault clock needs faketime: .*; fix: {re.escape(FAKETIME.command)}$"):
        judge(faults=plan('task = "worker:1"\nat = 5\nuntil = 9'), out=tmp_path / "run")


def test_a_library_for_another_machine_is_none(monkeypatch, tmp_path):
    """The package's wheel is the same for all machines."""
    (tmp_path / "libfaketime" / "vendor/libfaketime/src").mkdir(parents=True)
    file = tmp_path / "libfaketime" / faketime.IN_PACKAGE
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "libfaketime", raising=False)
    header = Path(sys.executable).read_bytes()[:20]
    for data, found in ((header, file), (header[:18] + b"\xff\xff", None), (b"", None)):
        file.write_bytes(data)
        assert faketime.of_package() == found


@pytest.mark.engine
@pytest.mark.psconform_needs("faketime")
@pytest.mark.parametrize(("update", "jump_s"), [("sync", 3600), ("async", -(10**9))])
def test_a_trainer_that_is_not_ours(session, plan, tmp_path, update, jump_s):
    faults = plan(f'task = "worker:1"\nat = 5\nuntil = 12\njump_s = {jump_s}')
    run = judge(SOCKETS / "target.toml", update=update, faults=faults, steps=30, session=session, out=tmp_path / "run")
    assert run.valid, run.explain()
    (fault,) = run.as_dict()["faults"]
    assert fault["evidence"].startswith(f"its clock is {abs(jump_s):.1f} s")
    assert not [anomaly for anomaly in run.as_dict()["anomalies"] if anomaly["kind"] == "straggler"]


@pytest.mark.engine
@pytest.mark.psconform_needs("faketime")
def test_a_worker_with_an_older_probe_leaves_it_open(session, plan, tmp_path):
    source = (SOCKETS / "socket_ps.py").read_text(encoding="utf-8")
    probe = (Path(__file__).parent.parent / "src/psconform/probe.py").read_text(encoding="utf-8")
    assert '{"wall_ns": time.time_ns(), "mono_ns": self._told_ns}' in probe
    older = probe.replace('{"wall_ns": time.time_ns(), "mono_ns": self._told_ns}', "{}")
    (tmp_path / "older.py").write_text(older.replace('spec.get("clocks", ())', "()"), encoding="utf-8")
    (tmp_path / "socket_ps.py").write_text(source.replace("psconform.probe", "older"), encoding="utf-8")
    (tmp_path / "target.toml").write_text((SOCKETS / "target.toml").read_text(encoding="utf-8"), encoding="utf-8")
    faults = plan('task = "worker:1"\nat = 5\nuntil = 12')
    run = judge(tmp_path / "target.toml", update="sync", faults=faults, steps=30, session=session, out=tmp_path / "run")
    assert run.exit_code == 2, run.explain()
    assert (
        "at its step 5, jump_s=3600, until it is at step 12 was not observed: its probe has not told" in run.explain()
    )


@pytest.mark.nightly
@pytest.mark.psconform_needs("faketime")
@pytest.mark.parametrize(
    ("update", "task", "jump_s", "every"),
    [("sync", "worker:0", 3600, 5), ("async", "worker:0", -(10**9), "100ms"), ("async", "worker:1", 3600, 5)],
)
def test_the_reference_does_not_mind(session, plan, tmp_path, update, task, jump_s, every):
    """Neither does its chief, which counts seconds between checkpoints."""
    faults = plan(f'task = "{task}"\nat = 10\nuntil = 30\njump_s = {jump_s}')
    options = {"update": update, "layout": "ps=2,worker=2", "steps": 50, "checkpoint_every": every}
    run = judge(faults=faults, session=session, out=tmp_path / "run", **options)
    assert run.exit_code == 0, run.explain()
    assert run.verdicts["L1"].status == "valid"
    assert not [name for name in os.listdir("/dev/shm") if "faketime" in name]
