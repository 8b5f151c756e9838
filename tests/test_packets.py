"""Faults of packets and containers: what they tell the pods and the engine, what shows them. Nothing is started."""

import signal
from collections import defaultdict

import pytest

from psconform.errors import BadInput, PsconformError
from psconform.faults.boxes import Disconnects, Exhausts, Fills, Limits, Moves, Nameless, Pauses
from psconform.faults.control import Control
from psconform.faults.fault import PACKETS as PACKETS_OF_LINKS
from psconform.faults.kinds import KINDS
from psconform.faults.packets import Packets, Rate
from psconform.faults.plan import parse_plan, plan_text
from psconform.faults.wires import Wires
from psconform.faults.words import PACKETS
from psconform.layout import Layout, Link, Task
from psconform.probe import EventLog
from psconform.runner.plan import make_plan
from psconform.runner.strikes import Strikes

LAYOUT = Layout(ps=2, workers=2)
TASKS = LAYOUT.tasks
PROXIES = Task("toxiproxy", 0)
WORKER, SERVER = Task("worker", 1), Task("ps", 0)
ADDRESSES = {task: f"10.0.0.{number}:2222" for number, task in enumerate(TASKS, start=2)}


class Pods:
    """Helpers that count nothing by themselves."""

    def __init__(self):
        self.rules = defaultdict(dict)
        self.packets = defaultdict(dict)
        self.interface = {"there": True, "received": 0, "sent": 0}
        self.bucket, self.waited, self.found = None, 0, set()

    def ask(self, task, *, do, **said):
        match do:
            case "rule":
                self.rules[task][said.pop("name")] = said
            case "unrule":
                self.rules[task].pop(said["name"])
            case "counted":
                return {"packets": {name: self.packets[task].get(name, 0) for name in self.rules[task]}}
            case "rate":
                self.bucket = said["kbit"]
            case "unrate":
                self.bucket = None
            case "waited":
                return {"times": -1 if self.bucket is None else self.waited}
            case "interface":
                return self.interface
            case "found":
                return {"found": said["name"] in self.found}
        return {"done": True}


class Proxied:
    def dialled(self, dialler, listener):
        return f"10.0.0.99:{20000 + 100 * TASKS.index(dialler) + TASKS.index(listener)}"


def fault_of(kind, where, extra=""):
    name = "task" if ":" in where and "->" not in where else "links"
    text = f'[[fault]]\nkind = "{kind}"\n{name} = "{where}"\nat = 5\n{extra}'
    (fault,) = parse_plan(text, place="plan", layout=LAYOUT, steps=50)
    return fault


def wires(pods, links=None):
    return Wires(pods.ask, ADDRESSES.__getitem__, links, PROXIES)


def test_between_tasks_a_direction_is_what_the_source_sends_to_that_address():
    assert wires(Pods()).matches(Link(WORKER, SERVER)) == [(WORKER, ("-d", "10.0.0.2"))]


def test_behind_proxies_it_is_two_ports_wherever_they_leave():
    """On what the source has dialled, and on what the destination has: from the pod of the proxies."""
    there, back = wires(Pods(), Proxied()).matches(Link(WORKER, SERVER))
    assert there == (WORKER, ("-p", "tcp", "-d", "10.0.0.99", "--dport", "20300"))
    assert back == (PROXIES, ("-p", "tcp", "-d", "10.0.0.2", "--sport", "20003"))


@pytest.mark.parametrize("kind", ["drop", "loss", "delay", "duplicate", "reorder", "corrupt"])
def test_packets_count_while_it_lasts_and_pass_when_it_is_healed(kind):
    pods = Pods()
    fault = fault_of(kind, "worker:1<->ps:0", 'for = "1s"')
    strike = Packets(fault, wires(pods), number=3, seed=7)
    assert strike.refused() == ""
    strike.inject()
    assert {task: list(rules) for task, rules in pods.rules.items()} == {
        SERVER: [f"{kind}-3-1"],
        WORKER: [f"{kind}-3-0"],
    }
    rule = pods.rules[WORKER][f"{kind}-3-0"]
    if kind == "drop":
        assert rule["target"] == "DROP"
    else:
        assert rule["mangle"]["kind"] == kind
        assert rule["mangle"]["amounts"] == dict(fault.amounts)
        assert rule["mangle"]["seed"] != pods.rules[SERVER][f"{kind}-3-1"]["mangle"]["seed"]
    assert strike.evidence() == ""
    pods.packets[WORKER][f"{kind}-3-0"] = 4
    assert strike.evidence().startswith("4 packets ")
    strike.heal()
    assert all(
        "target" not in rule and "mangle" not in rule for rules in pods.rules.values() for rule in rules.values()
    )
    assert strike.evidence().startswith("4 packets "), "what it has counted is not forgotten"
    assert strike.healed() == ""
    pods.packets[SERVER][f"{kind}-3-1-after"] = 2
    assert strike.healed() == "2 packets passed"
    assert not any(pods.rules.values()), "nothing is left"


