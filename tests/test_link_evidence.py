"""What counts as the effect of a fault of links, and what does not: bytes and connections through a real Toxiproxy."""

from __future__ import annotations

import contextlib
import time

import pytest

from psconform.faults import network
from psconform.faults.closing import ClosesLate
from psconform.faults.links import HOUR_MS
from psconform.faults.network import Disturbs
from psconform.faults.plan import parse_plan
from psconform.layout import Layout, Link

from .proxied import LONG_S, PS, SOON_S, WORKERS, heard
from .test_interrupt import until


def disturbs(links, text):
    """What brings about the one fault of a plan."""
    (fault,) = parse_plan(text, place="here", layout=Layout(ps=1, workers=2), steps=10)
    return Disturbs(fault, links, seed=0, life=lambda task: 0)


def test_bytes_with_a_jitter_are_never_early(pair):
    """It is drawn anew while they wait: only what comes on top of the least may be let go then."""
    links, near, far = pair
    text = 'fault = [{kind = "latency", links = "worker:1->ps:0", at = 1, until = 2, ms = 700, jitter_ms = 2}]'
    late = disturbs(links, text)
    late.inject()
    began = time.monotonic()
    near.sendall(b"push")
    far.setblocking(False)
    while True:
        late.evidence()  # now and then it is drawn
        with contextlib.suppress(BlockingIOError):
            assert far.recv(100) == b"push"
            break
        time.sleep(0.01)
    assert time.monotonic() - began > 0.698
    late.heal()
    near.sendall(b"again")
    assert heard(far, LONG_S) == b"again"
    assert "came through" in late.healed() or late.healed() == ""


