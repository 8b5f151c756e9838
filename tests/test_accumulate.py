"""Gradients that each worker adds up for a round (``--accumulate``): healthy trainers, and what goes wrong there."""

from __future__ import annotations

import numpy as np
import pytest

from psconform.errors import BadInput
from psconform.layout import Layout
from psconform.report.text import explain

from .simulate import Trainer
from .tiers import first


class Accumulates(Trainer):
    """Each worker brings the sum of its last gradients to a round; what is left in the end makes a round, too."""

    def __init__(self, *, accumulate=3, steps=12, **options):
        super().__init__(accumulate=accumulate, steps=steps, **options)
        self.kept = {}

    def waits_for(self, worker, step):
        return self.layout.rounds(step) if step == self.steps else step // self.layout.accumulate

    def closes(self, worker, step):
        """Whether this step completes what the worker brings to a round."""
        return (step + 1) % self.layout.accumulate == 0 or step + 1 == self.steps

    def push(self, worker, step, gradient, attempt):
        self.kept[worker] = self.kept.get(worker, 0) + gradient
        if not self.closes(worker, step):
            yield False
            return list(self.version)
        return (yield from super().push(worker, step, self.brought(worker, step), attempt))

    def brought(self, worker, step):
        """What it brings."""
        return self.kept.pop(worker)


class DropsRest(Accumulates):
    """What is left in the end is dropped, and every worker knows."""

    def waits_for(self, worker, step):
        return step // self.layout.accumulate

    def closes(self, worker, step):
        return (step + 1) % self.layout.accumulate == 0

    def outcome(self, worker, step, attempt):
        left = self.steps - self.steps % self.layout.accumulate
        return "failed" if step >= left else "ok"


class LosesRest(DropsRest):
    """What is left in the end is dropped, and nobody knows."""

    def outcome(self, worker, step, attempt):
        return "ok"


class DividesByWorkers(Accumulates):
    """The loss is not divided by the number of gradients (huggingface/transformers#34191)."""

    def share(self):
        return self.workers


class KeepsGradient(Accumulates):
    """One worker does not begin anew after a round: optimizer.zero_grad is missing."""

    def brought(self, worker, step):
        return self.kept[worker] if worker == 1 else super().brought(worker, step)


class OnlyTheLast(Accumulates):
    """One worker brings its last gradient alone: the others are overwritten."""

    def push(self, worker, step, gradient, attempt):
        if worker == 1:
            self.kept.pop(worker, None)
        return (yield from super().push(worker, step, gradient, attempt))


class TooEarly(Accumulates):
    """A round is complete one gradient too early."""

    def closes(self, worker, step):
        return step % self.layout.accumulate == self.layout.accumulate - 2 or step + 1 == self.steps

    def waits_for(self, worker, step):
        return 5 if step == self.steps else (step + 1) // self.layout.accumulate


class DoesNotWait(Accumulates):
    """Workers go on before their round is complete."""

    def waits_for(self, worker, step):
        return super().waits_for(worker, step) if step == self.steps else 0


SHAPES = [{}, {"workers": 3, "shards": (0, 1)}, {"reduction": "sum"}, {"accumulate": 4, "workers": 1}]
EVERYWHERE = {"S1", "S3", "S4", "S6", "A7"}


@pytest.mark.parametrize("seed", first(range(3)))
@pytest.mark.parametrize("steps", [12, 13])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("workload", ["ledger", "dense-ledger", "digits", "quadratic"])
def test_a_healthy_trainer_is_valid(workload, shape, steps, seed, tmp_path):
    run = Accumulates(**shape, steps=steps, seed=seed, workload=workload).judge(tmp_path / "run")
    assert not run.names("violated"), explain(run)
    assert not run.names("unknown"), explain(run)
    judged = {"ledger": EVERYWHERE | {"S5", "R1", "R2"}, "dense-ledger": EVERYWHERE | {"C4"}}
    assert judged.get(workload, {"C1"}) <= {*run.names("valid")}, explain(run)


@pytest.mark.parametrize("versions", [True, False])
def test_what_is_left_may_be_dropped(versions, tmp_path):
    run = DropsRest(steps=14, versions=versions).judge(tmp_path / "run")
    assert not run.names("violated"), explain(run)
    assert not run.names("unknown"), explain(run)


@pytest.mark.parametrize("seed", first(range(5)))
@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (DividesByWorkers, {"S5"}),
        (KeepsGradient, {"S1", "R1"}),
        (OnlyTheLast, {"S1", "R1"}),
        (TooEarly, {"S1"}),
        (DoesNotWait, {"S1"}),
        (LosesRest, {"R1"}),
    ],
)
def test_a_mistake_is_found(kind, names, seed, tmp_path):
    run = kind(steps=14, workers=3, shards=(0, 1), seed=seed).judge(tmp_path / "run")
    assert names <= {*run.names("violated")}, explain(run)
    assert not {*run.names("violated")} - {"S1", "S3", "S4", "S5", "S6", "R1", "R2", "A6", "A7"}, explain(run)


def test_the_cause_is_named(tmp_path):
    run = DividesByWorkers(steps=12).judge(tmp_path / "run")
    assert run.names("violated") == ["S5"]
    said = "every gradient was applied 3 times the declared mean over 6 gradients: a mean over 2"
    assert said in explain(run)
    assert "R1" in run.names("valid")


@pytest.mark.parametrize("kind", [DividesByWorkers, KeepsGradient, OnlyTheLast])
def test_a_model_shows_it_too(kind, tmp_path):
    assert "C1" in kind(steps=12, workload="digits").judge(tmp_path / "run").names("violated")


def test_what_it_does_not_go_with_is_named():
    with pytest.raises(BadInput, match="--accumulate"):
        Layout(update="async", accumulate=2)
    with pytest.raises(BadInput, match="--accumulate: must be between 1 and 1000"):
        Layout(accumulate=0)
    assert np.ceil(14 / 3) == Layout(accumulate=3).rounds(14)
