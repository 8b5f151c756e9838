"""Everything of a layout that a drawn fault of the network may strike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from ..errors import BadInput
from ..layout import Layout, Link
from .partitions import OF_ALL, OF_ONE, region


@dataclass(frozen=True)
class Region:
    """Some links, by the name that plans have for them; ``answered``: the workers whose answers they end."""

    name: str
    links: tuple[Link, ...]
    answered: tuple[str, ...]

    @property
    def ends(self) -> tuple[str, ...]:
        """The tasks that the links are between."""
        return tuple(dict.fromkeys(str(task) for link in self.links for task in (link.source, link.destination)))


@lru_cache(maxsize=256)
def regions(layout: Layout, *, one_way: bool, shared: bool = False) -> tuple[Region, ...]:
    """Every pair in each direction and in both, every task, every partition that separates anybody.

    ``one_way``: only what one side of a link does, who dials; ``shared``: what there is where all tasks have one
    cluster spec.
    """
    found = _of_listeners(layout, one_way=one_way) if shared else _named(layout, one_way=one_way)
    known = {name: region(name, layout=layout, place="--faults") for name in found}
    return tuple(Region(name, links, _answered(links, one_way=one_way)) for name, links in known.items())


def _answered(links: Sequence[Link], *, one_way: bool) -> tuple[str, ...]:
    """Answers come from a ps; with ``one_way`` whoever has dialled for them, a worker, loses the connection."""
    ends = ((link.destination, link.source) if one_way else (link.source, link.destination) for link in links)
    return tuple(dict.fromkeys(str(worker) for server, worker in ends if server.job == "ps"))


def _named(layout: Layout, *, one_way: bool) -> list[str]:
    servers = [task for task in layout.tasks if task.job == "ps"]
    pairs = [(worker, server) for worker in layout.worker_tasks for server in servers]
    arrows = ("->",) if one_way else ("->", "<->")
    found = [f"{a}{arrow}{b}" for one, other in pairs for arrow in arrows for a, b in ((one, other), (other, one))]
    found += [f"{name} {task}" for name in OF_ONE for task in layout.tasks]
    return found + [name for name in OF_ALL if _separates(name, layout)]


def _of_listeners(layout: Layout, *, one_way: bool) -> list[str]:
    return [f"{name} {task}" for name in (("deaf",) if one_way else OF_ONE) for task in layout.tasks]


def _separates(name: str, layout: Layout) -> bool:
    try:
        region(name, layout=layout, place="--faults")
    except BadInput:
        return False
    return True
