"""What the kernel says of connections, and what is made of it."""

from __future__ import annotations

import socket

import pytest
from pyroute2 import DiagSocket

from psconform.faults.traffic import Flow, Flows, Meter, accepted, available, closed, flows


@pytest.fixture
def server():
    """A listener at a port that had no connection in the last minute: the kernel still tells of those."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = "{}:{}".format(*server.getsockname())
            if flows([address]) == {address: Flows()} and not closed(address):
                yield server
                return


def dial(server, family):
    host, port = server.getsockname()
    line = socket.socket(family)
    line.connect((host, port) if family == socket.AF_INET else (f"::ffff:{host}", port))
    return line


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_bytes_of_open_connections_to_an_address(server, family):
    """gRPC dials IPv4 addresses from IPv6 sockets."""
    address = "{}:{}".format(*server.getsockname())
    assert available() == ""
    assert flows([address]) == {address: Flows()}
    with dial(server, family) as near, server.accept()[0] as far:
        near.sendall(b"x" * 1000)
        far.recv(1000, socket.MSG_WAITALL)
        far.sendall(b"y" * 70)
        near.recv(70, socket.MSG_WAITALL)
        port = near.getsockname()[1]
        assert flows([address]) == {address: Flows({port: Flow(sent=1000, received=70)})}
        assert accepted(address) == {port: Flow(sent=70, received=1000)}
        near.close()
        assert far.recv(1) == b""
        assert flows([address]) == {address: Flows({}, frozenset([port]))}, "who dialled has closed it"


def test_what_the_listener_has_closed_first(server):
    address = "{}:{}".format(*server.getsockname())
    with dial(server, socket.AF_INET) as near, server.accept()[0] as far, dial(server, socket.AF_INET6) as other:
        port = near.getsockname()[1]
        other.close()
        assert closed(address) == frozenset(), "who dialled has closed it"
        far.close()
        assert near.recv(1) == b""
        assert closed(address) == {port}


def test_nothing_is_read_of_connections_that_nobody_asked_about(server, monkeypatch):
    """A machine can have thousands that were closed in the last minute: reading them outlasted short faults."""
    told = []
    ask = DiagSocket.get_sock_stats
    monkeypatch.setattr(DiagSocket, "get_sock_stats", lambda *a, **k: told.append(found := ask(*a, **k)) or found)
    with socket.create_server(("127.0.0.1", 0)) as other:
        for _ in range(50):
            with dial(other, socket.AF_INET), other.accept()[0]:
                pass
        address = "{}:{}".format(*server.getsockname())
        with dial(server, socket.AF_INET), server.accept()[0]:
            assert len(flows([address])[address].open) == 1
            assert list(accepted(address).values()) == [Flow(0, 0)]
    assert sum(map(len, told)) == 2


def test_of_many_addresses_each_has_its_own(server):
    address = "{}:{}".format(*server.getsockname())
    many = [f"127.0.0.1:{port}" for port in range(1, 20)]
    with dial(server, socket.AF_INET) as near, server.accept()[0]:
        found = flows([*many, address])
        assert list(found[address].open) == [near.getsockname()[1]]
    assert all(found[other] == Flows() for other in many)


def test_a_connection_that_the_other_end_has_closed_was_not_left(server):
    address = "{}:{}".format(*server.getsockname())
    with dial(server, socket.AF_INET) as near, server.accept()[0] as far:
        meter = Meter.since(flows([address])[address])
        far.close()
        assert near.recv(1) == b""
        meter.look(flows([address])[address])
        assert (meter.over, meter.ended) == (1, 1)


def test_a_meter_counts_from_when_it_was_made():
    meter = Meter.since(Flows({5: Flow(100, 10)}))
    meter.look(Flows({5: Flow(130, 10), 6: Flow(7, 2)}))
    assert (meter.sent, meter.received, meter.ended) == (37, 2, 0)
    meter.look(Flows({6: Flow(8, 2)}))
    assert (meter.sent, meter.received, meter.ended) == (38, 2, 1)
    meter.look(Flows({}, frozenset([6])))
    assert (meter.over, meter.ended) == (2, 1)


def test_a_port_that_is_taken_again_is_another_connection():
    meter = Meter.since(Flows({5: Flow(100, 10)}))
    meter.look(Flows({5: Flow(20, 1)}))
    assert (meter.sent, meter.received) == (20, 1)
