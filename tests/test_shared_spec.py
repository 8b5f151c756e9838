"""Targets whose tasks share one cluster spec: one proxy for each task, and no link that one dialler alone has."""

from __future__ import annotations

import json
import socket
import socketserver
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from psconform import judge
from psconform.errors import BadInput
from psconform.faults.kinds import kinds
from psconform.faults.partitions import EVERYBODY, of_listener
from psconform.faults.plan_file import parse_plan
from psconform.faults.proxies import Links
from psconform.launchers.local import LocalLauncher
from psconform.layout import Layout, Link, Task
from psconform.options import Options
from psconform.plugin import need
from psconform.runner.plan import make_plan
from psconform.runner.proxy_setup import serve
from psconform.runner.session import Session

from .scenes import injector_of

TARGET = str(Path(__file__).parent / "socket_ps" / "target_shared.toml")
PS, OTHER, WORKERS = Task("ps", 0), Task("ps", 1), (Task("worker", 0), Task("worker", 1))
LAYOUT, LONG_S = Layout.parse("ps=1,worker=2"), 20.0


def plan_of(kind, links, **more):
    said = {"kind": kind, "links": links, "at": 5, "for": "500ms", **more}
    return "[[fault]]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in said.items())


@pytest.fixture(scope="module")
def session():
    with Session() as session:
        yield session


def test_what_a_listener_alone_can_be_cut_off_from():
    to, back = Link(EVERYBODY, PS), Link(PS, EVERYBODY)
    for name, links in {"deaf": (to,), "mute": (back,), "isolate": (to, back)}.items():
        assert of_listener(f"{name} ps:0", kind="stall", place="here") == links


@pytest.mark.parametrize(
    ("kind", "links"),
    [
        *(("stall", links) for links in ("worker:1->ps:0", "worker:1<->ps:0", "halves")),
        *(("refuse", links) for links in ("mute ps:0", "isolate ps:0")),
        ("slow-close", "deaf ps:0"),
    ],
)
def test_what_cannot_be_told_apart_is_refused(tmp_path, kind, links):
    with pytest.raises(BadInput, match="share one cluster spec") as error:
        make_plan(Options(TARGET, layout="ps=2,worker=2", faults=plan_of(kind, links), out=tmp_path))
    assert "\n" not in str(error.value)


def test_a_push_that_is_sent_cannot_be_waited_for(tmp_path):
    plan = '[[fault]]\nkind = "kill"\ntask = "ps:0"\nat = "sent:3"\n'
    with pytest.raises(BadInput, match=r"phase sent .* share one cluster spec"):
        make_plan(Options(TARGET, faults=plan, out=tmp_path))


@pytest.mark.parametrize("seed", range(20))
def test_drawn_plans_have_only_what_can_be_told_apart(tmp_path, seed):
    plan = make_plan(Options(TARGET, faults="random", seed=seed, out=tmp_path))
    for fault in plan.faults:
        assert not fault.links or of_listener(fault.region, kind=fault.kind, place="here")


def test_some_drawn_plans_have_links(tmp_path):
    assert any(
        f.links
        for seed in range(20)
        for f in make_plan(Options(TARGET, faults="random", seed=seed, out=tmp_path)).faults
    )


def test_an_unknown_spec_is_refused(tmp_path):
    text = Path(TARGET).read_text(encoding="utf-8").replace('"shared"', '"mine"')
    (tmp_path / "target.toml").write_text(text, encoding="utf-8")
    with pytest.raises(BadInput, match=r"cluster_spec: .*'own' or 'shared', got 'mine'"):
        make_plan(Options(str(tmp_path / "target.toml"), out=tmp_path / "run"))