def test_who_has_moved_is_struck_where_it_is_now():
    pods, addresses = Pods(), dict(ADDRESSES)
    strike = Packets(
        fault_of("drop", "worker:1->ps:0", 'for = "1s"'),
        Wires(pods.ask, addresses.__getitem__, None, PROXIES),
        number=0,
        seed=0,
    )
    strike.inject()
    pods.packets[WORKER] = {"drop-0-0": 4, "drop-0-1": 2, "drop-0-2": 1}
    assert strike.evidence() == "4 packets dropped"
    for number, host in enumerate(("10.0.0.77", "10.0.0.78"), start=1):
        addresses[SERVER] = f"{host}:2222"
        strike.evidence()
        assert pods.rules[WORKER] == {f"drop-0-{number}": {"match": ("-d", host), "target": "DROP"}}
    assert strike.evidence() == "7 packets dropped", "what the other rules have counted is not forgotten"
    strike.heal()
    assert pods.rules[WORKER] == {"drop-0-2-after": {"match": ("-d", "10.0.0.78")}}
    assert strike.evidence() == "7 packets dropped"


def test_a_rule_whose_answer_is_late_when_somebody_moves_is_taken_away_with_the_others():
    pods, addresses = Pods(), dict(ADDRESSES)

    def late(task, **said):
        answer = pods.ask(task, **said)
        if said.get("name") == "drop-0-1" and said["do"] == "rule":
            raise PsconformError("its helper does not answer")
        return answer

    strike = Packets(
        fault_of("drop", "worker:1->ps:0", 'for = "1s"'),
        Wires(late, addresses.__getitem__, None, PROXIES),
        number=0,
        seed=0,
    )
    strike.inject()
    addresses[SERVER] = "10.0.0.77:2222"
    with pytest.raises(PsconformError):
        strike.evidence()
    assert set(pods.rules[WORKER]) == {"drop-0-0", "drop-0-1"}
    strike.heal()
    assert not [rule for rule in pods.rules[WORKER].values() if "target" in rule]


def test_where_no_packet_comes_it_is_gone_when_its_rules_are():
    pods = Pods()
    strike = Packets(fault_of("drop", "worker:1->ps:0", 'for = "1s"'), wires(pods), number=0, seed=0)
    strike.inject()
    strike.heal()
    assert strike.gone() == "its rules are gone, no packet came since"
    assert not any(pods.rules.values())


def test_a_rule_that_is_still_there_is_not_gone():
    pods = Pods()
    strike = Packets(fault_of("drop", "worker:1->ps:0", 'for = "1s"'), wires(pods), number=0, seed=0)
    strike.inject()
    assert strike.gone() == ""


def test_a_rate_shows_by_who_had_to_wait():
    pods = Pods()
    strike = Rate(fault_of("rate", "ps:0", 'for = "1s"\nkbit_per_s = 64'), wires(pods))
    strike.inject()
    assert pods.bucket == 64
    assert strike.evidence() == ""
    pods.waited = 3
    assert strike.evidence() == "packets had to wait 3 times"
    assert strike.healed() == strike.over() == ""
    pods.bucket = None  # with the interface, which another fault has taken away
    assert strike.over() == "its interface was taken away, and the token bucket with it"
    pods.bucket = 64
    strike.heal()
    assert strike.healed() == "the token bucket is gone"
    pods.interface = {"there": False, "received": 0, "sent": 0}
    assert strike.refused() == "ps:0 was not connected"


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


def box(sort, kind, extra='for = "1s"', **more):
    engine, pods = Engine(), Pods()
    strike = sort(fault_of(kind, "worker:1", extra), engine, engine, pods.ask, **more)
    assert strike.refused() == ""
    return strike, engine, pods


def test_pause():
    strike, engine, _ = box(Pauses, "pause")
    assert strike.evidence() == ""
    strike.inject()
    assert strike.evidence() == "the container is paused"
    assert strike.healed() == ""
    strike.heal()
    assert strike.healed() == "it goes on"
    engine.running.clear()
    assert strike.refused() == "worker:1 was not running"


def test_a_quota_counts_once_somebody_had_to_wait_and_is_over_when_nobody_has_to():
    strike, engine, _ = box(Limits, "cpu-quota", 'for = "1s"\npercent = 30')
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
    strike, engine, _ = box(Limits, "cpu-quota", 'for = "1s"\npercent = 30')
    strike.inject()
    engine.running.clear()
    strike.heal()
    assert engine.percent == 30
    assert (strike.healed(), strike.unseen) == ("it has ended", "")


