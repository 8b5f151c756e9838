"""What counts as the effect of a fault of links, and what does not: bytes and connections through a real Toxiproxy."""

from __future__ import annotations

import array
import contextlib
import fcntl
import termios
import time
from pathlib import Path

import pytest

from psconform.faults import link_injector
from psconform.faults.link_injector import HeldBack
from psconform.faults.plan_file import parse_plan
from psconform.faults.proxies import HOUR_MS, Links
from psconform.layout import Layout, Link

from .proxied import LONG_S, PS, SOON_S, WORKERS, address, dial, heard
from .scenes import injector_of
from .test_interrupt import until

pytestmark = [pytest.mark.engine, pytest.mark.psconform_needs("toxiproxy")]


def disturbs(links, text):
    """What brings about the one fault of a plan."""
    (fault,) = parse_plan(text, place="here", layout=Layout(ps=1, workers=2), steps=10)
    return injector_of(fault, proxies=links)


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


STALL = 'fault = [{kind = "stall", links = "ps:0->worker:1", at = 1, until = 2}]'


def looks(strikes, seconds=SOON_S):
    """As the runner does; what it has found by then."""
    deadline = time.monotonic() + seconds
    while not (found := strikes.evidence()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


@pytest.mark.parametrize("who", ["source", "destination"])
def test_a_stall_goes_on_until_it_has_held_something_back(pair, who):
    """What ps:0 sends to worker:1 travels on a connection that the worker has dialled, and shows at the ps itself."""
    links, near, far = pair
    strikes = disturbs(links, STALL if who == "destination" else STALL.replace("ps:0->worker:1", "worker:1->ps:0"))
    assert strikes.lingers
    strikes.inject()
    assert not looks(strikes)
    (near if who == "source" else far).sendall(b"held")
    assert looks(strikes, LONG_S) == "4 bytes held back"
    strikes.heal()
    assert heard(far if who == "source" else near, LONG_S) == b"held"
    if who == "source":
        far.sendall(b"ack")
        assert heard(near, LONG_S) == b"ack"
    assert strikes.healed()


def test_that_somebody_asks_is_no_sign_of_a_stall_and_an_answer_to_what_was_asked_before_it_is(pair):
    """The ps may wait for others before it answers."""
    links, near, far = pair
    strikes = disturbs(links, STALL)
    near.sendall(b"push")
    assert heard(far, LONG_S) == b"push"
    strikes.inject()
    near.sendall(b"read")
    assert heard(far, LONG_S) == b"read"
    assert not looks(strikes)
    far.sendall(b"ack")
    assert looks(strikes, LONG_S) == "3 bytes held back"
    strikes.heal()
    assert heard(near, LONG_S) == b"ack"


def test_what_is_held_back_of_who_has_died_since_is_seen(pair):
    """A crash loop: no life of the ps lasts as long as it takes to be sure. The end waits behind what is held back."""
    links, near, far = pair
    strikes = disturbs(links, STALL)
    near.sendall(b"push")
    assert heard(far, LONG_S) == b"push"
    strikes.inject()
    far.sendall(b"ack")
    began = time.monotonic()
    while not links.accepted(PS)[far.getpeername()[1]].sent:
        assert time.monotonic() < began + LONG_S
    assert not strikes.evidence()
    far.close()
    assert looks(strikes, LONG_S) == "3 bytes held back"
    strikes.heal()
    assert heard(near, LONG_S) == b"ack"


def test_an_answer_after_a_stall_is_no_sign_of_it(pair):
    links, near, far = pair
    strikes = disturbs(links, STALL)
    strikes.inject()
    near.sendall(b"push")
    assert not looks(strikes)
    strikes.heal()
    far.sendall(b"ack")
    assert heard(near, LONG_S) == b"ack"
    assert strikes.healed()
    assert not strikes.evidence()


PAST = b"x" * 1_000_000
"""More than the kernel takes in for who does not read, so that some waits to be sent, past all toxics."""


def left_the_proxy(line):
    """Bytes for one end of a connection that the proxy has written, and that its reader has not read yet."""
    ends = f"{line.getpeername()[1]:04X}", f"{line.getsockname()[1]:04X}"
    rows = [row.split() for row in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]]
    queues = [row[4] for row in rows if (row[1].partition(":")[2], row[2].partition(":")[2]) == ends]
    unread = array.array("i", [0])
    fcntl.ioctl(line, termios.FIONREAD, unread)
    return sum(int(queue.partition(":")[0], 16) for queue in queues) + unread[0]