@pytest.mark.parametrize("more", [HOUR_MS, 100])
@pytest.mark.parametrize("kind", ["latency", "bandwidth", "slice"])
def test_what_shows_nothing_beside_another_fault_of_the_link_does_not_count_meanwhile(pair, kind, more):
    """A stall holds back what would pass through it; of two latencies the longer acts."""
    links, near, far = pair
    link, shows = Link(WORKERS[1], PS), kind != "latency" and more < HOUR_MS
    text = f'fault = [{{kind = "{kind}", links = "worker:1->ps:0", at = 1, until = 2}}]'
    strikes = disturbs(links, text)
    links.delay("other", [link], more)
    strikes.inject()
    near.sendall(b"push")
    deadline = time.monotonic() + (LONG_S if shows else SOON_S)
    while not (seen := strikes.evidence()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert seen == ("4 bytes passed through it" if shows else "")
    links.undelay("other", [link])
    assert shows or not strikes.evidence(), "what it was sent before is the other's"
    assert heard(far, LONG_S) == b"push"
    near.sendall(b"again")
    while not (seen := strikes.evidence()) and time.monotonic() < deadline + LONG_S:
        time.sleep(0.02)
    assert seen == ("4 bytes passed through it" if shows else "5 bytes passed through it")
    strikes.heal()


@pytest.mark.parametrize("kind", ["stall", "latency", "bandwidth", "slice"])
def test_what_passes_once_it_has_been_taken_away_is_not_its_effect(pair, kind):
    """The target was silent while it was there."""
    links, near, far = pair
    text = f'fault = [{{kind = "{kind}", links = "worker:1->ps:0", at = 1, until = 2}}]'
    strikes = disturbs(links, text)
    strikes.inject()
    assert not strikes.evidence()
    strikes.heal()
    near.sendall(b"push")
    assert heard(far, LONG_S) == b"push"
    far.sendall(b"ack")
    assert heard(near, LONG_S) == b"ack"
    assert strikes.healed()
    assert not strikes.evidence()


@pytest.mark.parametrize("who", ["source", "destination"])
def test_a_stall_of_links_that_nobody_uses_goes_on_until_somebody_does(pair, who):
    """Who uses them is away. That the other end asks counts, too: what does not come then shows at the end."""
    links, near, far = pair
    ends = "worker:1->ps:0" if who == "source" else "ps:0->worker:1"
    text = f'fault = [{{kind = "stall", links = "{ends}", at = 1, until = 2}}]'
    strikes = disturbs(links, text)
    assert strikes.lingers, "asked before it strikes, too"
    strikes.inject()
    assert not strikes.evidence()
    assert strikes.lingers
    near.sendall(b"push")
    assert heard(far, SOON_S) == (b"" if who == "source" else b"push")
    assert strikes.evidence() == ("4 bytes held back" if who == "source" else "")
    until(lambda: strikes.evidence() or not strikes.lingers, seconds=LONG_S)
    assert not strikes.lingers
    strikes.heal()


@pytest.mark.parametrize("late", [False, True])
def test_an_answer_that_a_stall_has_not_caught_is_no_sign_against_it_and_one_that_it_lets_through_is(
    pair, monkeypatch, late
):
    """What was past it when it began comes right then; what comes later is not held back."""
    links, near, far = pair
    strikes = disturbs(links, 'fault = [{kind = "stall", links = "ps:0->worker:1", at = 1, until = 2}]')
    strikes.inject()
    assert not strikes.evidence()
    links.undelay(strikes._name, [Link(PS, WORKERS[1])])
    far.sendall(b"parameters")
    assert heard(near, LONG_S) == b"parameters"
    strikes._links.delay(strikes._name, [Link(PS, WORKERS[1])], HOUR_MS)
    monkeypatch.setattr(network, "ON_ITS_WAY_S", 0.0 if late else LONG_S)
    near.sendall(b"push")
    assert heard(far, LONG_S) == b"push"
    assert not strikes.evidence()
    assert strikes.lingers is not late, "it has just been asked for; of one that holds nothing back nothing is to come"
    until(lambda: strikes.evidence() or not strikes.lingers, seconds=LONG_S)
    far.sendall(b"ack")
    strikes.heal()
    assert heard(near, LONG_S) == b"ack"
    assert strikes.healed()
    assert bool(strikes.evidence()) is not late


@pytest.mark.parametrize("kind", ["cut", "reset"])
@pytest.mark.parametrize("by_itself", [True, False])
def test_what_who_was_dialled_has_closed_is_not_taken_for_the_fault(pair, kind, by_itself):
    links, near, far = pair
    amounts = {"bytes": 10**9 if by_itself else 2} if kind == "cut" else {"after_ms": 60_000 if by_itself else 0}
    amounts = "".join(f", {name} = {amount}" for name, amount in amounts.items())
    text = f'fault = [{{kind = "{kind}", links = "worker:1->ps:0", at = 1, until = 2{amounts}}}]'
    strikes = disturbs(links, text)
    strikes.inject()
    if by_itself:
        far.close()
    else:
        near.sendall(b"push")
    near.settimeout(LONG_S)
    with contextlib.suppress(ConnectionResetError):
        assert near.recv(100) == b"", "it is over"
    deadline = time.monotonic() + (SOON_S if by_itself else LONG_S)
    while not (seen := strikes.evidence()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert seen == ("" if by_itself else "1 connection(s) ended")


@pytest.mark.parametrize("healed", [True, False])
def test_what_is_left_open_after_a_slow_close_is_not_its_effect(pair, monkeypatch, healed):
    """Tasks end, and their connections take a moment."""
    links, _, _ = pair
    text = 'fault = [{kind = "slow-close", links = "worker:1->ps:0", at = 1, until = 2}]'
    (fault,) = parse_plan(text, place="here", layout=Layout(ps=1, workers=2), steps=10)
    late = ClosesLate(fault, links, life=lambda task: 0)
    late.inject()
    assert not late.evidence()
    monkeypatch.setattr(late, "_left_open", lambda: "1 connection(s) open whose other end had gone")
    if healed:
        late.heal()
    assert [bool(late.evidence()) for _ in range(2)] == [False, not healed]
