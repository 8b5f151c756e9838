"""Every recorded run is made anew, and shows what it is for still. tests/recorded.py records them."""

from __future__ import annotations

import pytest

from .parts import parts_of
from .recorded import TRIES, record
from .recorded_cases import CASES

pytestmark = [pytest.mark.tensorflow, pytest.mark.nightly]


def needed(case):
    parts = ["docker"] if case.launcher == "docker" else parts_of(case.options)
    return [pytest.mark.psconform_needs(*parts)] if parts else []


@pytest.mark.parametrize("case", [pytest.param(case, id=name, marks=needed(case)) for name, case in CASES.items()])
def test_it_shows_what_it_is_for(case, psconform_session):
    said = []
    assert record(case, session=psconform_session, tries=TRIES, into=None, show=said.append), said
