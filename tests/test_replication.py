"""C6: in-graph and model-parallel train what between-graph trains; what differs, or cannot be compared, is named."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from psconform.errors import BadInput, Malformed
from psconform.history.manifest import TWIN, Manifest
from psconform.layout import Layout
from psconform.options import Options
from psconform.report.text import explain
from psconform.runner.plan import make_plan
from psconform.runner.verdicts import judge_folder

from .model_bugs import LosesGradient, Training
from .simulate import Trainer
from .test_convergence import verdict
from .tiers import first

SCRIPT = Path(__file__).parent / "placement.py"


class Nudged(Training):
    """One worker once reads something else than is there."""

    by = 1e-4

    def view(self, worker, step, values, versions):
        if (worker, step) == (1, 5):
            values = [value * np.float32(1 + self.by) for value in values]
        return values, versions


class BarelyNudged(Nudged):
    by = 1e-7


class Dies(Training):
    def ends(self, worker, step):
        return "killed" if (worker, step) == (1, 6) else ""


VIOLATED = [(LosesGradient, Training, "C6 C1"), (Training, LosesGradient, "C6")]


def run(folder, kind=Training, twin=Training, *, replication="in-graph", workers=2, ps=2, other=None, **options):
    """Train between-graph into ``twin/`` and then as asked, in the same set-up, and judge."""
    options = {"workers": workers, "shards": tuple(range(ps)), "steps": 20, **options}
    if twin is not None:
        twin(**{**options, **(other or {})}).run(folder / TWIN)
    return kind(replication=replication, **options).judge(folder)


@pytest.mark.parametrize(("replication", "workload"), [("in-graph", "digits"), ("model-parallel", "quadratic")])
@pytest.mark.parametrize("training", [{}, {"model": "mlp", "delay": 2}], ids=str)
@pytest.mark.parametrize(("workers", "ps"), first([(3, 2), (1, 1)]))
def test_the_same_training_is_valid(tmp_path, replication, workload, training, workers, ps):
    training = {"learning_rate": 0.02, **training}
    judged = run(
        tmp_path / "run", replication=replication, workload=workload, training=training, workers=workers, ps=ps
    )
    assert judged.exit_code == 0, explain(judged)
    found = verdict(judged, "C6")
    assert found.status == "valid"
    assert found.reason.endswith(f"{workers * 21} reads")
    assert judge_folder(tmp_path / "run").verdicts == judged.verdicts


@pytest.mark.parametrize(("kind", "twin", "names"), VIOLATED)
def test_another_path_is_named(tmp_path, kind, twin, names):
    judged = run(tmp_path / "run", kind, twin)
    assert {v.guarantee for v in judged.verdicts if v.status == "violated"} == set(names.split())
    found = verdict(judged, "C6")
    said = re.fullmatch(r"worker:(\d) at step (\d+) is (\S+) off between-graph, allowed (\S+)", found.witness[0])
    assert said
    assert (int(said[1]), int(said[2])) == (0, 4)  # WHEN + 1: the first that can show it
    assert float(said[3]) > 100 * float(said[4])


def test_one_read_that_differs_is_found_and_roundings_are_not(tmp_path):
    found = verdict(run(tmp_path / "wrong", Nudged), "C6")
    assert [line.split(" is ")[0] for line in found.witness] == ["worker:1 at step 5"]
    found = verdict(run(tmp_path / "right", BarelyNudged), "C6")
    assert (found.status, round(found.stats["largest_distance"], 8)) == ("valid", 1.2e-7)


@pytest.mark.parametrize(
    ("twin", "other", "says"),
    [
        (None, {}, "in twin/, was not run"),
        (Training, {"seed": 7}, "in twin/, is a run of another set-up"),
        (Training, {"steps": 19}, "in twin/, is a run of another set-up"),
        (Training, {"replication": "in-graph"}, "in twin/, is a run of another set-up"),
        (Dies, {}, "in twin/, is incomplete: training ended early at step "),
    ],
)
def test_without_a_whole_run_between_graph_nothing_is_known(tmp_path, twin, other, says):
    found = verdict(run(tmp_path / "run", twin=twin, other=other), "C6")
    assert found.status == "unknown"
    assert says in found.reason


def test_a_record_between_graph_that_lost_a_read_decides_nothing(tmp_path):
    run(tmp_path / "run")
    for path in (tmp_path / "run" / TWIN / "events").glob("worker-1*"):
        path.unlink()
    found = verdict(judge_folder(tmp_path / "run"), "C6")
    assert found.status == "unknown"
    assert "worker:1 never reported" in found.reason
    shutil.rmtree(tmp_path / "run" / TWIN / "events")
    with pytest.raises(Malformed, match="has no folder events/"):
        judge_folder(tmp_path / "run")


@pytest.mark.parametrize(("kind", "status"), [(Training, "valid"), (LosesGradient, "unknown")])
def test_unstable_training_is_compared_step_by_step_and_never_accused(tmp_path, kind, status):
    options = {"steps": 60, "training": {"model": "mlp", "learning_rate": 4.0}}
    found = verdict(run(tmp_path / "run", kind, **options), "C6")
    assert (found.status, found.reason.split(",")[0]) == (status, "training is unstable")


def test_what_cannot_show_it_is_not_judged(tmp_path):
    found = verdict(Training(steps=6).judge(tmp_path / "between"), "C6")
    assert (found.status, found.reason) == ("not judged", "needs --replication in-graph or model-parallel")
    found = verdict(Trainer(replication="in-graph").judge(tmp_path / "ledger"), "C6")
    assert (found.status, found.reason) == ("not judged", "needs --workload digits or quadratic")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"replication": "graph"}, r"--replication: unknown replication, got 'graph'; valid: between-graph, in-graph"),
        ({"replication": "in-graph", "update": "async"}, "--replication: the reference trainer has it in sync only"),
        (
            {"replication": "model-parallel", "update": "async", "workload": "digits"},
            "--replication: needs --update sync: its parts train in step, got 'model-parallel'",
        ),
        ({"replication": "in-graph", "quorum": 1}, "--replication: excludes --quorum: one client"),
        (
            {"replication": "model-parallel"},
            "--replication: needs --workload digits or quadratic: a ledger has",
        ),
        (
            {"replication": "model-parallel", "workload": "digits", "defect": "tower-repeats-batch"},
            "--replication: defect tower-repeats-batch needs in-graph to show, got 'model-parallel'",
        ),
        ({"workload": "digits", "defect": "detached-slice"}, r"needs it, .*Give --replication model-parallel"),
        ({"defect": "drop-gradient", "replication": "in-graph"}, "--replication: defect drop-gradient has no such"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path, options, says):
    with pytest.raises(BadInput, match=says):
        make_plan(Options(out=tmp_path, layout="small", **options))


def test_it_travels_with_the_run(tmp_path):
    plan = make_plan(Options(out=tmp_path, layout="small", replication="model-parallel", workload="quadratic"))
    assert "--replication model-parallel" in plan.repeat
    assert plan.layout == Layout.parse("small", replication="model-parallel")
    assert plan.layout.mode == "sync mean, model-parallel"
    run(tmp_path / "run")
    assert Manifest.read(tmp_path / "run").layout.replication == "in-graph"
    assert Manifest.read(tmp_path / "run" / TWIN).layout.replication == "between-graph"


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    "options",
    first(
        [
            {"replication": "in-graph", "workload": "digits", "model": "mlp", "layout": "ps=3,worker=4", "reads": 2},
            {"replication": "model-parallel", "workload": "digits", "model": "mlp", "delay": 2, "reduction": "sum"},
            {"replication": "model-parallel", "workload": "quadratic", "layout": "ps=1,worker=1"},
        ],
        2,
    ),
    ids=str,
)
def test_the_reference_trainer_does_all_three(judge, options):
    made = judge("reference", steps=40, seed=8, **options)
    assert made.exit_code == 0, made.explain()
    assert made.verdicts["C6"].status == "valid"
    assert f"--replication {options['replication']}" in made.repeat


@pytest.mark.nightly
def test_one_client_keeps_the_promises_of_all_workers(judge):
    made = judge("reference", replication="in-graph", slow={"worker:1": 0.02}, reads=2, steps=20, seed=9)
    assert made.exit_code == 0, made.explain()
    assert {"S1", "S3", "S4", "S6", "A6", "R1"} <= {name for name, v in made.verdicts.items() if v.status == "valid"}
    spread = made.verdicts["S6"].stats["spread_ms"]
    assert spread > 15, "the others do not wait for the straggler before they compute"


@pytest.mark.nightly
def test_each_part_runs_on_its_own_worker(tmp_path):
    command = [sys.executable, str(SCRIPT), str(tmp_path), "3"]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    for replication, traced in json.loads(done.stdout).items():
        for worker in range(3):
            device = f"/job:worker/replica:0/task:{worker}/device:CPU:0"
            kinds = [kind for _, kind in traced["placed"][device]]
            assert "Mul" in kinds  # the gradient that it pushes
            assert traced["timed"][device]  # and something ran there
            if replication == "model-parallel":
                assert sum("MatMul" in kind for kind in kinds) == 5  # two forward, three of their gradients
                assert {"Tanh", "TanhGrad"} <= set(kinds)
                assert any("TanhGrad" in name for name in traced["timed"][device])
                assert ("SparseSoftmaxCrossEntropyWithLogits" in kinds) == (worker == 0)
        on_ps = [kind for _, kind in traced["placed"]["/job:ps/replica:0/task:0/device:CPU:0"]]
        assert "ResourceScatterSub" in on_ps
        assert not any("MatMul" in kind for kind in on_ps)
