"""Where workers with GPUs compute: read from what TensorFlow says of a step, and held against the layout."""

from __future__ import annotations

import pytest

from .simulate import Trainer


class Towers(Trainer):
    """Workers with three emulated GPUs each; ``where``: the devices that worker:1 says, None: it does not say."""

    where: list[str] | None = None

    def initialise(self):
        self.probes[0].devices(["CPU:0", "CPU:1", "CPU:2"])
        if self.where is not None:
            self.probes[1].devices(self.where)
        super().initialise()


def judged(folder, names):
    trainer = Towers(gpus=3, emulated=True, steps=10)
    trainer.where = names
    return trainer.judge(folder / "run")


@pytest.mark.tensorflow
def test_towers_ran_where_they_were_put(judge):
    run = judge(layout="ps=1,worker=2,gpus=3", emulate_gpus=True, steps=10)
    assert run.valid, run.explain()
    assert "devices (emulated GPUs): worker:0 on CPU:0, CPU:1, CPU:2; worker:1 on CPU:0, CPU:1, CPU:2" in run.explain()
    assert "3 emulated GPU(s) each" in run.explain()


@pytest.mark.parametrize("names", [["CPU:0", "CPU:0", "CPU:0"], ["CPU:0", "CPU:1"], []])
def test_a_worker_that_computed_elsewhere_shows_nothing(tmp_path, names):
    assert judged(tmp_path / "healthy", ["CPU:0", "CPU:1", "CPU:2"]).exit_code == 0
    found = judged(tmp_path / "elsewhere", names)
    assert found.exit_code == 2
    assert any(gap.startswith("worker:1 computed on") for gap in found.history.gaps)


def test_a_worker_that_does_not_say_is_mentioned(tmp_path):
    found = judged(tmp_path, None)
    assert found.exit_code == 0
    assert "worker:1 did not say on which devices they compute (probe.devices)" in found.history.notes
