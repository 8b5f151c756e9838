"""Momentum, Adam and the schedule: the serial rules, the figures claimed for them, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from psconform.errors import BadInput
from psconform.history.manifest import Manifest
from psconform.layout import Layout
from psconform.models import Batches, Mlp, Quadratic, Softmax
from psconform.optimizers import clipped
from psconform.options import Options
from psconform.runner.plan import make_plan
from psconform.targets.reference import reference
from psconform.workloads import digits, serial
from psconform.workloads.serial import Rule

from .test_target_toml import GOOD, load, refused
from .training import drift, errors_of_steps, serial_sgd, sync_training

HALVED = {"optimizer": "sgd", "schedule": "halving", "learning_rate": 0.1}
WITH_MOMENTUM = {"optimizer": "momentum", "schedule": "constant", "learning_rate": 0.01}
ADAM = {"optimizer": "adam", "schedule": "halving", "learning_rate": 0.001}
RULES = [Rule(**options) for options in (HALVED, WITH_MOMENTUM, ADAM)]


def path_of(rule, *, start=0.0, gradients):
    theta, moments, path = np.array([start]), rule.begin(1), []
    for number, gradient in enumerate(gradients):
        change, moments = rule.update(moments, np.array([gradient]), number)
        theta = theta - change
        path.append(float(theta[0]))
    return path


def test_momentum_by_hand():
    """a = 1, 2.9, 2.61: theta falls by a tenth of each."""
    rule = Rule(learning_rate=0.1, optimizer="momentum")
    assert path_of(rule, gradients=[1, 2, 0]) == pytest.approx([-0.1, -0.39, -0.651])


def test_adam_by_hand():
    """The first step has the size of the rate, whatever the gradient; then m = 0.29 and v = 0.004999."""
    rule = Rule(learning_rate=0.1, optimizer="adam")
    first, second = path_of(rule, gradients=[1, 2])
    assert first == pytest.approx(-0.1, rel=1e-5)
    expected = 0.1 * (0.29 / (1 - 0.81)) / np.sqrt(0.004999 / (1 - 0.999**2))
    assert first - second == pytest.approx(expected, rel=1e-5)


def test_the_rate_halves_every_fifty_updates():
    rule = Rule(learning_rate=1.0, schedule="halving")
    path = path_of(rule, gradients=[1] * 101)
    assert path[49:52] == [-50, -50.5, -51]
    assert path[99:] == [-75, -75.25]


def test_the_rate_warms_up():
    path = path_of(Rule(learning_rate=10.0, schedule="warm-up"), gradients=[1] * 12)
    assert path == pytest.approx([-1, -3, -6, -10, -15, -21, -28, -36, -45, -55, -65, -75])


def test_the_rate_falls_along_a_cosine_and_begins_anew():
    rates = -np.diff([0.0, *path_of(Rule(learning_rate=1.0, schedule="cosine"), gradients=[1] * 101)])
    assert rates[[0, 25, 50, 75, 100]] == pytest.approx([1, 0.5, 1, 0.5, 1])
    assert rates[49] == pytest.approx(1 - np.cos(np.pi / 100) ** 2)
    assert (np.diff(rates[:50]) < 0).all()


def test_clipping_by_global_norm_by_hand():
    """Of 3 and 4 the norm is 5."""
    gradient = np.array([3, 4], np.float32)
    assert clipped(gradient, 1.0) == pytest.approx([0.6, 0.8])
    assert clipped(gradient, 1.0).dtype == np.float32
    for norm in (0.0, 5.0, 7.0):
        np.testing.assert_array_equal(clipped(gradient, norm), gradient)
    np.testing.assert_array_equal(clipped(np.array([np.inf, 1]), 1.0), [np.inf, 1])


def test_serial_training_of_plain_sgd_is_serial_sgd():
    model, options = Quadratic(), {"start": Quadratic().initial(1), "steps": 20}
    path = serial_sgd(model, None, None, **options, learning_rate=0.3)
    gradient = serial.union_gradient(model, None, None)
    other = serial.serial_training(model, gradient, **options, rule=Rule(learning_rate=0.3))
    np.testing.assert_array_equal(path, other)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.optimizer} {rule.schedule}")
@pytest.mark.parametrize("model", [Softmax(), Mlp(), Quadratic()], ids=["softmax", "mlp", "quadratic"])
def test_float32_stays_within_the_tolerances(model, rule):
    data = None if isinstance(model, Quadratic) else digits.load()
    batches = Batches(samples=1347, workers=3, batch=16, seed=3)
    options = {"start": model.initial(3), "steps": 120, "rule": rule}
    path = serial.serial_training(model, serial.union_gradient(model, data, batches), **options)
    reads = sync_training(model, data, batches, **options, order=np.random.default_rng(0))
    assert (drift(reads, path)[1:] < serial.drift_tolerance(120)[1:] / 5).all()
    assert errors_of_steps(model, data, batches, reads=reads, rule=rule).max() < serial.STEP_ERROR / 5


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"optimizer": "adm"}, "--optimizer: unknown optimizer, got 'adm'; valid: sgd, momentum, adam (did you mean"),
        (
            {"schedule": "linear"},
            "--schedule: unknown schedule, got 'linear'; valid: constant, halving, warm-up, cosine",
        ),
        ({"optimizer": "adam", "quorum": 1}, "--optimizer: excludes --quorum, got 'adam'"),
        ({"schedule": "halving", "quorum": 1}, "--schedule: excludes --quorum, got 'halving'"),
        (
            {"optimizer": "momentum", "update": "async", "rate": "staleness-aware"},
            "--optimizer: needs --rate constant, got 'momentum'",
        ),
        ({"optimizer": "adam", "replication": "in-graph"}, "--optimizer: needs --replication between-graph"),
        ({"optimizer": "adam", "layout": "ps=0,worker=2"}, "--optimizer: needs a ps"),
        ({"optimizer": "adam", "workload": "ledger"}, "--optimizer: needs --workload digits or quadratic: a ledger"),
        ({"schedule": "halving", "workload": "decayed-ledger"}, "--schedule: needs --workload digits or"),
        ({"clip_norm": 1.0, "workload": "ledger"}, "--clip-norm: needs --workload digits or quadratic: a ledger"),
        ({"clip_norm": -1.0}, "--clip-norm: must be between 0 and 1e+09 (0: gradients are not clipped), got -1.0"),
        ({"clip_norm": float("nan")}, "--clip-norm: must be between 0 and"),
        ({"clip_norm": 1.0, "reduction": "sum"}, "--clip-norm: needs --reduction mean"),
        ({"clip_norm": 1.0, "accumulate": 2}, "--clip-norm: needs --accumulate 1"),
        ({"clip_when": "after"}, "--clip-when: needs --clip-norm"),
        ({"clip_norm": 1.0, "clip_when": "later"}, "--clip-when: unknown moment, got 'later'; valid: before, after"),
        (
            {"clip_norm": 1.0, "clip_when": "after", "layout": "ps=2,worker=2"},
            "--clip-when: the reference trainer has one ps then, or none, for each",
        ),
        ({"optimizer": 3}, "--optimizer: must be text, got 3"),
        ({"optimizer": "adam", "defect": "reuse-sample"}, "--optimizer: defect reuse-sample has no such option"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, options, says):
    with pytest.raises(BadInput) as caught:
        make_plan(Options(out=tmp_path, **{"layout": "small", "workload": "digits", "steps": 60, **options}))
    assert str(caught.value).startswith(says)


def test_a_plan_repeats_itself_and_a_manifest_remembers(tmp_path):
    plan = make_plan(Options(out=tmp_path, workload="digits", optimizer="adam", schedule="halving"))
    assert "--optimizer adam --schedule halving" in plan.repeat
    assert "--learning-rate 0.001" in plan.repeat
    assert plan.layout == Layout(optimizer="adam", schedule="halving")
    assert plan.layout.mode == "sync mean, adam, halving rate"
    written = Manifest(
        run="r",
        created="",
        target="t",
        source="",
        layout=plan.layout,
        claims=plan.target.claims["sync"],
        workload=plan.workload,
    )
    written.write(tmp_path)
    assert Manifest.read(tmp_path).layout == plan.layout


def test_a_target_takes_an_optimizer_with_its_learning_rate(tmp_path):
    text = GOOD.replace("--index={index}", "{optimizer} {learning_rate}")
    assert load(tmp_path, text).modes == ("optimizer",)
    with pytest.raises(BadInput, match="--schedule: target mine has no such option, got 'halving'"):
        load(tmp_path, text).claimed(Layout(update="async", schedule="halving"))
    said = refused(tmp_path, GOOD.replace("--index={index}", "{optimizer}"))
    assert said.startswith("jobs: take {optimizer} without {learning_rate}")
    said = refused(tmp_path, GOOD.replace("--index={index}", "{schedule} {clip_norm}"))
    assert said.startswith("jobs: take {schedule} and {clip_norm} without {learning_rate}")


@pytest.mark.parametrize(("layout", "rate"), [(Layout(), "1.0"), (Layout(optimizer="adam"), "0.25")])
def test_the_trainer_applies_the_learning_rate_of_an_optimizer_itself(layout, rate):
    """Of plain SGD the gradients carry it."""
    target, addresses = reference(), {task: f"localhost:{2000 + i}" for i, task in enumerate(layout.tasks)}
    workload = {} if layout.plain else {"learning_rate": 0.25}
    command = target.command(layout.tasks[0], addresses, layout=layout, workload=workload)
    assert f"--learning-rate={rate}" in command.argv
    assert f"--optimizer={layout.optimizer}" in command.argv


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ("--optimizer adam --quorum 1", "--optimizer: excludes --quorum, got 'adam'"),
        ("--schedule halving --update async --rate staleness-aware", "--schedule: needs --rate constant"),
        ("--optimizer momentum --replication in-graph", "--optimizer: needs --replication between-graph"),
        ("--optimizer adam --compression topk", "--optimizer: needs --compression none"),
        ("--optimizer adm", "argument --optimizer: invalid choice: 'adm'"),
        ("--learning-rate 0", "--learning-rate: must be between 1e-09 and 1000000000.0, got 0.0"),
    ],
)
def test_by_hand_they_are_refused_alike(capsys, argv, says):
    from psconform.reference_impl.__main__ import main

    with pytest.raises(SystemExit) as ended:
        main(argv.split())
    assert ended.value.code == 2
    assert says in capsys.readouterr().err
