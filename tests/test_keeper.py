"""The keeper with real, cheap tasks: how they start and end, and that nothing of them survives."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from psconform.errors import PsconformError
from psconform.launchers.local import LocalLauncher
from psconform.layout import Command, Task

from .waits import until, within_a_second

pytestmark = pytest.mark.engine

TASK, OTHER = Task("worker", 0), Task("worker", 1)
SLEEP = Command(("sh", "-c", "echo up; sleep 1000"))
NAP = Command(("python", "-m", "timeit", "-n1", "-r1", "import time; time.sleep(1000)"), entry="timeit:main")
DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open(sys.argv[1], "w").write(str(os.getpid()) + "\\n")
        time.sleep(1000)
    os._exit(0)
time.sleep(1000)
"""


def gone(*pids):
    """None of these processes runs any more (a zombie does not run)."""
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                return False
    return True


def whole(path):
    """The content of a file once its last line is complete."""
    return until(lambda: path.exists() and (text := path.read_text()).endswith("\n") and text)


def ends(launcher, count=1):
    """The next ends of tasks."""
    found = []
    until(lambda: found.extend(launcher.poll(0.2)) or len(found) >= count)
    return found


@pytest.fixture
def launcher():
    with LocalLauncher() as cold:
        yield cold


def test_status_output_environment_and_directory(launcher, tmp_path):
    script = "import os, sys; print(os.environ['WORD'], os.environ['OTHER'], os.getcwd()); sys.exit(7)"
    command = Command((sys.executable, "-c", script), env={"WORD": "given", "OTHER": "kept"})
    log = tmp_path / "a.log"
    pid = launcher.start(TASK, command, log=log)
    (ended,) = ends(launcher)
    assert (ended.task, ended.status) == (TASK, 7)
    assert log.read_text().split() == ["given", "kept", str(tmp_path)]
    assert launcher.running == ()
    assert gone(pid)


@pytest.mark.parametrize("given", ["", "example.org"])
def test_no_proxy_is_asked_for_another_task(launcher, tmp_path, monkeypatch, given):
    """gRPC asks that of http_proxy, also for 127.0.0.1."""
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("NO_PROXY", given)
    script = "import os; print(os.environ['no_proxy'], os.environ['NO_PROXY'])"
    launcher.start(TASK, Command((sys.executable, "-c", script)), log=tmp_path / "a.log")
    ends(launcher)
    hosts = f"{given}," * bool(given) + "127.0.0.1,localhost"
    assert whole(tmp_path / "a.log").split() == [hosts, hosts]


def test_signal_ends_with_its_negative_number(launcher, tmp_path):
    # one process: a shell whose child ends first reports 128 + 10 instead
    launcher.start(TASK, Command(("sleep", "1000")), log=tmp_path / "a.log")
    launcher.signal(TASK, signal.SIGUSR1)
    assert [end.status for end in ends(launcher)] == [-signal.SIGUSR1]


def test_stop_lets_a_task_say_goodbye(launcher, tmp_path):
    log = tmp_path / "a.log"
    polite = Command(("sh", "-c", "trap 'echo bye; exit 3' TERM; echo up; sleep 1000 & wait"))
    launcher.start(TASK, polite, log=log)
    whole(log)
    assert [end.status for end in launcher.stop_all(grace=5.0)] == [3]
    assert log.read_text().split() == ["up", "bye"]


def test_a_task_that_ignores_sigterm_is_killed_after_the_grace(launcher, tmp_path):
    log = tmp_path / "a.log"
    pid = launcher.start(TASK, Command(("sh", "-c", "trap '' TERM; echo up; sleep 1000")), log=log)
    whole(log)
    began = time.monotonic()
    assert [end.status for end in launcher.stop_all(grace=0.3)] == [-signal.SIGKILL]
    assert time.monotonic() - began >= 0.3
    assert gone(pid)


