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
    """What is left in the end is dropped, and every worker is told ok."""

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


class DividesByThose(Accumulates):
    """The last round, with fewer gradients, is their mean."""

    def weight(self, worker, step, variable, attempt):
        rest = self.steps % self.layout.accumulate
        return self.layout.accumulate / rest if step >= self.steps - rest else 1.0


class AsksAgain(Accumulates):
    """The last answer of a worker is lost; it reads, and sends its gradient again, which is then ignored."""

    def attempts(self, worker, step):
        return 2 if (worker, step) == (1, self.steps - 1) else 1

    def outcome(self, worker, step, attempt):
        return "ok" if attempt == self.attempts(worker, step) - 1 else None

    def push(self, worker, step, gradient, attempt):
        if attempt:
            yield False
            return list(self.version)
        versions = yield from super().push(worker, step, gradient, attempt)
        if self.attempts(worker, step) > 1:
            while min(self.version) < self.layout.rounds(step + 1):
                yield True
            values, versions = yield from self._pull()
            self.probes[worker].read(values, versions, step=step, shards=self.placed)
        return versions


class CountsSteps(Accumulates):
    """Its version is its step."""

    def view(self, worker, step, values, versions):
        return values, [step] * len(versions)

    def told(self, worker, step, versions):
        return [step + 1] * len(versions)


class CountsGradients(Accumulates):
    """Its version is the number of gradients."""

    def view(self, worker, step, values, versions):
        return values, [min(v * self.layout.per_round, self.workers * self.steps) for v in versions]

    def told(self, worker, step, versions):
        return self.view(worker, step, None, versions)[1]


class DropsRestAndCounts(DropsRest):
    """A last round that is dropped has a version, too."""

    def view(self, worker, step, values, versions):
        rest = step == self.steps and self.steps % self.layout.accumulate > 0
        return values, [version + rest for version in versions]


class Overflows(Accumulates):
    """Each fifth round is skipped, as is known when it is complete (torch.amp.GradScaler)."""

    def over(self, step):
        return step // self.layout.accumulate % 5 == 4

    def weight(self, worker, step, variable, attempt):
        return 0.0 if self.over(step) else 1.0

    def outcome(self, worker, step, attempt):
        return "failed" if self.over(step) and self.closes(worker, step) else "ok"


class LeavesOneOut(Accumulates):
    """One gradient of all workers is left out, and the round made of the others."""

    def sent(self, worker, step, gradient):
        return gradient * 0 if step == 4 else gradient

    def outcome(self, worker, step, attempt):
        return "failed" if step == 4 else "ok"


class WrongInTheEnd(Accumulates):
    """The last round, with fewer gradients, has other weights."""

    wrong = 7.3

    def weight(self, worker, step, variable, attempt):
        last = step >= self.steps - self.steps % self.layout.accumulate
        return self.wrong if last and self.is_wrong(worker, variable) else 1.0

    def is_wrong(self, worker, variable):
        return True


class OneWrongInTheEnd(WrongInTheEnd):
    """That of one worker."""

    wrong = 0.37

    def is_wrong(self, worker, variable):
        return worker == 1


class OneShardWrongInTheEnd(WrongInTheEnd):
    """On one shard."""

    wrong = 1.5

    def is_wrong(self, worker, variable):
        return variable == 1


class ReadsAtStarts(Accumulates):
    """A worker reads once for a round, and loses a gradient in some."""

    def reads(self, worker, step):
        return int(step % self.layout.accumulate == 0)

    def sent(self, worker, step, gradient):
        return gradient * 0 if worker == 1 and step in (4, 10) else gradient


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


@pytest.mark.parametrize("workload", ["ledger", "dense-ledger", "digits", "quadratic"])
@pytest.mark.parametrize(("several", "steps"), first([(3, 13), (20, 12), (4, 15), (2, 3)], 2))
def test_the_last_round_may_be_the_mean_of_those_that_it_has(several, steps, workload, tmp_path):
    options = {"accumulate": several, "steps": steps, "workload": workload, "shards": (0, 1)}
    run = DividesByThose(**options).judge(tmp_path / "run")
    assert not run.names("violated"), explain(run)
    assert not run.names("unknown"), explain(run)


@pytest.mark.parametrize(("several", "steps"), first([(3, 14), (20, 14), (4, 13), (2, 13), (3, 12)], 2))
@pytest.mark.parametrize(
    ("kind", "workload"),
    [
        *((kind, "ledger") for kind in (AsksAgain, CountsSteps, CountsGradients, Overflows, LeavesOneOut)),
        (AsksAgain, "digits"),
        (Overflows, "digits"),
        (LeavesOneOut, "digits"),
    ],
)
def test_another_healthy_trainer_is_valid(kind, workload, several, steps, tmp_path):
    more = 16 if kind is Overflows else 0
    run = kind(accumulate=several, steps=steps + more, workload=workload, shards=(0, 1)).judge(tmp_path / "run")
    assert not run.names("violated"), explain(run)
    assert not run.names("unknown"), explain(run)


@pytest.mark.parametrize(("several", "steps"), [(3, 14), (4, 13), (7, 20), (3, 8)])
def test_a_last_round_that_is_dropped_may_have_a_version(several, steps, tmp_path):
    for kind in (DropsRest, DropsRestAndCounts):
        run = kind(accumulate=several, steps=steps, shards=(0, 1)).judge(tmp_path / kind.__name__)
        assert not run.names("violated"), explain(run)
        assert not run.names("unknown"), explain(run)


@pytest.mark.parametrize(("several", "steps"), [(3, 14), (20, 14)])
@pytest.mark.parametrize("kind", [WrongInTheEnd, OneWrongInTheEnd, OneShardWrongInTheEnd])
def test_wrong_weights_of_the_last_round_are_found(kind, several, steps, tmp_path):
    for workload, guarantee in (("ledger", "S5"), ("dense-ledger", "C4"), ("digits", "C1"), ("quadratic", "C1")):
        run = kind(accumulate=several, steps=steps, workload=workload, shards=(0, 1)).judge(tmp_path / workload)
        if (workload, several, kind) != ("dense-ledger", 20, WrongInTheEnd):  # a factor that all share is S5's
            assert guarantee in run.names("violated"), explain(run)


@pytest.mark.parametrize("workload", ["digits", "quadratic"])
def test_where_no_step_can_be_judged_that_is_said(workload, tmp_path):
    options = {"workload": workload, "steps": 15, "training": {"learning_rate": 20.0}}
    run = ReadsAtStarts(**options).judge(tmp_path / "run")
    assert "C1" in run.names("unknown"), explain(run)
    assert "training is unstable, so single steps are judged" in explain(run)


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
