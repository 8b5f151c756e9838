"""Faults of links between replicas: which are drawn, that they strike whatever the collective is, what they find."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from psconform.errors import BadInput
from psconform.faults.conflicts import APART
from psconform.faults.control import Arrival
from psconform.faults.fault_generator import drawn_plan
from psconform.faults.kinds import PACKETS, kinds
from psconform.faults.partitions import EVERYBODY, Dialled, regions
from psconform.layout import Layout
from psconform.runner.training_links import TrainingLinks
from psconform.targets.reference import reference

from .tiers import first

CASES = Path(__file__).parent / "cases"
GANG, MESH = (CASES / name / "target.toml" for name in ("gang", "mesh"))
THREE = Layout(ps=0, workers=3)
ONE, TWO, LAST = THREE.worker_tasks
ENDS = {"refuse", "reset", "cut"}
SLOW = "random:stall,latency,bandwidth,slice"
ALGORITHMS = {  # who sends to whom, of three
    "ring": {(ONE, TWO), (TWO, LAST), (LAST, ONE)},
    "star": {(ONE, TWO), (TWO, ONE), (ONE, LAST), (LAST, ONE)},
    "star around the last": {(LAST, TWO), (TWO, LAST), (ONE, LAST), (LAST, ONE)},
    "chain": {(ONE, TWO), (TWO, ONE), (TWO, LAST), (LAST, TWO)},
}
COORDINATED = """
import pathlib, runpy, socket, sys, threading, time

index, hosts, listen = int(sys.argv[1]), sys.argv[2].split(","), sys.argv[3]
if index == 0:
    with socket.create_server(("127.0.0.1", 0)) as own:
        address = "127.0.0.1:%d" % own.getsockname()[1]
    host, port = listen.rsplit(":", 1)
    coordinator, told = socket.create_server((host, int(port))), []

    def coordinate():
        while True:
            told.append(coordinator.accept()[0])
            told[-1].sendall(address.ljust(32).encode())

    threading.Thread(target=coordinate, daemon=True).start()
else:
    host, port = hosts[0].rsplit(":", 1)
    for _ in range(600):
        try:
            asked = socket.create_connection((host, int(port)))
            address = asked.recv(32).decode().strip()
            break
        except OSError:
            time.sleep(0.05)
