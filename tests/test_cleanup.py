"""Leftovers: processes that a killed psconform has left behind are found and ended, all others left alone."""

import os
import re
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import UnixStreamServer
from threading import Thread

import psutil
import pytest

from psconform.launchers.cleanup import end_orphans, find_orphans
from psconform.launchers.local import OWNER, TEMPORARY, LocalLauncher, owner_mark, process_start
from psconform.launchers.remains import namespace
from psconform.layout import Command, Task

from .waits import HANG_S, only_one_cleans, until

pytestmark = pytest.mark.engine


@pytest.fixture(autouse=True)
def _alone():
    with only_one_cleans():
        yield


@pytest.fixture
def start():
    """Starts sleeping processes that bear a mark; ends them after the test.

    The kernel shows no environment of a process until it has loaded the program, which may be after Popen has returned.
    """
    processes = []

    def sleeper(mark):
        command = [sys.executable, "-c", "import time; time.sleep(1000)  # a\n# comment"]
        processes.append(process := subprocess.Popen(command, env={**os.environ, OWNER: mark}))
        until(lambda: psutil.Process(process.pid).environ().get(OWNER) == mark)
        return process

    yield sleeper
    for process in processes:
        process.kill()
        process.wait()


@pytest.fixture
def owner():
    """A process that lives until the test is over; a mark may name it."""
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as process:
        yield process


def mark_of(process):
    return f"{process.pid}:{process_start(process.pid)}"


def orphans():
    return {orphan.pid: orphan for orphan in find_orphans()}


def clean():
    command = [sys.executable, "-m", "psconform.cli", "clean"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(
        re.match(r"ended \d+: |\d+ process\(es\) ended$|removed |unmounted /|deleted /", line)
        for line in done.stdout.splitlines()
    )
    return done.stdout


def test_clean_ends_what_a_dead_psconform_has_left(start, owner):
    orphan = start(mark_of(owner))
    assert orphan.pid not in orphans()  # its owner lives
    assert f"ended {orphan.pid}:" not in clean()
    owner.kill()
    owner.wait()
    assert orphan.pid in orphans()
    assert f"ended {orphan.pid}: {sys.executable} -c import time; time.sleep(1000) # a # comment\n" in clean()
    assert orphan.wait(timeout=HANG_S) == -9
    assert f"ended {orphan.pid}:" not in clean()


def test_an_owner_that_nobody_has_waited_for_is_dead(start, owner):
    orphan = start(mark_of(owner))
    psutil.Process(owner.pid).kill()  # a zombie until the fixture waits for it
    os.waitid(os.P_PID, owner.pid, os.WEXITED | os.WNOWAIT)
    assert psutil.Process(owner.pid).status() == psutil.STATUS_ZOMBIE
    assert orphan.pid in orphans()


def test_where_other_process_ids_are_counted_nobody_is_an_orphan(start, owner):
    """Its owner may live there, by a pid that is nobody's here."""
    ours, theirs = (start(f"{mark_of(owner)}:{where}") for where in (namespace(), "1"))
    owner.kill()
    owner.wait()
    assert ours.pid in orphans()
    assert theirs.pid not in orphans()


def test_folders_of_those_who_are_counted_elsewhere_stay(tmp_path, monkeypatch, owner):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    ours, theirs = (tmp_path / f"{TEMPORARY}{owner.pid}-1-{where}-x" for where in (namespace(), "1"))
    ours.mkdir()
    theirs.mkdir()
    assert f"deleted {ours}\n" in clean()
    assert theirs.is_dir()


def test_a_recycled_process_id_is_not_taken_for_the_owner(start, owner):
    mark = f"{owner.pid}:{int(process_start(owner.pid)) - 1}"
    orphan = start(mark)
    assert orphan.pid in orphans()


@pytest.mark.parametrize("mark", ["", "no mark", "x:1", ":"])
def test_other_marks_are_nobodys(start, mark):
    assert start(mark).pid not in orphans()


def test_a_keeper_that_clears_up_is_let_do_so(tmp_path):
    """Only it knows which proxies are its psconform's, on a server that belongs to others."""
    deleted = []

    class Slow(BaseHTTPRequestHandler):
        def do_DELETE(self):
            time.sleep(0.5)
            deleted.append(self.path)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Slow) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        urls = [f"http://127.0.0.1:{server.server_port}/proxies/{number}" for number in range(3)]
        code = (
            "import os, signal, sys; from psconform.launchers.local import LocalLauncher\n"
            "launcher = LocalLauncher()\n"
            "[launcher.scratch(url) for url in sys.argv[1:]]\n"
            "os.kill(os.getpid(), signal.SIGKILL)"
        )
        subprocess.run([sys.executable, "-c", code, *urls], check=False)
        end_orphans()
        server.shutdown()
    assert sorted(deleted) == ["/proxies/0", "/proxies/1", "/proxies/2"]


