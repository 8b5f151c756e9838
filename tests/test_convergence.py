"""C1, C2, R5: runs that train a model, in one process; what is right is valid, what is wrong is named."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from psconform.errors import BadInput, Malformed
from psconform.models import Quadratic
from psconform.options import Options
from psconform.report.text import explain
from psconform.runner.plan import make_plan
from psconform.runner.verdicts import judge_folder, store

from . import model_bugs as bugs
from .model_bugs import Training
from .tiers import first

LAYOUTS = st.tuples(st.integers(1, 4), st.integers(1, 3))


def statuses(judged):
    return {v.guarantee: v.status for v in judged.verdicts if v.status != "not judged"}


def verdict(judged, name):
    return next(v for v in judged.verdicts if v.guarantee == name)


def judged(kind, folder, *, update="sync", workers=2, ps=2, steps=24, **options):
    return kind(update=update, workers=workers, shards=tuple(range(ps)), steps=steps, **options).judge(folder)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    layout=LAYOUTS,
    mode=st.sampled_from([("sync", "mean"), ("sync", "sum"), ("async", "mean")]),
    workload=st.sampled_from(["digits", "quadratic"]),
    model=st.sampled_from(["softmax", "mlp"]),
    delay=st.sampled_from([0, 0, 3]),
    versions=st.booleans(),
    batch=st.integers(1, 40),
    seed=st.integers(0, 1000),
)
def test_healthy_training_is_valid(tmp_path_factory, layout, mode, workload, model, delay, versions, batch, seed):
    (workers, ps), (update, reduction) = layout, mode
    training = {
        "model": model,
        "batch": batch,
        "delay": delay,
        "learning_rate": 0.02 if workload == "quadratic" else 0.1,
    }
    run = judged(
        Training,
        tmp_path_factory.mktemp("run") / "run",
        update=update,
        workers=workers,
        ps=ps,
        seed=seed,
        workload=workload,
        versions=versions,
        reduction=reduction,
        training=training,
    )
    found = statuses(run)
    if workload == "quadratic" and update == "async" and not versions:
        assert "needs versions" in verdict(run, "C2").reason  # nobody knows the staleness that the bound is for
    assert set(found.values()) == {"valid"}, explain(run)
    assert ("C1" in found) == (update == "sync")


WRONG = [
    (
        bugs.LosesGradient,
        "sync",
        {"C1"},
        "worker:0 at step 4 is not one step of serial SGD from what it read at step 3",
    ),
    (bugs.LosesGradient, "async", {"C2"}, "off the initial parameters less the"),
    (bugs.StartsElsewhere, "sync", {"C1"}, "at step 0 is 0.0"),
    (bugs.StartsElsewhere, "async", {"C2"}, "off the initial parameters less the 0 gradients applied before"),
    (bugs.Stale, "sync", {"C1"}, "at step 2 is not one step of serial SGD"),
    (bugs.Stale, "async", {"C2"}, "off the initial parameters less the"),
    (bugs.Reuses, "sync", {"R5", "C1"}, "was used 2 times: worker:1 step 3, worker:1 step 3"),
    (bugs.Reuses, "async", {"R5"}, "was used 2 times"),
    (bugs.Diverges, "sync", {"C1", "C3"}, "with -inf"),
]


@pytest.mark.parametrize(("bug", "update", "names", "says"), WRONG)
def test_what_is_wrong_is_named(tmp_path, bug, update, names, says):
    run = judged(bug, tmp_path / "run", update=update)
    assert {name for name, status in statuses(run).items() if status == "violated"} >= names - {"C1"} or names == {"C1"}
    assert {v.guarantee for v in run.verdicts if v.status == "violated"} <= names
    assert names & {v.guarantee for v in run.verdicts if v.status == "violated"}
    assert says in explain(run)


@pytest.mark.parametrize("steps", [10, 11])
def test_a_skipped_sample_shows_at_once(tmp_path, steps):
    """1347 samples, 2 workers with batches of 60: 11 steps to an epoch."""
    run = judged(bugs.Skips, tmp_path / "run", steps=steps, training={"batch": 60})
    (line,) = verdict(run, "R5").witness
    assert line.endswith("was never used")
    assert verdict(run, "C1").status == "valid"  # of the samples that were used


def test_a_sample_of_somebody_else_is_a_reused_one(tmp_path):
    run = judged(bugs.Invents, tmp_path / "run", steps=11, training={"batch": 60})
    assert verdict(run, "R5").status == "violated"


def test_without_recorded_samples_nothing_is_known_of_them(tmp_path):
    found = statuses(judged(bugs.SecretBatch, tmp_path / "run"))
    assert found["R5"] == "unknown"


def test_unstable_training_is_judged_by_its_steps(tmp_path):
    run = judged(Training, tmp_path / "run", steps=60, training={"model": "mlp", "learning_rate": 8.0})
    assert verdict(run, "C1").status == "valid", explain(run)
    assert verdict(run, "C1").reason.startswith("training is unstable")
    run = judged(bugs.LosesGradient, tmp_path / "lost", steps=60, training={"model": "mlp", "learning_rate": 8.0})
    assert verdict(run, "C1").status == "violated"


def test_the_largest_deviation_is_printed_and_is_one(tmp_path):
    run = judged(Training, tmp_path / "run")
    c1 = verdict(run, "C1")
    assert 0 < c1.stats["largest_deviation"] < 5e-6
    assert f"largest deviation from serial SGD {c1.stats['largest_deviation']:.2g}" in c1.reason


def test_curves_are_stored_and_compared_with_serial(tmp_path):
    run = judged(Training, tmp_path / "run", steps=80, update="async")
    store(run)
    curves = json.loads((tmp_path / "run" / "losses.json").read_text())
    assert set(curves["losses"]) == {"worker:0", "worker:1", "serial"}
    assert all(len(values) == 81 and values[-1] < values[0] for values in curves["losses"].values())
    found = json.loads((tmp_path / "run" / "verdicts.json").read_text())["training"]
    assert abs(found["accuracy"] - found["serial_accuracy"]) < 0.1
    assert found["accuracy"] > 0.5


def test_a_stored_run_without_its_data_is_malformed(tmp_path):
    judged(Training, tmp_path / "run", steps=3)
    (tmp_path / "run" / "digits.npz").unlink()
    with pytest.raises(Malformed, match=r"digits\.npz"):
        judge_folder(tmp_path / "run")


def test_no_seed_starts_at_the_optimum():
    for seed in range(300):
        model = Quadratic(seed=seed)
        assert np.linalg.norm(model.initial(seed) - model.optimum) > 1


def test_quadratic_names_its_rate_and_the_theory(tmp_path):
    run = judged(Training, tmp_path / "run", workload="quadratic", steps=100, training={"learning_rate": 0.05})
    reason = verdict(run, "C1").reason
    measured, theory = (float(text.split()[0]) for text in reason.split("distance x ")[1].split("at most "))
    assert measured <= theory == pytest.approx(1 - 0.05 * 0.1, abs=1e-5)
    run = judged(
        Training, tmp_path / "async", workload="quadratic", update="async", steps=60, training={"learning_rate": 0.02}
    )
    stats = verdict(run, "C2").stats
    assert 0 < stats["rate"] <= stats["bound"] < 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"workload": "digits", "model": "cnn"}, "--model: unknown model"),
        ({"workload": "digits", "batch": 0}, "--batch: must be between 1"),
        ({"workload": "digits", "batch": 500}, "--batch: must be between 1 and 449"),
        ({"workload": "digits", "learning_rate": -1.0}, "--learning-rate"),
        ({"workload": "quadratic", "delay": -1}, "--delay"),
        ({"workload": "quadratic", "condition": 0.5}, "--condition"),
    ],
)
def test_bad_options_are_refused(tmp_path, options, says):
    with pytest.raises(BadInput, match=says):
        make_plan(Options(out=tmp_path, layout="ps=1,worker=3", **options))


@pytest.mark.parametrize("learning_rate", first([100.0, 4.0, 8.0, 32.0]))
@pytest.mark.parametrize("model", ["softmax", "mlp"])
def test_where_a_gradient_is_uncertain_a_step_is(tmp_path, model, learning_rate):
    training = {"model": model, "learning_rate": learning_rate}
    healthy = judged(Training, tmp_path / "healthy", workers=3, steps=60, training=training)
    assert verdict(healthy, "C1").status == "valid", healthy.verdicts
    broken = judged(bugs.LosesGradient, tmp_path / "broken", workers=3, steps=60, training=training)
    assert verdict(broken, "C1").status == "violated"