train = GANG
sys.path.insert(0, str(pathlib.Path(train).parent))
sys.argv = [train, str(index), ",".join([address] * len(hosts)), address]
runpy.run_path(train, run_name="__main__")
"""


@pytest.mark.parametrize("used", ALGORITHMS.values(), ids=ALGORITHMS)
def test_each_region_carries_something_of_any_algorithm(used):
    for region in regions(THREE, one_way=False):
        assert {(link.source, link.destination) for link in region.links} & used, region.name
    for region in regions(THREE, one_way=True):  # whoever dials
        ends = {(link.source, link.destination) for link in region.links}
        assert ends & used
        assert {(destination, source) for source, destination in ends} & used


def test_one_replica_has_no_links():
    assert regions(Layout(ps=0, workers=1), one_way=False) == ()


def test_of_one_cluster_spec_only_the_first_replica_is_struck():
    assert {region.name for region in regions(THREE, one_way=False, shared=True)} == {
        f"{name} worker:0" for name in ("isolate", "mute", "deaf")
    }
    assert [region.name for region in regions(THREE, one_way=True, shared=True)] == ["deaf worker:0"]
    plan = {"layout": THREE, "steps": 60, "seed": 1, "shared": True}
    assert drawn_plan("random:stall", **plan, dialled=Dialled.seen([(EVERYBODY, ONE)], shared=True))
    with pytest.raises(BadInput, match="no task dials another"):
        drawn_plan("random:stall", **plan, dialled=Dialled.seen([(EVERYBODY, TWO)], shared=True))


@pytest.mark.parametrize("seed", range(60))
def test_what_ends_connections_is_drawn_if_it_is_named_and_comes_last(seed):
    usual = drawn_plan("random", layout=THREE, steps=60, seed=seed)
    assert any(kinds()[fault.kind].effect in ("holds", "passes") for fault in usual)
    assert not any(fault.kind in ENDS for fault in usual)
    named = drawn_plan("random:refuse,reset,cut,stall,latency,stop", layout=THREE, steps=60, seed=seed)
    (ends,) = (fault for fault in named if fault.kind in ENDS)
    for fault in named:
        if fault is not ends:
            assert fault.when.step + APART <= ends.when.step
            assert fault.until is None or fault.until.step + APART <= ends.when.step


def test_without_addresses_of_psconform_only_packets_are_struck():
    nobody = Dialled.seen([])
    plans = [
        drawn_plan("random", layout=THREE, steps=60, seed=seed, containers=True, dialled=nobody) for seed in range(20)
    ]
    assert {kinds()[fault.kind].of for plan in plans for fault in plan if fault.links} == {PACKETS}
    assert not any(f.links for f in drawn_plan("random", layout=THREE, steps=60, seed=1, dialled=nobody))


class Passed:
    """Proxies through which so many bytes have passed."""

    def __init__(self, *counts):
        self.counts = iter(counts)

    def passed(self):
        return next(self.counts)


def arrive(found, *where):
    found.heard(Arrival(where[0], where[1], where[2], line=None))


def test_replicas_train_through_what_carries_bytes_from_a_push_to_its_answer():
    both = {(TWO, ONE), (ONE, TWO)}
    found = TrainingLinks(
        Passed({(TWO, ONE): (90, 0), (ONE, TWO): (5, 0)}, {(TWO, ONE): (90, 0), (ONE, TWO): (9, 0)}), 3
    )
    assert found.among(both) == both, "it is not known yet"
    for where in (("worker:1", "before-push", 1), ("worker:0", "before-push", 1), ("worker:0", "after-push", 1)):
        arrive(found, *where)
    assert found.among(both) == both
    arrive(found, "worker:0", "after-push", 2)
    assert found.among(both) == {(ONE, TWO)}
    assert found.among({(TWO, ONE)}) == set()


def test_a_connection_for_each_round_counts():
    found = TrainingLinks(Passed({(TWO, ONE): (0, 1)}, {(TWO, ONE): (0, 2)}), 3)
    arrive(found, "worker:0", "before-push", 1)
    arrive(found, "worker:0", "after-push", 2)
    assert found.among({(TWO, ONE)}) == {(TWO, ONE)}


def drawn(judge, target, faults, seed, **options):
    return judge(target, layout="ps=0,worker=3", steps=60, faults=faults, seed=seed, **options)


def test_no_fault_waits_for_a_phase_that_replicas_do_not_have():
    """Phases are of the chief of ps tasks; a drawn one was never injected."""
    assert reference(layout=Layout(ps=1, workers=2)).phases
    assert not reference(layout=Layout(ps=0, workers=2)).phases


@pytest.mark.engine
@pytest.mark.psconform_needs("toxiproxy")
@pytest.mark.parametrize("seed", first(range(6)))
@pytest.mark.parametrize(
    ("target", "faults", "options"),
    [
        pytest.param(GANG, "random", {"checkpoint_every": 10}, id="star"),
        pytest.param(MESH, SLOW, {}, id="mesh"),
        pytest.param("reference", f"{SLOW},stop,throttle", {}, id="TensorFlow's", marks=pytest.mark.nightly),
    ],
)
def test_a_healthy_collective_is_valid_under_drawn_faults(judge, monkeypatch, target, faults, options, seed):
    monkeypatch.setenv("BUG", "")
    run = drawn(judge, target, faults, seed, **options)
    assert run.valid, run.explain()
    assert not run.as_dict()["faults_missed"]
    assert any(fault["kind"] in SLOW for fault in run.as_dict()["faults"])


@pytest.mark.engine
@pytest.mark.psconform_needs("toxiproxy")
@pytest.mark.parametrize("seed", first(range(5)))
@pytest.mark.parametrize(("bug", "faults"), [("short-read", "random:slice"), ("goes-on", "random:stall")])
def test_what_a_collective_does_with_late_messages_is_found(judge, monkeypatch, bug, faults, seed):
    monkeypatch.setenv("BUG", bug)
    run = drawn(judge, MESH, faults, seed)
    assert {"S1", "S7"} <= set(run.violated), run.explain()


@pytest.mark.engine
@pytest.mark.nightly
@pytest.mark.parametrize("bug", ["short-read", "goes-on"])
def test_without_such_a_fault_it_is_not(judge, monkeypatch, bug):
    monkeypatch.setenv("BUG", bug)
    run = judge(MESH, layout="ps=0,worker=3", steps=60)
    assert run.valid, run.explain()


@pytest.mark.engine
@pytest.mark.psconform_needs("toxiproxy")
@pytest.mark.parametrize("seed", first(range(4), fast=0))
def test_a_replica_that_ends_with_its_connection_has_met_all_other_faults(judge, monkeypatch, seed):
    monkeypatch.setenv("BUG", "")
    run = drawn(judge, MESH, "random:refuse,reset,cut,stall,latency", seed)
    assert not run.violated, run.explain()
    assert {missed["kind"] for missed in run.as_dict()["faults_missed"]} <= ENDS


@pytest.mark.engine
@pytest.mark.psconform_needs("toxiproxy")
def test_one_cluster_spec_for_all(judge, monkeypatch, tmp_path):
    monkeypatch.setenv("BUG", "")
    text = GANG.read_text(encoding="utf-8").replace("{here}", str(GANG.parent))
    (tmp_path / "target.toml").write_text(f'cluster_spec = "shared"\n{text}', encoding="utf-8")
    run = drawn(judge, tmp_path / "target.toml", "random:stall,latency", 0)
    assert run.valid, run.explain()
    assert not run.as_dict()["faults_missed"]
    assert run.as_dict()["faults"]


@pytest.mark.engine
@pytest.mark.psconform_needs("toxiproxy")
def test_a_coordinator_that_only_hands_out_addresses_is_no_link_to_strike(judge, monkeypatch, tmp_path):
    monkeypatch.setenv("BUG", "")
    text = GANG.read_text(encoding="utf-8").replace("{here}/train.py", str(tmp_path / "train.py"))
    (tmp_path / "target.toml").write_text(text, encoding="utf-8")
    code = COORDINATED.replace("GANG", json.dumps(str(GANG.with_name("train.py"))))
    (tmp_path / "train.py").write_text(code, encoding="utf-8")
    run = drawn(judge, tmp_path / "target.toml", "random:stop,stall", 0)
    assert run.valid, run.explain()
    assert {fault["kind"] for fault in run.as_dict()["faults"]} == {"stop"}
    assert "nothing of training went through the addresses that tasks were told" in run.explain()
