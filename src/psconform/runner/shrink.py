"""A failing plan made smaller: fewer faults, tasks and steps, as long as it still fails in k of n runs.

The reduction is greedy, as in delta debugging (Zeller and Hildebrandt, Simplifying and Isolating Failure-Inducing
Input, 2002): what leaves out most is tried first. Those are the faults that struck in none of the failing runs, the
second half of the steps with the faults in it, each half of the faults, and then one fault after the other, for most
often one is enough. Fewer steps come next: all runs after it are shorter. Each smaller plan is run, for a race may need
several tries to show; it is dropped as soon as it cannot come to k failures any more. The search ends when all smaller
plans of the one that is left have been tried, and dropped.

A plan that fails in two of five runs would rarely be taken if two of three were asked of it, nor would a smaller one
that fails as often. So n is, where nobody has said it, how many runs the plan itself took for k + 1 failures.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Set
from dataclasses import dataclass
from typing import Any

from ..errors import BadInput, PsconformError
from ..faults.fault import Fault
from .plan import Plan
from .replay import Seen, changed

LEAST_STEPS = 2
AFTERWARDS = 3
"""Steps after the last fault, in which it can show."""
FAR = 8
"""By this factor the faults are moved to the beginning at once, before it is tried by two."""
AS_IT_WAS = "as it was"
PER_FAILURE = 4
"""A plan that fails in fewer than one of so many runs is not shrunk, unless more runs are asked for."""


@dataclass(frozen=True)
class Try:
    """A plan and how often it failed.

    Attributes:
        taken: it failed often enough.
        error: why it could not be run.
        idle: faults that struck in none of the runs that failed.
        left: so many smaller plans of the smallest so far are still to be tried, at most.
    """

    what: str
    plan: Plan
    failed: int
    runs: int
    taken: bool
    error: str = ""
    idle: frozenset[Fault] = frozenset()
    left: int = 0


Runs = Callable[[Plan], Seen]
"""Runs a plan once; says whether it fails as the one did that is shrunk."""


def as_it_was(plan: Plan, runs: Runs, *, k: int, n: int | None) -> Try:
    """Whether a plan fails often enough (`enough`) to be shrunk."""
    failures, most = enough(k=k, n=n)
    return attempt(AS_IT_WAS, plan, runs, k=failures, n=most)


def enough(*, k: int, n: int | None) -> tuple[int, int]:
    """So many failures are asked of a plan itself, in so many runs at most."""
    return (k, n) if n is not None else (k + 1, PER_FAILURE * (k + 1))


def shrink(first: Try, runs: Runs, *, k: int, n: int | None, tell: Callable[[Try], None]) -> Plan:
    """The smallest plan that is found, which may be that of ``first`` itself.

    Args:
        first: the plan as it was (`as_it_was`).
        runs: runs a plan once.
        k: so many of
        n: runs must fail; None: of as many as ``first`` took.
        tell: is called with everything that was tried.
    """
    plan, n = first.plan, n or first.runs
    todo = list(candidates(plan, first.idle))
    before: set[str] = set()  # dropped for a larger plan than this one
    here: set[str] = set()  # and for this one
    while todo:
        what, smaller = todo.pop(0)
        found = _attempt(what, smaller, runs, k=k, n=n)
        if found.taken:
            plan, before, here = smaller, before | here, set()
            todo = [pair for pair in candidates(plan, found.idle) if pair[0] not in before]
        else:
            here.add(what)
        if not todo:  # what mattered in a larger plan, or seemed to by chance, need not in this one
            todo = [pair for pair in candidates(plan) if pair[0] in before]
            before = set()
        tell(dataclasses.replace(found, left=len(todo)))
    return plan


def attempt(what: str, plan: Plan, runs: Runs, *, k: int, n: int) -> Try:
    """Run a plan until it has failed ``k`` times, or cannot come to that in ``n`` runs any more."""
    failed = run = 0
    idle = frozenset(plan.faults)
    while failed < k and failed + n - run >= k:
        run += 1
        seen = runs(plan)
        failed += seen.failed
        idle = idle & seen.idle if seen.failed else idle
    return Try(what, plan, failed, run, failed == k, idle=idle if failed else frozenset())


def _attempt(what: str, plan: Plan, runs: Runs, *, k: int, n: int) -> Try:
    """A smaller plan that cannot be run fails otherwise, so it is not taken; what was found before it stays."""
    seen = [False]  # by run; the last one may not come back

    def run(plan: Plan) -> Seen:
        found = runs(plan)
        seen[-1:] = [found.failed, False]
        return found

    try:
        return attempt(what, plan, run, k=k, n=n)
    except PsconformError as error:
        return Try(what, plan, sum(seen), len(seen), False, " ".join(str(error).split()))


def candidates(plan: Plan, idle: Set[Fault] = frozenset()) -> Iterator[tuple[str, Plan]]:
    """Plans one step smaller that can be run, the most telling first; ``idle``: faults that never struck."""
    layout, steps, faults = plan.layout, plan.workload.steps, plan.faults
    yield from _fewer_faults(plan, idle)
    last = _last_step(faults)
    sooner = tuple(_earlier(fault, FAR) for fault in faults)
    soon = _last_step(sooner)
    if layout.ps > 1 and layout.workers > 2:
        for fewer in (soon + AFTERWARDS, last + AFTERWARDS):  # a defect may need more steps
            what = f"{fewer} steps on ps=1,worker=2 with faults up to step {soon}"
            small = {"steps": fewer, "ps": 1, "workers": 2}
            if found := list(_possible(what, plan, faults=sooner, **small) if fewer < steps else ()):
                yield from found
                break
    for fewer in dict.fromkeys((last + AFTERWARDS, steps // 2, steps * 3 // 4)):
        if LEAST_STEPS <= fewer < steps:
            yield from _possible(f"{fewer} steps", plan, steps=fewer)
    for moved in dict.fromkeys((sooner, tuple(_earlier(fault, 2) for fault in faults))):
        if moved != faults:
            yield from _possible(f"faults up to step {_last_step(moved)}", plan, faults=moved)
    for ps in dict.fromkeys((1, layout.ps - 1)):
        if 0 < ps < layout.ps:
            yield from _possible(f"on ps={ps},worker={layout.workers}", plan, ps=ps)
    for workers in dict.fromkeys((1, 2, layout.workers - 1)):
        if 0 < workers < layout.workers:
            yield from _possible(f"on ps={layout.ps},worker={workers}", plan, workers=workers)


def _fewer_faults(plan: Plan, idle: Set[Fault]) -> Iterator[tuple[str, Plan]]:
    """Without what never struck, the later ones, a half or a quarter of them, or one."""
    names, faults, half = _names(plan.faults), plan.faults, plan.workload.steps // 2

    def without(numbers: Collection[int], *, how: str = "", steps: int = 0) -> Iterator[tuple[str, Plan]]:
        what = ", ".join(names[number] for number in numbers)
        rest = tuple(fault for number, fault in enumerate(faults) if number not in numbers)
        yield from _possible(how.format(what) if how else f"without {what}", plan, steps=steps, faults=rest)

    never = [number for number, fault in enumerate(faults) if fault in idle]
    if never:
        yield from without(never, how="without what never struck ({})" if len(never) > 1 else "")
    late = [number for number, fault in enumerate(faults) if _last_step((fault,)) >= half]
    if 0 < len(late) < len(faults) and half >= LEAST_STEPS:
        yield from without(late, how=f"{half} steps, without {{}}", steps=half)
    for size in dict.fromkeys((len(faults) // 2, len(faults) // 4)):
        for first in range(0, len(faults), size) if size > 1 else ():
            yield from without(range(first, min(first + size, len(faults))))
    for number in range(len(faults)):
        if [number] != never:
            yield from without([number])


def _names(faults: tuple[Fault, ...]) -> list[str]:
    """Each its own."""
    names: list[str] = []
    for number, fault in enumerate(faults):
        alike = sum((other.kind, other.of) == (fault.kind, fault.of) for other in faults[:number])
        names.append(f"{fault.kind} {fault.whom}" + (f" (number {alike + 1})" if alike else ""))
    return names


def _possible(
    what: str, plan: Plan, *, steps: int = 0, faults: tuple[Fault, ...] | None = None, **tasks: Any
) -> Iterator[tuple[str, Plan]]:
    """``tasks``: fewer of a job, by the name of their number in the layout."""
    try:
        smaller = changed(
            plan,
            layout=dataclasses.replace(plan.layout, **tasks),
            steps=steps or plan.workload.steps,
            faults=plan.faults if faults is None else faults,
        )
    except BadInput:  # a fault is of a task that would not be there, or nobody could be dropped any more
        return
    yield what, smaller


def _last_step(faults: tuple[Fault, ...]) -> int:
    return max(
        (when.step or 0 for fault in faults for when in (fault.when, fault.until) if when is not None), default=0
    )


def _earlier(fault: Fault, divisor: int) -> Fault:
    """At this part of its step, and as long."""
    if fault.when.step is None:
        return fault
    by = fault.when.step - fault.when.step // divisor
    until = fault.until
    if until is not None and until.step is not None:
        until = dataclasses.replace(until, step=until.step - by)
    return dataclasses.replace(fault, when=dataclasses.replace(fault.when, step=fault.when.step - by), until=until)