def test_a_container_that_ended_before_psconform_knew_is_no_error_of_the_run():
    def gone(*_, **__):
        raise PsconformError("there is no such container")

    for sort, kind in ((Pauses, "pause"), (Limits, "cpu-quota"), (Fills, "tmpfs-full")):
        strike, engine, _ = box(sort, kind, 'for = "1s"')
        for name in ("pause", "paused", "quota", "throttled", "fill"):
            setattr(engine, name, gone)
        strike.inject()
        assert strike.evidence() == ""
        assert strike.unseen == ": there is no such container"
        strike.heal()
        engine.running.clear()
        assert strike.healed() == "it has ended"


def test_what_the_engine_does_not_answer_is_not_healed():
    """It may answer later: then it is healed, once it is seen."""

    def silent(*_, **__):
        raise PsconformError("no answer")

    for sort, kind, names in ((Pauses, "pause", ("paused", "pause")), (Fills, "tmpfs-full", ("fill",))):
        strike, engine, _ = box(sort, kind)
        strike.inject()
        assert strike.evidence()
        for name in names:
            setattr(engine, name, silent)
        strike.heal()
        assert strike.healed() == ""
        for name in names:
            delattr(engine, name)
        if sort is Pauses:
            assert strike.healed() == "", "it is paused still"
        assert strike.healed()


def test_who_ends_for_want_of_memory_is_struck_and_who_is_killed_otherwise_is_not():
    for by_memory, seen in ((True, "the kernel ended it: it was out of memory (OOM) at 300 MiB"), (False, "")):
        strike, _, _ = box(Exhausts, "oom", "", by_memory=lambda _, said=by_memory: said)
        strike.inject()
        assert strike.ended(-signal.SIGKILL) is by_memory
        assert strike.evidence() == seen
    assert strike.ended(1) is False


def test_who_moves_is_killed_and_has_another_address():
    moves = []
    strike, engine, _ = box(Moves, "new-address", "", moved=lambda *said: moves.append(said))
    strike.inject()
    assert engine.signals == [(WORKER, signal.SIGKILL)]
    assert strike.ended(-signal.SIGKILL)
    strike.heal()
    assert moves == [(WORKER, ""), (WORKER, "10.0.0.77")], "nobody is to dial where it was"
    assert strike.healed() == "started again at 10.0.0.77"


def test_who_is_disconnected_has_no_interface_and_then_packets_both_ways():
    strike, engine, pods = box(Disconnects, "disconnect")
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
    strike, _, pods = box(Nameless, "dns")
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


@pytest.mark.parametrize(("sort", "kind"), [(Pauses, "pause"), (Limits, "cpu-quota"), (Fills, "tmpfs-full")])
def test_what_a_container_takes_with_it_is_over_when_it_ends_and_not_done_to_the_next(sort, kind):
    strike, engine, _ = box(sort, kind)
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
    sort = {"pause": Pauses, "dns": Nameless, "cpu-quota": Limits, "disconnect": Disconnects, "tmpfs-full": Fills}
    found = {fault: sort[kind](fault, engine, engine, pods.ask) for fault in faults if kind != "rate"}
    found = found or {fault: Rate(fault, wires(pods)) for fault in faults}
    log = EventLog(tmp_path / "psconform-0.jsonl", run="run", task="psconform:0", incarnation=0)
    with Control() as control:
        strikes = Strikes(found, control, log, restart=lambda _: None)
        strikes.tick(heard_s=0.0)
    assert [line.endswith(f": worker:1 was {already} already") for line in strikes.missing()][-1]
    log.close()


def test_no_room():
    strike, engine, _ = box(Fills, "tmpfs-full")
    strike.inject()
    assert strike.evidence() == "in /tmp a byte more is refused (No space left on device)"
    engine.full = "still"
    strike.heal()
    assert strike.healed() == ""
    engine.full = ""
    strike.heal()
    assert strike.healed() == "a byte can be written to /tmp again"


def test_two_rates_of_one_task_would_end_each_other(tmp_path):
    one = '[[fault]]\nkind = "rate"\ntask = "ps:0"\nat = {}\nfor = "1s"\n'
    with pytest.raises(BadInput, match="would end rate"):
        make_plan("reference", out=tmp_path, faults=one.format(5) + one.format(30), launcher="docker")


def test_packets_need_no_proxies_and_containers_alone_have_them(tmp_path):
    text = '[[fault]]\nkind = "drop"\nlinks = "worker:1->ps:0"\nat = 20\nfor = "2s"\n'
    (fault,) = parse_plan(text, place="plan", layout=LAYOUT, steps=50)
    assert not fault.proxied
    assert plan_text([fault]) == text
    with pytest.raises(BadInput, match=r"drop worker:1->ps:0@20\+2s.*|is of containers: give --launcher docker"):
        make_plan("reference", out=tmp_path, faults=text)
    assert make_plan("reference", out=tmp_path, faults=text, launcher="docker").containers is not None


def test_the_kinds_that_need_no_proxies_are_those_of_packets():
    assert set(PACKETS_OF_LINKS) == {name for name, kind in KINDS.items() if kind.of == PACKETS}
