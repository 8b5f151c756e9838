"""How long no task may make progress: the runner's loop, whose clock a test tells. Starts no process."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from psconform.history.reasons import NoEnd, NoProgress
from psconform.layout import Task
from psconform.runner import execute, progress

WORKER = Task("worker", 0)
LOOK_S = 0.5


class Loop(execute._Execution):
    """One worker that runs until it is stopped. A test says when what it looks at changes."""

    def __init__(
        self, *, closed=False, until_s=0.0, lasts_s=0.0, moves=(), acked=1, patience_s=3.0, drop_after=0.0, failed=False
    ):
        self.now, self.moves, self.closed = 0.0, moves, closed
        self.plan = SimpleNamespace(patience_s=patience_s, learns=False)
        self.layout = SimpleNamespace(worker_tasks=(WORKER,), drop_after=drop_after)
        self.states = {WORKER: "running", **({Task("ps", 0): "failed"} if failed else {})}
        self.records, self.launcher = SimpleNamespace(acked=acked), SimpleNamespace(running=[WORKER])
        self.folder, self.lives, self.reasons, self.stalled, self.slowest_s = None, {}, [], False, 0.0
        self.scheduler, self.until_s, self.lasts_s = self, until_s, lasts_s
        self.starting, self.attempted = False, bool(until_s or lasts_s)
        self.clock = lambda: self.now

    @property
    def pending(self):
        return self.now < self.until_s

    @property
    def lasting(self):
        return self.now < self.lasts_s

    def tick(self, *, heard_s):
        pass

    def _poll(self):
        self.now += LOOK_S
        return self.now in self.moves

    def _grown(self):
        return False

    def _comes_up(self):
        return False

    def _too_large(self):
        return False

    def _all_closed(self):
        return self.closed

    def _notify(self):
        pass


@pytest.fixture
def stopped(monkeypatch):
    """When psconform ends the run, and why."""
    monkeypatch.setattr(execute, "ask_for_stacks", lambda *_: None)

    def follow(**said):
        loop = Loop(**said)
        loop._follow()
        (reason,) = loop.reasons
        assert loop.stalled is isinstance(reason, NoProgress)
        return loop.now, reason

    return follow


@pytest.mark.parametrize(
    ("said", "after_s"),
    [
        ({}, 3.5),
        ({"moves": (1.0, 2.0)}, 2.0 + 10 * 1.0 + LOOK_S),  # ten times the longest silence
        ({"acked": 0}, 60.5),  # nobody has had an answer yet
        ({"acked": 0, "patience_s": 90.0}, 90.5),
        ({"acked": 0, "moves": (30.0,)}, 30.0 + 60.5),  # how long a start takes is no pace
        ({"drop_after": 10.0}, 13.5),  # they may wait so long for one that is gone
        ({"failed": True, "patience_s": 60.0}, 3.5),  # the others may wait for who has failed
        ({"lasts_s": 10.0}, 9.5 + 3.5),  # a fault lasts
        ({"until_s": 10.0}, 10.0),  # or is taken away, and nothing has shown yet that it is over
        ({"lasts_s": 6.0, "moves": (1.0, 6.0)}, 6.0 + 3.5),  # a silence in which it does is nobody's pace
    ],
)
def test_a_silence_is_a_hang_after(stopped, said, after_s):
    at_s, reason = stopped(**said)
    assert at_s == after_s
    assert isinstance(reason, NoProgress)


def test_who_has_closed_its_record_has_ten_times_as_long(stopped):
    assert stopped(closed=True) == (30.5, NoEnd(("worker:0",), 30.5))


def test_the_time_in_which_psconform_was_stopped_is_no_silence(monkeypatch):
    now = 100.0
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now))
    clock = progress.AwakeClock()
    began = clock()
    for passed in (0.05, 0.05, 15.0, 0.1):
        now += passed
        clock()
    assert clock() - began == pytest.approx(0.2 + progress.LOOK_S)
