"""Witnesses that a person can read: findings that are alike but for their step, or for where they show, in one line."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Generic, TypeVar

import numpy as np

from ..history.model import History
from ..verdict import counted

SPANS = 4
"""Of steps with gaps between them so many spans are named, and the others counted."""


Said = TypeVar("Said", bound=tuple[Any, ...])


@dataclass(frozen=True)
class Group(Generic[Said]):
    """Findings about gradients of one worker that are alike: their steps, sorted, and the variables they all show in.

    Attributes:
        said: what else they have in common.
    """

    worker: int
    steps: tuple[int, ...]
    variables: tuple[str, ...]
    said: Said

    @property
    def several(self) -> bool:
        """They are about more than one gradient."""
        return len(self.steps) > 1

    @property
    def gradients(self) -> str:
        """``the gradients of worker:1, steps 0 to 19``."""
        return f"the gradient{'s' * self.several} of worker:{self.worker}, {spans(self.steps)}"

    @property
    def were(self) -> str:
        """The verb that follows."""
        return "were" if self.several else "was"

    @property
    def are(self) -> str:
        """The same in the present."""
        return "are" if self.several else "is"

    @property
    def them(self) -> str:
        """The pronoun."""
        return "them" if self.several else "it"

    @property
    def where(self) -> str:
        """``ps:0 and ps:1``."""
        return listed(self.variables)

    @property
    def number(self) -> str:
        """How many gradients, for the end of the line, where that is not plain to see."""
        return f" ({counted(len(self.steps), 'gradient')})" if self.several else ""


def grouped(found: Iterable[tuple[int, int, str, Said]]) -> list[Group[Said]]:
    """Findings (worker, step, variable, what else is said), put together; in the order of the first of each group."""
    variables: dict[tuple[int, Said, int], list[str]] = {}
    for worker, step, variable, said in found:
        variables.setdefault((worker, said, step), []).append(variable)
    steps: dict[tuple[int, Said, tuple[str, ...]], list[int]] = {}
    for (worker, said, step), names in variables.items():
        steps.setdefault((worker, said, tuple(names)), []).append(step)
    return [Group(worker, tuple(sorted(those)), names, said) for (worker, said, names), those in steps.items()]


Seen = tuple[int, tuple[Hashable, ...], str]
"""The index of a read, its worker and what else it has in common with others that are alike, and the line."""


def alike(found: Iterable[Seen]) -> list[str]:
    """The first line of those that are alike, each with how many other reads show the same."""
    lines: dict[Hashable, str] = {}
    reads: dict[Hashable, set[int]] = {}
    for index, key, line in found:
        lines.setdefault(key, line)
        reads.setdefault(key, set()).add(index)
    return [line + others(len(reads[key]) - 1) for key, line in lines.items()]


def others(number: int) -> str:
    """How many other reads show the same, for the end of a line."""
    return f" (as {'does' if number == 1 else 'do'} {counted(number, 'other read')})" if number else ""


def again(history: History, group: Group[Any]) -> str:
    """Why gradients were sent twice, if their worker came back and began at an earlier step; empty if it did not."""
    joins = next((worker.joins for worker in history.workers if worker.index == group.worker), ())
    resumed = {(str(mark.task), mark.life) for mark in history.marks if mark.kind == "resume"}
    for join in joins:
        untold = (f"worker:{group.worker}", join.life) not in resumed
        if untold and join.step <= group.steps[0] and group.steps[-1] <= join.last:
            how = f"came back and began again at step {join.step} (probe.resume says where a worker goes on)"
            return f": worker:{group.worker} {how}"
    return ""


def all_alike(history: History) -> str:
    """That a weighted mean is none: the round in which that shows most."""
    step = int(np.argmax(history.shares.max(axis=(0, 1))))
    said = listed(f"{weight:g} of worker:{n}" for n, weight in enumerate(history.weighs[:, step].tolist()))
    return f"all gradients count alike, though their weights differ: in round {step} they are {said}"


def scheduled(history: History) -> list[str]:
    """That the weight of all gradients changes with the step, if it does."""
    those = [f"{rate:.4g} times their weight from step {step} on" for step, rate in history.rates]
    if not those:
        return []
    named = listed([*those[:SPANS], *(["so on"] if len(those) > SPANS else [])])
    return [f"the learning rate changes, which it must not on a ledger: gradients have {named}"]


def spans(steps: Iterable[int], noun: str = "step") -> str:
    """``step 3``, ``steps 0 to 19``, ``steps 3, 5 and 7 to 9``; steps are sorted."""
    those = list(steps)
    begins = [those[0], *(after for before, after in pairwise(those) if after != before + 1)]
    ends = [*(before for before, after in pairwise(those) if after != before + 1), those[-1]]
    named = [str(a) if a == b else f"{a} to {b}" for a, b in zip(begins, ends, strict=True)]
    left = sum(b - a + 1 for a, b in list(zip(begins, ends, strict=True))[SPANS:])
    return f"{noun}{'s' * (len(those) > 1)} {listed([*named[:SPANS], *([f'{left} more'] if left else [])])}"


def listed(names: Iterable[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
