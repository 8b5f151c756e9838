"""Tasks forked from a warm keeper: the same effect as a Python started cold. And ports that nobody else has."""

import subprocess
import sys

import pytest

from psconform.errors import PsconformError
from psconform.launchers.local import LocalLauncher
from psconform.layout import Command, Task

from .waits import until

pytestmark = pytest.mark.engine

TASK = Task("worker", 0)
MODULE = """
import atexit, os, signal, sys, time
print("imported, and no newline at the end", end="", flush=True)
loaded_by = os.getpid()

def main(arguments):
    atexit.register(print, "at exit")
    print("arguments", *arguments, sys.argv[1:] == arguments, "warm" if os.getppid() == loaded_by else "cold")
    how = arguments[0]
    if how == "return": return int(arguments[1])
    if how == "nothing": return None
    if how == "exit": sys.exit(int(arguments[1]))
    if how == "quit": sys.exit()
    if how == "sentence": sys.exit("that is why")
    if how == "raise": raise ValueError("it went wrong")
    if how == "environment": print(*(f"{name}={os.environ.get(name)}" for name in arguments[1:]))
    if how == "signals": print("signals:", *map(signal.getsignal, (signal.SIGPIPE, signal.SIGINT, signal.SIGTERM)))
    if how == "files": print("files:", *sorted(int(name) for name in os.listdir("/proc/self/fd")))

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("modules")
    (folder / "warm_task.py").write_text(MODULE)
    return folder


@pytest.fixture(scope="module")
def warm(path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(path))
        patch.setenv("KEEPER_ONLY", "was there when the keeper started")
        launcher = LocalLauncher(preload=("warm_task",))
    with launcher:
        yield launcher


@pytest.fixture
def call(warm, path, tmp_path):
    """Runs the module with arguments, warm or cold; gives status and output."""

    def run(*arguments, cold=False, **env):
        argv, entry = (sys.executable, "-m", "warm_task", *arguments), "" if cold else "warm_task:main"
        log = tmp_path / f"{cold}-{len(list(tmp_path.iterdir()))}.log"
        warm.start(TASK, Command(argv, {"PYTHONPATH": str(path), **env}, entry), log=log)
        (ended,) = until(lambda: warm.poll(0.5))
        return ended.status, log.read_text()

    return run


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("return", "0"), 0),
        (("return", "9"), 9),
        (("nothing",), 0),
        (("exit", "4"), 4),
        (("exit", "0"), 0),
        (("exit", "-1"), 255),
        (("quit",), 0),
        (("sentence",), 1),
        (("raise",), 1),
    ],
)
def test_exit_status_and_atexit_are_those_of_a_cold_start(call, arguments, status):
    found, log = call(*arguments)
    assert found == status
    assert "True warm\n" in log
    assert log.count("at exit") == 1
    assert ("that is why\n" in log) == (arguments == ("sentence",))
    if arguments == ("raise",):
        assert "Traceback (most recent call last)" in log
        assert "ValueError: it went wrong" in log


def test_a_cold_start_does_the_same(call):
    status, log = call("return", "9", cold=True)
    assert status == 9
    assert "True cold" in log
    assert log.count("at exit") == 1


def test_the_environment_is_that_of_the_request(call, monkeypatch):
    monkeypatch.setenv("LATER", "set after the keeper had started")
    monkeypatch.delenv("KEEPER_ONLY", raising=False)
    _, log = call("environment", "KEEPER_ONLY", "LATER", "GIVEN", GIVEN="by the request")
    assert "KEEPER_ONLY=None LATER=set after the keeper had started GIVEN=by the request" in log


@pytest.mark.parametrize("what", ["signals", "files"])
def test_signals_and_open_files_are_those_of_a_cold_start(call, what):
    lines = [call(what, cold=cold)[1].partition(what + ":")[2].splitlines()[0] for cold in (True, False)]
    assert lines[0] == lines[1] != ""


def test_an_entry_point_that_is_missing_is_a_traceback_in_the_log(warm, tmp_path):
    log = tmp_path / "a.log"
    warm.start(TASK, Command(("python", "-m", "x"), entry="warm_task:absent"), log=log)
    (ended,) = until(lambda: warm.poll(0.5))
    assert ended.status == 1
    assert "AttributeError" in log.read_text()


@pytest.mark.parametrize(("module", "says"), [("no_such_module", "No module named"), ("broken_module", "on purpose")])
def test_a_module_that_cannot_be_imported_is_one_error(tmp_path, monkeypatch, module, says):
    (tmp_path / "broken_module.py").write_text("raise RuntimeError('on purpose')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(PsconformError, match=f"cannot import what the target needs: .*{says}"):
        LocalLauncher(preload=(module,))


PORTS = """
import sys
from psconform.launchers.local import LocalLauncher
from psconform.layout import Task
with LocalLauncher() as launcher:
    print(*(launcher.address(None, Task("ps", index)) for index in range(200)), flush=True)
    sys.stdin.read()
"""


def test_ports_are_distinct_over_many_calls_and_processes():
    command = [sys.executable, "-c", PORTS]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as one, subprocess.Popen(command, **pipes) as two:
        addresses = one.stdout.readline().split() + two.stdout.readline().split()
    assert len(addresses) == len(set(addresses)) == 400
    assert {address.rpartition(":")[0] for address in addresses} == {"127.0.0.1"}
    assert all(1024 < int(address.rpartition(":")[2]) < 65536 for address in addresses)
