"""Fault plans that are drawn: ``--faults random``, ``--faults random:stall,kill``. Same seed, same plan."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import BadInput
from ..history.records import Harm
from ..layout import Layout, Task
from .conflicts import all_wait, clash, ends_worker, leavers, skips
from .fault import BEFORE_PUSH, SENT, Fault, When
from .kinds import PACKETS, Amount, Kind, drawn_kinds, kinds
from .partitions import Dialled, Region, regions

RANDOM = "random"
LEAST, MOST, ATTEMPTS = 6, 8, 40
EVERY = 14
"""Steps: so often something breaks, if that is neither fewer than LEAST times in all nor more than MOST."""
LONGEST_STEPS, LONGEST_S = 10, 0.6
OUTLASTS_S, LONG = (2.2, 2.5), 0.8
"""Of stalls and stops a share lasts so long, and some workers that end are away for so long: what is wrong with a
deadline shows only after it. Where the layout has a deadline of its own, it is that one that they outlast."""
HOLDS_A_PUSH = 0.85
"""The share of stalls that begin when a worker whose link it is comes to a push of its own: that push waits for the end
of it, surely."""
AWAY, RETURNS_S, LONGEST_AFTER_S = (0.1, 0.97), (0.4, 0.9), 3.0
"""The share of workers that are away for long, where all wait for them and where the job goes on without them; there
it is so long after that, if that is soon. They leave sooner than others: they must have something to come back to."""
UNTIL, ELSEWHERE = 0.3, 0.3
"""The share of faults that last until a step; and that strike where another worker is, so in the middle of whatever
theirs does then."""
AT_A_PHASE, WITHIN_A_STEP = 0.1, 0.85
"""The share of faults of processes that strike at a phase that the target says of itself, such as checkpointing; and of
a worker at one of a step, if workers say any: what is wrong with what it does there shows nowhere else."""
PACED = 0.8
"""The share of faults of a ps, or of links, that strike where one worker is that is drawn once for the whole plan, and
of ended workers that are that one, if workers do not wait for each other: only with one worker's steps can be said what
comes after what."""
SHOWS = 10
"""What goes wrong with a second process, or with a push that is held back, is undone if a ps is lost within so many
steps, where it is known when that is; fewer in a short job."""
DOUBLED = 0.98
"""The share of plans in which there surely is a second process, though nobody may be left then who is just away."""
UNSURE = ("restoring",)
"""Phases that are said only if something else was lost before: a fault that waits for one may never strike."""
RESTARTS_S = (0.0, 0.2, 0.6)


def drawn_plan(
    text: str,
    *,
    layout: Layout,
    steps: int,
    seed: int,
    phases: Mapping[str, str] | None = None,
    shared: bool = False,
    sent: bool = False,
    containers: bool = False,
    dialled: Dialled | None = None,
) -> tuple[Fault, ...]:
    """The faults that ``random`` or ``random:KIND,KIND`` stands for: up to eight, no two of one process.

    ``phases`` are those that the target says beside those of any step, and who says each: a task, or ``worker``; with
    ``shared`` its tasks have one cluster spec; with ``sent`` its pushes wait for nothing, so that phase is got to. In
    ``containers`` there is more to draw from. ``dialled``: which tasks dial which, so that no link is drawn that none
    uses; None: that is not known.

    Raises:
        BadInput: a kind that there is not, or that is not drawn, or none that strikes a link which is used.
    """
    _, _, names = text.partition(":")
    known = drawn_kinds(containers=containers)
    given = tuple(name.strip() for name in names.split(",")) if names else _usual(known, layout)
    if not names and text != RANDOM:
        raise BadInput("--faults", "names no kind after the colon", value=text, choices=known)
    for name in given:
        if name not in known:
            raise BadInput("--faults", "is no kind that can be drawn", value=name, choices=known)
    generator = random.Random(f"faults:{seed}:{layout.text}:{layout.update}:{steps}:{','.join(given)}")
    used = tuple(name for name in given if not kinds()[name].of_links or _used(kinds()[name], layout, shared, dialled))
    if not used:
        hint = "If they exchange addresses of their own, psconform cannot come between them"
        raise BadInput("--faults", "no task dials another by the address that it was told", value=text, hint=hint)
    return draw(generator, used, layout=layout, steps=steps, phases=phases, shared=shared, sent=sent, dialled=dialled)


def _usual(known: Sequence[str], layout: Layout) -> tuple[str, ...]:
    """What is drawn where no kinds are named: of replicas none that ends connections, for many end with an error then.

    psconform has not ended them, so it starts none again, and later faults would be missed.
    """
    ends = {name for name in known if kinds()[name].of_links and kinds()[name].effect == "ends"}
    return tuple(name for name in known if not (layout.all_reduce and name in ends))


def draw(
    generator: random.Random,
    names: Sequence[str] = (),
    *,
    layout: Layout,
    steps: int,
    phases: Mapping[str, str] | None = None,
    shared: bool = False,
    sent: bool = False,
    least: int = 0,
    most: int = 0,
    dialled: Dialled | None = None,
) -> tuple[Fault, ...]:
    """``least`` to ``most`` faults of these kinds, or of all; fewer where they would clash; no two of one process.

    Without bounds, one fault for every 14 steps or so, but six at least and eight at most, and among them what ends a
    ps, what ends a worker, what ends connections (before a push, and with ``sent`` between a push and its answer), and
    what holds bytes back: nothing shows more. Of replicas at most one ends connections, and it is the last one.

    Of different sorts, as long as there are any: whatever one of them shows must not take many plans.
    """
    deal = _Deal(generator, layout, steps, phases or {}, shared, dialled)
    sorts = _sorts(names or drawn_kinds(), layout, sent=sent and not shared)
    generator.shuffle(sorts)
    if not least and len(sorts) <= MOST:  # of more than there is room for each is to have its turn
        doubled = generator.random() < DOUBLED
        sorts.sort(key=lambda sort: _room(sort, layout, doubled=doubled))
    faults: list[Fault] = []
    usual = max(LEAST, min(MOST - 1, steps // EVERY))
    for number in range(generator.randint(least or usual, most or usual + 1)):
        for attempt in range(ATTEMPTS):
            shows = min(SHOWS, steps // 6) if attempt < ATTEMPTS // 2 else 0  # rather undone than missing
            fault = deal.fault(sorts[number % len(sorts)])
            pairs = ((one, other) for before in faults for one, other in ((fault, before), (before, fault)))
            if not any(clash(one, other, layout=layout, shows=shows) for one, other in pairs):
                faults.append(fault)
                break
    return tuple(faults)


def _used(kind: Kind, layout: Layout, shared: bool, dialled: Dialled | None) -> list[Region]:
    """The links that a kind of fault may strike, without those that no task uses, where that is known."""
    every = regions(layout, one_way=kind.one_way, shared=shared)
    if dialled is None or (layout.all_reduce and kind.of == PACKETS):  # they need no proxy
        return list(every)
    return [one for one in every if dialled.carries(one.name, one.links, one_way=kind.one_way)]


@dataclass(frozen=True)
class _Sort:
    """Kinds that are alike in what they do, and whom they strike; ``sent``: between a push and its answer."""

    names: tuple[str, ...]
    tasks: tuple[Task, ...]
    sent: bool = False

    @property
    def of_ps(self) -> bool:
        """It strikes a ps."""
        return self.tasks[0].job == "ps"

    @property
    def first(self) -> bool:
        """It shows most."""
        return self.kind.restarts or self.kind.effect in ("ends", "holds")

    @property
    def kind(self) -> Kind:
        """One of them."""
        return kinds()[self.names[0]]

    @property
    def doubles(self) -> bool:
        """There are two processes of a task."""
        return self.kind.harm is Harm.DOUBLES


def _sorts(given: Sequence[str], layout: Layout, *, sent: bool = False) -> list[_Sort]:
    """What ends a ps, what ends a worker, what ends connections, and so on."""
    servers = tuple(task for task in layout.tasks if task.job == "ps")
    workers = leavers(layout)
    jobs = [tasks for tasks in (servers, workers) if tasks]
    alike: dict[tuple[str, bool, str], list[str]] = {}
    for name in given:
        kind = kinds()[name]
        # links end, hold back, or slow down; a process is away, or there twice
        shown_by = kind.effect or ("doubles" if kind.harm is Harm.DOUBLES else "")
        alike.setdefault((kind.of, kind.restarts, shown_by), []).append(name)
    found = []
    anybody = tuple(layout.tasks)
    for (_, ends, _), names in alike.items():
        doubles = kinds()[names[0]].harm is Harm.DOUBLES
        whom = jobs if ends else [anybody + 2 * workers if doubles else anybody]  # no worker uses a second ps
        found += [_Sort(tuple(names), tasks) for tasks in whom]
        if sent and kinds()[names[0]].effect == "ends":
            found.append(_Sort(tuple(names), anybody, sent=True))
    return found


def _room(sort: _Sort, layout: Layout, *, doubled: bool) -> tuple[bool, ...]:
    """Sorts in this order: what shows most before the rest, and of each what needs most room among the others."""
    ends = sort.kind.restarts
    firsts = (
        ends and skips(layout),  # who is to be gone without leaves while nothing holds the others up
        sort.first,
        sort.sent,
        ends and sort.of_ps and all_wait(layout),  # it is to end early
        sort.kind.effect != "holds",
        doubled and sort.doubles,
    )
    return tuple(not yes for yes in firsts)


@dataclass(frozen=True)
class _Deal:
    """Draws one fault after another of one plan; ``pace`` is the worker where most of them strike."""

    generator: random.Random
    layout: Layout
    steps: int
    phases: Mapping[str, str]
    shared: bool
    dialled: Dialled | None
    pace: str = field(init=False)

    def __post_init__(self) -> None:
        workers = self.layout.worker_tasks[:1] if skips(self.layout) else leavers(self.layout)
        pace = "" if all_wait(self.layout) else str(self.generator.choice(workers))
        object.__setattr__(self, "pace", pace)

    def fault(self, sort: _Sort) -> Fault:
        """One of that sort."""
        generator = self.generator
        name = generator.choice(sort.names)
        kind = kinds()[name]
        task = self._whom(sort.tasks, ends=kind.restarts)
        drops = 0 < self.layout.drop_after <= LONGEST_AFTER_S
        long_away = ends_worker(kind, task) and generator.random() < AWAY[self.layout.drop_after > 0]
        if long_away and drops:
            name = generator.choice([one for one in sort.names if not kinds()[one].repeats] or [name])
        kind = kinds()[name]
        if kind.first:
            return Fault(kind=name, task=task, when=When(), lasts_s=self._seconds(long=False))
        when = self._when(task, phases={} if kind.of_links else self.phases, ends=kind if kind.restarts else None)
        if kind.effect == "ends" and self.layout.all_reduce and when.step is not None:
            when = replace(when, step=generator.randrange(self.steps * 2 // 3, max(1, self.steps * 3 // 4)))
        said: dict[str, Any] = {"kind": name, "when": when}
        if kind.restarts:
            long = long_away and not kind.repeats
            said["restart_after_s"] = self._away() if long else generator.choice(RESTARTS_S)
            if long and drops and when.step is not None:
                said["when"] = replace(when, step=generator.randrange(self.steps // 4, max(1, self.steps // 2)))
        if kind.lasts:
            step = self.steps if when.step is None else when.step
            long = kind.outlasts and generator.random() < LONG
            if not long and step + 1 < self.steps and generator.random() < UNTIL:
                last = min(self.steps - 1, step + LONGEST_STEPS)
                said["until"] = When(BEFORE_PUSH, generator.randint(step + 1, last))
            else:
                said["lasts_s"] = self._away() if long else self._seconds(long=False)
        said["amounts"] = tuple((key, self._amount(amount)) for key, amount in kind.amounts.items())
        if not kind.of_links:
            return Fault(task=task, **said)
        return self._of_links(said, kind, sent=sort.sent)

    def _of_links(self, said: dict[str, Any], kind: Kind, *, sent: bool) -> Fault:
        """With ``sent`` of links that some worker's answers take, and when it has sent a push."""
        found, generator = _used(kind, self.layout, self.shared, self.dialled), self.generator
        of_whom = (self.pace,) if self.pace else tuple(map(str, self.layout.worker_tasks))
        if not sent:
            struck = generator.choice(found)
            if kind.effect == "holds" and generator.random() < HOLDS_A_PUSH and not skips(self.layout):
                struck = generator.choice([one for one in found if set(one.ends) & set(of_whom)])
                worker = generator.choice([worker for worker in struck.ends if worker in of_whom])
                said |= {"when": When(BEFORE_PUSH, said["when"].step, task=worker)}
            return Fault(region=struck.name, links=struck.links, **said)
        struck = generator.choice([one for one in found if set(one.answered) & set(of_whom)])
        worker = generator.choice([worker for worker in struck.answered if worker in of_whom])
        # a cut after so many bytes would let the answer through first
        amounts = tuple((key, 0 if key == "bytes" else value) for key, value in said["amounts"])
        said |= {"when": When(SENT, said["when"].step, task=worker), "amounts": amounts}
        return Fault(region=struck.name, links=struck.links, **said)

    def _whom(self, tasks: Sequence[Task], *, ends: bool) -> Task:
        """Of the workers, mostly the one at whose steps most faults strike is ended: so they can be placed apart."""
        pace = [task for task in tasks if str(task) == self.pace]
        return pace[0] if ends and pace and self.generator.random() < PACED else self.generator.choice(tasks)

    def _away(self) -> float:
        """For so long lasts what is to outlast a deadline: the layout's own, if it has one."""
        after = self.layout.drop_after
        if not 0 < after <= LONGEST_AFTER_S:
            return self._seconds(long=True)
        return round(after + self.generator.uniform(*RETURNS_S), 2)

    def _seconds(self, *, long: bool) -> float:
        shortest, longest = OUTLASTS_S if long else (0.2, LONGEST_S)
        return round(self.generator.uniform(shortest, longest), 2)

    def _when(self, task: Task, *, phases: Mapping[str, str], ends: Kind | None) -> When:
        """Before or after a push of a step, or at a phase of the target's own, which a worker must say itself.

        Of a worker that ``ends`` by a kind of fault, and does not wait for the others, only at a step of its own nobody
        can say that it is done already.
        """
        generator, steps = self.generator, self.steps
        said = [phase for phase, who in phases.items() if task.job != "worker" or who in (str(task), "worker")]
        said = [phase for phase in said if phase not in UNSURE]
        # what is lost sooner is not worth a checkpoint; there is to be something left to go wrong after it, but nobody
        # knows how long a crash loop lasts: who waits for all others has little to be struck by then
        loops = ends is not None and ends.repeats
        early = task.job == "ps" and ends is not None and (self.pace or not loops)
        last = steps // 2 if early else steps * 2 // 3 if loops and task.job == "ps" else steps * 3 // 4
        step = generator.randrange(steps // 4, max(1, last))
        of_steps = [phase for phase in said if phases[phase] == "worker"]
        waited_for = not skips(self.layout) or str(task) == self.pace
        if of_steps and task.job == "worker" and waited_for and generator.random() < WITHIN_A_STEP:
            return When(generator.choice(of_steps), step)
        if said and generator.random() < AT_A_PHASE:
            return When(generator.choice(said))
        when = When(generator.choice((BEFORE_PUSH, "after-push")), step)
        return replace(when, task=self._at_whose(task, own=ends is not None))

    def _at_whose(self, task: Task, *, own: bool) -> str:
        """The worker at whose step it strikes; empty: its own, or whoever gets there first."""
        if skips(self.layout):
            return self.pace
        if self.pace and own and task.job == "worker":
            return str(task)
        if self.pace and self.generator.random() < PACED:
            return self.pace
        return str(self.generator.choice(self.layout.worker_tasks)) if self.generator.random() < ELSEWHERE else ""

    def _amount(self, amount: Amount) -> int:
        usual = (amount.least if amount.usual is None else amount.usual,)
        return self.generator.choice(amount.drawn or usual)
