"""The Toxiproxy of a run: one that runs already, or a process beside the tasks, which ends with them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ..errors import PsconformError
from ..faults.links import Links
from ..faults.server import need
from ..faults.toxiproxy import Toxiproxy
from ..history.manifest import Manifest
from ..launchers.local import LocalLauncher
from ..layout import Command, Task

SERVER = Task("toxiproxy", 0)
READY_S = 10.0


def serve(launcher: LocalLauncher, *, log: Path) -> Toxiproxy:
    """A Toxiproxy that answers, set up if need be. As a task of the launcher it dies with psconform, however that dies.

    Raises:
        PsconformError: there is none, or it does not answer; says how to get one, or what it said last.
    """
    found = need()
    if found.url:
        return Toxiproxy(found.url)
    host, _, port = launcher.address(None, SERVER).rpartition(":")
    launcher.start(SERVER, Command((found.path, "-host", host, "-port", port)), env={}, log=log)
    server, deadline = Toxiproxy(f"http://{host}:{port}"), time.monotonic() + READY_S
    while True:
        try:
            server.version()
        except PsconformError as error:
            if SERVER in launcher.running and time.monotonic() < deadline:
                launcher.poll(0.02)
                continue
            said = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
            raise PsconformError(f"{error}; {found.path} said last: {said[-1] if said else 'nothing'}") from None
        return server


@contextmanager
def proxies(
    server: Toxiproxy, manifest: Manifest, addresses: Mapping[Task, str], *, launcher: LocalLauncher
) -> Iterator[Links]:
    """A proxy for each ordered pair of tasks, or one for each; should psconform go away, the keeper deletes them."""
    links = Links(server, manifest.run, addresses, shared=manifest.shared_spec)
    for url in links.urls:
        launcher.scratch(url)
    with links:
        yield links
    for url in links.urls:
        launcher.scratch(url, mine=False)
