"""TensorFlow's MultiWorkerMirroredStrategy, as its guide has it, in a job that is restarted as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest

TARGET = Path(__file__).parent / "cases" / "tf-mirrored" / "target.toml"
OPTIONS = {"layout": "ps=0,worker=2", "steps": 16, "checkpoint_every": 4}
pytestmark = [pytest.mark.engine, pytest.mark.nightly]


@pytest.mark.parametrize("seed", range(5))
def test_it_goes_on_from_a_checkpoint(judge, monkeypatch, seed):
    monkeypatch.setenv("BUG", "")
    run = judge(TARGET, **OPTIONS, kill="worker:1@10", seed=seed)
    assert run.valid, run.explain()
    assert {run.verdicts[guarantee].status for guarantee in ("S1", "S5", "S7", "R1", "R3", "R4", "M1")} == {"valid"}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("bug", "guarantee"), [("chief-only", "S7"), ("sum", "S5"), ("local-mean", "S7")])
def test_a_bug_in_it_is_found(judge, monkeypatch, bug, guarantee, seed):
    monkeypatch.setenv("BUG", bug)
    run = judge(TARGET, **OPTIONS, kill="worker:0@10", seed=seed)
    assert guarantee in run.violated, run.explain()


@pytest.mark.parametrize("options", [{"workload": "quadratic"}, {"layout": "ps=0,worker=3"}])
def test_it_trains_without_a_fault(judge, monkeypatch, options):
    monkeypatch.setenv("BUG", "")
    run = judge(TARGET, **OPTIONS | options)
    assert run.valid, run.explain()
