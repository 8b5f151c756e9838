"""What detectors of anomalies report, and of whom: on times made by hand, and in runs with a cause."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psconform.anomalies import DETECTORS, find_anomalies
from psconform.faults.process_faults import STOP
from psconform.history.records import Poisoned
from psconform.report.text import explain
from psconform.runner.verdicts import judge_folder, store
from psconform.simulation.record import simulate
from psconform.simulation.schedule import Fault, Schedule

from .simulate import Trainer
from .timelines import START_NS, held, history_of, steps_of


def found(history, losses=None):
    return [(anomaly.kind, anomaly.task, anomaly.step) for anomaly in find_anomalies(history, losses)]


def healthy(count=3, steps=60, **options):
    return [steps_of(steps, **options) for _ in range(count)]


def test_nothing_is_reported_of_a_healthy_run():
    assert found(history_of(*healthy())) == []
    assert found(history_of(*healthy(), update="sync")) == []
    assert found(history_of(*healthy(), boots=["a", "b", ""])) == []


@settings(deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(1, 5),
    st.integers(2, 80),
    st.floats(0.0005, 0.3),
    st.sampled_from(["sync", "async"]),
)
def test_nor_of_one_on_a_machine_with_pauses(seed, workers, steps, step_s, update):
    """Times drawn from long tails, and pauses of up to 1.5 s in one step of twenty."""
    generator = np.random.default_rng(seed)
    times = []
    for _ in range(workers):
        pauses = np.minimum(generator.lognormal(np.log(step_s / 3), 1.0, (steps, 3)), 1.5)
        pauses += generator.uniform(0, 1.5, (steps, 3)) * (generator.random((steps, 3)) < 0.05)
        times.append(np.cumsum(pauses.reshape(-1)).reshape(-1, 3))
    assert found(history_of(*times, update=update)) == []


STOPPED = held(steps_of(60), step=20, event=1, by_s=3.0)


def test_a_worker_that_stops_while_it_computes():
    assert found(history_of(steps_of(400), STOPPED, steps=400, through=[True, True])) == [("stalled", "worker:1", 20)]
    (anomaly,) = find_anomalies(history_of(steps_of(60), STOPPED, steps_of(60)))
    assert str(anomaly).startswith(
        "stalled: worker:1 since step 20 (0.2 s): nothing for 3.0 s after worker:1 read for step 20; 95 % of all pauses"
    )


def test_those_that_wait_for_it_are_not_accused():
    waits = held(steps_of(60), step=20, event=2, by_s=3.0)  # pushed, and the round is not complete
    assert found(history_of(waits, STOPPED, waits, update="sync")) == [("stalled", "worker:1", 20)]


def test_one_that_stops_in_a_call_is_behind_the_others():
    behind = held(steps_of(60), step=19, event=2, by_s=3.0)  # the ps has its gradient of step 19
    ahead = held(steps_of(60), step=20, event=2, by_s=3.0)
    assert found(history_of(ahead, behind, ahead, update="sync")) == [("stalled", "worker:1", 19)]
    assert found(history_of(ahead, behind, ahead, staleness=2)) == [("stalled", "worker:1", 19)]


@pytest.mark.parametrize(("ps", "named"), [(1, "ps:0"), (2, "ps")])
@pytest.mark.parametrize("update", ["sync", "async"])
def test_if_all_wait_alike_it_is_a_ps(ps, named, update):
    waits = held(steps_of(60), step=20, event=2, by_s=3.0)
    assert found(history_of(waits, waits, update=update, ps=ps)) == [("stalled", named, 20)]


def test_one_that_waits_while_others_go_on_is_cut_off():
    waits = held(steps_of(60), step=20, event=2, by_s=3.0)
    assert found(history_of(steps_of(500), waits, steps=500, through=[True, True])) == [("stalled", "worker:1", 20)]


def test_one_that_never_comes_back_and_one_that_is_through():
    gone = steps_of(20)
    assert found(history_of(steps_of(60), gone, until_s=9.0)) == [("stalled", "worker:1", 19)]
    assert found(history_of(steps_of(60), steps_of(60), until_s=99.0)) == []  # a slow end is none


def test_starting_takes_as_long_as_it_takes():
    late = held(steps_of(60), step=4, event=1, by_s=30.0)
    assert found(history_of(steps_of(60), late)) == []


def test_so_does_the_last_push():
    late = held(steps_of(60), step=59, event=2, by_s=30.0)
    assert found(history_of(steps_of(60), late)) == []


def test_too_short_to_tell():
    assert found(history_of(held(steps_of(6), step=3, event=1, by_s=9.0))) == []
    slow = [steps_of(19), steps_of(19, step_s=0.2, own_s=0.1)]
    assert found(history_of(*slow)) == []


def test_a_slow_machine_is_no_stall():
    pauses = steps_of(60, step_s=0.5, own_s=0.2)
    assert found(history_of(held(pauses, step=20, event=1, by_s=9.0), pauses)) == []


def test_a_straggler():
    slow = steps_of(60, step_s=0.06, own_s=0.05)
    history = history_of(steps_of(60), slow, steps_of(60))
    (anomaly,) = find_anomalies(history)
    assert (anomaly.kind, anomaly.task, anomaly.step, anomaly.since_s) == ("straggler", "worker:1", 0, 0.05)
    assert anomaly.text == "a gradient takes it 50.0 ms, the others 1.0 ms"


def test_two_stragglers_of_three_and_one_that_begins_late():
    slow = steps_of(60, step_s=0.06, own_s=0.05)
    assert {task for _, task, _ in found(history_of(slow, steps_of(60), slow))} == {"worker:0", "worker:2"}
    times = np.concatenate([steps_of(25), steps_of(35, step_s=0.06, own_s=0.05, begin_s=0.25)])
    assert found(history_of(times, steps_of(60))) == [("straggler", "worker:0", 25)]


@pytest.mark.parametrize("own_s", [0.0025, 0.0105])  # less than three times as long; less than 10 ms longer
def test_a_little_slower_is_no_straggler(own_s):
    assert found(history_of(steps_of(60, step_s=0.02, own_s=own_s), steps_of(60, step_s=0.02))) == []


def test_slow_for_a_while_is_no_straggler():
    times = np.concatenate([steps_of(40, step_s=0.06, own_s=0.05), steps_of(20, begin_s=2.4)])
    assert found(history_of(times, steps_of(60))) == []


def test_alone_nobody_is_slow():
    assert found(history_of(steps_of(60, step_s=0.06, own_s=0.05))) == []


def losses(history, values):
    return {str(worker): list(values) for worker in history.workers} | {"serial": [1.0] * len(values)}


@pytest.mark.parametrize(
    ("values", "since"),
    [
        (2.0 * 1.2 ** np.arange(61), 7),
        (np.where(np.arange(61) < 30, 2.0, np.nan), 30),
        (np.where(np.arange(61) < 30, 2.0, np.inf), 30),
        (np.where(np.arange(61) < 54, 2.0, 7.0), 54),
        (np.where(np.arange(61) < 55, 2.0, 7.0), None),  # six steps of 61 are too few to tell
        (np.where(np.arange(61) % 40 > 30, 90.0, 2.0), None),  # a spike
        (2.0 * 0.9 ** np.arange(61), None),
        (np.full(61, 5.9), None),
        (np.where(np.arange(61) == 0, 1e-9, 2e-6), None),  # from the optimum
        (np.full(61, np.nan), None),
        ([], None),
    ],
)
def test_diverging(values, since):
    history = history_of(*healthy())
    expected = [] if since is None else [("diverging", "worker:0", since)]
    assert found(history, losses(history, values)) == expected


def test_a_gradient_that_is_not_finite():
    history = history_of(*healthy())
    poisons = tuple(Poisoned(1, step, "inf", False, START_NS + 10**9) for step in (20, 21))
    (anomaly,) = find_anomalies(dataclasses.replace(history, poisons=poisons))
    assert str(anomaly) == "non-finite: worker:1 since step 20 (1.0 s): its gradient of step 20 is inf (ok), and 1 more"


def test_parameters_that_are_not_finite(tmp_path):
    class Poisoned(Trainer):
        def before(self, worker, step):
            if (worker, step) == (1, 3):
                self.theta[0][1] = np.nan

    judged = Poisoned(workers=3).judge(tmp_path / "run")
    (anomaly,) = judged.anomalies
    assert (anomaly.kind, anomaly.step) == ("non-finite", 3)
    assert anomaly.text == "it read parameters that are not finite, as did 2 other worker(s)"
    assert f"\n  Anomalies\n  {anomaly}\n" in explain(judged)
    assert judged.as_dict()["anomalies"] == [dataclasses.asdict(anomaly)]


def test_a_detector_that_crashes_is_named(monkeypatch):
    def crash(history, losses):
        raise ZeroDivisionError("by 0")

    monkeypatch.setitem(DETECTORS, "stalled", crash)
    (anomaly,) = find_anomalies(history_of(*healthy()))
    assert str(anomaly) == "stalled: psconform:0 since 0.0 s: the detector crashed: ZeroDivisionError: by 0"


@pytest.mark.parametrize("update", ["sync", "async"])
def test_a_straggler_in_a_run(tmp_path, update):
    simulate(Schedule(mode=update, workers=3, steps=40, slow=(1.0, 20.0, 1.0)), tmp_path / "run")
    run = judge_folder(tmp_path / "run")
    assert run.exit_code == 0, explain(run)
    assert [(a.kind, a.task) for a in run.anomalies] == [("straggler", "worker:1")], explain(run)
    assert run.anomalies[0].step <= 4


def test_a_stopped_worker_in_a_run(tmp_path):
    stop = Fault(STOP, ("worker:1",), worker=1, step=20, lasts_s=3.0)
    simulate(Schedule(mode="async", steps=300, compute_s=0.02, faults=(stop,)), tmp_path / "run")
    run = judge_folder(tmp_path / "run")
    assert run.exit_code == 0, explain(run)
    stalled = [a for a in run.anomalies if a.kind == "stalled"]
    assert [(a.task, a.step) for a in stalled] == [("worker:1", 20)], explain(run)
    store(run)
    stored = json.loads((run.folder / "verdicts.json").read_text())["anomalies"]
    assert stored == [dataclasses.asdict(a) for a in judge_folder(run.folder).anomalies]


@pytest.mark.parametrize(
    "options",
    [
        {"workload": "quadratic", "training": {"learning_rate": 3.0}},
        {"workload": "quadratic", "training": {"learning_rate": 3.0}, "update": "async"},
        {"workload": "digits", "training": {"learning_rate": 100.0, "model": "mlp"}},
    ],
    ids=str,
)
def test_training_that_diverges(tmp_path, options):
    run = Trainer(steps=40, **options).judge(tmp_path / "run")
    assert not run.names("violated"), explain(run)
    assert [a.kind for a in run.anomalies] == ["diverging"], explain(run)


class Refuses(Trainer):
    """The ps applies nothing of a gradient that is not finite, and says so."""

    poison = ((1, 20, "nan"),)

    def sent(self, worker, step, gradient):
        return np.where(np.isfinite(gradient), gradient, np.float32(0))

    def outcome(self, worker, step, attempt):
        return "failed" if (worker, step) == (1, 20) else "ok"


def test_a_poisoned_gradient_in_a_run(tmp_path):
    run = Refuses(steps=25).judge(tmp_path / "run")
    assert [(a.kind, a.task, a.step) for a in run.anomalies] == [("non-finite", "worker:1", 20)], explain(run)
    assert run.anomalies[0].text == "its gradient of step 20 is nan (failed)"