def all_of(line, size):
    line.settimeout(LONG_S)
    while size > 0:
        size -= len(line.recv(1 << 20))
    return size == 0


def beyond_its_reach(pair, kind):
    """A fault that begins when the proxy has passed on what its reader has not read yet."""
    links, near, far = pair
    far.sendall(PAST)
    more = {"latency": ", ms = 100", "bandwidth": ", kB_per_s = 100"}.get(kind, "")
    strikes = disturbs(links, STALL.replace("stall", kind).replace("until = 2", f"until = 2{more}"))
    until(lambda: left_the_proxy(near) == len(PAST), seconds=LONG_S)
    assert on_their_way(links) > 0
    return strikes


@pytest.mark.parametrize("kind", ["stall", "latency", "bandwidth", "slice"])
def test_what_was_past_it_when_it_began_is_no_sign_of_it(pair, kind):
    """Its reader was busy; what comes later is."""
    _, near, far = pair
    strikes = beyond_its_reach(pair, kind)
    strikes.inject()
    assert not strikes.evidence()
    assert all_of(near, len(PAST))
    assert not looks(strikes)
    far.sendall(b"more")
    if kind != "stall":
        assert heard(near, LONG_S)
    assert looks(strikes, LONG_S)
    strikes.heal()


@pytest.mark.parametrize("kind", ["latency", "bandwidth", "slice"])
def test_what_arrives_while_it_is_injected_hides_no_later_bytes(pair, kind, monkeypatch):
    """The kernel delivers some to a reader that does not read, too, so a busy one may get them at any moment."""
    links, near, far = pair
    strikes = beyond_its_reach(pair, kind)
    tell = "delay" if kind == "latency" else "add"
    told = getattr(links, tell)

    def reads_first(*args, **attributes):
        assert all_of(near, len(PAST))
        told(*args, **attributes)

    monkeypatch.setattr(links, tell, reads_first)
    strikes.inject()
    assert not looks(strikes)
    far.sendall(b"more")
    assert looks(strikes, LONG_S) == "4 bytes passed through it"
    strikes.heal()


def on_their_way(links):
    """Bytes that ps:0 has sent to worker:1 and that have not arrived."""
    (dialled,) = links.flows([(WORKERS[1], PS)]).values()
    return HeldBack(links, [Link(PS, WORKERS[1])]).on_their_way(Link(PS, WORKERS[1]), dialled)


def test_what_goes_to_another_is_no_sign_of_a_stall_and_hides_none(toxiproxy, listener):
    """However late that is, and however much."""
    addresses = {PS: address(listener), **dict.fromkeys(WORKERS, "127.0.0.1:9")}
    with Links(toxiproxy, "test", addresses) as links, contextlib.ExitStack() as lines:
        near, far = [], []
        for worker in WORKERS:
            near.append(lines.enter_context(dial(links.addresses_of(worker)[PS])))
            far.append(lines.enter_context(listener.accept()[0]))
        strikes = disturbs(links, STALL)
        strikes.inject()
        far[0].sendall(b"ack")
        assert heard(near[0], LONG_S) == b"ack"
        assert not looks(strikes)
        near[0].sendall(b"read")
        links.delay("late", [Link(PS, WORKERS[0])], 1000)
        far[0].sendall(b"ack")
        assert not looks(strikes)
        assert heard(near[0], LONG_S) == b"ack"
        links.undelay("late", [Link(PS, WORKERS[0])])
        far[1].sendall(b"ack")

        def busy():
            for line in near[0], far[0]:
                line.sendall(b"parameters")
            return strikes.evidence()

        assert until(busy, seconds=LONG_S) == "3 bytes held back"
        strikes.heal()


