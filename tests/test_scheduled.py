"""What the fault scheduler says of each fault once a run is over, and what shows that one was there. No process."""

from __future__ import annotations

import json
import time

import pytest

from psconform.errors import PsconformError
from psconform.faults.control import Control
from psconform.faults.injectors import Injector
from psconform.faults.plan_file import parse_plan
from psconform.history.reasons import Missed
from psconform.layout import Layout, Task
from psconform.probe import EventLog
from psconform.runner.fault_scheduler import REACTS_S, FaultScheduler, State

from .scenes import scene_of


class Told(Injector):
    """A fault of which the test says what is seen of it."""

    holds = False
    refuses = shows = shows_end = ""

    def refused(self):
        return self.refuses

    def inject(self):
        pass

    def evidence(self):
        return self.shows

    def healed(self):
        return self.shows_end

    def ended(self, status):
        return status == -9


class Kills(Told):
    ends = starts = True


class Scheduled:
    """Faults of a plan, each with what is said of it; those that are due are injected."""

    def __init__(self, folder, plan, kind=Told, **said):
        self.path = folder / "psconform-0.jsonl"
        self.log = EventLog(self.path, run="run", task="psconform:0", incarnation=0)
        faults = parse_plan(f"fault = [{plan}]", place="plan", layout=Layout(ps=2, workers=2), steps=20)
        self.injectors = [kind(fault, scene_of(fault)) for fault in faults]
        for injector in self.injectors:
            vars(injector).update(said)
        self.control = Control()
        pairs = dict(zip(faults, self.injectors, strict=True))
        self.scheduler = FaultScheduler(pairs, self.control, self.log, restart=lambda _: None)
        self.scheduler.tick(heard_s=0.0)

    def end(self):
        """As a run does; what is missing, and of each fault in the record whether it was observed."""
        self.scheduler.heal_all()
        missing = self.scheduler.missing()
        self.scheduler.record_attempts()
        self.control.close()
        self.log.close()
        events = map(json.loads, self.path.read_text(encoding="utf-8").splitlines())
        told = [event.get("observed", True) for event in events if event["kind"] == "fault" and event["on"]]
        return [(each.how, each.why) for each in missing], told


STOP = '{kind = "stop", task = "worker:1", at = "0s", for = "900s"}'
KILL = '{kind = "kill", task = "worker:1", at = "0s", restart_after = "never"}'
STALL = '{kind = "stall", links = "worker:1->ps:0", at = "0s", for = "900s"}'


@pytest.mark.parametrize(
    ("plan", "said", "missing", "told"),
    [
        (STOP.replace('"0s"', '"900s"'), {}, [(Missed.NEVER_INJECTED, "training did not get there")], []),
        (STOP, {"refuses": "it has ended"}, [(Missed.REFUSED, "it has ended")], []),
        (STOP, {"unseen": "nobody looks"}, [(Missed.NOT_OBSERVED, "nobody looks")], [False]),
        (STOP, {"shows_end": "it goes on"}, [(Missed.NOT_OBSERVED, "")], [False]),
        (STOP, {"shows": "it stands"}, [(Missed.LEFT_UNHEALED, "")], [True]),
        (STOP, {"shows": "it stands", "shows_end": "it goes on"}, [], [True]),
        (KILL, {"shows": "it has ended"}, [], [True]),
    ],
)
def test_what_is_said_of_a_fault_when_the_run_is_over(tmp_path, plan, said, missing, told):
    """One that was injected and not observed is in the record all the same, as that."""
    scheduled = Scheduled(tmp_path, plan, Kills if plan == KILL else Told, **said)
    scheduled.scheduler.tick(heard_s=0.0)
    assert scheduled.end() == (missing, told)


def test_a_fault_that_fails_while_it_is_injected_may_have_taken_effect(tmp_path):
    def fails():
        raise PsconformError("it does not answer")

    assert Scheduled(tmp_path, STOP, inject=fails).end() == ([(Missed.NOT_OBSERVED, "it does not answer")], [False])


@pytest.mark.parametrize(
    ("task", "said", "observed"),
    [
        ("worker:1", {}, True),
        ("ps:0", {}, True),
        ("worker:0", {}, False),
        ("worker:1", {"unseen": "it is slow"}, False),
    ],
)
def test_who_is_cut_off_shows_that_its_link_was_disturbed(tmp_path, task, said, observed):
    """Any task of the link does, but not another, nor where what happens shows nothing."""
    scheduled = Scheduled(tmp_path, STALL, **said)
    scheduled.scheduler.reported(Task.parse(task))
    assert scheduled.end()[1] == [observed]


def test_long_after_a_fault_has_begun_that_shows_nothing(tmp_path):
    scheduled = Scheduled(tmp_path, STALL)
    scheduled.scheduler._all[0].since -= 2 * REACTS_S
    scheduled.scheduler.reported(Task("worker", 1))
    assert scheduled.end()[1] == [False]


@pytest.mark.parametrize("ago_s", [0.0, 2 * REACTS_S])
def test_of_two_faults_of_a_link_nobody_can_tell_which_it_was(tmp_path, ago_s):
    """Also of one that began long ago and has not ended."""
    scheduled = Scheduled(tmp_path, f"{STALL}, {STALL.replace('900s', '901s')}")
    one = scheduled.scheduler._all[0]
    one.since, one.on_ns = one.since - ago_s, one.on_ns - int(ago_s * 1e9)
    scheduled.scheduler.reported(Task("worker", 1))
    assert scheduled.end()[1] == [False, False]


def test_one_that_was_over_long_ago_was_not_it(tmp_path):
    scheduled = Scheduled(tmp_path, f"{STALL.replace('900s', '1ms')}, {STALL}", shows_end="it passes")
    one, deadline = scheduled.scheduler._all[0], time.monotonic() + 200.0
    while one.state is not State.FAILED:  # it was not observed
        assert time.monotonic() < deadline
        scheduled.scheduler.tick(heard_s=0.0)
    one.on_ns, one.off_ns = (at - int(2 * REACTS_S * 1e9) for at in (one.on_ns, one.off_ns))
    scheduled.scheduler.reported(Task("worker", 1))
    assert scheduled.end()[1] == [True, False]  # observed first, and the attempts at the end


@pytest.mark.parametrize(("seen", "how"), [(True, Missed.RECORD_WENT_ON), (False, Missed.NOT_OBSERVED)])
def test_a_record_that_goes_on_shows_that_what_was_seen_to_end_did_not(tmp_path, seen, how):
    """Of another task it says nothing, nor of a kill that was not seen to end anything."""
    both = f"{KILL}, {KILL.replace('worker:1', 'worker:0')}"
    scheduled = Scheduled(tmp_path, both, Kills)
    assert scheduled.scheduler.killed(Task("worker", 0), -9)
    if seen:
        assert scheduled.scheduler.killed(Task("worker", 1), -9)
    scheduled.scheduler.went_on(Task("worker", 1), "it grew")
    missing, _ = scheduled.end()
    assert [each for each, _ in missing] == [how]


def test_who_ends_before_it_is_killed_does_not_return(tmp_path):
    scheduled = Scheduled(tmp_path, KILL.replace("never", "1s").replace('"0s"', '"900s"'), Kills)
    assert not scheduled.scheduler.returns(Task("worker", 1))
    scheduled.end()
