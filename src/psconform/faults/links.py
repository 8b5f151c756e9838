"""Proxies between tasks, one for each pair of a dialler and a listener, so that one direction can be broken alone.

Each task is told an address of its own for every other task: a proxy that only it dials. What TensorFlow sends from
worker:1 to ps:0 travels on connections that either of them dialled (a gradient on one that the *ps* dialled, the call
that asks for it on the worker's own), so the link worker:1->ps:0 is the upstream of one proxy and the downstream of the
other: `Links.streams`.

A stall holds bytes back and loses none: a toxic ``latency`` of an hour, which is there from the beginning, at 0, and is
changed to 0 again to heal; what was held back then arrives at once. (``timeout`` would swallow bytes, and removing it
closes the connection.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

from ..errors import PsconformError
from ..layout import Link, Task
from .toxiproxy import Stream, Toxiproxy

HOUR_MS = 3_600_000
_STALL: dict[Stream, str] = {"upstream": "stall-upstream", "downstream": "stall-downstream"}


@dataclass
class Links:
    """The proxies of one run. Use it as a context: they are deleted at its end.

    Args:
        server: a Toxiproxy on this machine; it may have other proxies, which are left alone.
        run: id of the run; the names of its proxies begin with it.
        addresses: where each task listens, ``host:port``.
        shared: there is one address for each task, whoever dials it (targets that have one cluster spec for all).
    """

    server: Toxiproxy
    run: str
    addresses: Mapping[Task, str]
    shared: bool = False
    stalled: set[Link] = field(default_factory=set)
    _listens: dict[tuple[Task | None, Task], str] = field(default_factory=dict)

    def __enter__(self) -> Self:
        try:
            for listener in sorted(self.addresses):
                for dialler in [None] if self.shared else [task for task in self.addresses if task != listener]:
                    self._make(dialler, listener)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def addresses_of(self, task: Task) -> dict[Task, str]:
        """The cluster as ``task`` is to know it: itself where it listens, everybody else behind a proxy."""
        found = {
            other: self._listens[None if self.shared else task, other] for other in self.addresses if other != task
        }
        return {**found, task: self.addresses[task]}

    def streams(self, link: Link) -> list[tuple[str, Stream]]:
        """The streams of proxies that carry a link: (proxy, stream).

        Raises:
            PsconformError: there is one proxy for each task, so that no link can be told from another.
        """
        if self.shared:
            raise PsconformError(f"link {link} cannot be broken alone: all tasks share one cluster spec")
        return [
            (self._name(link.source, link.destination), "upstream"),
            (self._name(link.destination, link.source), "downstream"),
        ]

    def stall(self, links: Iterable[Link]) -> None:
        """Hold back all bytes of these links, on connections that are open and on new ones, until they are healed."""
        for link in links:
            for proxy, stream in self.streams(link):
                self.server.change(proxy, _STALL[stream], latency=HOUR_MS)
            self.stalled.add(link)

    def heal(self, links: Iterable[Link] | None = None) -> None:
        """Let bytes pass again, first those that were held back; None: of all links."""
        for link in list(self.stalled if links is None else links):
            for proxy, stream in self.streams(link):
                self.server.change(proxy, _STALL[stream], latency=0)
            self.stalled.discard(link)

    def refuse(self, dialler: Task, listener: Task, *, on: bool = True) -> None:
        """End the connections of ``dialler`` to ``listener`` and refuse new ones; ``on=False``: take them again."""
        self.server.enable(self._name(None if self.shared else dialler, listener), on=not on)

    def close(self) -> None:
        """Delete the proxies of this run, as far as that goes: the server may have gone first."""
        for dialler, listener in list(self._listens):
            try:
                self.server.delete(self._name(dialler, listener))
            except PsconformError:
                continue
            del self._listens[dialler, listener]

    def _make(self, dialler: Task | None, listener: Task) -> None:
        name = self._name(dialler, listener)
        self._listens[dialler, listener] = ""
        proxy = self.server.create(name, upstream=self.addresses[listener])
        self._listens[dialler, listener] = proxy.listen
        for stream, toxic in _STALL.items():
            self.server.add(name, toxic, "latency", stream, latency=0)

    def _name(self, dialler: Task | None, listener: Task) -> str:
        return f"{self.run}.{dialler.slug if dialler else 'all'}.{listener.slug}"
