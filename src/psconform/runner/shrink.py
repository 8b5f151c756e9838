"""A failing plan made smaller: fewer faults, tasks and steps, as long as it still fails in k of n runs.

The reduction is greedy, as in delta debugging (Zeller and Hildebrandt, Simplifying and Isolating Failure-Inducing
Input, 2002): what is tried first is what makes a plan easiest to read. Each smaller plan is run, for a race may need
several tries to show; it is dropped as soon as it cannot come to k failures any more. The search ends when all smaller
plans of the one that is left have been tried, and dropped.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ..errors import BadInput, PsconformError
from ..faults.fault import Fault
from .again import changed
from .plan import Plan

LEAST_STEPS = 2


@dataclass(frozen=True)
class Try:
    """A plan and how often it failed; ``error`` is why it could not be run."""

    what: str
    plan: Plan
    failed: int
    runs: int
    taken: bool
    error: str = ""


Fails = Callable[[Plan], bool]


def shrink(plan: Plan, fails: Fails, *, k: int, n: int, tell: Callable[[Try], None]) -> Plan:
    """The smallest plan that is found, which may be ``plan`` itself.

    Args:
        plan: what failed.
        fails: runs a plan once; True if it fails as ``plan`` did.
        k: so many of
        n: runs must fail.
        tell: is called with everything that was tried.
    """
    rejected: set[str] = set()
    larger = False  # some of them in a larger plan than this one
    while True:
        for what, smaller in candidates(plan):
            if what in rejected:
                continue
            found = _attempt(what, smaller, fails, k=k, n=n)
            tell(found)
            if found.taken:
                plan, larger = smaller, bool(rejected)
                break
            rejected.add(what)
        else:
            if not larger:
                return plan
            # what mattered in a larger plan, or seemed to by chance, need not in this one
            rejected, larger = set(), False


def attempt(what: str, plan: Plan, fails: Fails, *, k: int, n: int) -> Try:
    """Run a plan until it has failed ``k`` times, or cannot come to that in ``n`` runs any more."""
    failed = run = 0
    while failed < k and failed + n - run >= k:
        run += 1
        failed += fails(plan)
    return Try(what, plan, failed, run, failed == k)


def _attempt(what: str, plan: Plan, fails: Fails, *, k: int, n: int) -> Try:
    """A smaller plan that cannot be run fails otherwise, so it is not taken; what was found before it stays."""
    try:
        return attempt(what, plan, fails, k=k, n=n)
    except PsconformError as error:
        return Try(what, plan, 0, 1, False, " ".join(str(error).split()))


def candidates(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """Plans one step smaller that can be run, the most telling first."""
    layout, steps, faults = plan.layout, plan.workload.steps, plan.faults
    for number, fault in enumerate(faults):
        rest = (*faults[:number], *faults[number + 1 :])
        alike = sum((other.kind, other.of) == (fault.kind, fault.of) for other in faults[:number])
        name = f"{fault.kind} {fault.of}" + (f" (number {alike + 1})" if alike else "")
        yield from _possible(f"without {name}", plan, faults=rest)
    for ps in dict.fromkeys((1, layout.ps - 1)):
        if 0 < ps < layout.ps:
            yield from _possible(f"on ps={ps},worker={layout.workers}", plan, ps=ps)
    for workers in dict.fromkeys((1, 2, layout.workers - 1)):
        if 0 < workers < layout.workers:
            yield from _possible(f"on ps={layout.ps},worker={workers}", plan, workers=workers)
    for fewer in dict.fromkeys((_last_step(faults) + 3, steps // 2, steps * 3 // 4)):
        if LEAST_STEPS <= fewer < steps:
            yield from _possible(f"{fewer} steps", plan, steps=fewer)
    half = tuple(_earlier(fault) for fault in faults)
    if half != faults:
        yield from _possible(f"faults up to step {_last_step(half)}", plan, faults=half)


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


def _earlier(fault: Fault) -> Fault:
    """At half its step, and as long."""
    if fault.when.step is None:
        return fault
    by = fault.when.step - fault.when.step // 2
    until = fault.until
    if until is not None and until.step is not None:
        until = dataclasses.replace(until, step=until.step - by)
    return dataclasses.replace(fault, when=dataclasses.replace(fault.when, step=fault.when.step - by), until=until)
