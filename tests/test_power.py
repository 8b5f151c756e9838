"""What a check cannot see it does not call valid: learning rates at which no gradient shows, and what a bound says."""

from __future__ import annotations

import re
from itertools import product

import pytest

from psconform.api import judge
from psconform.errors import BadInput
from psconform.runner.verdicts import judge_folder

from .mutations import rechained
from .simulate import Trainer
from .tiers import every

STEPS = 30


class LosesOne(Trainer):
    """Every gradient of worker:1 is lost."""

    def weight(self, worker, step, variable, attempt):
        return 0.0 if worker == 1 else super().weight(worker, step, variable, attempt)


class LosesOnce(Trainer):
    def weight(self, worker, step, variable, attempt):
        return 0.0 if (worker, step) == (1, 2) else super().weight(worker, step, variable, attempt)


class TellsMore(Trainer):
    """One acknowledgement tells of a server that is not there."""

    def told(self, worker, step, versions):
        return [*versions, 7] if (worker, step) == (1, 3) else versions


def verdict(judged, name):
    return next(verdict for verdict in judged.verdicts if verdict.guarantee == name)


def trained(kind, folder, update, rate, workload="digits"):
    options = {"workload": workload, "training": {"learning_rate": rate, "batch": 16}}
    run = kind(update=update, workers=3, shards=(0, 1), steps=STEPS, **options).judge(folder)
    return verdict(run, "C1" if update == "sync" else "C2")


@pytest.mark.parametrize("update", ["sync", "async"])
@pytest.mark.parametrize("workload", ["digits", "quadratic"])
def test_a_learning_rate_at_which_nothing_shows_is_no_proof(tmp_path, update, workload):
    for kind in (Trainer, LosesOne):
        found = trained(kind, tmp_path / kind.__name__, update, 1e-7, workload)
        assert found.status == "unknown"
        assert "the learning rate is too small" in found.reason


@pytest.mark.parametrize("update", ["sync", "async"])
def test_a_ps_that_holds_nothing_shows_nothing(tmp_path, update):
    """100 parameters on 64 ps, two on each: the last 14 hold zeros that nobody changes."""
    options = {"workload": "quadratic", "training": {"learning_rate": 0.02}}
    judged = Trainer(update=update, workers=2, shards=tuple(range(64)), steps=3, **options).judge(tmp_path / "run")
    assert verdict(judged, "C1" if update == "sync" else "C2").status == "valid"


@pytest.mark.parametrize(("rate", "update"), every(2, product([1e-3, 1e-2, 0.1], ["sync", "async"])))
def test_at_others_a_healthy_run_is_valid_and_one_gradient_is_missed(tmp_path, update, rate):
    assert trained(Trainer, tmp_path / "healthy", update, rate).status == "valid"
    assert trained(LosesOnce, tmp_path / "lost", update, rate).status == "violated"


def test_a_gradient_of_unknown_samples_is_no_crash(tmp_path):
    run = Trainer(update="async", workers=2, shards=(0, 1), steps=STEPS, workload="digits").run(tmp_path / "run")
    path = run / "events" / "worker-1.jsonl"
    lines = [line for line in path.read_bytes().splitlines() if not (b'"samples"' in line and b'"step":3,' in line)]
    path.write_bytes(b"".join(rechained(lines)))
    found = verdict(judge_folder(run), "C2")
    assert (found.status, found.reason) == ("unknown", "no samples recorded for the gradient of worker:1, step 3")


def test_one_who_tells_more_versions_than_there_are_crashes_no_check(tmp_path):
    assert trained(TellsMore, tmp_path / "run", "async", 0.1).status in ("valid", "unknown")
    assert "crashed" not in trained(TellsMore, tmp_path / "again", "async", 0.1).reason


def test_on_the_quadratic_async_shows_its_rate_beside_a_bound(tmp_path):
    found = trained(Trainer, tmp_path / "run", "async", 0.02, "quadratic")
    text = " ".join([found.reason, *found.witness])
    said = re.search(r"distance x (0\.\d+) per update, the bound for gradients as old as these .* is (0\.\d+)", text)
    assert said, text
    assert float(said[1]) <= float(said[2]) < 1
    late = trained(Trainer, tmp_path / "late", "async", 1.9, "quadratic")
    assert "which promises nothing" in " ".join([late.reason, *late.witness])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"batch": "16"}, "--batch: must be a whole number, got '16'"),
        ({"batch": 16.5}, "--batch: must be a whole number, got 16.5"),
        ({"delay": 1.5}, "--delay: must be a whole number, got 1.5"),
        ({"steps": True}, "--steps: must be a whole number, got True"),
        ({"learning_rate": "0.1"}, "--learning-rate: must be a number, got '0.1'"),
        ({"condition": "10"}, "--condition: must be a number, got '10'"),
        ({"patience_s": "60"}, "--patience: must be a number, got '60'"),
        ({"workload": ["ledger"]}, "--workload: must be text, got ['ledger']"),
        ({"kill": 5}, "--kill: must be text"),
        ({"slow": "worker:1=1e999999999999s"}, "--slow: the time must be a number"),
        ({"drop_after": "1e999999999s"}, "--drop-after: the time must be a number"),
        ({"batches": f"worker:1={'9' * 5000}"}, "--batches: of worker:1 must be between"),
        ({"step": 3}, "psconform.judge: unknown argument, got 'step'; valid: target, layout, update, "),
    ],
)
def test_what_the_api_is_given_wrongly_is_one_clear_error(options, says):
    with pytest.raises(BadInput, match=re.escape(says)):
        judge("reference", **options)
