"""A real Toxiproxy server: where it comes from, what it is told, and that a stalled link holds back that direction."""

from __future__ import annotations

import contextlib
import os

import pytest

from psconform.errors import BadInput, PsconformError
from psconform.faults import toxiproxy_install
from psconform.faults.partitions import EVERYBODY
from psconform.faults.proxies import HOUR_MS, Links
from psconform.faults.toxiproxy import Toxiproxy
from psconform.launchers.local import LocalLauncher
from psconform.layout import Link
from psconform.runner.proxy_setup import SERVER, serve

from .proxied import LONG_S, PS, SOON_S, WORKERS, address, dial, heard

pytestmark = [pytest.mark.engine, pytest.mark.psconform_needs("toxiproxy")]


def test_bytes_pass_both_ways(pair):
    _, near, far = pair
    near.sendall(b"push")
    assert heard(far, LONG_S) == b"push"
    far.sendall(b"ack")
    assert heard(near, LONG_S) == b"ack"


@pytest.mark.parametrize("outward", [True, False])
def test_a_stalled_link_holds_back_exactly_its_direction_and_loses_nothing(pair, outward):
    links, near, far = pair
    link = Link(WORKERS[1], PS) if outward else Link(PS, WORKERS[1])
    here, there = (near, far) if outward else (far, near)
    links.delay("stall", [link], HOUR_MS)
    here.sendall(b"held ")
    there.sendall(b"passes")
    assert heard(here, LONG_S) == b"passes"
    assert heard(there, SOON_S) == b""
    here.sendall(b"back")
    links.undelay("stall", [link])
    got = b""
    while len(got) < 9:
        got += heard(there, LONG_S)
    assert got == b"held back"
    here.sendall(b"again")
    assert heard(there, LONG_S) == b"again"


def test_other_pairs_are_left_alone(pair, listener):
    links, _, _ = pair
    links.delay("stall", [Link(WORKERS[1], PS), Link(PS, WORKERS[1])], HOUR_MS)
    with dial(links.addresses_of(WORKERS[0])[PS]) as near:
        far, _ = listener.accept()
        with far:
            near.sendall(b"push")
            assert heard(far, LONG_S) == b"push"


def test_a_link_is_as_late_as_its_longest_delay(pair):
    """Faults overlap: the end of one must not heal the other."""
    links, near, far = pair
    link = Link(WORKERS[1], PS)
    links.delay("stall", [link], HOUR_MS)
    links.delay("latency", [link], 1)
    links.undelay("latency", [link])
    near.sendall(b"push")
    assert heard(far, SOON_S) == b""
    assert links.as_told([link])
    links.delay("latency", [link], 1)
    links.undelay("stall", [link])
    assert heard(far, LONG_S) == b"push"


@pytest.mark.parametrize("other", ["latency", "slice"])
def test_what_is_held_back_is_held_back_whatever_else_begins_and_ends(pair, other):
    """Toxiproxy interrupts a toxic when it or the next is changed, and one that delays lets go of what it has then."""
    links, near, far = pair
    link = Link(WORKERS[1], PS)
    links.delay("stall", [link], HOUR_MS)
    near.sendall(b"held")
    assert heard(far, SOON_S) == b""
    if other == "latency":
        links.delay("other", [link], 5)
        links.undelay("other", [link])
    else:
        links.add("other", "slicer", [link], average_size=2, size_variation=0, delay=0)
        links.remove("other", [link])
    assert heard(far, SOON_S) == b""
    links.undelay("stall", [link])
    assert heard(far, LONG_S) == b"held"


def test_what_was_held_back_is_cut_off_by_what_began_meanwhile(pair):
    links, near, far = pair
    link = Link(PS, WORKERS[1])
    links.hold([(WORKERS[1], PS)])
    far.sendall(b"answer")
    assert heard(near, SOON_S) == b""
    links.add("cut", "limit_data", [link], bytes=0)
    links.hold([(WORKERS[1], PS)], on=False)
    near.settimeout(LONG_S)
    with contextlib.suppress(ConnectionResetError):
        assert near.recv(100) == b"", "the answer came"


def test_what_somebody_else_has_reset_is_not_as_told(pair):
    """A server of one's own (TOXIPROXY_URL) may be used by others."""
    links, _, _ = pair
    link = Link(WORKERS[1], PS)
    assert links.as_told([link])
    links.server._call("post", "/reset")
    assert not links.as_told([link])


@pytest.mark.parametrize("name", ["delay", "toxic", "refuse"])
def test_what_the_server_says_otherwise_is_not_as_told(pair, name):
    links, _, _ = pair
    link = Link(WORKERS[1], PS)
    (there, stream), _ = links.streams(link)
    assert links.as_told([link])
    if name == "delay":
        links.server.change(there, "delay-upstream", latency=5)
    elif name == "toxic":
        links.server.add(there, "more", "bandwidth", stream, rate=5)
    else:
        links.server.enable(there, on=False)
    assert not links.as_told([link])