def test_the_tasks_of_a_living_psconform_are_left_alone(tmp_path):
    with LocalLauncher() as launcher:
        pid = launcher.start(Task("ps", 0), Command(("sleep", "1000")), log=tmp_path / "a.log")
        until(lambda: psutil.Process(pid).environ().get(OWNER) == owner_mark())
        assert pid not in orphans()
        assert not {orphan.pid for orphan in end_orphans()} & {pid, launcher._keeper.pid}
        assert launcher.running == (Task("ps", 0),)


class Engine(BaseHTTPRequestHandler):
    """One that answers GET with ``said``, and deletes nothing."""

    said = ""

    def do_GET(self):
        if not self.said:
            self.send_error(500, "no disk")
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.said.encode())

    def do_DELETE(self):
        self.send_error(500, "busy")

    def address_string(self):
        return "socket"

    def log_message(self, *_):
        pass


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("", "nobody knows whether containers are left: {engine} does not say (status 500"),
        ('{"message": "hello"}', "nobody knows whether containers are left: {engine} does not say (what it"),
        (
            '[{"Id": "1", "Name": "a", "Names": ["/a"], "Labels": {"psconform.owner": "OWNER"}}]',
            "containers or networks are left: container a: status 500",
        ),
    ],
)
def test_what_an_engine_does_not_do_clean_says_and_cleans_the_rest(said, words, tmp_path, start, owner):
    orphan = start(mark_of(owner))
    answers = type("Answers", (Engine,), {"said": said.replace("OWNER", mark_of(owner))})
    owner.kill()
    owner.wait()
    with UnixStreamServer(str(tmp_path / "engine"), answers) as engine:
        Thread(target=engine.serve_forever, daemon=True).start()
        env = {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/engine"}
        command = [sys.executable, "-m", "psconform.cli", "clean"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False, env=env)
        engine.shutdown()
    assert f"ended {orphan.pid}:" in done.stdout
    assert done.returncode == 4
    assert words.format(engine=tmp_path / "engine") in done.stderr
    assert done.stderr.count("\n") == 1


def test_clean_deletes_nothing_that_anybody_names_in_a_folder(tmp_path, monkeypatch, owner):
    """Only what lies in shared memory and is of the same user, as libfaketime's files do."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    owner.kill()
    owner.wait()
    folder, thesis = tmp_path / f"{TEMPORARY}{owner.pid}-1-x", tmp_path / "thesis.tex"
    folder.mkdir()
    thesis.touch()
    shared = Path(f"/dev/shm/psconform-test-{os.getpid()}")
    shared.touch()
    (folder / ".remains").write_text(f"{owner.pid} 1 {thesis}\n{owner.pid} 1 {shared}\nno line\n")
    said = clean()
    assert f"deleted {shared}\n" in said
    assert f"deleted {folder}\n" in said
    assert (thesis.exists(), shared.exists(), folder.exists()) == (True, False, False)


def test_clean_deletes_what_a_killed_shrink_or_judge_has_left(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    code = "from psconform.launchers.local import scratch_folder as scratch\n"
    code += "with scratch() as folder: print(folder, flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as process:
        folder = Path(process.stdout.readline().strip())
        assert "deleted" not in clean()
        assert folder.is_dir()
        process.kill()
    assert f"deleted {folder}\n" in clean()
    assert not list(tmp_path.iterdir())


def test_clean_deletes_no_folder_of_a_users_own(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for name in ("psconform-2026-11-27", "psconform-20261127-225053-mine", "psconform-1-2-3", "psconform-tasks-old"):
        (tmp_path / name).mkdir()
    assert "deleted" not in clean()
    assert len(list(tmp_path.iterdir())) == 4


def test_clean_deletes_temporary_folders_of_the_dead_alone(tmp_path, monkeypatch, owner):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    folder = tmp_path / f"{TEMPORARY}{mark_of(owner).replace(':', '-')}-abc"
    other = tmp_path / f"{TEMPORARY}of-somebody-else"
    for path in (folder, other):
        path.mkdir()
        (path / "file").touch()
    assert "deleted" not in clean()
    owner.kill()
    owner.wait()
    assert f"deleted {folder}\n" in clean()
    assert other.is_dir()
    assert not folder.exists()
