"""A round of some workers where one of them reads ahead, while its gradient is under way (``probe.update``)."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from psconform.claims import SYNC
from psconform.history.manifest import Workload
from psconform.layout import Layout
from psconform.probe import UNIT
from psconform.report.text import explain

from .stories import Story
from .test_checks_under_faults import statuses


class Some(Story):
    """Three workers, of which two make a round."""

    def __init__(self, folder, *, steps):
        claims = dataclasses.replace(SYNC, barrier="r-of-n")
        layout = Layout(ps=2, workers=3, update="sync", quorum=2)
        workload = Workload(steps=steps, unit=UNIT / 2)
        super().__init__(folder, steps=steps, workers=3, claims=claims, layout=layout, workload=workload)
        self.version = 0

    def read(self, worker, step=None, **final):
        self.probes[worker].read(self.theta, [self.version] * 2, step=step, shards=range(2), **final)

    def round(self, *workers, step):
        for p in range(2):
            for worker in workers:
                self.theta[p] = self.theta[p] - np.float32(0.5) * self.probes[worker].gradient(step)
        self.version += 1


@pytest.mark.parametrize("versions", [False, True])
@pytest.mark.parametrize("ahead", [(), (0,), (0, 1), (2,)])
def test_a_read_while_a_gradient_is_under_way_is_not_the_one_it_was_computed_at(tmp_path, ahead, versions):
    story = Some(tmp_path / "run", steps=8)
    for worker in range(3):
        story.read(worker, 0)
    for step in range(8):
        taken = (0, 1) if step % 2 == 0 else (1, 2)
        story.round(*taken, step=step)
        for worker, probe in enumerate(story.probes):
            for when in (True, False):
                if when == (worker in ahead) and step < 7:
                    story.read(worker, step + 1)
                if when:
                    named = [story.version] * 2 if versions else None
                    probe.update(step, "ok" if worker in taken else "failed", named)
    story.next_step = lambda worker: 8
    judged = story.finish()
    assert statuses(judged)["S2"] == "valid", explain(judged)
