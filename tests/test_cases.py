"""Trainers of others, in tests/cases as they were found but for their claims: each gets the right verdict."""

from __future__ import annotations

from pathlib import Path

import pytest

CASES = Path(__file__).parent / "cases"
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 5))]
pytestmark = pytest.mark.engine


@pytest.mark.parametrize("seed", range(5))
def test_a_task_that_dies_of_a_broken_connection_is_the_evidence_of_it(judge, seed):
    folder = CASES / "own-sampler"
    run = judge(folder / "target.toml", update="async", faults=folder / "refuse.toml", seed=seed)
    assert run.violated == ("L1",), run.explain()
    assert any("failed with status 1; its log ends: ConnectionError" in line for line in run.verdicts["L1"].witness)
    assert run.coverage.observed == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_a_step_that_all_skip_is_no_violation(judge, seed, monkeypatch):
    """Mixed precision; and one in which the shards do not agree (pytorch/pytorch#115710)."""
    target = CASES / "amp-found-inf" / "target.toml"
    monkeypatch.delenv("BUG", raising=False)
    healthy = judge(target, layout="ps=2,worker=2", steps=60, seed=seed)
    assert healthy.valid, healthy.explain()
    assert "6 of 60 rounds skipped" in healthy.verdicts["S1"].reason
    monkeypatch.setenv("FORM", "retry")
    again = judge(target, layout="ps=2,worker=2", steps=60, seed=seed)
    assert again.valid, again.explain()
    monkeypatch.setenv("BUG", "one-shard")
    monkeypatch.delenv("FORM")
    run = judge(target, layout="ps=2,worker=2", steps=60, seed=seed)
    assert run.violated == ("S1", "S3", "R1"), run.explain()
    assert "are in ps:1 and not in ps:0" in run.verdicts["S3"].witness[0]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("workers", [2, 3])
def test_a_worker_without_data_leaves_one_divisor_behind(judge, seed, workers, monkeypatch, tmp_path):
    """Uneven inputs (pytorch/pytorch#38174): a round is the mean of all workers, or of those that have data."""
    folder = CASES / "join-divisor"
    options = {"layout": f"ps=1,worker={workers}", "steps": 30, "batches": "worker:1=15", "seed": seed}
    for bug, names in (("initial", ()), ("wrong", ("S5",))):
        monkeypatch.setenv("BUG", bug)
        run = judge(folder / "target.toml", **options)
        assert run.violated == names, run.explain()
    monkeypatch.setenv("BUG", "alternating")
    assert "S5" in judge(folder / "target.toml", **options).violated
    declared = (folder / "target.toml").read_text(encoding="utf-8").replace("{here}", str(folder))
    (tmp_path / "target.toml").write_text(declared + 'divisor = "live"\n', encoding="utf-8")
    monkeypatch.setenv("BUG", "")
    run = judge(tmp_path / "target.toml", **options)
    assert run.valid, run.explain()
    assert run.verdicts["S5"].reason == "a round without some workers is the mean of those in it"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_constant_factor_is_seen_where_the_learning_rate_is_declared(judge, seed, monkeypatch):
    """Of gradient accumulation (huggingface/transformers#34191), and of the world size."""
    target = CASES / "loss-scale-factor" / "target.toml"
    says = {"": "", "grad-acc": "applied 4 times the declared mean", "dp-size": "a sum, not a mean"}
    for workload, guarantee in (("ledger", "S5"), ("digits", "C1")):
        for bug, line in says.items():
            monkeypatch.setenv("BUG", bug)
            run = judge(target, layout="ps=2,worker=2", steps=20, seed=seed, workload=workload)
            assert run.violated == ((guarantee,) if bug else ()), run.explain()
            if workload == "ledger":
                assert line in run.explain()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("workload", "guarantee"), [("ledger", "S5"), ("dense-ledger", "C4")])
def test_gradients_of_one_variable_that_reach_another_are_named(judge, seed, workload, guarantee, monkeypatch):
    """Matched by the order in which they are ready (pytorch/pytorch#64629), or in a bucket that is used again."""
    target = CASES / "order-mismatch" / "target.toml"
    for bug, line in (("", ""), ("by-order", "made for ps:1"), ("bucket-reuse", "made for ps:1")):
        monkeypatch.setenv("BUG", bug)
        run = judge(target, layout="ps=2,worker=2", steps=20, seed=seed, workload=workload)
        assert run.violated == ((guarantee,) if bug else ()), run.explain()
        assert line in run.explain()


def test_the_healthy_one(judge):
    run = judge(CASES / "own-sampler" / "target.toml", update="async", steps=30)
    assert run.valid, run.explain()
