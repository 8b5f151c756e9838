"""S7, C5: replicas without parameter servers, in one process and in a real ring."""

from __future__ import annotations

import math

import pytest

from psconform.errors import BadInput
from psconform.layout import Layout
from psconform.options import Options
from psconform.runner.plan import make_plan
from psconform.runner.random_layouts import make_plans
from psconform.targets.toml import load_target

from . import replicas as rings
from .test_checks_bugs import of
from .test_order import verdict

TARGET = """
name = "ring"
[claims.sync]
[jobs.worker]
command = ["{python}", "train.py", "--hosts={worker_hosts}"]
"""


VIOLATED = [
    (rings.OwnGradient, {}, "S7 S1"),
    (rings.OwnGradient, {"reduction": "sum"}, "S7 S1"),
    (rings.OwnGradient, {"workload": "digits"}, "S7 C1"),
    (rings.OwnGradient, {"workload": "dense-ledger"}, "S7 S1"),
    (rings.OwnNonce, {}, "S7 I1"),
    (rings.LastBit, {"workload": "digits"}, "S7"),
    (rings.SlightlyMore, {}, "S7"),
    (rings.Poisoned, {"workload": "quadratic"}, "C3"),  # no other check looks past a NaN
    (rings.KeepsItsOwn, {"local_steps": 4}, "S7 C5"),
    (rings.LeavesOut, {"local_steps": 4}, "C5"),
    (rings.AddsUp, {"local_steps": 4}, "C5"),
    (rings.TooEarly, {"local_steps": 4}, "C5"),
    (rings.TooLate, {"local_steps": 2}, "S7 C5"),
]


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("workload", ["ledger", "dense-ledger", "digits", "quadratic"])
def test_healthy_replicas_are_valid(tmp_path, workers, reduction, workload):
    judged = rings.Ring(workers=workers, reduction=reduction, workload=workload).judge(tmp_path / "run")
    assert judged.exit_code == 0, judged.verdicts
    assert "S7" in of(judged, "valid")
    if workers > 1:
        compared = (workers - 1) * len(judged.history.workers[0].reads)
        assert verdict(judged, "S7").reason == f"{compared} reads compared with those of worker:0"
    assert {"A6", "A7", "C5"} <= of(judged, "not judged")


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
@pytest.mark.parametrize(("steps", "local_steps"), [(12, 3), (13, 5), (4, 9), (6, 2)])
@pytest.mark.parametrize("reads", [1, 2])
def test_healthy_local_steps_are_valid(tmp_path, workers, steps, local_steps, reads):
    ring = rings.Ring(workers=workers, steps=steps, local_steps=local_steps, reads=reads)
    judged = ring.judge(tmp_path / "run")
    assert judged.exit_code == 0, judged.verdicts
    assert of(judged, "valid") == {"S7", "C5", "I1", "I2", "L0", "C3"}
    assert verdict(judged, "C5").reason == f"{math.ceil(steps / local_steps)} exchanges of {workers} replicas"


@pytest.mark.parametrize(("ring", "options", "names"), VIOLATED)
def test_broken_replicas_are_found(tmp_path, ring, options, names):
    judged = ring(**options).judge(tmp_path / "run")
    assert of(judged, "violated") == set(names.split()), judged.verdicts


@pytest.mark.parametrize(("options", "name"), [({}, "S7"), ({"local_steps": 3}, "C5")])
def test_without_final_reads_nothing_is_valid(tmp_path, options, name):
    judged = rings.NoFinal(**options).judge(tmp_path / "run")
    assert name in of(judged, "unknown")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"update": "async"}, "--layout ps=0: needs --update sync"),
        ({"quorum": 1}, "--quorum: needs a ps, got 1"),
        ({"local_steps": 0}, "--local-steps: must be between 1 and 1000, got 0"),
        ({"local_steps": 2, "reduction": "sum"}, "--local-steps: needs --reduction mean: replicas are averaged, got 2"),
    ],
)
def test_what_replicas_do_not_do_is_refused(options, says):
    with pytest.raises(BadInput) as caught:
        Layout.parse("all-reduce", **options)
    assert str(caught.value).startswith(says)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"layout": "small", "local_steps": 2}, "--local-steps: needs replicas (--layout ps=0,worker=N), got 2"),
        ({"layout": "all-reduce", "local_steps": 2.5}, "--local-steps: must be a whole number, got 2.5"),
        ({"layout": "all-reduce", "workload": "decayed-ledger"}, "--workload: needs a ps"),
        ({"layout": "all-reduce", "workload": "digits", "local_steps": 2}, "--local-steps: needs --workload ledger"),
        ({"layout": "all-reduce", "workload": "dense-ledger", "compression": "topk"}, "--compression: needs a ps"),
        ({"layout": "all-reduce", "defect": "apply-twice"}, "--layout: defect apply-twice needs at least 1 ps"),
        ({"layout": "small", "defect": "own-init"}, "--layout: defect own-init is of replicas: needs ps=0"),
        (
            {"layout": "all-reduce", "defect": "skip-average", "steps": 20, "local_steps": 30},
            "--local-steps: is more than the 20 steps, so defect skip-average never strikes, got 30",
        ),
        ({"layout": "all-reduce", "defect": "sum-of-steps"}, "--local-steps: defect sum-of-steps needs it"),
    ],
)
def test_options_that_do_not_fit_name_the_place(tmp_path, options, says):
    with pytest.raises(BadInput) as caught:
        make_plan(Options(out=tmp_path / "run", **options))
    assert str(caught.value).startswith(says)


def test_target_file_without_a_ps_takes_layouts_without_one(tmp_path):
    path = tmp_path / "target.toml"
    path.write_text(TARGET)
    target = load_target(path)
    assert target.exchanges == ("all-reduce",)
    assert make_plan(Options(str(path), out=tmp_path / "run", layout="all-reduce")).layout.all_reduce
    for options, says in (
        ({"layout": "small"}, "--layout: target ring has no such layout, got 'ps=1,worker=2'. It has no job ps"),
        ({"layout": "all-reduce", "local_steps": 2}, "--local-steps: target ring has no such option, got 2"),
    ):
        with pytest.raises(BadInput) as caught:
            make_plan(Options(str(path), out=tmp_path / "run", **options))
        assert str(caught.value).startswith(says)
    drawn = make_plans(Options(str(path), out=tmp_path / "series"), repeat=5, random_layouts=True)
    assert all(plan.layout.all_reduce for plan in drawn)
    path.write_text(TARGET + "[claims.async]\n")
    with pytest.raises(BadInput, match=r"claims: needs \[jobs.ps\], got 'async'; valid: sync"):
        load_target(path)
    path.write_text(TARGET.replace("[jobs.worker]", "[jobs.ps]\ncommand = ['x']\n[jobs.worker]"))
    with pytest.raises(BadInput) as caught:
        make_plan(Options(str(path), out=tmp_path / "run", layout="all-reduce"))
    assert str(caught.value).startswith("--layout: target ring has no such layout, got 'ps=0,worker=3'. All-reduce")


@pytest.mark.nightly
def test_run_says_how_to_repeat_it(judge):
    run = judge("reference", layout="ps=0,worker=2", local_steps=3, steps=10)
    assert run.exit_code == 0, run.explain()
    assert "--local-steps 3" in run.repeat
    assert "--layout ps=0,worker=2" in run.repeat
