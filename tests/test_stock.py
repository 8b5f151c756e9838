"""examples/stock: TensorFlow's own recipe, which is valid on a good day, and what its README says of bad ones."""

from __future__ import annotations

from pathlib import Path

import pytest

TARGET = Path(__file__).parent.parent / "examples" / "stock" / "target.toml"
pytestmark = pytest.mark.nightly


@pytest.mark.parametrize("update", ["sync", "async"])
def test_a_good_day(judge, update):
    run = judge(TARGET, layout="ps=1,worker=2", update=update, steps=30)
    assert run.valid, run.explain()


def test_a_ps_is_killed_and_nobody_is_told_what_was_lost(judge):
    options = {"layout": "ps=1,worker=2", "update": "async", "steps": 120, "restart_after": "0s"}
    # before the first checkpoint after the one at the start: right behind one there is next to nothing to lose
    run = judge(TARGET, kill=["ps:0@20"], **options)
    assert {"R1", "R3", "A5"} <= set(run.violated), run.explain()
    assert any("lost" in line for line in run.verdicts["R1"].witness)
    assert run.verdicts["L1"].status == "valid"


def test_a_sync_worker_is_killed_and_the_job_hangs(judge):
    # psconform does not wait for the hang: what is violated by then stays violated
    run = judge(TARGET, layout="ps=1,worker=2", steps=30, kill=["worker:1@10"], patience_s=40)
    assert {"R1", "R2", "S1"} <= set(run.violated), run.explain()
    assert run.as_dict()["status"] == "decided"
