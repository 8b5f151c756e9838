"""Faults of containers: what they ask of the engine and of the pods, and what shows them. Nothing is started."""

from __future__ import annotations

import signal

import pytest

from psconform.errors import PsconformError
from psconform.faults.control import Control
from psconform.faults.plan_file import parse_plan
from psconform.probe import EventLog
from psconform.runner.fault_scheduler import FaultScheduler

from .pods import LAYOUT, TASKS, WORKER, Pods, fault_of, wires
from .scenes import injector_of


class Engine:
    """What the engine would do."""

    def __init__(self):
        self.frozen, self.percent, self.times, self.full, self.at = False, 0, 0, "", ""
        self.running = list(TASKS)
        self.signals, self.box, self.emptied = [], "one", 0

    def container(self, task):
        return self.box if task in self.running else ""

    def peers(self, task):
        return ("ps-0", "worker-0")

    def pause(self, task, *, on=True):
        self.frozen = on

    def paused(self, task):
        return self.frozen

    def quota(self, task, percent):
        self.percent = percent

    def throttled(self, task):
        return self.times

    def exhaust(self, task):
        return 300 << 20

    def fill(self, task, *, on=True):
        self.emptied += not on
        return "No space left on device" if on else self.full

    def disconnect(self, task):
        self.at = ""

    def connect(self, task, *, anew=False):
        self.at = "10.0.0.77" if anew else "10.0.0.5"
        return self.at

    def signal(self, task, number):
        self.signals.append((task, number))

    def state(self, task):
        return "S"


def box(kind, extra='for = "1s"', **more):
    engine, pods = Engine(), Pods()
    strike = injector_of(
        fault_of(kind, "worker:1", extra), containers=engine, processes=engine, network=wires(pods), **more
    )
    assert strike.refused() == ""
    return strike, engine, pods


def test_pause():
    strike, engine, _ = box("pause")
    assert strike.evidence() == ""
    strike.inject()
    assert strike.evidence() == "the container is paused"
    assert strike.healed() == ""
    strike.heal()
    assert strike.healed() == "it goes on"
    engine.running.clear()
    assert strike.refused() == "worker:1 was not running"


def test_a_quota_counts_once_somebody_had_to_wait_and_is_over_when_nobody_has_to():
    strike, engine, _ = box("cpu-quota", 'for = "1s"\npercent = 30')
    engine.times = 8  # of before
    strike.inject()
    assert engine.percent == 30
    assert strike.evidence() == ""
    engine.times = 10
    assert strike.evidence() == "its time was over in 2 periods of 100 ms"
    strike.heal()
    assert engine.percent == 0
    engine.times = 11
    assert strike.healed() == ""
    assert strike.healed() == "its time is its own again"


def test_of_a_task_that_has_ended_no_limit_is_taken_away():
    """It was not hurried by it, and that is what is said: not that the engine knows of no such container."""
    strike, engine, _ = box("cpu-quota", 'for = "1s"\npercent = 30')
    strike.inject()
    engine.running.clear()
    strike.heal()
    assert engine.percent == 30
    assert (strike.healed(), strike.unseen) == ("it has ended", "")


def test_a_container_that_ended_before_psconform_knew_is_no_error_of_the_run():
    def gone(*_, **__):
        raise PsconformError("there is no such container")

    for kind in ("pause", "cpu-quota", "tmpfs-full"):
        strike, engine, _ = box(kind)
        for name in ("pause", "paused", "quota", "throttled", "fill"):
            setattr(engine, name, gone)
        strike.inject()
        assert strike.evidence() == ""
        assert strike.unseen == "there is no such container"
        strike.heal()
        engine.running.clear()
        assert strike.healed() == "it has ended"


def test_what_the_engine_does_not_answer_is_not_healed():
    """It may answer later: then it is healed, once it is seen."""

    def silent(*_, **__):
        raise PsconformError("no answer")

    for kind, names in (("pause", ("paused", "pause")), ("tmpfs-full", ("fill",))):
        strike, engine, _ = box(kind)
        strike.inject()
        assert strike.evidence()
        for name in names:
            setattr(engine, name, silent)
        strike.heal()
        assert strike.healed() == ""
        for name in names:
            delattr(engine, name)
        if kind == "pause":
            assert strike.healed() == "", "it is paused still"
        assert strike.healed()


