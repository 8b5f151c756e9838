"""The optimizers of the reference trainer on real clusters: serial training of the same rule, whoever is killed."""

from __future__ import annotations

import numpy as np
import pytest

from psconform.errors import BadInput
from psconform.history.build import load_history
from psconform.models import join
from psconform.trained import model_of
from psconform.workloads.serial import Rule

KILLS = {"kill": ["ps:0@33", "worker:1@44"], "checkpoint_every": 10}
CLIPPED_AFTER = {"clip_norm": 0.3, "clip_when": "after", "workload": "digits"}
RUNS = [
    {"optimizer": "adam", "schedule": "halving", "workload": "digits"},
    {"optimizer": "momentum", "workload": "quadratic", "reduction": "sum", "reads": 2, "layout": "ps=3,worker=2"},
    {"optimizer": "adam", "workload": "quadratic", **KILLS},
    {"optimizer": "momentum", "schedule": "halving", "workload": "digits", "model": "mlp", "steps": 70, **KILLS},
    {"schedule": "halving", "workload": "quadratic", "checkpoint_every": 7},
    {"schedule": "warm-up", "workload": "digits", **KILLS},
    {"schedule": "cosine", "optimizer": "adam", "workload": "quadratic"},
    {"update": "async", "schedule": "cosine", "workload": "digits"},
    {"clip_norm": 0.5, "workload": "digits", "delay": 1, "optimizer": "adam"},
    {"clip_norm": 0.5, "workload": "quadratic", "schedule": "halving", **KILLS},
    {**CLIPPED_AFTER, "layout": "ps=1,worker=3", "optimizer": "momentum", **KILLS},
    {**CLIPPED_AFTER, "layout": "ps=0,worker=2"},
    {"clip_norm": 0.3, "workload": "digits", "layout": "ps=0,worker=2"},
    {"update": "async", "clip_norm": 0.3, "workload": "digits", "optimizer": "momentum"},
    {"update": "async", "optimizer": "adam", "workload": "digits", "model": "mlp"},
    {"update": "async", "optimizer": "momentum", "schedule": "halving", "workload": "quadratic", "staleness": 2},
]
TIERS = [pytest.param(run, marks=pytest.mark.tensorflow if run is RUNS[2] else pytest.mark.nightly) for run in RUNS]


@pytest.mark.parametrize("options", TIERS, ids=lambda options: " ".join(map(str, options.values())))
def test_it_trains_as_its_rule_says(judge, options):
    run = judge("reference", **{"layout": "ps=2,worker=3", "steps": 60, "seed": 11, **options})
    assert run.exit_code == 0, run.explain()
    expected = ["C2" if options.get("update") == "async" else "C1", *(["R4"] if "kill" in options else [])]
    assert {run.verdicts[name].status for name in expected} == {"valid"}, run.explain()


@pytest.mark.nightly
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_async_goes_back_to_one_cut_too(judge, optimizer):
    """Of one worker async training is serial training, so the end says whether all state of a ps came back."""
    run = judge(
        "reference",
        layout="ps=2,worker=1",
        update="async",
        optimizer=optimizer,
        schedule="halving",
        workload="quadratic",
        steps=60,
        kill=["ps:1@56"],
        checkpoint_every=10,
    )
    assert run.exit_code == 0, run.explain()
    history = load_history(run.folder)
    assert [mark.name for mark in history.marks if mark.kind == "restore"] == ["step-50-epoch-0"]
    model = model_of(history.spec)
    theta = np.asarray(model.initial(0), np.float64)
    rule = Rule(learning_rate=history.workload.learning_rate, optimizer=optimizer, schedule="halving")
    moments = rule.begin(model.size)
    for step in range(60):
        change, moments = rule.update(moments, model.gradient(theta, None, None), step)
        theta = theta - change
    worker, last = history.finals[0]
    found = join(list(worker.reads.values[last]), model.size)
    assert np.linalg.norm(found - theta) < 1e-6 * np.linalg.norm(theta)


def test_a_defect_of_an_optimizer_needs_it(judge):
    options = {"workload": "digits", "kill": "ps:0@30", "checkpoint_every": 10, "steps": 50}
    with pytest.raises(BadInput, match=r"--optimizer: defect adam-slots-lost needs it.*Give --optimizer adam"):
        judge("reference", defect="adam-slots-lost", **options)
    with pytest.raises(BadInput, match="--optimizer: defect adam-slots-lost needs adam to show, got 'momentum'"):
        judge("reference", defect="adam-slots-lost", optimizer="momentum", **options)
