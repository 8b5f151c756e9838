"""Healthy trainers that look like broken ones are not accused."""

from __future__ import annotations

import pytest

from . import accused
from .test_checks_bugs import of


@pytest.mark.parametrize("workload", ["ledger", "decayed-ledger", "dense-ledger", "digits", "quadratic"])
@pytest.mark.parametrize("seed", range(4))
def test_a_retry_that_the_server_knows(tmp_path, workload, seed):
    trainer = accused.Retries(update="async", workers=3, shards=(0, 1), workload=workload, seed=seed)
    judged = trainer.judge(tmp_path / "run")
    assert judged.exit_code == 0, judged.verdicts


@pytest.mark.parametrize("workload", ["ledger", "dense-ledger", "digits", "quadratic"])
def test_at_most_once_may_lose_a_gradient(tmp_path, workload):
    trainer = accused.LosesOne(update="async", workers=3, workload=workload)
    assert trainer.judge(tmp_path / "run").exit_code == 0


@pytest.mark.parametrize("workload", ["digits", "quadratic"])
def test_at_least_once_may_apply_a_retry_again(tmp_path, workload):
    judged = accused.AppliesRetries(update="async", workers=3, workload=workload).judge(tmp_path / "run")
    assert of(judged, "violated") == set()
    assert of(judged, "unknown") == {"C2"}


@pytest.mark.parametrize("workload", ["ledger", "dense-ledger", "decayed-ledger"])
def test_a_reduction_that_nobody_promised(tmp_path, workload):
    judged = accused.PromisesNoReduction(workers=3, workload=workload).judge(tmp_path / "run")
    assert judged.exit_code == 0, judged.verdicts
    assert {"S5", "A8"} <= of(judged, "not judged")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("shards", [(0, 0), (0, 0, 1)])
@pytest.mark.parametrize("workload", ["ledger", "decayed-ledger"])
def test_variables_that_change_one_by_one(tmp_path, seed, shards, workload):
    trainer = accused.ByVariable(update="async", workers=3, shards=shards, workload=workload, seed=seed)
    assert of(trainer.judge(tmp_path / "run"), "violated") == set()


@pytest.mark.parametrize("workers", [3, 5, 7])
def test_a_nonce_that_averaging_rounds(tmp_path, workers):
    ring = accused.RoundsTheNonce(workers=workers, steps=120, local_steps=2)
    judged = ring.judge(tmp_path / "run")
    assert judged.exit_code == 0, judged.verdicts
    assert "I1" in of(judged, "valid")
