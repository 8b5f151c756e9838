"""benchmarks/launchers.py: what it runs, and what it calls the same. No cluster is started."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from psconform.options import Options
from psconform.runner.plan import make_plan
from psconform.targets.reference import DEFECTS

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
benchmark = importlib.import_module("launchers")
sys.path.pop(0)


def result(launcher, *, defect="", **statuses):
    options = {"workload": "ledger", "launcher": launcher}
    return {"defect": defect, "update": "sync", "seed": 0, "options": options, "statuses": statuses, "folder": None}


def pair(ours, theirs, *, defect=""):
    (found,) = benchmark.pairs_of([result("process", defect=defect, **ours), result("docker", defect=defect, **theirs)])
    return found


def test_everything_is_run_both_ways_and_can_be(monkeypatch, tmp_path):
    monkeypatch.setattr("psconform.faults.disk_faults.lacks", lambda: "")  # nothing is run
    cases = benchmark.cases_of(1)
    assert len({case.key for case in cases}) == len(cases)
    assert {(case.defect, case.update) for case in cases if case.defect} == {
        (name, update) for name, defect in DEFECTS.items() for update in defect.updates
    }
    for case in cases:
        make_plan(Options(out=tmp_path, update=case.update, seed=case.seed, defect=case.defect, **case.options))
    results = [
        {"defect": case.defect, "update": case.update, "seed": case.seed, "options": case.options} for case in cases
    ]
    assert 2 * len(benchmark.pairs_of(results)) == len(cases)


@pytest.mark.parametrize(
    ("ours", "theirs", "agree", "same"),
    [
        ({"S1": "valid"}, {"S1": "valid"}, True, True),
        ({"S1": "valid"}, {"S1": "violated"}, False, False),
        ({"S1": "valid"}, {"S1": "unknown"}, False, False),
        ({"S1": "valid"}, {}, True, False),
    ],
)
def test_the_healthy_trainer(ours, theirs, agree, same):
    found = pair(ours, theirs)
    assert (found.agree, found.same) == (agree, same)


@pytest.mark.parametrize(
    ("ours", "theirs", "agree", "same"),
    [
        ({"R1": "violated", "S1": "violated"}, {"R1": "violated", "S1": "violated"}, True, True),
        ({"R1": "violated", "S1": "violated"}, {"R1": "violated", "S1": "valid"}, True, False),
        ({"R1": "violated", "S1": "violated"}, {"R1": "valid", "S1": "violated"}, False, False),
        ({"R1": "violated"}, {"R1": "violated", "C3": "violated"}, False, False),
    ],
)
def test_a_defect(ours, theirs, agree, same):
    assert DEFECTS["drop-gradient"].meant == "R1"
    found = pair(ours, theirs, defect="drop-gradient")
    assert (found.agree, found.same) == (agree, same)


def test_where_they_differ_is_said():
    assert pair({"S1": "valid"}, {"S1": "violated", "A6": "valid"}).line == (
        "healthy sync seed 0: A6 not judged and valid, S1 valid and violated"
    )
