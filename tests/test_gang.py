"""A job that is restarted as a whole: all tasks are ended and started again after a fault has ended one of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from psconform.errors import BadInput

from .tiers import first

GANG = Path(__file__).parent / "cases" / "gang"
OPTIONS = {"layout": "ps=0,worker=3", "steps": 30, "checkpoint_every": 5}
SEEDS = first(range(5))
pytestmark = pytest.mark.engine


def declared(tmp_path, **changes):
    text = (GANG / "target.toml").read_text(encoding="utf-8").replace("{here}", str(GANG))
    for old, new in changes.items():
        text = text.replace(old.replace("_", "-"), new)
    (tmp_path / "target.toml").write_text(text, encoding="utf-8")
    return tmp_path / "target.toml"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kill", ["worker:1@17", "worker:0@after-push:20"])
def test_replicas_go_on_from_a_checkpoint(judge, monkeypatch, seed, kill):
    monkeypatch.setenv("BUG", "")
    run = judge(GANG / "target.toml", **OPTIONS, kill=kill, seed=seed)
    assert run.valid, run.explain()
    for guarantee in ("S1", "S7", "R1", "R3", "R4", "R6", "R7", "M1", "L1"):
        assert run.verdicts[guarantee].status == "valid", run.explain()
    lives = {path.name for path in (run.folder / "events").glob("worker-*.jsonl")}
    assert lives == {f"worker-{n}{life}.jsonl" for n in range(3) for life in ("", ".1")}


def test_one_is_killed_after_the_last_round(judge, monkeypatch):
    """The final reads are the first ones after the rollback, and show the checkpoint."""
    monkeypatch.setenv("BUG", "")
    run = judge(GANG / "target.toml", **OPTIONS, kill="worker:1@after-push:29")
    assert run.valid, run.explain()
    assert {run.verdicts[name].status for name in ("R4", "R6", "R7")} == {"valid"}, run.explain()


def test_state_that_only_one_replica_records_is_not_known_to_be_replicated(judge, monkeypatch):
    monkeypatch.setenv("BUG", "one-state")
    run = judge(GANG / "target.toml", layout="ps=0,worker=2", steps=6)
    assert run.exit_code == 2
    assert "no two workers recorded any" in run.verdicts["S7"].reason


BUGS = {
    "stale": ("R3", "restored step-10 in epoch 1, though step-15 was durable before"),
    "rank0-only": ("S7", "worker:0 and worker:1 differ after round 16"),
    "next-step": ("S1", "lacks the gradient of worker:0, step 15"),
    "local-average": ("S7", "worker:0 and worker:1 differ before round 1 in average: a sum of "),
    "no-average": ("R4", "worker:0 has average with a sum of 0 before step 15, and had it with a sum of "),
    "other-weights": ("R4", "the gradient of worker:0, step 0 0.98 times, and it was there 1 times"),
    "torn": ("R7", "with half of the gradient of worker:0, step 0"),
}


FAST = ("stale", "no-average", "other-weights")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("bug", "guarantee", "line"),
    [pytest.param(bug, *told, marks=() if bug in FAST else pytest.mark.nightly) for bug, told in BUGS.items()],
    ids=BUGS,
)
def test_what_is_not_restored_is_named(judge, monkeypatch, bug, guarantee, line, seed):
    monkeypatch.setenv("BUG", bug)
    run = judge(GANG / "target.toml", **OPTIONS, kill="worker:1@17", seed=seed)
    assert guarantee in run.violated, run.explain()
    assert any(line in witness for witness in run.verdicts[guarantee].witness), run.explain()


def test_a_trained_model_goes_on_as_serial_training_does(judge, monkeypatch):
    monkeypatch.setenv("BUG", "")
    run = judge(GANG / "target.toml", **OPTIONS, kill="worker:2@12", workload="quadratic")
    assert run.valid, run.explain()
    assert {run.verdicts[guarantee].status for guarantee in ("S7", "C1", "R4")} == {"valid"}


def test_a_crash_that_is_no_fault_restarts_nothing(judge, monkeypatch):
    monkeypatch.setenv("BUG", "crash")
    run = judge(GANG / "target.toml", **OPTIONS)
    assert run.violated == ("L0",), run.explain()
    assert not list((run.folder / "events").glob("worker-*.1.jsonl"))


def test_two_that_end_at_once_are_started_again_once(judge, monkeypatch):
    monkeypatch.setenv("BUG", "")
    run = judge(GANG / "target.toml", **OPTIONS, kill=["worker:1@17", "worker:2@after-push:16"])
    assert run.valid, run.explain()
    lives = [len(list((run.folder / "events").glob(f"worker-{n}*.jsonl"))) for n in range(3)]
    assert lives in ([2, 2, 2], [3, 3, 3])  # the second one may be due when all have been started again


def test_a_second_process_and_a_stopped_one_are_ended_with_the_others(judge, monkeypatch):
    monkeypatch.setenv("BUG", "")
    plan = """
