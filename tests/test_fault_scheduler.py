"""When faults are injected and heal: arrivals of tasks, in the order in which they may come."""

from __future__ import annotations

import json
import socket
import time
from dataclasses import replace

import pytest

from psconform.errors import PsconformError
from psconform.faults.cli_syntax import parse_faults
from psconform.faults.control import Control
from psconform.faults.plan_file import parse_plan
from psconform.faults.process_faults import Stops
from psconform.history.build import _faults as faults_of
from psconform.history.reader import read_events
from psconform.history.reasons import Missed
from psconform.launchers.local import LocalLauncher
from psconform.layout import Command, Layout, Task
from psconform.probe import EventLog
from psconform.runner.fault_scheduler import STANDSTILL_S, FaultScheduler, State

from .scenes import injector_of, scene_of
from .test_interrupt import until

pytestmark = pytest.mark.engine

VICTIM = Task("worker", 1)
LONG_S = 20.0


@pytest.fixture
def launcher(tmp_path):
    with LocalLauncher() as launcher:
        launcher.start(VICTIM, Command(("sleep", "1000")), log=tmp_path / "log")
        yield launcher


def sentences(scheduler):
    return [str(missed) for missed in scheduler.missing()]


def arrive(control, task, step, phase="before-push"):
    """As a probe does that is at a phase at which a fault is to be injected."""
    host, _, port = control.address.rpartition(":")
    line = socket.create_connection((host, int(port)))
    line.sendall(json.dumps({"task": task, "phase": phase, "step": step}).encode() + b"\n")
    return line


