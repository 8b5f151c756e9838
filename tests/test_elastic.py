"""Elastic replicas: one that a fault has ended is started again alone, and gets its state from another one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .tiers import first

ELASTIC = Path(__file__).parent / "cases" / "elastic" / "target.toml"
OPTIONS = {"layout": "ps=0,worker=3", "steps": 24}
pytestmark = pytest.mark.engine

KILLS = [
    (0, ["worker:1@half-sent:14"]),  # one peer has its gradient of that round, and the other one has not
    (0, ["worker:0@12"]),
    (0, ["worker:1@12"]),
    (1, ["worker:0@half-sent:12"]),
    (1, ["worker:2@after-push:14"]),  # its peers may not have made that round
    (2, ["worker:0@8", "worker:0@half-sent:16"]),
    (3, ["worker:0@8", "worker:1@half-sent:16"]),
    (4, ["worker:2@half-sent:23"]),  # the last one
]


def lives(run):
    return {path.name for path in (run.folder / "events").glob("worker-*.jsonl")}


@pytest.mark.parametrize(("seed", "kill"), first(KILLS, 2))
def test_one_replica_comes_back_alone(judge, monkeypatch, seed, kill):
    monkeypatch.setenv("BUG", "")
    run = judge(ELASTIC, **OPTIONS, kill=kill, seed=seed)
    assert run.valid, run.explain()
    judged = ("S1", "S4", "S5", "S7", "I1", "R1", "R2", "R3", "L1", *(("M1",) if "half-sent:23" not in kill[0] else ()))
    for guarantee in judged:
        assert run.verdicts[guarantee].status == "valid", run.explain()
    killed = [each.partition("@")[0].replace(":", "-") for each in kill]
    again = {f"{task}.{killed[:n].count(task) + 1}.jsonl" for n, task in enumerate(killed)}
    assert lives(run) == {f"worker-{n}.jsonl" for n in range(3)} | again


BUGS = {
    "older": ("R3", "worker:1 at step 12 read its replica without the gradient of worker:0, step 10, and 5 more"),
    "initial": ("I1", "first by worker:1 at step 12"),
    "half": ("S7", "the gradient of worker:0, step 0, 1 times and 1 times at the head, 0 at the tail"),
    "skip": ("S1", "lacks the gradient of worker:1, step 12"),
    "twice": ("R1", "the gradient of worker:1, step 11, (ok) was applied 2 times"),
    "no-average": ("S7", "worker:0 and worker:1 differ before round 13 in average: a sum of "),
}


@pytest.mark.parametrize(("bug", "guarantee", "line"), first([(bug, *told) for bug, told in BUGS.items()], 2))
def test_what_a_replica_does_not_get_back_is_named(judge, monkeypatch, bug, guarantee, line):
    monkeypatch.setenv("BUG", bug)
    run = judge(ELASTIC, **OPTIONS, kill="worker:1@12")
    assert guarantee in run.violated, run.explain()
    assert any(line in witness for witness in run.verdicts[guarantee].witness), run.explain()


@pytest.mark.nightly
def test_a_round_that_is_made_at_one_replica_alone_is_a_hang(judge, monkeypatch):
    """worker:0 has the last gradient of worker:1, and worker:2 waits for it."""
    monkeypatch.setenv("BUG", "forgets")
    run = judge(ELASTIC, **OPTIONS, kill="worker:1@half-sent:12", patience_s=5)
    assert run.violated == ("L1",), run.explain()


@pytest.mark.nightly
def test_a_trained_model_goes_on_as_serial_training_does(judge, monkeypatch):
    monkeypatch.setenv("BUG", "")
    run = judge(ELASTIC, **OPTIONS, kill="worker:0@half-sent:12", workload="quadratic")
    assert run.valid, run.explain()
    assert {run.verdicts[guarantee].status for guarantee in ("S7", "C1")} == {"valid"}


PLANS = {
    "late, and stopped": [
        {"kind": "late", "task": "worker:2", "at": "0s", "for": "1s"},
        {"kind": "stop", "task": "worker:0", "at": 6, "for": "1s"},
        {"kind": "kill", "task": "worker:1", "at": 12},
        {"kind": "stop", "task": "worker:1", "at": 18, "for": "1s"},
    ],
    "stopped while one comes back": [
        {"kind": "kill", "task": "worker:1", "at": "half-sent:12", "restart_after": "200ms"},
        {"kind": "stop", "task": "worker:2", "at": "after-push:11", "for": "2s"},
    ],
    "cut off, then killed": [
        {"kind": "refuse", "links": "isolate worker:1", "at": 6, "for": "1s"},
        {"kind": "stall", "links": "worker:1->worker:0", "at": "worker:1@12", "for": "1s"},
        {"kind": "kill", "task": "worker:1", "at": "half-sent:16"},
    ],
    "three deaths": [{"kind": "crash-loop", "task": "worker:0", "at": 12, "times": 3, "lives_ms": 500}],
}


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("plan", PLANS)
def test_other_faults_come_on_top(judge, monkeypatch, tmp_path, plan, seed):
    monkeypatch.setenv("BUG", "")
    faults = [
        "[[fault]]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in fault.items())
        for fault in PLANS[plan]
    ]
    (tmp_path / "plan.toml").write_text("".join(faults), encoding="utf-8")
    run = judge(ELASTIC, **OPTIONS, faults=tmp_path / "plan.toml", slow=["worker:2=10ms"], seed=seed)
    assert run.valid, run.explain()
    assert run.verdicts["S7"].status == "valid"