def test_stop_reaches_a_task_the_moment_it_is_started(tmp_path):
    with LocalLauncher(preload=("json",)) as warm:
        for _ in range(20):
            warm.start(TASK, NAP, log=tmp_path / "a.log")
            assert [end.status for end in warm.stop_all(grace=0.0)] in ([-signal.SIGTERM], [-signal.SIGKILL])


@pytest.mark.parametrize("preload", [None, ("json",)])
@pytest.mark.parametrize("bad", ["executable", "directory"])
def test_what_cannot_start_is_one_error_that_names_task_and_command(tmp_path, preload, bad):
    command, log = Command(("no-such-program", "--now")), tmp_path / "a.log"
    if bad == "directory":
        command = Command(("true", "-m", "no-such-program", "--now"), entry="timeit:main")
        log = tmp_path / "missing" / "a.log"
    with LocalLauncher(preload=preload) as launcher:
        with pytest.raises(PsconformError, match=r"worker:0 .*No such file.*no-such-program --now") as caught:
            launcher.start(TASK, command, log=log)
        assert "\n" not in str(caught.value)
        assert launcher.running == ()
        launcher.start(OTHER, Command(("true",)), log=tmp_path / "b.log")  # the launcher is still of use
        assert [end.status for end in ends(launcher)] == [0]


def test_an_end_is_not_missed_while_another_task_starts(launcher, tmp_path):
    pid = launcher.start(TASK, Command(("sh", "-c", "exit 5")), log=tmp_path / "a.log")
    until(lambda: not psutil.pid_exists(pid))  # its report is on the way before that of the next start
    launcher.start(OTHER, Command(("sh", "-c", "exit 6")), log=tmp_path / "b.log")
    assert {(end.task, end.status) for end in ends(launcher, 2)} == {(TASK, 5), (OTHER, 6)}


@pytest.mark.parametrize("alive", [True, False])
def test_grandchildren_and_daemons_are_gone_after_stop_all(launcher, tmp_path, alive):
    daemon = [sys.executable, "-c", DAEMON, str(tmp_path / "pid")]
    launcher.start(TASK, Command(("sh", "-c", "sleep 1000 & echo $!; wait")), log=tmp_path / "a.log")
    launcher.start(OTHER, Command(tuple(daemon)), log=tmp_path / "b.log")
    pids = int(whole(tmp_path / "a.log")), int(whole(tmp_path / "pid"))
    if not alive:  # the tasks have ended before, only what they left behind is there
        launcher.signal(TASK, signal.SIGKILL)
        launcher.signal(OTHER, signal.SIGKILL)
        ends(launcher, 2)
        assert not gone(pids[1])
    launcher.stop_all()
    assert gone(*pids)


