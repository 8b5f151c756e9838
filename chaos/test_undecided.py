"""The last test of the suite: faults have to strike, or nothing is proved."""

from __future__ import annotations

import pytest

from psconform.plugin import is_one_of_several, tally


def test_at_most_one_run_in_a_hundred_is_undecided(request: pytest.FixtureRequest) -> None:
    """Counts the runs of this pytest run that came before; one is always allowed. Keeps them all if there are more."""
    if is_one_of_several(request.config):
        pytest.skip("judged at the end: other processes (pytest-xdist) have not ended yet")
    if problem := tally.settle():
        pytest.fail(problem, pytrace=False)
