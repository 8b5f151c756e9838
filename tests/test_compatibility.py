"""The table of options that go together: each row refuses what it says, and lets pass what it allows."""

from __future__ import annotations

import json

import pytest

from psconform.compatibility import ALL_REDUCE, EXCHANGE, GIVEN, GPUS, PS, USUAL, Row, check_options, flag, rows, unmet
from psconform.errors import BadInput
from psconform.layout import Layout
from psconform.options import OPTIONS
from psconform.report.listing import LISTS, SHOWN
from psconform.workloads import all_workloads

OTHER = {
    EXCHANGE: (PS, ALL_REDUCE),
    "workload": tuple(all_workloads()),
    "compression": ("none", "topk"),
    **{name: option.choices for name, option in OPTIONS.items() if option.choices},
}
"""Values of what is chosen from a list; of the others any that is not the default will do."""
SAMPLES = {GPUS: 1, "quorum": 2, "staleness": 0, "read_every": 3, "local_steps": 4, "kill": ("ps:0@1",)}


def _values(name: str) -> tuple[object, ...]:
    return OTHER.get(name) or (USUAL[name], SAMPLES.get(name, "given"))


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row.given} {row.needed}")
def test_each_row_refuses_and_allows(row: Row):
    given = next(value for value in _values(row.option) if row.concerns(value))
    met = [
        value
        for value in _values(row.needs)
        if (value != USUAL[row.needs] if row.among == GIVEN else value in row.among)
    ]
    others = [value for value in _values(row.needs) if value not in met]
    assert met
    assert others
    for value in met:
        check_options({row.option: given, row.needs: value})
        assert unmet(row.option, {row.needs: value}) is None
    for value in others:
        with pytest.raises(BadInput) as refused:
            check_options({row.option: given, row.needs: value})
        assert str(refused.value).startswith(f"{flag(row.option)}: ")
        assert row.needed in str(refused.value)
        assert row.why in str(refused.value)
        assert unmet(row.option, {row.needs: value}) is not None
    check_options({row.option: USUAL[row.option], **({row.needs: others[0]} if row.needs != row.option else {})})


def test_what_is_usual_goes_together():
    check_options(USUAL)
    assert Layout().facts.keys() <= USUAL.keys()


def test_the_list_has_every_row_and_what_kinds_of_faults_need():
    shown = LISTS["compatibility"]()
    assert len([line for line in shown if not line["option"].startswith("fault ")]) == len(rows())
    assert {"option": "fault oom", "condition": "needs --launcher docker", "because": ""} in shown
    assert any(line["option"] == "fault throttle" and "excludes stop" in line["condition"] for line in shown)
    json.dumps(shown)


def test_people_see_a_condition_and_its_reason_once():
    lines = LISTS["compatibility"]()
    shown = SHOWN["compatibility"](lines)
    reasons = [(line["condition"], line["because"]) for line in shown]
    assert len(reasons) == len(set(reasons)) < len(lines)
    assert sorted((name, *line[1:]) for line in map(_values_of, shown) for name in line[0].split(", ")) == sorted(
        map(_values_of, lines)
    )


def _values_of(line):
    return line["option"], line["condition"], line["because"]