@pytest.mark.engine
@pytest.mark.psconform_needs("toxiproxy")
@pytest.mark.parametrize(
    ("kind", "links"),
    [
        ("stall", "deaf ps:0"),
        ("stall", "mute ps:0"),
        ("stall", "isolate ps:0"),
        ("latency", "isolate ps:0"),
        ("bandwidth", "deaf ps:0"),
    ],
)
def test_a_run_with_one_proxy_for_each_task_says_so(session, tmp_path, kind, links):
    more = {"ms": 5} if kind == "latency" else {}
    run = judge(
        TARGET,
        layout="ps=1,worker=2",
        update=("sync", "async")[len(links) % 2],
        steps=40 if kind == "stall" else 200,  # what holds nobody up is to be seen before training is over
        faults=plan_of(kind, links, **more),
        session=session,
        out=tmp_path / "run",
    )
    assert run.exit_code == 0, run.explain()
    (fault,) = run.as_dict()["faults"]
    assert fault["of"] == links
    assert "came" in fault["healed"]
    assert "note: all tasks share one cluster spec, so each is behind one proxy" in run.explain()


class Echo(socketserver.ThreadingTCPServer):
    daemon_threads = True


class Answer(socketserver.StreamRequestHandler):
    def handle(self):
        while line := self.rfile.readline():
            self.wfile.write(line)


@pytest.fixture
def cluster():
    """Proxies of a cluster of which only the ps is there, for two clients that are this process."""
    need("toxiproxy")
    with ExitStack() as stack:
        launcher = stack.enter_context(LocalLauncher(preload=None))
        addresses = {task: launcher.address(None, task) for task in (PS, *WORKERS)}
        host, _, port = addresses[PS].rpartition(":")
        echo = stack.enter_context(Echo((host, int(port)), Answer))
        threading.Thread(target=echo.serve_forever, daemon=True).start()
        stack.callback(echo.shutdown)
        server = serve(launcher, log=launcher.temporary / "toxiproxy.log")
        yield stack.enter_context(Links(server, "shared", addresses, shared=True))


@pytest.fixture
def connect(cluster):
    """Connections of a worker to the ps, open until the end."""
    with ExitStack() as stack:

        def connected(worker):
            host, _, port = cluster.addresses_of(worker)[PS].rpartition(":")
            return stack.enter_context(socket.create_connection((host, int(port)), timeout=LONG_S))

        yield connected


def talk(connection):
    """Whether what is sent comes back."""
    try:
        connection.sendall(b"hello\n")
        return connection.recv(6) == b"hello\n"
    except OSError:
        return False


def eventually(what):
    deadline = time.monotonic() + LONG_S
    while not (found := what()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


@pytest.mark.engine
@pytest.mark.parametrize(
    ("kind", "links"),
    [
        ("refuse", "deaf ps:0"),
        *(
            (k, f"{n} ps:0")
            for k, kind in kinds().items()
            if kind.effect == "ends" and not kind.one_way
            for n in ("deaf", "mute", "isolate")
        ),
    ],
)
def test_connections_of_everybody_end(cluster, connect, kind, links):
    amounts = {"bytes": 0} if kind == "cut" else {}
    (fault,) = parse_plan(plan_of(kind, links, **amounts), place="here", layout=LAYOUT, steps=10)
    clients = [connect(worker) for worker in WORKERS]
    assert all(map(talk, clients))
    struck = injector_of(fault, proxies=cluster)
    struck.inject()
    assert not any(map(talk, clients))
    assert eventually(struck.evidence) == "2 connection(s) ended"
    struck.heal()
    again = connect(WORKERS[0])
    assert "came through" in eventually(lambda: talk(again) and struck.healed())


@pytest.mark.engine
def test_a_death_among_the_diallers_is_not_taken_for_the_fault(cluster, connect):
    (fault,) = parse_plan(plan_of("reset", "deaf ps:0"), place="here", layout=LAYOUT, steps=10)
    lives = {PS: 0, WORKERS[0]: 0, WORKERS[1]: None}
    client = connect(WORKERS[0])
    assert talk(client)
    struck = injector_of(fault, proxies=cluster, life=lives.get)
    struck.inject()
    assert not talk(client)
    assert not struck.evidence()
    assert not struck.evidence()


@pytest.mark.engine
def test_everybody_is_told_the_same(cluster):
    first, *others = (cluster.addresses_of(task) for task in (PS, *WORKERS))
    assert all(other == first for other in others)
    assert not set(first.values()) & set(cluster.addresses.values())
    assert len(cluster.urls) == len(cluster.server.proxies()) == 3
