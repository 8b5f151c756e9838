"""How long no task may make progress: the runner's loop, whose clock a test tells. Starts no process."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from psconform.history.reasons import Decided, NoEnd, NoProgress
from psconform.layout import Task
from psconform.runner import execute, progress

WORKER = Task("worker", 0)
LOOK_S = 0.5


class Loop(execute._Execution):
    """One worker that runs until it is stopped. A test says when what it looks at changes."""

    def __init__(
        self,
        *,
        closed=False,
        until_s=0.0,
        lasts_s=0.0,
        moves=(),
        acked=1,
        patience_s=3.0,
        drop_after=0.0,
        failed=False,
        violated=(),
        faults=(),
        timed=False,
        seconds=(),
    ):
        self.now, self.moves, self.closed = 0.0, moves, closed
        self.plan = SimpleNamespace(patience_s=patience_s, learns=False, faults=faults)
        self.layout = SimpleNamespace(worker_tasks=(WORKER,), drop_after=drop_after)
        self.states = {WORKER: "running", **({Task("ps", 0): "failed"} if failed else {})}
        self.records, self.launcher = SimpleNamespace(acked=acked), SimpleNamespace(running=[WORKER])
        self.folder, self.lives, self.reasons, self.slowest_s = None, {}, [], 0.0
        self.manifest, self.seconds, self.timed = None, dict.fromkeys(seconds), timed
        self.violated, self.judged = violated, []
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
        monkeypatch.setattr(execute, "load_history", lambda *_: loop.judged.append(loop.now))
        monkeypatch.setattr(execute, "violated_for_good", lambda _: loop.violated if loop.now >= 10 else ())
        loop._follow()
        (reason,) = loop.reasons
        assert loop.status == {NoProgress: "stalled", Decided: "decided", NoEnd: "finished"}[type(reason)]
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


OUTSIDE, POISON = SimpleNamespace(outside=True), SimpleNamespace(outside=False)


@pytest.mark.parametrize(
    ("said", "after_s"),
    [
        ({}, 10.5),
        ({"faults": (OUTSIDE,)}, 10.5),
        ({"lasts_s": 5.0}, 4.5 + 10.5),  # a fault lasts
        ({"moves": (1.0, 2.5)}, 2.5 + 10 * 1.5 + LOOK_S),  # ten times the longest silence
        ({"violated": ()}, 60.5),
        ({"faults": (POISON,)}, 60.5),  # what it was excuses, its worker may still have to record
        ({"timed": True}, 60.5),  # a fault is still to come
        ({"seconds": (7,)}, 60.5),  # whose record is not that of its task
        ({"drop_after": 1.0}, 61.5),  # the job may still say that it went on without a worker
    ],
)
def test_a_run_that_is_violated_for_good_is_not_waited_for(stopped, said, after_s):
    at_s, reason = stopped(**{"violated": ("S1",), "patience_s": 60.0, **said})
    assert at_s == after_s
    assert isinstance(reason, Decided if after_s < 60 else NoProgress)


def test_who_has_failed_is_not_waited_for_as_before(stopped):
    at_s, reason = stopped(violated=("S1",), failed=True, patience_s=60.0)
    assert (at_s, reason) == (3.5, NoProgress(3.0))
