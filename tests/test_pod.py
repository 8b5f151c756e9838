"""The helper of a pod: what it answers, here to itself, and how traffic of several pods is put together."""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

from psconform.faults import pod_agent
from psconform.faults.partitions import EVERYBODY
from psconform.faults.pod_network import PORTS, InPods
from psconform.faults.traffic import Flow
from psconform.layout import Task

pytestmark = pytest.mark.engine

A, B = Task("worker", 0), Task("worker", 1)


@contextmanager
def helper():
    command = [sys.executable, "-m", "psconform.faults.pod_agent"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:

        def ask(**request):
            process.stdin.write(json.dumps({"id": 7, **request}).encode() + b"\n")
            process.stdin.flush()
            said = json.loads(process.stdout.readline())
            assert said.pop("id") == 7
            return said

        assert json.loads(process.stdout.readline()) == {"ready": True}
        yield ask, process


@pytest.fixture
def sleeper():
    command = [sys.executable, "-c", "import time; print(flush=True); time.sleep(1000)"]
    with subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        yield process
        process.kill()


def test_it_signals_groups_and_processes_and_says_their_state(sleeper):
    with helper() as (ask, _):
        assert ask(do="signal", pid=sleeper.pid, number=signal.SIGSTOP, all=True) == {"done": True}
        os.waitid(os.P_PID, sleeper.pid, os.WSTOPPED)
        assert ask(do="state", pid=sleeper.pid) == {"state": "T"}
        assert ask(do="signal", pid=sleeper.pid, number=signal.SIGKILL, all=False) == {"done": True}
        assert sleeper.wait(10) == -signal.SIGKILL
        assert ask(do="state", pid=sleeper.pid) == {"state": ""}
        assert ask(do="signal", pid=sleeper.pid, number=signal.SIGKILL, all=True) == {"done": False}


def test_a_signal_reaches_every_session_of_a_container(sleeper, monkeypatch):
    command = [sys.executable, "-c", "import time; print(flush=True); time.sleep(1000)"]
    with subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE) as other:
        try:
            other.stdout.readline()
            together = sleeper.pid, other.pid
            monkeypatch.setattr(pod_agent, "_cgroup", lambda pid: "theirs" if pid in together else "own")
            request = {"do": "signal", "pid": sleeper.pid, "all": True}
            os.kill(sleeper.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, sleeper.pid, os.WSTOPPED)
            assert pod_agent.state(sleeper.pid) in ("R", "S")
            assert pod_agent._signal({**request, "number": signal.SIGSTOP}) == {"done": True}
            os.waitid(os.P_PID, other.pid, os.WSTOPPED)
            assert pod_agent.state(sleeper.pid) == "T"
            pod_agent._signal({**request, "number": signal.SIGKILL})
            assert [sleeper.wait(10), other.wait(10)] == [-signal.SIGKILL] * 2
        finally:
            other.kill()


def test_it_ends_neither_itself_nor_everybody():
    with helper() as (ask, process):
        for pid in (1, 0, -1):
            for to_all in (True, False):
                assert ask(do="signal", pid=pid, number=signal.SIGKILL, all=to_all) == {"done": False}
        assert process.poll() is None


def test_what_goes_wrong_is_the_answer_and_it_goes_on():
    with helper() as (ask, _):
        assert "KeyError" in ask(do="nothing")["failed"]
        assert "failed" in ask(do="state", pid="x")
        assert ask(do="flows", addresses=["127.0.0.1:1"]) == {"flows": {"127.0.0.1:1": {"open": [], "left": []}}}


def test_when_its_lifeline_closes_it_ends():
    with helper() as (_, process):
        process.send_signal(signal.SIGTERM)  # nobody but psconform ends it
        process.send_signal(signal.SIGINT)
        process.stdin.close()
        assert process.wait(10) == 0


def test_each_pod_is_asked_of_what_its_task_has_dialled():
    asked = []

    def ask(task, **request):
        asked.append((task, request["addresses"]))
        return {"flows": {address: {"open": [[5, 10, 20]], "left": [6]} for address in request["addresses"]}}

    said = InPods(ask, [A, B]).flows([(A, "p:1"), (B, "p:2")])
    assert asked == [(A, ["p:1"]), (B, ["p:2"])]
    assert said["p:1"].open == {5: Flow(10, 20)}
    assert said["p:2"].open == {PORTS + 5: Flow(10, 20)}
    assert said["p:2"].left == {PORTS + 6}


def test_of_everybody_all_are_asked_and_the_same_port_of_two_is_two_connections():
    def ask(task, **request):
        return {"flows": {"p:1": {"open": [[5, 10, 20]], "left": []}}}

    assert InPods(ask, [A, B]).flows([(EVERYBODY, "p:1")])["p:1"].open == {5: Flow(10, 20), PORTS + 5: Flow(10, 20)}
