"""Data-parallel training by the collectives of TensorFlow and of JAX, as their guides have it, restarted as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest

CASES = Path(__file__).parent / "cases"
OPTIONS = {"layout": "ps=0,worker=2", "steps": 16, "checkpoint_every": 4}
BUGS = [
    ("tf-mirrored", "worker:0@10", "chief-only", "S7"),
    ("tf-mirrored", "worker:0@10", "sum", "S5"),
    ("tf-mirrored", "worker:0@10", "local-mean", "S7"),
    ("jax-gloo", "worker:1@14", "psum", "S5"),
    ("jax-gloo", "worker:1@14", "local", "S7"),
    ("jax-gloo", "worker:1@14", "own-checkpoint", "R4"),
]
KILLS = [("tf-mirrored", "worker:1@10"), ("jax-gloo", "worker:1@10"), ("jax-gloo", "worker:0@after-push:10")]
pytestmark = [pytest.mark.engine, pytest.mark.nightly]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("case", "kill"), KILLS)
def test_it_goes_on_from_a_checkpoint(judge, monkeypatch, case, kill, seed):
    monkeypatch.setenv("BUG", "")
    run = judge(CASES / case / "target.toml", **OPTIONS, kill=kill, seed=seed)
    assert run.valid, run.explain()
    assert {run.verdicts[guarantee].status for guarantee in ("S1", "S5", "S7", "R1", "R3", "R4", "M1")} == {"valid"}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("case", "kill", "bug", "guarantee"), BUGS)
def test_a_bug_in_it_is_found(judge, monkeypatch, case, kill, bug, guarantee, seed):
    monkeypatch.setenv("BUG", bug)
    run = judge(CASES / case / "target.toml", **OPTIONS, kill=kill, seed=seed)
    assert guarantee in run.violated, run.explain()


@pytest.mark.parametrize("case", ["tf-mirrored", "jax-gloo"])
@pytest.mark.parametrize("options", [{"workload": "quadratic"}, {"layout": "ps=0,worker=3"}])
def test_it_trains_without_a_fault(judge, monkeypatch, case, options):
    monkeypatch.setenv("BUG", "")
    run = judge(CASES / case / "target.toml", **OPTIONS | options)
    assert run.valid, run.explain()
