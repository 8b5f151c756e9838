"""A gradient that was refused, and shows all the same: proof (R1), unless an attempt may be missing from the record."""

from __future__ import annotations

import time

import numpy as np
import pytest

from psconform.history.columns import OK, UNKNOWN, Odd, Pushes, Reads
from psconform.history.decode import _refused
from psconform.report.text import explain

from .stories import Story
from .test_checks_under_faults import statuses


@pytest.mark.parametrize("came_back", [False, True])
@pytest.mark.parametrize("killed", [False, True])
def test_an_attempt_that_was_a_slip_may_be_the_one_that_was_applied(tmp_path, came_back, killed):
    story = Story(tmp_path / "run")
    story.step(0, 3)
    story.step(1, 3)
    story.read(1, 3)
    story.probes[1].push(2**70)  # its own number of that step: not recorded, but sent
    for p in range(2):
        story.put(p, 1, 3)
    if came_back:
        story.kill("worker:1")
        story.back(1, step=3)
        story.read(1, 3)
    story.probes[1].push(3)
    story.probes[1].ack(3, "failed")  # it is there already
    story.step(1)
    if killed:
        story.kill("worker:1")
        story.next_step = lambda worker: min(applied[0] for applied in story.applied) if not worker else 12
    judged = story.finish()
    assert statuses(judged)["R1"] == "unknown", explain(judged)


def test_refused_gradients_of_a_killed_worker_take_no_time():
    """64 workers of which half are late for every round, 312 steps."""
    workers, steps = 64, 312
    step, none = np.arange(steps), np.zeros(steps, np.int64)
    cells = np.array([(0, w, s, s + 1) for w in range(workers) for s in range(steps - 1) if (w + s) % 2]).T
    nothing = np.zeros(cells.shape[1])
    odd = Odd(*cells, np.full(cells.shape[1], steps), nothing, nothing).sorted()
    clock = np.tile(step[:, None, None], (1, 1, workers))
    reads = Reads(step, none, none > 0, none, none, clock, np.ones((steps, 1)), None, odd, none, none)
    outcome = np.where(step % 2, UNKNOWN, OK)
    counts = {"attempts": none + 1, "outcome": outcome, "width": none, "versions": none[:, None], "refused": step % 2}
    places = {"read": step, "first": step * 3 + 1, "last": step * 3 + 1, "at": step, "answered": step, "epoch": none}
    before = time.perf_counter()
    assert (_refused(Pushes(step=step, **counts, **places), reads, step * 3, worker=0).outcome == outcome).all()
    assert time.perf_counter() - before < 1.0
