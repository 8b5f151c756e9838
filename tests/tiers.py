"""Which cases of a test are tried in every run of the tests, and which only in ``tox -e nightly``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def first(cases: Iterable[Any], fast: int = 1) -> list[Any]:
    """So many of the cases are tried always, the others nightly; a tuple has a value for each of several parameters."""
    return [_case(case, index < fast) for index, case in enumerate(cases)]


def every(number: int, cases: Iterable[Any]) -> list[Any]:
    """The first of each so many cases is tried always, the others nightly."""
    return [_case(case, index % number == 0) for index, case in enumerate(cases)]


def _case(case: Any, always: bool) -> Any:
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=() if always else pytest.mark.nightly)
