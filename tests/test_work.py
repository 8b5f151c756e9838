"""Work that a queue deals out as workers ask for it, and again if one of them is slow or dies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from psconform.runner.verdicts import judge_folder
from psconform.simulation.record import simulate
from psconform.simulation.schedule import Schedule

from .mutations import edit
from .tiers import first

TARGET = Path(__file__).parent / "cases" / "task-queue" / "target.toml"
SEEDS = first(range(5))
QUEUE = {"layout": "ps=1,worker=2", "update": "async", "steps": 15}
WITNESS = {
    "": "",
    "redispatch": " times: the gradient of worker:0, step ",
}
NUMBERS = {
    "from zero": (lambda n: n, "valid"),
    "from one": (lambda n: n + 1, "valid"),
    "with gaps": (lambda n: 7 * n, "valid"),
    "very large": (lambda n: 2**50 * n // 30, "valid"),
    "two alike": (lambda n: 5 if n == 9 else n, "violated"),
    "anew in each epoch": (lambda n: n % 10, "unknown"),
}


@pytest.mark.parametrize(("number", "status"), NUMBERS.values(), ids=NUMBERS)
def test_pieces_are_told_by_their_numbers(tmp_path, number, status):
    folder = tmp_path / "run"
    simulate(Schedule(mode="async", workers=2, steps=10), folder)
    for worker in range(2):
        path = folder / "events" / f"worker-{worker}.jsonl"
        for line, event in enumerate(map(json.loads, path.read_text(encoding="utf-8").splitlines())):
            if event["kind"] == "push":
                piece = number(10 * worker + event["step"])
                edit(path, line, lambda event, piece=piece: event | {"work": piece})
    judged = {verdict.guarantee: verdict.status for verdict in judge_folder(folder).verdicts}
    assert (judged["R1"], judged["R2"]) == (status, status)
    assert judged["A1"] == "valid"


@pytest.mark.engine
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("workload", "guarantees"), [("ledger", ("R1", "R2")), ("digits", ("R5",))])
@pytest.mark.parametrize(("bug", "line"), WITNESS.items(), ids=WITNESS)
def test_a_piece_of_work_that_two_workers_do_is_applied_once(judge, seed, workload, guarantees, bug, line, monkeypatch):
    """Dynamic data sharding (intelligent-machine-learning/dlrover#522, sql-machine-learning/elasticdl#1762)."""
    monkeypatch.setenv("BUG", bug)
    run = judge(TARGET, slow="worker:0=20ms", workload=workload, seed=seed, **QUEUE)
    assert run.violated == (guarantees if bug else ()), run.explain()
    assert line in run.explain()
    assert run.valid or bug, run.explain()


@pytest.mark.engine
@pytest.mark.parametrize("workload", ["ledger", "digits"])
def test_a_queue_may_have_less_work_than_there_are_steps(judge, workload, monkeypatch):
    monkeypatch.setenv("BUG", "")
    monkeypatch.setenv("SHARE", "0.8")
    run = judge(TARGET, slow="worker:0=20ms", workload=workload, **QUEUE)
    assert run.valid, run.explain()


@pytest.mark.engine
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("bug", ["", "forget"])
def test_the_work_of_a_worker_that_dies_is_dealt_out_again(judge, seed, bug, monkeypatch):
    """It counts its steps anew when it comes back, for other work."""
    monkeypatch.setenv("BUG", bug)
    run = judge(TARGET, kill="worker:1@5", seed=seed, **QUEUE | {"layout": "ps=1,worker=3"})
    assert run.violated == (("R1",) if bug else ()), run.explain()
    assert run.valid or "of the work never show" in run.explain()


LATE = """[[fault]]
kind = "late"
task = "worker:1"
at = "0s"
for = "2s"
"""


@pytest.mark.engine
def test_others_may_have_done_all_the_work(judge, monkeypatch, tmp_path):
    monkeypatch.setenv("BUG", "")
    monkeypatch.setenv("SHARE", "0.4")
    (tmp_path / "late.toml").write_text(LATE, encoding="utf-8")
    run = judge(TARGET, faults=tmp_path / "late.toml", **QUEUE)
    assert run.valid, run.explain()
    assert '"push"' not in (run.folder / "events" / "worker-1.jsonl").read_text(encoding="utf-8")


@pytest.mark.engine
def test_at_least_once_a_piece_may_be_applied_again(judge, monkeypatch, tmp_path):
    monkeypatch.setenv("BUG", "redispatch")
    declared = TARGET.read_text(encoding="utf-8").replace("{here}", str(TARGET.parent))
    (tmp_path / "target.toml").write_text(declared + 'delivery = "at-least-once"\n', encoding="utf-8")
    run = judge(tmp_path / "target.toml", slow="worker:0=20ms", **QUEUE)
    assert run.valid, run.explain()
    assert "of work applied more than once" in run.verdicts["R2"].reason