def test_the_step_that_ends_a_fault_may_come_with_the_one_that_begins_it(launcher, tmp_path):
    """Async: another worker is far ahead. Whoever is held there must be let go, and the fault still scheduler."""
    (fault,) = parse_faults(stop=["worker:1@4..9"], restart_after="1s", layout=Layout(ps=1, workers=2), steps=20)
    log = EventLog(tmp_path / "psconform-0.jsonl", run="run", task="psconform:0", incarnation=0)
    with Control() as control, arrive(control, "worker:1", 4) as held, arrive(control, "worker:0", 9) as ahead:
        injectors = {fault: injector_of(fault, processes=launcher)}
        scheduler = FaultScheduler(injectors, control, log, restart=lambda _: None)
        for line in (held, ahead):
            line.setblocking(False)
        released, deadline = set(), time.monotonic() + LONG_S
        while released != {held, ahead} or scheduler.pending or scheduler.missing():
            assert time.monotonic() < deadline, (len(released), scheduler.missing())
            scheduler.tick(heard_s=0.0)  # nor does it last until everybody stands still
            for line in {held, ahead} - released:
                try:
                    assert line.recv(16) == b"go\n"
                except BlockingIOError:
                    continue
                released.add(line)
            time.sleep(0.01)
    log.close()
    events = [json.loads(line) for line in (tmp_path / "psconform-0.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [event["on"] for event in events if event["kind"] == "fault"] == [True, False]
    assert launcher.state(VICTIM) not in ("T", "")


@pytest.mark.parametrize(("status", "missing"), [(0, 0), (1, 0), (-9, 1)])
def test_who_goes_on_and_ends_before_anybody_looks_has_gone_on(launcher, tmp_path, status, missing):
    """Short work: between SIGCONT and the next look it is over. A signal may have come while it was stopped."""
    (fault,) = parse_faults(stop=["worker:1@0s..100ms"], restart_after="1s", layout=Layout(ps=1, workers=2), steps=20)
    log = EventLog(tmp_path / "psconform-0.jsonl", run="run", task="psconform:0", incarnation=0)
    with Control() as control:
        injectors = {fault: injector_of(fault, processes=launcher)}
        scheduler = FaultScheduler(injectors, control, log, restart=lambda _: None)
        (one,), deadline = scheduler._all, time.monotonic() + LONG_S
        while one.state is not State.HEALING:
            assert time.monotonic() < deadline
            scheduler.tick(heard_s=0.0)
        assert not scheduler.killed(VICTIM, status)
        assert len(scheduler.missing()) == missing
    log.close()


@pytest.mark.parametrize(
    ("fails", "says"),
    [
        ("inject", "was not observed"),
        ("evidence", "was not observed"),
        ("heal", "did not heal"),
        ("healed", "did not heal"),
    ],
)
def test_what_cannot_be_done_is_named_and_the_run_goes_on(launcher, tmp_path, fails, says):
    """Somebody else has reset the Toxiproxy that it uses, or ended it, or it does not answer."""

    class Stuck(Stops):
        def __getattribute__(self, name):
            does = super().__getattribute__(name)

            def stuck():
                does()
                raise PsconformError("Toxiproxy at X: toxic not found")

            return stuck if name == fails else does

    (fault,) = parse_faults(stop=["worker:1@0s..100ms"], restart_after="1s", layout=Layout(ps=1, workers=2), steps=20)
    log = EventLog(tmp_path / "psconform-0.jsonl", run="run", task="psconform:0", incarnation=0)
    with Control() as control:
        stuck = Stuck(fault, scene_of(fault, processes=launcher))
        scheduler = FaultScheduler({fault: stuck}, control, log, restart=lambda _: None)
        deadline = time.monotonic() + LONG_S
        while "toxic" not in "".join(map(str, scheduler.missing())):
            assert time.monotonic() < deadline, scheduler.missing()
            scheduler.tick(heard_s=0.0)
        assert not scheduler.pending
        scheduler.heal_all()
        assert sentences(scheduler) == [f"fault {fault.words} {says}: Toxiproxy at X: toxic not found"]
    until(lambda: launcher.state(VICTIM) != "T")  # it is healed as far as that goes
    log.close()


class Slows(Stops):
    """Takes effect when something passes, which may be a while after it was brought about."""

    holds, lingers, passed, alone = False, True, "", ""

    def inject(self):
        self.done = [time.monotonic()]

    def evidence(self):
        return self.passed

    def heal(self):
        self.done.append(time.monotonic())

    def healed(self):
        return "something passed"


@pytest.mark.parametrize("passes", [True, False])
def test_what_slows_a_link_lasts_until_something_has_passed(launcher, tmp_path, passes):
    (fault,) = parse_faults(stop=["worker:1@0s..100ms"], restart_after="1s", layout=Layout(ps=1, workers=2), steps=20)
    fault = replace(fault, until=None, lasts_s=0.1)
    slows = Slows(fault, scene_of(fault, processes=launcher))
    slows.effect_s = 0.5
    log = EventLog(tmp_path / "psconform-0.jsonl", run="run", task="psconform:0", incarnation=0)
    with Control() as control:
        scheduler = FaultScheduler({fault: slows}, control, log, restart=lambda _: None)
        (one,), deadline = scheduler._all, time.monotonic() + LONG_S
        while one.state not in (State.HEALED, State.FAILED):
            assert time.monotonic() < deadline
            scheduler.tick(heard_s=0.0)
            if passes and one.state is State.INJECTED and time.monotonic() > one.since + 0.3:
                slows.passed = "5 bytes passed"
    log.close()
    began, ended = slows.done
    assert ended - began >= (0.3 if passes else 0.6)
    assert bool(scheduler.missing()) is not passes


@pytest.mark.parametrize("passes", [True, False])
def test_nor_is_it_over_at_the_step_that_ends_it(launcher, tmp_path, passes):
    """Another worker may get there before the one whose link it is has sent anything."""
    (fault,) = parse_faults(stop=["worker:1@4..5"], restart_after="1s", layout=Layout(ps=1, workers=2), steps=20)
    slows = Slows(fault, scene_of(fault, processes=launcher))
    slows.effect_s = 0.5
    log = EventLog(tmp_path / "psconform-0.jsonl", run="run", task="psconform:0", incarnation=0)
    with Control() as control, arrive(control, "worker:1", 4), arrive(control, "worker:1", 5):
        scheduler = FaultScheduler({fault: slows}, control, log, restart=lambda _: None)
        deadline = time.monotonic() + LONG_S
        (one,) = scheduler._all
        while one.state not in (State.HEALED, State.FAILED):
            assert time.monotonic() < deadline
            scheduler.tick(heard_s=0.0)
            if passes and one.past_s is not None and time.monotonic() > one.past_s + 0.3:
                slows.passed = "5 bytes passed"
    log.close()
    began, ended = slows.done
    assert ended - began >= (0.3 if passes else 0.5)
    assert bool(scheduler.missing()) is not passes


def test_a_worker_waits_for_a_look_at_its_links_once_it_has_an_answer(launcher, tmp_path):
    """It may have no steps left, and its connections go with it: what they show is seen now or never."""
    (fault,) = parse_plan(
        'fault = [{kind = "slice", links = "worker:1->ps:0", at = 4, until = 9}]',
        place="plan",
        layout=Layout(ps=1, workers=2),
        steps=10,
    )
    log = EventLog(tmp_path / "psconform-0.jsonl", run="run", task="psconform:0", incarnation=0)

    class Brief(Slows):
        """What shows the fault, and its end, is there only while the worker waits."""

        worker = None

        def _waits(self):
            try:
                return self.worker is not None and not self.worker.recv(16, socket.MSG_PEEK)
            except BlockingIOError:
                return True

        def evidence(self):
            return "5 bytes passed" if self._waits() else ""

        def healed(self):
            return "3 bytes came through" if self._waits() else ""

    victim = replace(fault, task=VICTIM, region="")
    brief = Brief(victim, scene_of(victim, processes=launcher))
    with Control() as control:
        scheduler = FaultScheduler({fault: brief}, control, log, restart=lambda _: None)
        (one,) = scheduler._all
        for step, phase, state in (
            (4, "before-push", State.INJECTED),
            (4, "after-push", State.OBSERVED),
            (9, "before-push", State.HEALING),
            (9, "after-push", State.HEALED),
        ):
            with arrive(control, "worker:1", step, phase) as line:
                line.setblocking(False)
                brief.worker = line if phase == "after-push" else None
                deadline = time.monotonic() + LONG_S
                while one.state is not state:
                    assert time.monotonic() < deadline, (step, phase, one.state)
                    scheduler.tick(heard_s=0.0)
    log.close()
    assert not scheduler.missing()


def test_that_nobody_makes_progress_does_not_end_what_nobody_has_met_yet(launcher, tmp_path):
    """Say because a ps is restored: what waits is not what it holds up."""
    (fault,) = parse_faults(stop=["worker:1@4..9"], restart_after="1s", layout=Layout(ps=1, workers=2), steps=20)
    slows = Slows(fault, scene_of(fault, processes=launcher))
    log = EventLog(tmp_path / "psconform-0.jsonl", run="run", task="psconform:0", incarnation=0)
    with Control() as control, arrive(control, "worker:1", 4):
        scheduler = FaultScheduler({fault: slows}, control, log, restart=lambda _: None)
        (one,), began = scheduler._all, time.monotonic()
        while one.state is not State.HEALED:
            assert time.monotonic() < began + LONG_S
            scheduler.tick(heard_s=time.monotonic() - began)
            slows.passed = "5 bytes" if time.monotonic() - began > 1.5 * STANDSTILL_S else ""
            time.sleep(0.01)
        assert one.observed
    log.close()


@pytest.mark.parametrize(("again", "status"), [(True, 0), (True, 1), (False, 0)])
def test_who_is_done_just_when_it_is_to_be_killed_again_is_done(launcher, tmp_path, again, status):
    """A crash loop whose victim ends between psconform's signal and its effect; a first kill has to be seen."""
    (fault,) = parse_faults(kill=["worker:1@4"], restart_after="0s", layout=Layout(ps=1, workers=2), steps=20)
    loop = replace(fault, kind="crash-loop", amounts=(("times", 3), ("lives_ms", 50)))
    log = EventLog(tmp_path / "psconform-0.jsonl", run="run", task="psconform:0", incarnation=0)
    with Control() as control, arrive(control, "worker:1", 4):
        ends = injector_of(loop, processes=launcher)
        scheduler = FaultScheduler({loop: ends}, control, log, restart=lambda _: None)
        deadline = time.monotonic() + LONG_S
        (one,) = scheduler._all
        while one.state is not State.INJECTED:
            assert time.monotonic() < deadline
            scheduler.tick(heard_s=0.0)
        if again:
            assert scheduler.killed(VICTIM, -9)
            while one.again is None or one.state is not State.INJECTED:
                assert time.monotonic() < deadline
                scheduler.tick(heard_s=0.0)
        assert not scheduler.killed(VICTIM, status)
    log.close()
    assert bool(scheduler.missing()) is not (again and status == 0)


@pytest.mark.parametrize(
    ("status", "done", "struck"), [(-15, True, True), (3, False, True), (0, True, False), (-11, False, False)]
)
def test_who_ends_only_once_all_is_done_or_by_another_signal_has_not_heeded_sigterm(
    launcher, tmp_path, status, done, struck
):
    text = 'fault = [{kind = "term", task = "worker:1", at = 4, restart_after = "0s"}]'
    (fault,) = parse_plan(text, place="plan", layout=Layout(ps=1, workers=2), steps=20)
    log = EventLog(tmp_path / "psconform-0.jsonl", run="run", task="psconform:0", incarnation=0)
    with Control() as control, arrive(control, "worker:1", 4):
        ends = injector_of(fault, processes=launcher, done=lambda task: done)
        scheduler = FaultScheduler({fault: ends}, control, log, restart=lambda _: None)
        deadline = time.monotonic() + LONG_S
        while not scheduler.pending:
            assert time.monotonic() < deadline
            scheduler.tick(heard_s=0.0)
        assert scheduler.killed(VICTIM, status) is struck
    log.close()
    (missed,) = scheduler.missing()
    assert (missed.how, missed.why) == (
        (Missed.LEFT_UNHEALED, "") if struck else (Missed.NOT_OBSERVED, "worker:1 ended by itself")
    )


def test_two_alike_that_begin_at_the_same_moment_end_each_by_itself(launcher, tmp_path):
    (fault,) = parse_faults(stop=["worker:1@0s..100ms"], restart_after="1s", layout=Layout(ps=1, workers=2), steps=20)
    both = [replace(fault, kind="throttle", until=None, lasts_s=lasts_s) for lasts_s in (0.1, 2.0)]
    injectors = {each: Slows(each, scene_of(each, processes=launcher)) for each in both}
    log = EventLog(tmp_path / "psconform-0.jsonl", run="run", task="psconform:0", incarnation=0)
    with Control() as control:
        scheduler, deadline = FaultScheduler(injectors, control, log, restart=lambda _: None), time.monotonic() + LONG_S
        for slows in injectors.values():
            slows.passed = "5 bytes passed"
        while scheduler.pending or not all(hasattr(slows, "done") for slows in injectors.values()):
            assert time.monotonic() < deadline
            scheduler.tick(heard_s=0.0)
    log.close()
    struck = faults_of(read_events(tmp_path / "psconform-0.jsonl", run="run", name="psconform:0"))
    assert [fault.healed for fault in struck] == ["something passed"] * 2
    assert struck[1].off_ns - struck[0].off_ns > 1.3e9


class Answers:
    """A push whose answers are held back, and which is never sent."""

    def __init__(self):
        self.held = True

    def look(self):
        return ""

    def let_go(self):
        self.held = False


def test_who_waits_for_a_push_to_be_sent_owes_no_progress_and_is_let_go_at_the_end(launcher, tmp_path):
    kill = 'kind = "kill"\ntask = "worker:1"\nat = "worker:0@sent:4"\nrestart_after = "0s"\n'
    (fault,) = parse_plan(f"[[fault]]\n{kill}", place="plan", layout=Layout(ps=1, workers=2), steps=20)
    log, answers = EventLog(tmp_path / "psconform-0.jsonl", run="r", task="psconform:0", incarnation=0), Answers()
    with Control() as control, arrive(control, "worker:0", 4) as line:
        options = {"restart": lambda _: None, "hold": lambda _: answers}
        scheduler = FaultScheduler({fault: injector_of(fault, processes=launcher)}, control, log, **options)
        deadline = time.monotonic() + LONG_S
        while not scheduler.pending:
            assert time.monotonic() < deadline
            scheduler.tick(heard_s=9.0)
        assert scheduler.lasting
        assert scheduler.attempted, "answers are held back: that may disturb the worker"
        assert line.recv(16) == b"go\n"  # it is to push
        scheduler.heal_all()
        assert not answers.held
        scheduler.tick(heard_s=9.0)
        assert not scheduler.pending
    log.close()
    assert sentences(scheduler) == [f"fault {fault.words} was not observed: the run was over before the push was sent"]


class Late(Answers):
    """A push that has been sent by the time that anybody looks again."""

    def look(self):
        return "sent" if time.monotonic() > self.since + 0.4 else ""

    since = 0.0


@pytest.mark.parametrize("patience_s", [0.2, 9.0])
def test_answers_are_not_held_back_for_longer_than_anybody_waits_for_one(monkeypatch, launcher, tmp_path, patience_s):
    monkeypatch.setattr("psconform.runner.fault_scheduler.SENT_S", patience_s)
    kill = 'kind = "kill"\ntask = "worker:1"\nat = "worker:0@sent:4"\nrestart_after = "0s"\n'
    (fault,) = parse_plan(f"[[fault]]\n{kill}", place="plan", layout=Layout(ps=1, workers=2), steps=20)
    log, answers = EventLog(tmp_path / "psconform-0.jsonl", run="r", task="psconform:0", incarnation=0), Late()
    with Control() as control, arrive(control, "worker:0", 4):
        options = {"restart": lambda _: None, "hold": lambda _: answers}
        scheduler = FaultScheduler({fault: injector_of(fault, processes=launcher)}, control, log, **options)
        deadline = time.monotonic() + LONG_S
        (one,), answers.since = scheduler._all, time.monotonic()
        while one.state in (State.WAITING, State.PUSHING):
            assert time.monotonic() < deadline
            scheduler.tick(heard_s=0.0)
    log.close()
    assert one.state is (State.FAILED if patience_s < 0.4 else State.INJECTED)
    assert answers.held is (one.state is State.INJECTED)  # a kill is to be seen first
    if one.state is State.FAILED:
        assert sentences(scheduler) == [f"fault {fault.words} was not observed: the push was not sent within 0 s"]


@pytest.mark.parametrize(("when", "timed"), [("5", False), ("after-push:5", False), ("60s", True)])
def test_what_waits_for_a_time_comes_whatever_tasks_do(launcher, tmp_path, when, timed):
    kill = [f"{VICTIM}@{when}"]
    (fault,) = parse_faults(kill=kill, restart_after="1s", layout=Layout(ps=1, workers=2), steps=20)
    log = EventLog(tmp_path / "psconform-0.jsonl", run="run", task="psconform:0", incarnation=0)
    with Control() as control:
        injectors = {fault: injector_of(fault, processes=launcher)}
        scheduler = FaultScheduler(injectors, control, log, restart=lambda _: None)
        scheduler.tick(heard_s=0.0)
        assert scheduler.timed is timed
        (one,) = scheduler._all
        one.again = time.monotonic() + LONG_S  # as of a crash loop: it was there once
        assert scheduler.timed
        one.state = State.FAILED
        assert not scheduler.timed
    log.close()
