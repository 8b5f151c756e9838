"""Faults of packets: what they tell the pods, what shows them, and which plans have them. Nothing is started."""

from __future__ import annotations

import pytest

from psconform.errors import BadInput, PsconformError
from psconform.faults.plan_file import parse_plan, plan_text
from psconform.faults.pod_network import Wires
from psconform.layout import Link
from psconform.options import Options
from psconform.runner.plan import make_plan

from .pods import ADDRESSES, LAYOUT, PROXIES, SERVER, WORKER, Pods, Proxied, fault_of, wires
from .scenes import Nothing, injector_of


def test_between_tasks_a_direction_is_what_the_source_sends_to_that_address():
    assert wires(Pods()).matches(Link(WORKER, SERVER)) == [(WORKER, ("-d", "10.0.0.2"))]


def test_behind_proxies_it_is_two_ports_wherever_they_leave():
    """On what the source has dialled, and on what the destination has: from the pod of the proxies."""
    there, back = wires(Pods(), Proxied()).matches(Link(WORKER, SERVER))
    assert there == (WORKER, ("-p", "tcp", "-d", "10.0.0.99", "--dport", "20300"))
    assert back == (PROXIES, ("-p", "tcp", "-d", "10.0.0.2", "--sport", "20003"))


@pytest.mark.parametrize(
    ("kind", "action"),
    [
        ("drop", ""),
        ("loss", "lost"),
        ("delay", "delayed"),
        ("duplicate", "sent twice"),
        ("reorder", "passed by others"),
        ("corrupt", "damaged"),
    ],
)
def test_packets_count_while_it_lasts_and_pass_when_it_is_healed(kind, action):
    pods = Pods()
    fault = fault_of(kind, "worker:1<->ps:0", 'for = "1s"')
    strike = injector_of(fault, network=wires(pods), numbers={fault: 3}, seed=7)
    assert strike.refused() == ""
    strike.inject()
    assert {task: list(rules) for task, rules in pods.rules.items()} == {
        SERVER: [f"{kind}-3-1"],
        WORKER: [f"{kind}-3-0"],
    }
    rule = pods.rules[WORKER][f"{kind}-3-0"]
    if not action:
        assert rule["target"] == "DROP"
    else:
        assert rule["mangle"]["action"] == action
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
    strike = injector_of(
        fault_of("drop", "worker:1->ps:0", 'for = "1s"'), network=Wires(pods.ask, addresses.__getitem__, None, PROXIES)
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

    strike = injector_of(
        fault_of("drop", "worker:1->ps:0", 'for = "1s"'), network=Wires(late, addresses.__getitem__, None, PROXIES)
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
    strike = injector_of(fault_of("drop", "worker:1->ps:0", 'for = "1s"'), network=wires(pods))
    strike.inject()
    strike.heal()
    assert strike.gone() == "its rules are gone, no packet came since"
    assert not any(pods.rules.values())


def test_a_rule_that_is_still_there_is_not_gone():
    pods = Pods()
    strike = injector_of(fault_of("drop", "worker:1->ps:0", 'for = "1s"'), network=wires(pods))
    strike.inject()
    assert strike.gone() == ""


def test_a_rate_shows_by_who_had_to_wait():
    pods = Pods()
    fault = fault_of("rate", "ps:0", 'for = "1s"\nkbit_per_s = 64')
    strike = injector_of(fault, network=wires(pods), containers=Nothing())
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


def test_two_rates_of_one_task_would_end_each_other(tmp_path):
    one = '[[fault]]\nkind = "rate"\ntask = "ps:0"\nat = {}\nfor = "1s"\n'
    with pytest.raises(BadInput, match="would end rate"):
        make_plan(Options(out=tmp_path, faults=one.format(5) + one.format(30), launcher="docker"))


def test_packets_need_no_proxies_and_containers_alone_have_them(tmp_path):
    text = '[[fault]]\nkind = "drop"\nlinks = "worker:1->ps:0"\nat = 20\nfor = "2s"\n'
    (fault,) = parse_plan(text, place="plan", layout=LAYOUT, steps=50)
    assert not fault.proxied
    assert plan_text([fault]) == text
    with pytest.raises(BadInput, match=r"drop worker:1->ps:0@20\+2s.*|is of containers: give --launcher docker"):
        make_plan(Options(out=tmp_path, faults=text))
    assert make_plan(Options(out=tmp_path, faults=text, launcher="docker")).containers is not None
