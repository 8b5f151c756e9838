"""Which links a fault of the network strikes: pure functions of a text and a layout.

====================  =============================================================================================
``worker:1->ps:0``    one direction of one pair: the bytes from worker:1 to ps:0, whoever dialled
``worker:1<->ps:0``   both directions
``isolate worker:1``  a task and everybody that it talks to, both directions
``mute worker:1``     one direction: nobody hears the task, it hears all
``deaf worker:1``     one direction: it hears nobody, all hear it
``halves``            the tasks in two halves, a ps in each where there are two; none hears the other half
``ring``              worker i talks to ps i and ps i + 1 alone (modulo their number), as in Jepsen's majorities-ring:
                      everybody is there, and no two workers see the same cluster; needs three ps
====================  =============================================================================================

Only links between a worker and a ps are meant: two workers, or two ps, exchange nothing that a fault could show on.

Replicas (``ps=0``) exchange gradients by an algorithm that psconform does not know: a ring, a star, a mesh. Each of
them must send to the others and hear of them in each round, so all links of one replica, or between two halves, carry
something whatever it is, and nothing is known of a single one.

Where all tasks share one cluster spec there is one proxy for each listener, and nobody can tell who has dialled it:
`of_listener`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ..errors import BadInput
from ..layout import Layout, Link, Task
from .kinds import kinds

Hears = Mapping[Task, frozenset[Task]]
"""Per task, whom it does not hear (in Jepsen's words a grudge)."""
EVERYBODY = Task("all", 0)
"""Whoever has dialled, where that cannot be told."""
SHARED = 'the tasks share one cluster spec (cluster_spec = "shared"), so each has one proxy for all that dial it'
_PAIR = re.compile(r"\s*(\S+?)\s*(<->|->)\s*(\S+)\s*")


def region(text: str, *, layout: Layout, place: str) -> tuple[Link, ...]:
    """The links that a text stands for, sorted; raises BadInput."""
    pair = _PAIR.fullmatch(text)
    if pair is not None:
        link = Link.parse(f"{pair[1]}->{pair[3]}", place=place)
        _check(layout, (link.source, link.destination), place=place)
        if not talks(link.source, link.destination, among=layout.tasks):
            raise BadInput(place, f"{link.source} and {link.destination} exchange nothing: give one ps", value=text)
        return (link, link.back) if pair[2] == "<->" else (link,)
    name, _, whom = text.strip().partition(" ")
    if name in OF_ONE and whom:
        task = Task.parse(whom.strip(), place=place)
        _check(layout, (task,), place=place)
        return _links(OF_ONE[name](layout.tasks, task), layout)
    if name in OF_ALL and not whom:
        found = _links(OF_ALL[name](layout.tasks), layout)
        if not found:
            raise BadInput(place, f"{name} cuts no link in layout {layout.text}", value=text)
        return found
    choices = ("TASK->TASK", "TASK<->TASK", *(f"{name} TASK" for name in OF_ONE), *OF_ALL)
    raise BadInput(place, "is no link and no partition", value=text, choices=choices)


def of_listener(text: str, *, kind: str, place: str) -> tuple[Link, ...]:
    """What ``deaf``, ``mute`` or ``isolate`` of a task is where all tasks share one cluster spec.

    Links from and to `EVERYBODY`: what is sent to that task, and what it answers, on connections that others have
    dialled. What it dials itself runs through the proxies of others, together with what everybody else sends them.

    Raises:
        BadInput: the text names other links, or the kind is not one that strikes those.
    """
    name, _, whom = text.strip().partition(" ")
    choices = tuple(f"{name} TASK" for name in kinds()[kind].shared)
    if not choices:
        raise BadInput(place, f"{kind} {SHARED}", value=text)
    if f"{name} TASK" not in choices or not whom:
        raise BadInput(place, f"cannot be broken alone by {kind}: {SHARED}", value=text, choices=choices)
    task = Task.parse(whom.strip(), place=place)
    to, back = Link(EVERYBODY, task), Link(task, EVERYBODY)
    return {"deaf": (to,), "mute": (back,), "isolate": (to, back)}[name]


def talks(one: Task, other: Task, *, among: Collection[Task]) -> bool:
    """Whether training has something to exchange between two tasks of these: a worker and a ps, or two replicas."""
    if any(task.job == "ps" for task in among):
        return {one.job, other.job} == {"ps", "worker"}
    return one != other


def isolate(tasks: Iterable[Task], lonely: Task) -> Hears:
    """It hears nobody, and nobody hears it."""
    return {**mute(tasks, lonely), **deaf(tasks, lonely)}


def mute(tasks: Iterable[Task], quiet: Task) -> Hears:
    """Nobody hears it."""
    return {task: frozenset([quiet]) for task in tasks if task != quiet}


def deaf(tasks: Iterable[Task], task: Task) -> Hears:
    """It hears nobody."""
    return {task: frozenset(other for other in tasks if other != task)}


def halves(tasks: Iterable[Task]) -> Hears:
    """Every other task of each job is in the one half, the rest in the other; neither hears the other half."""
    one = {task for task in tasks if task.index % 2 == 0}
    other = {task for task in tasks if task.index % 2}
    return {task: frozenset(other if task in one else one) for task in tasks}


def ring(tasks: Iterable[Task]) -> Hears:
    """Worker i and ps i, and worker i and ps i + 1 (modulo the number of ps) hear each other, and no others do.

    Of replicas each hears the one before and the one after it.
    """
    jobs: dict[str, list[Task]] = {}
    for task in sorted(tasks):
        jobs.setdefault(task.job, []).append(task)
    servers, workers = jobs.get("ps", []), jobs.get("worker", [])
    heard: dict[Task, set[Task]] = {task: set() for task in (*servers, *workers)}
    for number, worker in enumerate(workers):
        others = servers or workers
        for other in (others[number % len(others)], others[(number + 1) % len(others)]):
            heard[worker].add(other)
            heard[other].add(worker)
    return {task: frozenset(t for t in heard if talks(task, t, among=heard)) - frozenset(heard[task]) for task in heard}


OF_ONE: dict[str, Callable[[Iterable[Task], Task], Hears]] = {"isolate": isolate, "mute": mute, "deaf": deaf}
OF_ALL: dict[str, Callable[[Iterable[Task]], Hears]] = {"halves": halves, "ring": ring}


def _links(hears_not: Hears, layout: Layout) -> tuple[Link, ...]:
    """What is not heard, of what anybody would hear."""
    silent = ((s, d) for d, sources in hears_not.items() for s in sources)
    return tuple(sorted(Link(s, d) for s, d in silent if talks(s, d, among=layout.tasks)))


def _check(layout: Layout, tasks: Iterable[Task], *, place: str) -> None:
    for task in tasks:
        if task not in layout.tasks:
            problem = f"layout {layout.text} has no such task"
            raise BadInput(place, problem, value=str(task), choices=map(str, layout.tasks))


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


@dataclass(frozen=True)
class Dialled:
    """Which tasks dial which, as a calibration saw it: what all workers do is known of those that it had.

    Attributes:
        pairs: (dialler, listener), with worker:0 for each worker; with ``shared`` the dialler is EVERYBODY, and
            listeners are themselves.
        shared: all tasks have one cluster spec, so there is one proxy for each listener.
    """

    pairs: frozenset[tuple[Task, Task]]
    shared: bool = False

    @classmethod
    def seen(cls, pairs: Iterable[tuple[Task, Task]], *, shared: bool = False) -> Dialled:
        """From the pairs of tasks of a calibration."""
        if shared:
            return cls(frozenset(pairs), shared)
        return cls(frozenset((_any_of(dialler), _any_of(listener)) for dialler, listener in pairs))

    def carries(self, region: str, links: Iterable[Link], *, one_way: bool) -> bool:
        """Whether any of these links is used; ``one_way``: by connections that its source has dialled."""
        if self.shared:
            _, _, whom = region.partition(" ")
            return (EVERYBODY, _any_of(Task.parse(whom))) in self.pairs
        ends = {(link.source, link.destination) for link in links}
        ends |= set() if one_way else {(listener, dialler) for dialler, listener in ends}
        return any((_any_of(dialler), _any_of(listener)) in self.pairs for dialler, listener in ends)


def _any_of(task: Task) -> Task:
    return Task("worker", 0) if task.job == "worker" else task


@lru_cache(maxsize=256)
def regions(layout: Layout, *, one_way: bool, shared: bool = False) -> tuple[Region, ...]:
    """Every pair in each direction and in both, every task, every partition that separates anybody.

    ``one_way``: only what one side of a link does, who dials; ``shared``: what there is where all tasks have one
    cluster spec. Of replicas only what surely carries something: see above.
    """
    if layout.all_reduce:
        found = _of_replicas(layout, one_way=one_way, shared=shared)
    else:
        found = _of_listeners(layout, one_way=one_way) if shared else _named(layout, one_way=one_way)
    known = {name: region(name, layout=layout, place="--faults") for name in found}
    return tuple(Region(name, links, _answered(links, one_way=one_way)) for name, links in known.items())


def _answered(links: Sequence[Link], *, one_way: bool) -> tuple[str, ...]:
    """Answers come from a ps; with ``one_way`` the worker that has dialled for them loses the connection."""
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


def _of_replicas(layout: Layout, *, one_way: bool, shared: bool) -> list[str]:
    """All links of one replica, and those between two halves; with ``one_way`` only in both directions.

    For it is not known who dials: worker:1 may dial all others and be dialled by none. With ``shared`` only of
    worker:0, which is the one that a star has in the middle, and as good as any other in a ring.
    """
    if layout.workers == 1:
        return []
    if shared:
        return [name for name in _of_listeners(layout, one_way=one_way) if name.endswith(f" {layout.worker_tasks[0]}")]
    names = ("isolate",) if one_way else OF_ONE
    return [*(f"{name} {task}" for name in names for task in layout.worker_tasks), "halves"]


def _separates(name: str, layout: Layout) -> bool:
    try:
        region(name, layout=layout, place="--faults")
    except BadInput:
        return False
    return True
