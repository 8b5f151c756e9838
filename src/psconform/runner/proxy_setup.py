"""The Toxiproxy of a run: one that runs already, or a process beside the tasks, which ends with them."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from ..errors import PsconformError
from ..faults.pod_network import Ask, InPods
from ..faults.proxies import Links, Sent
from ..faults.toxiproxy import Toxiproxy
from ..faults.toxiproxy_install import Say, need
from ..history.manifest import Manifest
from ..launchers.containers import TOXIPROXY
from ..launchers.launcher import Launcher
from ..launchers.local import LocalLauncher
from ..layout import Command, Task
from .folder import log_of

SERVER = Task("toxiproxy", 0)
READY_S = 10.0


def serve(launcher: LocalLauncher, *, log: Path, say: Say = lambda _: None) -> Toxiproxy:
    """A Toxiproxy that answers, set up if need be. As a task of the launcher it dies with psconform, however that dies.

    ``say`` receives a line of progress while it is set up.

    Raises:
        PsconformError: there is none, or it does not answer; says how to get one, or what it said last.
    """
    found = need(say)
    if found.url:
        return Toxiproxy(found.url)
    host, _, port = launcher.address(None, SERVER).rpartition(":")
    launcher.start(SERVER, Command((found.path, "-host", host, "-port", port)), log=log)
    server = Toxiproxy(f"http://{host}:{port}")
    _await_answer(server, log=log, there=lambda: SERVER in launcher.running, wait=launcher.poll)
    return server


def _await_answer(server: Toxiproxy, *, log: Path, there: Callable[[], bool], wait: Callable[[float], object]) -> None:
    deadline = time.monotonic() + READY_S
    while True:
        try:
            server.version()
        except PsconformError as error:
            if there() and time.monotonic() < deadline:
                wait(0.02)
                continue
            said = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
            raise PsconformError(f"{error}; Toxiproxy said last: {said[-1] if said else 'nothing'}") from None
        return


def hold(links: Links, worker: Task, manifest: Manifest) -> Sent:
    """Hold back the answers to a worker's push."""
    layout, workload = manifest.layout, manifest.workload
    servers = [task for task in layout.tasks if task.job == "ps"]
    entries = 2 * layout.workers * workload.steps if workload.is_ledger else 1  # of a gradient, at least
    return Sent(links, worker, servers, least=4 * entries)


PLACES = 256
"""Of so many proxies each has a port that nothing else on this machine is given."""


class Detours:
    """Ways to the proxies for tasks that dial each other and nothing else, in the network of each pod.

    Attributes:
        believed: what a task may believe to have dialled, by task and by the proxy that it gets to; of one that has
            moved the address of before, too, for names are looked up now and then only.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._links: Links | None = None
        self.believed: defaultdict[tuple[Task, str], list[str]] = defaultdict(list)

    def begin(self, links: Links, addresses: Mapping[Task, str]) -> None:
        """From now on."""
        self._links = links
        for task, address in addresses.items():
            self.moved(task, address)

    def moved(self, listener: Task, address: str) -> None:
        """A task listens there now."""
        if self._links is None:
            return
        for dialler in self._links.addresses:
            if dialler != listener:
                proxy = self._links.dialled(dialler, listener)
                self._ask(dialler, do="divert", of=address, to=proxy)
                self.believed[dialler, proxy].append(address)


@contextmanager
def proxies(
    server: Toxiproxy | None,
    manifest: Manifest,
    addresses: Mapping[Task, str],
    *,
    launcher: Launcher,
    folder: Path,
    fixed: bool = False,
) -> Iterator[Links]:
    """A proxy for each ordered pair of tasks, or one for each; should psconform go away, the keeper deletes them.

    Containers have a server of their own on the network of the run, which ends with them; processes are given one.
    ``fixed``: tasks dial each other, and get to the proxies all the same.
    """
    if (pods := launcher.pods) is not None:
        url, host = pods.toxiproxy()
        own = Toxiproxy(url)
        _await_answer(own, log=log_of(folder, TOXIPROXY), there=pods.toxiproxy_runs, wait=time.sleep)
        detours = Detours(pods.ask_pod)
        traffic = InPods(pods.ask_pod, list(addresses), diverted=detours.believed)
        named, shared = launcher.named, manifest.shared_spec
        with Links(own, manifest.run, addresses, shared=shared, traffic=traffic, host=host, named=named) as links:
            if fixed:
                links.moved = detours.moved
                detours.begin(links, addresses)
            yield links
        return
    assert server is not None
    # a place is kept by a file descriptor, of which a process may have a thousand
    place = partial(launcher.address, None, SERVER) if len(addresses) ** 2 <= PLACES else None
    links = Links(server, manifest.run, addresses, shared=manifest.shared_spec, place=place)
    for url in links.urls:
        launcher.scratch(url)
    with links:
        yield links
    for url in links.urls:
        launcher.scratch(url, mine=False)
