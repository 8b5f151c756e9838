"""benchmarks/model_agreement.py: each plan goes to the model as it is, and a real cluster says the same."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from psconform.options import Options
from psconform.report.text import explain
from psconform.runner.plan import make_plan
from psconform.runner.session import Session

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
benchmark = importlib.import_module("model_agreement")
sys.path.pop(0)

NEEDS = pytest.mark.psconform_needs("toxiproxy")
LOSES = benchmark.MODES.index("loses")


@pytest.fixture
def nothing_is_run(monkeypatch):
    monkeypatch.setattr("psconform.runner.plan.check_available", lambda *_, **__: None)


def test_at_least_fifty_layouts_have_a_plan(nothing_is_run):
    cases = [benchmark.drawn(seed) for seed in range(benchmark.RUNS)]
    assert len({case.key for case in cases}) == len(cases)
    assert sum("faults" in case.options for case in cases) >= 50
    assert cases == [benchmark.drawn(seed) for seed in range(benchmark.RUNS)]


@pytest.mark.parametrize("seed", range(3 * len(benchmark.MODES)))
def test_a_plan_is_the_same_for_the_model(tmp_path, nothing_is_run, seed):
    case = benchmark.drawn(seed)
    plan = make_plan(Options(**case.options, update=case.update, seed=seed))
    schedule = benchmark.schedule_of(plan)
    assert (schedule.ps, schedule.workers, schedule.steps) == (plan.layout.ps, plan.layout.workers, plan.workload.steps)
    for planned, fault in zip(plan.faults, schedule.faults, strict=True):
        assert planned.where == f"worker:{fault.worker}"
        assert planned.when.step == fault.step
        assert {str(task) for task in planned.tasks} == set(fault.tasks)
        assert {(str(link.source), str(link.destination)) for link in planned.links} <= set(fault.links)
        assert fault.lasts_s in (planned.lasts_s, planned.restart_after_s)
    judged = benchmark.simulated(case, tmp_path / "model")
    violated = judged.names("violated")
    assert ("R1" in violated) == (benchmark.MODES[seed % len(benchmark.MODES)] in benchmark.BUGS), explain(judged)
    assert set(violated) <= {"R1", "A1", "A5"}


@NEEDS
@pytest.mark.engine
def test_both_find_a_lost_gradient(tmp_path):
    with Session() as session:
        result = benchmark.run_both(benchmark.drawn(LOSES), session=session, folder=tmp_path / "pair")
    assert not benchmark.different(result), benchmark.describe(result)
    assert result["statuses"]["R1"] == result["model"]["R1"] == "violated"
    assert not (tmp_path / "pair").exists()


@NEEDS
@pytest.mark.nightly
@pytest.mark.parametrize("seed", [0, 1])
def test_the_reference_trainer_and_the_model_agree(tmp_path, seed):
    with Session() as session:
        result = benchmark.run_both(benchmark.drawn(seed), session=session, folder=tmp_path / "pair")
    assert not benchmark.different(result), benchmark.describe(result)


def result(real, model):
    return {
        "seed": 0,
        "options": {},
        "statuses": real,
        "model": model,
        "folder": None,
        "seen": {"planned": 0, "model": 0},
    }


@pytest.mark.parametrize(
    ("real", "model", "differ", "wrong"),
    [
        ({"R1": "valid"}, {"R1": "valid"}, False, False),
        ({"R1": "unknown"}, {"R1": "valid"}, True, False),
        ({"R1": "valid"}, {"R1": "violated"}, True, True),
        ({"R1": "violated"}, {"R1": "not judged"}, True, True),
    ],
)
def test_what_is_called_different(real, model, differ, wrong):
    found = result(real, model)
    assert (bool(benchmark.different(found)), benchmark.one_violated(found)) == (differ, wrong)
    row = f"| R1 | {int(model['R1'] == 'valid' and not differ)} | 0 | 0 | 0 | {int(differ)} |"
    assert row in benchmark.table([found])
    assert ("the same" in benchmark.describe(found)) == (not differ)
