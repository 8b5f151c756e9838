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


def test_the_healthy_one(judge):
    run = judge(CASES / "own-sampler" / "target.toml", update="async", steps=30)
    assert run.valid, run.explain()