def test_who_ends_for_want_of_memory_is_struck_and_who_is_killed_otherwise_is_not():
    for by_memory, seen in ((True, "the kernel ended it: it was out of memory (OOM) at 300 MiB"), (False, "")):
        strike, _, _ = box("oom", "", by_memory=lambda _, said=by_memory: said)
        strike.inject()
        assert strike.ended(-signal.SIGKILL) is by_memory
        assert strike.evidence() == seen
    assert strike.ended(1) is False


def test_who_moves_is_killed_and_has_another_address():
    moves = []
    strike, engine, _ = box("new-address", "", moved=lambda *said: moves.append(said))
    strike.inject()
    assert engine.signals == [(WORKER, signal.SIGKILL)]
    assert strike.ended(-signal.SIGKILL)
    strike.heal()
    assert moves == [(WORKER, ""), (WORKER, "10.0.0.77")], "nobody is to dial where it was"
    assert strike.healed() == "started again at 10.0.0.77"


def test_who_is_disconnected_has_no_interface_and_then_packets_both_ways():
    strike, engine, pods = box("disconnect")
    strike.inject()
    assert engine.at == ""
    assert strike.evidence() == "", "the engine's word alone does not do"
    pods.interface = {"there": False, "received": 0, "sent": 0}
    assert strike.evidence() == "its network has no interface but loopback"
    assert strike.gone() == ""
    strike.heal()
    assert engine.at == "10.0.0.5"
    pods.interface = {"there": True, "received": 3, "sent": 0}
    assert strike.healed() == ""
    assert strike.gone() == "it has its interface again, no packet came since"
    pods.interface = {"there": True, "received": 3, "sent": 2}
    assert strike.healed() == "3 packets came in"


def test_no_name_is_found_once_somebody_was_looked_up():
    strike, _, pods = box("dns")
    strike.inject()
    assert pods.rules[WORKER]["dns"] == {"match": ("-d", "127.0.0.11"), "target": "REJECT"}
    assert strike.evidence() == ""
    pods.packets[WORKER]["dns"] = 6
    assert strike.evidence() == "6 lookups refused"
    pods.found = {"worker-1"}  # in its own /etc/hosts
    strike.heal()
    assert not pods.rules[WORKER]
    assert strike.healed() == ""
    pods.found = {"worker-1", "worker-0"}
    assert strike.healed() == "names are found again"


@pytest.mark.parametrize("kind", ["pause", "cpu-quota", "tmpfs-full"])
def test_what_a_container_takes_with_it_is_over_when_it_ends_and_not_done_to_the_next(kind):
    strike, engine, _ = box(kind)
    strike.inject()
    assert strike.over() == ""
    engine.box = "another"
    assert strike.over() == "it has ended"
    strike.heal()
    assert (engine.frozen, engine.percent) == (kind == "pause", 20 if kind == "cpu-quota" else 0)
    assert not engine.emptied
    assert strike.healed() == "it has ended"


ALREADY = {
    "pause": "paused",
    "dns": "without names",
    "cpu-quota": "short of CPU time",
    "disconnect": "disconnected",
    "tmpfs-full": "without room in /tmp",
    "rate": "slow to send",
}


@pytest.mark.parametrize(("kind", "already"), ALREADY.items())
def test_a_second_of_a_kind_while_the_first_lasts_is_none(kind, already, tmp_path):
    """It would end with the first, or the first with it."""
    engine, pods = Engine(), Pods()
    text = "".join(f'[[fault]]\nkind = "{kind}"\ntask = "worker:1"\nat = "0s"\nfor = "{n}s"\n' for n in (60, 61))
    faults = parse_plan(text, place="plan", layout=LAYOUT, steps=50)
    parts = {"containers": engine, "processes": engine, "network": wires(pods)}
    found = {fault: injector_of(fault, **parts) for fault in faults}
    log = EventLog(tmp_path / "psconform-0.jsonl", run="run", task="psconform:0", incarnation=0)
    with Control() as control:
        scheduler = FaultScheduler(found, control, log, restart=lambda _: None)
        scheduler.tick(heard_s=0.0)
    assert [line.endswith(f": worker:1 was {already} already") for line in map(str, scheduler.missing())][-1]
    log.close()


def test_no_room():
    strike, engine, _ = box("tmpfs-full")
    strike.inject()
    assert strike.evidence() == "in /tmp a byte more is refused (No space left on device)"
    engine.full = "still"
    strike.heal()
    assert strike.healed() == ""
    engine.full = ""
    strike.heal()
    assert strike.healed() == "a byte can be written to /tmp again"