[[fault]]
kind = "twice"
task = "worker:2"
at = "8"
[[fault]]
kind = "stop"
task = "worker:0"
at = "after-push:14"
for = "60s"
[[fault]]
kind = "kill"
task = "worker:1"
at = "15"
"""
    run = judge(GANG / "target.toml", **OPTIONS, faults=plan)
    assert run.valid, run.explain()
    assert "was ended, to start all again" in run.explain()


def test_a_job_with_a_ps_is_restarted_too(judge, tmp_path):
    folder = Path(__file__).parent / "socket_ps"
    text = (folder / "target_durable.toml").read_text(encoding="utf-8").replace("{here}", str(folder))
    (tmp_path / "target.toml").write_text(f'on_failure = "restart-all"\n{text}', encoding="utf-8")
    run = judge(tmp_path / "target.toml", layout="ps=2,worker=3", steps=30, update="async", kill="ps:1@12")
    assert run.valid, run.explain()
    assert len(list((run.folder / "events").glob("worker-*.1.jsonl"))) == 3


def test_where_nothing_is_restarted_a_task_stays_away(judge, monkeypatch, tmp_path):
    monkeypatch.setenv("BUG", "")
    target = declared(tmp_path, restart_all="nothing", progress="attributed-error")
    run = judge(target, **OPTIONS, kill="worker:1@17", patience_s=5)
    assert not list((run.folder / "events").glob("worker-*.1.jsonl"))
    assert run.verdicts["L1"].status == "valid", run.explain()
    with pytest.raises(BadInput, match="--restart-after: target gang starts no task again, got '2s'"):
        judge(target, **OPTIONS, kill="worker:1@17", restart_after="2s")


def test_a_replica_is_not_started_again_alone(judge, tmp_path):
    """It would have to say where one gets its state from: from a peer, or from a checkpoint with all others."""
    text = declared(tmp_path).read_text(encoding="utf-8").replace('on_failure = "restart-all"\n', "")
    (tmp_path / "target.toml").write_text(text, encoding="utf-8")
    says = "--layout: replicas of target gang keep no state for each other, so none can be started again"
    with pytest.raises(BadInput, match=re.escape(says)) as refused:
        judge(tmp_path / "target.toml", layout="ps=0,worker=3", steps=30, kill="worker:1@17")
    assert all(f'"{way}"' in refused.value.hint for way in ("restart-task", "restart-all"))


LINKS = {
    "one": [{"kind": "stall", "links": "worker:1->worker:0", "at": "worker:1@10", "for": "1s"}],
    "all of one": [{"kind": "latency", "links": "isolate worker:0", "ms": 20, "at": "8", "for": "1s"}],
    "before one listens": [
        {"kind": "late", "task": "worker:0", "at": "0s", "for": "1s"},
        {"kind": "stall", "links": "halves", "at": "8", "for": "1s"},
    ],
}


def plan_of(folder, faults):
    lines = ("[[fault]]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in f.items()) for f in faults)
    (folder / "plan.toml").write_text("".join(lines), encoding="utf-8")
    return folder / "plan.toml"


@pytest.mark.parametrize("faults", LINKS.values(), ids=LINKS)
def test_links_between_replicas_may_be_slow(judge, monkeypatch, tmp_path, faults):
    monkeypatch.setenv("BUG", "")
    run = judge(GANG / "target.toml", **OPTIONS, faults=plan_of(tmp_path, faults))
    assert run.valid, run.explain()
    assert run.coverage.observed == len(faults)
    assert run.verdicts["S7"].status == "valid"


@pytest.mark.parametrize("promised", ["progress", "attributed-error"])
def test_a_replica_that_ends_with_its_connection_makes_no_progress(judge, monkeypatch, tmp_path, promised):
    """It was no death that psconform injected, so nothing is started again."""
    monkeypatch.setenv("BUG", "")
    refused = [{"kind": "refuse", "links": "isolate worker:1", "at": "8", "for": "1s"}]
    target = declared(tmp_path, progress=promised)
    run = judge(target, **OPTIONS, faults=plan_of(tmp_path, refused))
    assert run.violated == (("L1",) if promised == "progress" else ()), run.explain()
    assert run.coverage.observed == 1


def test_links_between_two_workers_need_replicas(judge, tmp_path):
    plan = plan_of(tmp_path, LINKS["one"])
    with pytest.raises(BadInput, match="worker:1 and worker:0 exchange nothing"):
        judge("reference", layout="ps=1,worker=2", faults=plan)
