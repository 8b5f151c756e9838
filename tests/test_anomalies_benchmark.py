"""benchmarks/anomalies.py: what it runs, what it counts, what it writes. No cluster is started."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from psconform.anomalies import DETECTORS, Anomaly
from psconform.errors import PsconformError
from psconform.options import Options
from psconform.runner.plan import make_plan

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
benchmark = importlib.import_module("anomalies")
detection = importlib.import_module("detection")
sys.path.pop(0)


def anomaly(kind, task):
    return Anomaly(kind=kind, task=task, step=3, since_s=0.5, text="seen")


def answer(monkeypatch, *anomalies):
    def judge(**options):
        options["out"].mkdir()
        return SimpleNamespace(anomalies=anomalies, repeat="psconform run", as_dict=lambda: {"times_s": {"ended": 1.0}})

    monkeypatch.setattr(benchmark, "judge", judge)


def test_each_detector_has_a_cause_that_can_be_run(tmp_path):
    assert {cause.kind for cause in benchmark.CAUSES.values()} == set(DETECTORS)
    cases = benchmark.cause_cases(2)
    assert len({case.key for case in cases}) == len(cases) == 2 * 7
    for case in cases:
        make_plan(Options(out=tmp_path, update=case.update, seed=case.seed, **case.options))


@pytest.mark.parametrize(
    ("cause", "anomalies", "right"),
    [
        ("slow", [anomaly("straggler", "worker:1")], True),
        ("slow", [anomaly("straggler", "worker:0")], False),
        ("slow", [], False),
        ("slow", [anomaly("straggler", "worker:1"), anomaly("stalled", "worker:0")], False),
        ("stop", [anomaly("stalled", "worker:1"), anomaly("straggler", "worker:0")], True),
        ("learning rate", [anomaly("diverging", "worker:2")], True),
        ("", [], True),
        ("", [anomaly("stalled", "worker:0")], False),
    ],
)
def test_what_is_right(monkeypatch, tmp_path, cause, anomalies, right):
    answer(monkeypatch, *anomalies)
    case = detection.Case(defect=cause, update="async", seed=0, options={})
    result = benchmark.run_case(case, session=None, folder=tmp_path / "run")
    assert benchmark.is_right(result) == right
    assert (tmp_path / "run").exists() != right  # kept, to be looked at
    assert benchmark.is_bad([result]) != right or bool(cause and benchmark.found(result))


def test_tables_and_page(monkeypatch, tmp_path):
    answer(monkeypatch, anomaly("straggler", "worker:1"))
    slow = detection.Case(defect="slow", update="sync", seed=0, options={})
    healthy = detection.Case(defect="", update="async", seed=0, options={})
    results = [
        benchmark.run_case(case, session=None, folder=tmp_path / str(number))
        for number, case in enumerate((slow, healthy))
    ]
    text = benchmark.page(results, remarks=["look"], where="Somewhere.", command="python it")
    assert "| `--steps 60 --slow worker:1=50ms` | sync | straggler, worker:1 | 1 of 1 | 5.0% | 0 |" in text
    assert "| async | 1 | 1 | 100.0% |" in text
    assert "| sync | 0 | 0 | - |" in text
    assert "* look" in text


def test_a_run_that_cannot_be_made_is_a_remark(monkeypatch, tmp_path):
    def judge(**options):
        raise PsconformError("no\nport")

    monkeypatch.setattr(benchmark, "judge", judge)
    case = detection.Case(defect="", update="sync", seed=0, options={})
    result = benchmark.run_case(case, session=None, folder=tmp_path / "run")
    assert not benchmark.is_right(result)
    assert benchmark.describe(result).startswith("healthy sync seed 0: no port")
