"""Trainers of others, in tests/cases as they were found but for their claims: each gets the right verdict."""

from __future__ import annotations

from pathlib import Path

import pytest

CASES = Path(__file__).parent / "cases"
pytestmark = pytest.mark.engine


@pytest.mark.parametrize("seed", range(5))
def test_a_task_that_dies_of_a_broken_connection_is_the_evidence_of_it(judge, seed):
    folder = CASES / "own-sampler"
    run = judge(folder / "target.toml", update="async", faults=folder / "refuse.toml", seed=seed)
    assert run.violated == ("L1",), run.explain()
    assert any("failed with status 1; its log ends: ConnectionError" in line for line in run.verdicts["L1"].witness)
    assert run.coverage.observed == 1


def test_the_healthy_one(judge):
    run = judge(CASES / "own-sampler" / "target.toml", update="async", steps=30)
    assert run.valid, run.explain()
