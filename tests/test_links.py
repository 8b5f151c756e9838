"""A link of a real TensorFlow cluster is a direction of bytes, whoever dialled: it holds back its own, and no more."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from itertools import permutations
from pathlib import Path

import pytest

from psconform.faults.proxies import HOUR_MS, Links
from psconform.launchers.local import LocalLauncher
from psconform.layout import Link, Task
from psconform.plugin import need
from psconform.runner.proxy_setup import serve

from . import proxied

SCRIPT = Path(__file__).parent / "link_task.py"
PS, OBSERVER, WORKER = Task("ps", 0), Task("worker", 0), Task("worker", 1)
SOON_S, LONG_S = 1.0, 120.0


class Tasks:
    """A ps and two workers, each behind proxies of its own for the others."""

    def __init__(self, links, stack):
        self.answers = {}
        self.processes = {task: self._start(task, links, stack) for task in links.addresses}

    def _start(self, task, links, stack):
        cluster = {}
        for other, address in sorted(links.addresses_of(task).items()):
            cluster.setdefault(other.job, []).append(address)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
        command = [sys.executable, str(SCRIPT), str(task), json.dumps(cluster)]
        process = stack.enter_context(subprocess.Popen(command, env=env, start_new_session=True, **pipes))
        stack.callback(process.send_signal, signal.SIGKILL)
        said = self.answers[task] = queue.SimpleQueue()
        threading.Thread(target=lambda: [said.put(line.strip()) for line in process.stdout], daemon=True).start()
        return process

    def tell(self, task, order):
        self.processes[task].stdin.write(f"{order}\n")
        self.processes[task].stdin.flush()

    def answer(self, task, seconds=LONG_S):
        """Its next answer; None if none comes within so many seconds."""
        try:
            return self.answers[task].get(timeout=seconds)
        except queue.Empty:
            return None

    def ask(self, task, order):
        self.tell(task, order)
        return self.answer(task)

    def seen(self):
        """(counter, pushes) on the ps, as the observer reads them."""
        return tuple(map(float, self.ask(OBSERVER, "read").split()))

    def seen_at_last(self, wanted):
        deadline = time.monotonic() + LONG_S
        while (seen := self.seen()) != wanted:
            assert time.monotonic() < deadline, f"{seen}, never {wanted}"
            time.sleep(0.01)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    need("toxiproxy")
    with ExitStack() as stack:
        launcher = stack.enter_context(LocalLauncher(preload=None))
        server = serve(launcher, log=tmp_path_factory.mktemp("links") / "toxiproxy.log")
        addresses = {task: launcher.address(None, task) for task in (PS, OBSERVER, WORKER)}
        links = stack.enter_context(Links(server, "links", addresses))
        tasks = Tasks(links, stack)
        assert tasks.ask(OBSERVER, "initialise") == "initialise"
        assert [tasks.ask(WORKER, order) for order in ("add", "push")] == ["add", "push"]
        assert tasks.seen() == (1.0, 1.0)
        yield links, tasks


def heal(links):
    links.undelay("stall", [Link(WORKER, PS), Link(PS, WORKER)])


@pytest.fixture
def tasks(cluster):
    links, tasks = cluster
    yield links, tasks, *tasks.seen()
    heal(links)


@pytest.mark.nightly
@pytest.mark.parametrize("order", ["add", "push"])
def test_what_a_worker_asks_of_a_ps_is_held_back_on_the_way_there(tasks, order):
    links, tasks, counter, pushes = tasks
    links.delay("stall", [Link(WORKER, PS)], HOUR_MS)
    tasks.tell(WORKER, order)
    assert tasks.answer(WORKER, SOON_S) is None
    assert tasks.seen() == (counter, pushes), "it came through"
    assert tasks.ask(OBSERVER, "add") == "add", "the other worker is cut off, too"
    heal(links)
    assert tasks.answer(WORKER) == order
    assert tasks.seen() == (counter + 1 + (order == "add"), pushes + (order == "push"))


@pytest.mark.nightly
def test_what_a_ps_answers_is_held_back_on_the_way_back_and_was_done(tasks):
    links, tasks, counter, pushes = tasks
    links.delay("stall", [Link(PS, WORKER)], HOUR_MS)
    tasks.tell(WORKER, "add")
    tasks.seen_at_last((counter + 1, pushes))
    assert tasks.answer(WORKER, SOON_S) is None, "it was answered"
    heal(links)
    assert tasks.answer(WORKER) == "add"
    assert tasks.seen() == (counter + 1, pushes)


@pytest.mark.nightly
def test_a_gradient_is_held_back_on_the_way_there_though_the_ps_has_dialled(tasks):
    """The ps asks for it on a connection of its own; what comes back on that is the gradient."""
    links, tasks, counter, pushes = tasks
    name, stream = links.streams(Link(WORKER, PS))[1]
    assert stream == "downstream"
    links.server.change(name, "delay-downstream", latency=3_600_000)  # nothing but what the ps has dialled
    tasks.tell(WORKER, "push")
    assert tasks.answer(WORKER, SOON_S) is None
    assert tasks.seen() == (counter, pushes)
    assert tasks.ask(OBSERVER, "push") == "push", "the other worker is cut off, too"
    links.server.change(name, "delay-downstream", latency=0)
    assert tasks.answer(WORKER) == "push"
    assert tasks.seen() == (counter, pushes + 2)


@pytest.mark.engine
@pytest.mark.psconform_needs("toxiproxy")
def test_nobody_dials_a_task_that_is_nowhere(toxiproxy, listener):
    """Toxiproxy would wait for an address that has gone, and take no other connection meanwhile."""
    addresses = {PS: proxied.address(listener), OBSERVER: "127.0.0.1:9", WORKER: proxied.address(listener)}
    with Links(toxiproxy, "nowhere", addresses) as links:
        ways = [links.addresses_of(dialler)[PS] for dialler in (WORKER, OBSERVER)]
        links.at(PS, "")
        for way in ways:
            with pytest.raises(ConnectionRefusedError):
                proxied.dial(way)
        proxied.dial(links.addresses_of(OBSERVER)[WORKER]).close()
        links.at(PS, links.addresses[PS])
        for way in ways:
            proxied.dial(way).close()
        assert links.as_told(Link(*pair) for pair in permutations((WORKER, PS, OBSERVER), 2))