def test_who_has_dialled_without_a_proxy_is_not_taken_for_who_is_stalled(pair, listener):
    """A monitor, say: what it is told has not come out of any proxy."""
    links, near, far = pair
    strikes = disturbs(links, STALL)
    with dial(address(listener)), listener.accept()[0] as theirs:
        strikes.inject()
        theirs.sendall(b"metrics")
        assert not looks(strikes)
        far.sendall(b"ack")
        assert looks(strikes, LONG_S) == "3 bytes held back"
        strikes.heal()
        assert heard(near, LONG_S) == b"ack"


def test_an_answer_that_another_hold_has_caught_before_is_held_back_by_a_stall(pair):
    """Those of a push are, at the phase sent."""
    links, near, far = pair
    strikes = disturbs(links, STALL)
    links.hold([(WORKERS[1], PS)])
    far.sendall(b"ack")
    assert not heard(near, SOON_S)
    strikes.inject()
    links.hold([(WORKERS[1], PS)], on=False)
    assert looks(strikes, LONG_S) == "3 bytes held back"
    strikes.heal()
    assert heard(near, LONG_S) == b"ack"


@pytest.mark.parametrize(("kind", "more"), [("cut", ", bytes = 100"), ("reset", "")])
def test_what_ends_connections_waits_for_the_bytes_that_it_ends_them_by(pair, monkeypatch, kind, more):
    """Who sends them may wait for another meanwhile, that is restarted."""
    monkeypatch.setattr(link_injector, "ENDS_S", 0.2)
    links, near, _ = pair
    text = STALL.replace("stall", kind).replace("ps:0->worker:1", "worker:1->ps:0")
    strikes = disturbs(links, text.replace("until = 2", f"until = 2{more}"))
    strikes.inject()
    if more:
        near.sendall(b"few")
    assert not looks(strikes)
    assert strikes.lingers
    near.sendall(b"x" * 200)
    assert looks(strikes, LONG_S) == "1 connection(s) ended"
    strikes.heal()


def test_what_has_not_ended_a_connection_by_its_bytes_waits_no_longer(pair, monkeypatch):
    """It may end for another reason."""
    monkeypatch.setattr(link_injector, "ENDS_S", 0.2)
    links, near, far = pair
    cut = disturbs(links, STALL.replace("stall", "cut").replace("until = 2", "until = 2, bytes = 5"))
    cut.inject()
    links.server.remove("test.worker-1.ps-0", f"{cut._name}-downstream")  # as if it did nothing
    far.sendall(b"parameters")
    assert heard(near, LONG_S) == b"parameters"
    assert not looks(cut)
    assert not cut.lingers


def test_what_is_refused_is_no_sign_of_a_cut(pair):
    links, _, _ = pair
    cut = 'fault = [{kind = "cut", links = "worker:1->ps:0", at = 1, until = 2, bytes = 1000000}]'
    cuts, refuses = disturbs(links, cut), disturbs(links, STALL.replace("stall", "refuse"))
    cuts.inject()
    refuses.inject()
    assert not looks(cuts)
    refuses.heal()
    assert not looks(cuts)
    cuts.heal()


def test_what_a_stall_leaves_open_is_no_sign_of_a_slow_close(toxiproxy, listener):
    addresses = {PS: address(listener), **dict.fromkeys(WORKERS, "127.0.0.1:9")}
    text = 'fault = [{kind = "slow-close", links = "worker:1->ps:0", at = 1, until = 2}]'
    (fault,) = parse_plan(text, place="here", layout=Layout(ps=1, workers=2), steps=10)
    with Links(toxiproxy, "test", addresses) as links:
        other = dial(links.addresses_of(WORKERS[0])[PS])
        with listener.accept()[0]:
            late = injector_of(fault, proxies=links)
            late.inject()
            stall = disturbs(links, STALL.replace("ps:0->worker:1", "worker:0->ps:0"))
            stall.inject()
            other.close()
            assert not looks(late)
            stall.heal()


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
    late = injector_of(fault, proxies=links)
    late.inject()
    assert not late.evidence()
    monkeypatch.setattr(late, "_left_open", lambda: "1 connection(s) open whose other end had gone")
    if healed:
        late.heal()
    assert [bool(late.evidence()) for _ in range(2)] == [False, not healed]
