"""A real Toxiproxy server, and one connection through it, for tests of what is done to links."""

from __future__ import annotations

import contextlib
import socket

import pytest

from psconform.faults.proxies import Links
from psconform.launchers.local import LocalLauncher
from psconform.layout import Task
from psconform.plugin import need
from psconform.runner.proxy_setup import serve

PS, WORKERS = Task("ps", 0), [Task("worker", 0), Task("worker", 1)]
SOON_S, LONG_S = 0.5, 20.0


@pytest.fixture(scope="module")
def toxiproxy(tmp_path_factory):
    need("toxiproxy")
    with LocalLauncher(preload=None) as launcher:
        yield serve(launcher, log=tmp_path_factory.mktemp("toxiproxy") / "toxiproxy.log")


@pytest.fixture
def listener():
    """Where a ps would listen: each connection is kept and can be read and written by the test."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(LONG_S)
        yield listening


def address(listening):
    return f"127.0.0.1:{listening.getsockname()[1]}"


def dial(text):
    host, _, port = text.rpartition(":")
    line = socket.create_connection((host, int(port)), timeout=LONG_S)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return line


def heard(line, seconds):
    """What comes within so many seconds; nothing: b''."""
    line.settimeout(seconds)
    with contextlib.suppress(TimeoutError):
        return line.recv(100)
    return b""


@pytest.fixture
def pair(toxiproxy, listener):
    """(links, connection of worker:1 as it has it, and as ps:0 has it), both through the proxy of worker:1 to ps:0."""
    addresses = {PS: address(listener), **dict.fromkeys(WORKERS, "127.0.0.1:9")}
    with Links(toxiproxy, "test", addresses) as links, dial(links.addresses_of(WORKERS[1])[PS]) as near:
        far, _ = listener.accept()
        with far:
            yield links, near, far
    assert toxiproxy.proxies() == {}
