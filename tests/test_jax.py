"""JAX on several processes, with gloo, in a job that is restarted as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest

TARGET = Path(__file__).parent / "cases" / "jax-gloo" / "target.toml"
OPTIONS = {"layout": "ps=0,worker=2", "steps": 16, "checkpoint_every": 4}
pytestmark = [pytest.mark.engine, pytest.mark.nightly]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kill", ["worker:1@10", "worker:0@after-push:10"])
def test_it_goes_on_from_a_checkpoint(judge, monkeypatch, kill, seed):
    monkeypatch.setenv("BUG", "")
    run = judge(TARGET, **OPTIONS, kill=kill, seed=seed)
    assert run.valid, run.explain()
    assert {run.verdicts[guarantee].status for guarantee in ("S1", "S5", "S7", "R1", "R3", "R4", "M1")} == {"valid"}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("bug", "guarantee"), [("psum", "S5"), ("local", "S7"), ("own-checkpoint", "R4")])
def test_a_bug_in_it_is_found(judge, monkeypatch, bug, guarantee, seed):
    monkeypatch.setenv("BUG", bug)
    run = judge(TARGET, **OPTIONS, kill="worker:1@14", seed=seed)
    assert guarantee in run.violated, run.explain()


@pytest.mark.parametrize("options", [{"workload": "quadratic"}, {"layout": "ps=0,worker=3"}])
def test_it_trains_without_a_fault(judge, monkeypatch, options):
    monkeypatch.setenv("BUG", "")
    run = judge(TARGET, **OPTIONS | options)
    assert run.valid, run.explain()
