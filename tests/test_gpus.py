"""Where workers with GPUs compute: read from what TensorFlow says of a step, and held against the layout."""

from __future__ import annotations

import json
import shutil

import pytest

from psconform.runner.verdicts import judge_folder

from .mutations import measured, rechained

pytestmark = pytest.mark.tensorflow
LAYOUT = "ps=1,worker=2,gpus=3"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A healthy cluster with emulated GPUs."""
    from psconform import judge

    return judge(layout=LAYOUT, emulate_gpus=True, steps=10, out=tmp_path_factory.mktemp("gpus") / "run")


def changed(run, tmp_path, change):
    """A copy of the run in which worker:1 says something else of its devices; None: nothing."""
    folder = tmp_path / "copy"
    shutil.copytree(run.folder, folder)
    path = folder / "events" / "worker-1.jsonl"
    events = [json.loads(line) for line in path.read_bytes().splitlines()]
    kept = [change(event) if event["kind"] == "devices" else event for event in events]
    path.write_bytes(b"".join(rechained([json.dumps(event).encode() for event in kept if event])))
    measured(folder)
    return judge_folder(folder)


def test_towers_ran_where_they_were_put(run):
    assert run.valid, run.explain()
    assert "devices (emulated GPUs): worker:0 on CPU:0, CPU:1, CPU:2; worker:1 on CPU:0, CPU:1, CPU:2" in run.explain()
    assert "3 emulated GPU(s) each" in run.explain()


@pytest.mark.parametrize("names", [["CPU:0", "CPU:0", "CPU:0"], ["CPU:0", "CPU:1"], []])
def test_a_worker_that_computed_elsewhere_shows_nothing(names, run, tmp_path):
    judged = changed(run, tmp_path, lambda event: {**event, "names": names})
    assert judged.exit_code == 2
    assert any(gap.startswith("worker:1 computed on") for gap in judged.history.gaps)


def test_a_worker_that_does_not_say_is_mentioned(run, tmp_path):
    judged = changed(run, tmp_path, lambda event: None)
    assert judged.exit_code == 0
    assert "worker:1 did not say on which devices they compute (probe.devices)" in judged.history.notes
