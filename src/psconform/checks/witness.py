"""How many lines a check collects before it stops looking."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

Line = TypeVar("Line")

MOST = 1000
"""A run that is wrong everywhere has as many faults as reads, and the first few tell."""


def at_most(lines: Iterable[Line]) -> Iterator[Line]:
    """The first ``MOST`` lines of one worker's faults."""
    return islice(lines, MOST)
