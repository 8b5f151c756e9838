"""Work that a queue deals out as workers ask for it, and again if one of them is slow or dies."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from psconform.faults.process_faults import KILL
from psconform.runner.verdicts import judge_folder
from psconform.simulation.cluster import Parts
from psconform.simulation.oracle import truths
from psconform.simulation.record import simulate
from psconform.simulation.schedule import Fault, Schedule, draw
from psconform.simulation.server import Server

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


def numbered(folder, number, **said):
    """The verdicts on a run whose gradients are numbered so, as pieces of work."""
    simulate(Schedule(mode="async", workers=2, steps=10), folder)
    for worker in range(2):
        path = folder / "events" / f"worker-{worker}.jsonl"
        for line, event in enumerate(map(json.loads, path.read_text(encoding="utf-8").splitlines())):
            if event["kind"] == "push":
                piece = number(10 * worker + event["step"])
                edit(path, line, lambda event, piece=piece: event | {"work": piece, **said})
    return {verdict.guarantee: verdict for verdict in judge_folder(folder).verdicts}


@pytest.mark.parametrize(("number", "status"), NUMBERS.values(), ids=NUMBERS)
def test_pieces_are_told_by_their_numbers(tmp_path, number, status):
    judged = numbered(tmp_path / "run", number)
    assert (judged["R1"].status, judged["R2"].status) == (status, status)
    assert judged["A1"].status == "valid"


@pytest.mark.parametrize("pieces", [10, 2**50])
def test_if_it_is_known_how_many_there_are_numbers_do_not_begin_anew(tmp_path, pieces):
    judged = numbered(tmp_path / "run", lambda n: n % 10, pieces=pieces)
    assert (judged["R1"].status, judged["R2"].status) == ("violated", "violated")
    assert "piece 9 of the work was applied 2 times" in " ".join(judged["R2"].witness)


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


QUEUED = [seed for seed in range(400) if draw(seed, mode="async").work]


def test_a_share_of_the_schedules_of_the_model_has_a_queue():
    assert 20 < len(QUEUED) < 60
    claimed = {draw(seed, mode="async").delivery for seed in QUEUED}
    assert claimed == {"exactly-once", "at-least-once"}
    assert any(fault.lasts_s is None for seed in QUEUED for fault in draw(seed, mode="async").faults)
    assert not any(draw(seed, mode="async", faults=False).faults for seed in QUEUED)


@pytest.mark.parametrize("seed", QUEUED[:6] + [pytest.param(seed, marks=pytest.mark.nightly) for seed in QUEUED[6:]])
def test_a_queue_of_the_model_is_valid(tmp_path, seed):
    cluster = simulate(draw(seed, mode="async"), tmp_path / "run")
    judged = judge_folder(tmp_path / "run")
    assert not judged.names("violated"), judged.verdicts
    assert not judged.names("unknown"), judged.verdicts
    assert {"R1", "R2", "A1", "A5"} <= {*judged.names("valid")}
    assert all(truth.held for truth in truths(cluster).values())


class DoneTwice(Server):
    """A piece that another worker has done is applied again."""

    def push(self, push):
        self.done.clear()
        return super().push(push)


class Forgets(Server):
    """The job ends once all pieces have been dealt out."""

    def deal(self, body):
        self.rules = replace(self.rules, work=tuple(piece for piece in self.rules.work if piece not in self.out))
        return super().deal(body)


def judged_with(folder, schedule, server):
    cluster = simulate(schedule, folder, parts=Parts(server=server))
    judged = {verdict.guarantee: verdict.status for verdict in judge_folder(folder).verdicts}
    return judged, truths(cluster)


SLOW = {"mode": "async", "workers": 3, "steps": 9, "compute_s": 0.05, "slow": (1.0, 20.0, 20.0)}


def test_a_straggler_does_a_piece_that_was_dealt_out_again(tmp_path):
    schedule = Schedule(**SLOW, work=(2, 3, 1, 0, 4, 5))
    judged, truth = judged_with(tmp_path / "healthy", schedule, Server)
    assert (judged["R1"], judged["R2"], judged["A5"]) == ("valid", "valid", "valid")
    assert all(one.held for one in truth.values())
    judged, truth = judged_with(tmp_path / "broken", schedule, DoneTwice)
    assert (judged["R1"], judged["R2"]) == ("violated", "violated")
    assert truth["R1"].shown
    assert truth["R2"].shown


def test_the_piece_of_a_worker_that_died_is_lost(tmp_path):
    killed = Fault(KILL, ("worker:1",), worker=0, step=1, lasts_s=None)
    schedule = Schedule(**SLOW, work=(2, 3, 1, 0, 4, 5), faults=(killed,))
    judged, truth = judged_with(tmp_path / "healthy", schedule, Server)
    assert judged["R1"] == "valid"
    assert truth["R1"].held
    judged, truth = judged_with(tmp_path / "broken", schedule, Forgets)
    assert judged["R1"] == "violated"
    assert truth["R1"].shown


@pytest.mark.parametrize(("lost", "status"), [(3, "unknown"), (5, "valid")])
def test_if_it_is_not_known_how_many_there_are_a_piece_may_be_none(tmp_path, lost, status):
    """One between others; the last one is not missed."""
    killed = Fault(KILL, ("worker:1",), worker=0, step=1, lasts_s=None)
    work = (2, lost, 1, 0, 4, 8 - lost)
    judged, _ = judged_with(tmp_path / "run", Schedule(**SLOW, work=work, faults=(killed,)), Forgets)
    assert judged["R1"] == "violated"
    for path in (tmp_path / "run" / "events").glob("worker-*.jsonl"):
        for line, event in enumerate(map(json.loads, path.read_text(encoding="utf-8").splitlines())):
            if event["kind"] == "push":
                edit(path, line, lambda event: {name: value for name, value in event.items() if name != "pieces"})
    found = next(verdict for verdict in judge_folder(tmp_path / "run").verdicts if verdict.guarantee == "R1")
    assert found.status == status
    assert "no worker pushed piece 3 of the work" in found.reason or status == "valid"
