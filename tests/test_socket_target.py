"""A trainer that is not ours: a parameter server of sockets and numpy, described by a target.toml."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from psconform.api import check
from psconform.errors import PsconformError
from psconform.runner.calibrate import NotLinear

from .tiers import every

HERE = Path(__file__).parent / "socket_ps"
pytestmark = pytest.mark.engine


@pytest.mark.parametrize(
    ("layout", "update", "reduction"),
    [
        ("ps=1,worker=1", "sync", "mean"),
        ("ps=2,worker=3", "sync", "sum"),
        ("ps=2,worker=3", "async", "mean"),
        ("ps=3,worker=4", "sync", "mean"),
    ],
)
def test_healthy(judge, layout, update, reduction):
    run = judge(HERE / "target.toml", layout=layout, update=update, reduction=reduction, steps=20)
    assert run.valid, run.explain()
    if update == "async":  # its versions say how stale a gradient is
        assert run.verdicts["A2"].status == "valid"
        assert set(run.verdicts["A2"].stats) == {"mean", "p50", "p95", "max"}
    again = check(run.folder)
    assert again.verdicts == run.verdicts


@pytest.mark.parametrize(
    ("workload", "update"), every(2, product(["dense-ledger", "digits", "quadratic"], ["sync", "async"]))
)
def test_it_trains_what_it_says_it_trains(judge, update, workload):
    options = {"workload": workload, "slow": {"worker:1": 0.005}, **({"model": "mlp"} if workload == "digits" else {})}
    run = judge(HERE / "target.toml", update=update, steps=30, **options)
    assert run.valid, run.explain()
    judged = {"dense-ledger": "C4", "digits": "C1" if update == "sync" else "C2", "quadratic": "C3"}[workload]
    assert run.verdicts[judged].status == "valid"
    if update == "sync":
        assert run.verdicts["S6"].status == "valid"


@pytest.mark.parametrize(("update", "violated"), [("sync", {"S1", "R1"}), ("async", {"A1", "A5", "R1"})])
def test_lost_gradients_are_found(judge, update, violated):
    run = judge(HERE / "target_drop.toml", update=update, steps=12)
    assert set(run.violated) == violated, run.explain()
    assert any("step 3" in line for line in run.verdicts["R1"].witness)


def _variant(tmp_path, old, new):
    """The same trainer with one line changed."""
    source = (HERE / "socket_ps.py").read_text(encoding="utf-8")
    assert old in source
    (tmp_path / "socket_ps.py").write_text(source.replace(old, new), encoding="utf-8")
    (tmp_path / "target.toml").write_text((HERE / "target.toml").read_text(encoding="utf-8"), encoding="utf-8")
    return tmp_path / "target.toml"


@pytest.mark.parametrize(
    ("old", "new", "cause"),
    [
        ("else gradient)", "else np.clip(gradient, -1000, 1000))", "clipping"),
        ("theta[:] -= LEARNING_RATE * (", "theta[:] *= 0.9; theta[:] -= LEARNING_RATE * (", "weight decay"),
        ("theta[:] -= LEARNING_RATE * (", "theta[:] += LEARNING_RATE * (", "gradient ascent"),
        ("theta[:] -= LEARNING_RATE * (", "theta[:] -= 0 * (", "no gradient ever reached"),
    ],
)
def test_what_is_not_linear_is_refused_with_its_cause(judge, tmp_path, old, new, cause):
    with pytest.raises(NotLinear, match=cause) as caught:
        judge(_variant(tmp_path, old, new), update="async")
    assert caught.value.exit_code == 3


def test_wrong_claim_is_violated(judge, tmp_path):
    # it claims the mean and applies the sum: with one worker, where it is calibrated, there is no difference
    target = _variant(tmp_path, 'if options.reduction == "mean" else 1', 'if options.reduction == "nothing" else 1')
    run = judge(target, update="sync")
    assert run.violated == ("S5",), run.explain()
    assert "a sum, not a mean" in run.verdicts["S5"].witness[0]


def test_trainer_that_fails_says_why(judge, tmp_path):
    target = _variant(
        tmp_path, "    for step in range(probe.steps):", "    raise OSError('no disk')\n    for step in []:"
    )
    run = judge(target, update="async")
    assert run.violated == ("L0",), run.explain()
    assert any("failed with status 1: OSError: no disk" in line for line in run.verdicts["L0"].witness)


def test_command_that_does_not_exist_is_named(judge, tmp_path):
    target = _variant(tmp_path, "import argparse", "import argparse")
    text = target.read_text(encoding="utf-8").replace("{python}", "no-such-program")
    target.write_text(text, encoding="utf-8")
    with pytest.raises(PsconformError, match=r"ps:0 cannot be started.*no-such-program"):
        judge(target, update="async")
