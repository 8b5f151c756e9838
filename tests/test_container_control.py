"""What the engine is told to do to a container, and a helper that is slow to answer. Nothing is started."""

import json
import os
import socket
import struct
import threading
from types import SimpleNamespace

import pytest

from psconform.errors import PsconformError
from psconform.launchers import container_control, container_process
from psconform.launchers.blueprint import Containers, Resources
from psconform.launchers.container_control import Boxes
from psconform.launchers.containers import DockerLauncher
from psconform.layout import Task

WORKER = Task("worker", 0)
MIB = 1 << 20


class Api:
    """An engine whose containers have a process, and a shell that ends with a status."""

    def __init__(self):
        self.updates, self.ran, self.status, self.said = [], [], 0, b""
        self.open = None  # a list keeps connections open: the engine never says that a shell has ended

    def update_container(self, _, **given):
        self.updates.append(given)

    def inspect_container(self, _):
        return {"State": {"Pid": 1}}

    def exec_create(self, _, command, **__):
        self.ran.append(command[-1])
        return {"Id": "x"}

    def exec_start(self, _, **__):
        here, there = socket.socketpair()
        there.sendall(self.said)
        if self.open is None:
            there.close()
        else:
            self.open.append(there)
        return here

    def exec_inspect(self, _):
        return {"ExitCode": self.status}


@pytest.fixture
def api():
    return Api()


def made(api, **allowed):
    return Boxes(api, of=lambda _: "c", helpers={}, network=lambda: "n", allowed=lambda _: Resources(**allowed))


@pytest.mark.parametrize(
    ("cpus", "percent", "quota"),
    [(0, 30, 30_000), (0, 0, -1), (1.0, 30, 30_000), (1.0, 0, 100_000), (0.5, 80, 50_000), (2.0, 150, 150_000)],
)
def test_a_quota_is_never_more_than_the_layout_allows_and_goes_back_to_that(api, cpus, percent, quota):
    made(api, cpus=cpus).quota(WORKER, percent)
    assert api.updates == [{"cpu_period": 100_000, "cpu_quota": quota}]


def test_without_a_shell_there_is_no_memory_limit_and_nothing_was_filled(api):
    """The engine's words on a command that it cannot run are no words of a full disk."""
    api.status, api.said = 126, b"OCI runtime exec failed: sh: no such file"
    with pytest.raises(PsconformError, match="has no sh, or no tail"):
        made(api).exhaust(WORKER)
    assert not api.updates
    with pytest.raises(PsconformError, match=r"/tmp of worker:0 cannot be filled: OCI runtime exec failed"):
        made(api).fill(WORKER)
    api.status, api.said = 2, b"sh: 1: cannot create: No space left on device"
    assert made(api).fill(WORKER) == "sh: 1: cannot create: No space left on device"


def test_a_container_that_ends_meanwhile_does_not_keep_psconform_waiting(api, monkeypatch):
    """The engine then never ends the answer of a command in it."""
    monkeypatch.setattr(container_control, "EXEC_S", 0.05)
    api.open = []
    with pytest.raises(PsconformError, match="nothing can be run in the container of worker:0: timed out"):
        made(api).fill(WORKER, on=False)
    for line in api.open:
        line.close()


def test_tmp_is_not_filled_where_the_kernel_would_end_the_task_for_it(api, monkeypatch):
    monkeypatch.setattr(container_control, "memory", lambda _: 200 * MIB)
    with pytest.raises(PsconformError, match=r"of the 300 MiB of memory that it may have, 256 are not left"):
        made(api, memory=300 * MIB).fill(WORKER)
    assert not api.ran
    made(api, memory=500 * MIB).fill(WORKER)
    made(api, memory=300 * MIB).fill(WORKER, on=False)
    assert len(api.ran) == 2


def test_what_tasks_could_not_read_is_said_before_anything_starts(monkeypatch):
    """psconform writes as root, tasks are somebody else in their containers."""
    monkeypatch.setattr(os, "getuid", lambda: 0)
    before = os.umask(0o027)
    try:
        with pytest.raises(PsconformError, match=r"umask 027 hides .* \(by 005\) from tasks, which are user 10001"):
            DockerLauncher(Containers())
    finally:
        os.umask(before)


def test_a_helper_that_is_slow_once_answers_the_next_request(monkeypatch):
    ours, theirs = socket.socketpair()
    slow = threading.Event()

    def pod():
        def say(**said):
            line = json.dumps(said).encode() + b"\n"
            theirs.sendall(struct.pack(">BxxxL", 1, len(line)) + line)

        say(ready=True)
        for line in theirs.makefile():
            request = json.loads(line)
            if request["do"] == "slow":
                slow.wait()
            say(id=request["id"], answer=request["do"])

    thread = threading.Thread(target=pod, daemon=True)
    thread.start()
    api = SimpleNamespace(
        create_container=lambda **_: {"Id": "h"},
        attach_socket=lambda *_, **__: ours,
        start=lambda _: None,
        inspect_container=lambda _: {"NetworkSettings": {"Networks": {"n": {"IPAddress": "10.0.0.2"}}}},
    )
    container = SimpleNamespace(name="pod", names=(), arguments=lambda _: {})
    helper = container_process.Helper(api, container, network="n")
    monkeypatch.setattr(container_process, "ANSWER_S", 0.05)
    with pytest.raises(PsconformError, match=r"container pod does not answer \(nothing for 0 s\)"):
        helper.ask(do="slow")
    slow.set()
    monkeypatch.setattr(container_process, "ANSWER_S", 10.0)
    assert helper.ask(do="again")["answer"] == "again", "not what was asked for before"
    theirs.shutdown(socket.SHUT_RDWR)
    thread.join(10)
    theirs.close()
    ours.close()
