"""Gradients that reach another variable: seen where each variable gets one of a magnitude of its own."""

from __future__ import annotations

import numpy as np
import pytest

from psconform.probe import SIZES, UNIT, Probe

from .simulate import Trainer

WORKLOADS = ["ledger", "dense-ledger", "decayed-ledger"]


class Distinct(Trainer):
    distinct = True


class Reversed(Distinct):
    """worker:1 sends its gradients in the order in which they are ready."""

    def compute(self, worker, step, values):
        found = super().compute(worker, step, values)
        return found[::-1] if worker == 1 else found


class OnceReversed(Distinct):
    def compute(self, worker, step, values):
        found = super().compute(worker, step, values)
        return found[::-1] if (worker, step) == (1, 3) else found


@pytest.mark.parametrize("shards", [(0,), (0, 1), (0, 1, 0, 1, 2)])
@pytest.mark.parametrize("update", ["sync", "async"])
@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_healthy_trainer_is_valid(tmp_path, workload, update, shards):
    judged = Distinct(update=update, shards=shards, workers=3, workload=workload).judge(tmp_path / "run")
    assert {verdict.status for verdict in judged.verdicts} == {"valid", "not judged"}


@pytest.mark.parametrize("bug", [Reversed, OnceReversed])
@pytest.mark.parametrize(
    ("update", "workload", "guarantee"),
    [("sync", "ledger", "S5"), ("async", "ledger", "A1"), ("sync", "dense-ledger", "C4")],
)
def test_mixed_up_variables_are_named(tmp_path, bug, update, workload, guarantee):
    judged = bug(update=update, shards=(0, 1), workload=workload).judge(tmp_path / "run")
    (verdict,) = (verdict for verdict in judged.verdicts if verdict.status == "violated")
    assert verdict.guarantee == guarantee
    assert any("made for ps:1" in line for line in verdict.witness)
    assert all("worker:1" in line for line in verdict.witness if "made for" in line)


def test_what_is_recorded_is_in_units_of_one_gradient(tmp_path):
    spec = {"workers": 1, "steps": 2, "unit": UNIT, "run": "", "variables": 3, "distinct": True}
    probe = Probe(spec, task="worker:0")
    values = [probe.initial(variable) for variable in range(3)]
    for gradient, size in zip(probe.gradients(0, values), SIZES[:3], strict=True):
        assert gradient[0] == np.float32(4 * size)


def test_no_size_is_taken_for_a_number_of_times():
    """Nor for a mean of few: what is left of one gradient in a mean of n is 1/n of it."""
    ratios = np.divide.outer(SIZES, SIZES)[~np.eye(len(SIZES), dtype=bool)]
    for parts in range(1, 9):
        assert np.abs(ratios * parts - np.rint(ratios * parts)).min() > 1e-3


class InHalfPrecision(Distinct):
    """Gradients travel, and are divided, as float16, which no part of most magnitudes fits into."""

    def sent(self, worker, step, gradient):
        return (gradient.astype(np.float16) / np.float16(self.workers)).astype(np.float32) * np.float32(self.workers)


@pytest.mark.parametrize("workers", [2, 3, 5, 7])
def test_rounding_is_no_other_variable(tmp_path, workers):
    judged = InHalfPrecision(shards=(0, 1, 2), workers=workers).judge(tmp_path / "run")
    assert {verdict.status for verdict in judged.verdicts} == {"valid", "not judged"}


class OneForAll(Distinct):
    def compute(self, worker, step, values):
        probe = self.probes[worker]
        return np.stack([probe.gradient(step)] * len(values)) if worker == 1 else super().compute(worker, step, values)


def test_a_worker_with_one_gradient_for_all_is_not_accused(tmp_path):
    judged = OneForAll(shards=(0, 1)).judge(tmp_path / "run")
    assert judged.names("violated") == []
    assert "S5" in judged.names("unknown")
