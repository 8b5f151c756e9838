"""Rounds that all workers are refused, as in mixed precision: skipped they are no violation, half skipped they are."""

from __future__ import annotations

import pytest

from psconform.report.text import explain

from .simulate_modes import (
    NoneIsTold,
    OneWorkerIsNotTold,
    OneWorkerSkips,
    Overflows,
    OverflowsOnOneShard,
    TakesTheStep,
)


def judged(kind, folder, **options):
    return kind(workers=3, shards=(0, 1), steps=20, **options).judge(folder)


def of(run, name):
    return next(verdict for verdict in run.verdicts if verdict.guarantee == name)


@pytest.mark.parametrize("versions", [True, False])
@pytest.mark.parametrize("workload", ["ledger", "digits", "quadratic", "dense-ledger"])
def test_a_round_that_all_skip_is_no_violation(tmp_path, workload, versions):
    training = {"learning_rate": 0.02} if workload == "quadratic" else {}
    run = judged(Overflows, tmp_path / "run", workload=workload, versions=versions, training=training)
    assert run.exit_code == 0, explain(run)
    if workload == "ledger":
        assert of(run, "S1").reason.endswith("4 of 20 rounds skipped: refused to every worker")
    if workload in ("digits", "quadratic"):
        assert of(run, "C1").status == "valid"


def test_if_most_are_skipped_that_has_to_be_claimed(tmp_path):
    class Often(Overflows):
        every = 2

    class Claimed(Often):
        level = ("skips", "any")

    run = judged(Often, tmp_path / "often")
    assert (run.exit_code, of(run, "S1").status) == (2, "unknown"), explain(run)
    assert 'claim skips = "any"' in of(run, "S1").reason
    assert judged(Claimed, tmp_path / "claimed").exit_code == 0


@pytest.mark.parametrize(
    ("kind", "names", "says"),
    [
        (OverflowsOnOneShard, "S1 S3 R1", "are in ps:1 and not in ps:0"),
        (OneWorkerIsNotTold, "S1 S3 R1", "round 4 was refused to worker:0, and not to worker:1 and worker:2"),
        (OneWorkerSkips, "S1 S3", "round 4 was refused to worker:0, and not to worker:1 and worker:2"),
        (NoneIsTold, "S1 R1", "lacks the gradient of worker:0, step 4"),
        (TakesTheStep, "R1", "(failed) were applied 1 time"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, kind, names, says):
    run = judged(kind, tmp_path / "run")
    assert {*names.split()} <= set(run.names("violated")), explain(run)
    assert says in explain(run)


@pytest.mark.parametrize("kind", [OneWorkerIsNotTold, OneWorkerSkips, NoneIsTold, TakesTheStep])
def test_serial_training_tells_too(tmp_path, kind):
    run = judged(kind, tmp_path / "run", workload="digits")
    assert run.exit_code in (1, 2), explain(run)
    assert of(run, "C1").status in ("violated", "unknown"), explain(run)