def test_a_connection_made_during_a_stall_is_held_back_too(pair, listener):
    links, _, _ = pair
    links.delay("stall", [Link(WORKERS[1], PS)], HOUR_MS)
    with dial(links.addresses_of(WORKERS[1])[PS]) as near:
        far, _ = listener.accept()
        with far:
            near.sendall(b"push")
            assert heard(far, SOON_S) == b""
            links.undelay("stall", [Link(WORKERS[1], PS)])
            assert heard(far, LONG_S) == b"push"


def test_what_is_refused_is_refused_and_taken_again(pair, listener):
    links, near, _ = pair
    links.refuse("refuse", [Link(WORKERS[1], PS)])
    assert heard(near, LONG_S) == b""  # the end of the stream, not a time-out
    with pytest.raises(ConnectionRefusedError):
        dial(links.addresses_of(WORKERS[1])[PS])
    links.refuse("refuse", [Link(WORKERS[1], PS)], on=False)
    with dial(links.addresses_of(WORKERS[1])[PS]):
        listener.accept()[0].close()


def test_with_one_address_for_all_what_is_held_back_is_everybodys(toxiproxy, listener):
    addresses = {PS: address(listener), **dict.fromkeys(WORKERS, "127.0.0.1:9")}
    with Links(toxiproxy, "shared", addresses, shared=True) as links:
        one, other = (links.addresses_of(worker)[PS] for worker in WORKERS)
        assert one == other
        links.delay("stall", [Link(EVERYBODY, PS)], HOUR_MS)
        with dial(one) as near, listener.accept()[0] as far:
            near.sendall(b"held")
            far.sendall(b"passes")
            assert heard(near, LONG_S) == b"passes"
            assert not heard(far, SOON_S)
            links.undelay("stall", [Link(EVERYBODY, PS)])
            assert heard(far, LONG_S) == b"held"
    assert toxiproxy.proxies() == {}


def test_proxies_of_others_are_left_alone(toxiproxy, listener):
    mine = toxiproxy.create("theirs", upstream=address(listener))
    try:
        with Links(toxiproxy, "test", {PS: address(listener), WORKERS[0]: "127.0.0.1:9"}) as links:
            links.delay("stall", [Link(WORKERS[0], PS)], HOUR_MS)
        assert toxiproxy.proxies() == {"theirs": mine}
    finally:
        toxiproxy.delete("theirs")


def test_what_the_server_refuses_is_one_clear_error(toxiproxy, listener):
    with pytest.raises(PsconformError, match="address already in use"):
        toxiproxy.create("taken", upstream="127.0.0.1:9", listen=address(listener))
    with pytest.raises(PsconformError, match="GET /proxies/none/toxics"):
        toxiproxy.toxics("none")
    toxiproxy.delete("none")  # it is gone, which is what was asked
    toxiproxy.create("one", upstream="127.0.0.1:9")
    try:
        with pytest.raises(PsconformError, match="already exists"):
            toxiproxy.create("one", upstream="127.0.0.1:9")
        with pytest.raises(PsconformError, match="toxic"):
            toxiproxy.add("one", "x", "unheard-of", "upstream")
        with pytest.raises(PsconformError, match="PATCH"):
            toxiproxy.change("one", "none", latency=1)
        toxiproxy.add("one", "slow", "latency", "downstream", latency=5)
        toxiproxy.change("one", "slow", latency=7)
        assert toxiproxy.toxics("one")["slow"]["attributes"]["latency"] == 7
        toxiproxy.remove("one", "slow")
        assert toxiproxy.toxics("one") == {}
    finally:
        toxiproxy.delete("one")
    with pytest.raises(PsconformError, match="no answer"):
        Toxiproxy("http://127.0.0.1:9").version()


def test_the_server_ends_with_its_tasks(tmp_path):
    with LocalLauncher(preload=None) as launcher:
        running = serve(launcher, log=tmp_path / "toxiproxy.log")
        assert running.version() == toxiproxy_install.VERSION
        assert launcher.running == (SERVER,)
        launcher.stop_all()
        with pytest.raises(PsconformError, match="no answer"):
            running.version()


def test_a_server_that_does_not_start_is_one_clear_error(tmp_path, monkeypatch):
    program = tmp_path / "toxiproxy-server"
    program.write_text(f"#!/bin/sh\necho toxiproxy-server version {toxiproxy_install.VERSION}\n[ $# = 1 ] || exit 3\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with LocalLauncher(preload=None) as launcher, pytest.raises(PsconformError, match="said last: toxiproxy-server"):
        serve(launcher, log=tmp_path / "toxiproxy.log")


@pytest.mark.parametrize("text", ["worker:1", "worker:1->", "->ps:0", "worker->ps:0", "ps:0->ps:0"])
def test_a_link_that_is_none_is_refused(text):
    with pytest.raises(BadInput, match=r"--stall: must be|--stall"):
        Link.parse(text, place="--stall")


def test_a_link_is_spelled_as_it_is_read():
    link = Link.parse("worker:1 -> ps:0")
    assert str(link) == "worker:1->ps:0"
    assert str(link.back) == "ps:0->worker:1"