OWNER = """
import sys, time
from pathlib import Path
from psconform.launchers.local import LocalLauncher
from psconform.layout import Command, Task
here = Path(sys.argv[1])
launcher = LocalLauncher(preload=("json",) if sys.argv[2] == "warm" else None)
print(launcher.temporary)
pids = [launcher._keeper.pid]
command = ("sh", "-c", "trap '' TERM; sleep 1000 & echo $!; wait")
for index in range(3):
    pids.append(launcher.start(Task("worker", index), Command(command), log=here / f"{index}.log"))
daemon = Command((sys.executable, "-c", sys.argv[3], str(here / "pid")))
pids.append(launcher.start(Task("ps", 0), daemon, log=here / "ps.log"))
if sys.argv[2] == "warm":
    argv = ("python", "-m", "timeit", "-n1", "-r1", "import time; time.sleep(1000)")
    nap = Command(argv, entry="timeit:main")
    pids.append(launcher.start(Task("ps", 1), nap, log=here / "ps.log"))
print(*pids, flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("kind", ["cold", "warm"])
def test_no_task_outlives_the_owner_by_a_second(tmp_path, kind):
    with subprocess.Popen([sys.executable, "-c", OWNER, tmp_path, kind, DAEMON], stdout=subprocess.PIPE) as owner:
        try:
            folder = Path(owner.stdout.readline().decode().strip())
            pids = [int(pid) for pid in owner.stdout.readline().split()]
            pids += [int(whole(tmp_path / name)) for name in ("0.log", "1.log", "2.log", "pid")]
            ran = [not gone(pid) for pid in pids] + [folder.is_dir()]
        finally:
            owner.kill()
        within_a_second(lambda: gone(*pids))
    assert all(ran)
    assert not folder.exists()


STARTING = """
from psconform.launchers.local import LocalLauncher
LocalLauncher(preload=("slow_module",))
"""


def test_an_owner_that_is_killed_while_modules_are_imported_leaves_no_folder(tmp_path, monkeypatch):
    (tmp_path / "slow_module.py").write_text(
        "import os, pathlib, time\npathlib.Path(os.environ['SEEN']).write_text(f'{os.getpid()}\\n')\ntime.sleep(600)\n"
    )
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    with subprocess.Popen([sys.executable, "-c", STARTING]) as owner:
        try:
            keeper = int(whole(tmp_path / "seen"))
            there = len(list((tmp_path / "tmp").iterdir()))
        finally:
            owner.kill()
        until(lambda: gone(keeper))
    assert there == 1
    assert not list((tmp_path / "tmp").iterdir())


TEMPORARY = "import sys, tempfile; print(tempfile.mkdtemp(), flush=True); print(tempfile.mkstemp()[1], flush=True)"


@pytest.mark.parametrize("entry", ["", "timeit:main"])
def test_what_tasks_leave_in_their_temporary_folder_is_deleted(tmp_path, entry):
    argv = (sys.executable, "-m", "timeit", "-n1", "-r1", TEMPORARY) if entry else (sys.executable, "-c", TEMPORARY)
    with LocalLauncher(preload=("json", "tempfile")) as launcher:
        for _ in range(2):
            launcher.start(TASK, Command(argv, entry=entry), log=tmp_path / "a.log")
            ends(launcher, 1)
        paths = [Path(line) for line in (tmp_path / "a.log").read_text().splitlines() if line.startswith("/")]
        assert len(paths) == 4
        assert all(path.exists() and path.parent == launcher.temporary for path in paths)
        launcher.stop_all()
        assert not any(path.exists() for path in paths)
    assert not launcher.temporary.exists()


def test_a_target_that_names_a_temporary_folder_keeps_it(tmp_path):
    with LocalLauncher() as launcher:
        command = Command(("sh", "-c", "echo $TMPDIR"), env={"TMPDIR": str(tmp_path)})
        launcher.start(TASK, command, log=tmp_path / "a.log")
        ends(launcher, 1)
    assert (tmp_path / "a.log").read_text() == f"{tmp_path}\n"


def test_no_start_leaves_a_file_open_in_the_keeper(launcher, tmp_path):
    """A run with a crash loop starts hundreds."""
    files = Path(f"/proc/{launcher._keeper.pid}/fd")
    numbers = []
    for number in range(3):
        launcher.start(TASK, Command(("true",)), log=tmp_path / f"{number}.log")
        ends(launcher)
        numbers.append(len(list(files.iterdir())))
    assert numbers == [numbers[0]] * 3


def test_a_killed_keeper_takes_its_tasks_along_and_the_owner_says_so(tmp_path):
    with LocalLauncher() as launcher:
        pid = launcher.start(TASK, Command(("sh", "-c", "sleep 1000 & echo $!; wait")), log=tmp_path / "a.log")
        child = int(whole(tmp_path / "a.log"))
        os.kill(launcher._keeper.pid, signal.SIGKILL)
        within_a_second(lambda: gone(pid))
        with pytest.raises(PsconformError, match="keeper of the tasks ended"):
            launcher.poll(5.0)
        within_a_second(lambda: gone(child))
        with pytest.raises(PsconformError, match="keeper of the tasks is gone"):
            launcher.start(OTHER, SLEEP, log=tmp_path / "b.log")
        with pytest.raises(PsconformError, match="keeper of the tasks is gone"):
            launcher.stop_all()
