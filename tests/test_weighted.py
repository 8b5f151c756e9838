"""Rounds that are weighted means: federated averaging, samples or tokens of uneven batches."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from psconform.probe import Probe
from psconform.runner.verdicts import judge_folder
from psconform.simulation.record import simulate
from psconform.simulation.schedule import Schedule, draw

from .mutations import edit
from .simulate import Trainer
from .taken_apart import Record

WEIGHTED = Schedule(workers=3, ps=2, steps=6, reduction="weighted", weights=(10, 20, 37))


COUNTS = {  # what the gradients of a step count, by worker
    "nearly alike": lambda step: (1000, 1003 + step % 3, 998),
    "far apart": lambda step: (1, 300, 10**8),
    "drawn": lambda step: tuple(480 + (7 * step + 5 * worker) % 33 for worker in range(3)),
}


class Tokens(Trainer):
    """Each variable has gradients of a magnitude of its own; a round is their mean, weighted by numbers of tokens."""

    distinct = True
    counts = staticmethod(COUNTS["drawn"])

    def __init__(self, **given):
        super().__init__(reduction="weighted", workers=3, shards=(0, 1, 0), **given)
        self.mean = self.workers

    def initialise(self):
        super().initialise()
        for worker, probe in enumerate(self.probes):
            push = probe.push
            probe.push = lambda step, attempt, *, push=push, worker=worker: push(
                step, attempt, weight=self.counts(step)[worker]
            )

    def weight(self, worker, step, variable, attempt):
        return self.counts(step)[worker] / sum(self.counts(step)) * self.workers


class OneVariableIsNotWeighted(Tokens):
    def weight(self, worker, step, variable, attempt):
        return 1.0 if variable == 1 else super().weight(worker, step, variable, attempt)


class OfAnotherWorker(Tokens):
    """The weights of the others: 20 and 37 in place of 10 and 20 are no gradients that are applied twice."""

    counts = staticmethod(lambda step: (10, 20, 40))

    def weight(self, worker, step, variable, attempt):
        return super().weight((worker + 1) % self.workers, step, variable, attempt)


class OneTwice(Tokens):
    def weight(self, worker, step, variable, attempt):
        return super().weight(worker, step, variable, attempt) * (1 + ((worker, step) == (1, 3)))


class NoneIsWeighted(Tokens):
    def weight(self, worker, step, variable, attempt):
        return 1.0


def pushes(folder, worker):
    lines = (folder / "events" / f"worker-{worker}.jsonl").read_text(encoding="utf-8").splitlines()
    return [number for number, line in enumerate(lines) if json.loads(line)["kind"] == "push"]


def test_a_weighted_mean_is_valid(tmp_path):
    simulate(WEIGHTED, tmp_path / "run")
    judged = judge_folder(tmp_path / "run")
    assert {verdict.status for verdict in judged.verdicts} == {"valid", "not judged"}
    assert "S5" in judged.names("valid")


@pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS)
@pytest.mark.parametrize("trainer", [Tokens, OneVariableIsNotWeighted, NoneIsWeighted])
def test_each_variable_has_its_weights(tmp_path, monkeypatch, trainer, counts):
    """Its counts are none that nearly are whole numbers, and so are rounded."""
    monkeypatch.setattr(Tokens, "counts", staticmethod(counts))
    judged = trainer().judge(tmp_path / "run")
    assert ("S5" in judged.names("violated")) == (trainer is not Tokens)
    (verdict,) = (verdict for verdict in judged.verdicts if verdict.guarantee == "S5")
    if trainer is Tokens:
        assert {verdict.status for verdict in judged.verdicts} == {"valid", "not judged"}
    elif trainer is NoneIsWeighted:
        assert "all gradients count alike" in verdict.witness[0]
    else:
        assert all("ps:1" in line for line in verdict.witness if not line.startswith("..."))


def test_weights_of_other_workers_are_no_duplicates(tmp_path):
    judged = OfAnotherWorker().judge(tmp_path / "run")
    assert judged.names("violated") == ["S5"]
    assert judged.names("unknown") == []
    (verdict,) = (verdict for verdict in judged.verdicts if verdict.status == "violated")
    assert verdict.witness[0] == "ps:0 (variable 0) has the gradient of worker:0, step 0, at 2 times its weight"


def test_duplicates_are_no_weights_of_other_workers(tmp_path):
    judged = OneTwice().judge(tmp_path / "run")
    assert {"R1", "R2"} <= {*judged.names("violated")}


@pytest.mark.parametrize("first", range(0, 240, 60))
def test_so_it_is_under_faults(tmp_path, first):
    weighted = [seed for seed in range(first, first + 60) if draw(seed, mode="sync").weights]
    assert weighted
    for seed in weighted:
        simulate(draw(seed, mode="sync"), tmp_path / str(seed))
        assert judge_folder(tmp_path / str(seed)).exit_code == 0


@pytest.mark.parametrize(("steps", "says"), [([2], "worker:1, step 2, at "), (range(6), "worker:1, step ")])
def test_one_that_does_not_count_what_its_worker_says_is_named(tmp_path, steps, says):
    simulate(WEIGHTED, tmp_path / "run")
    at = pushes(tmp_path / "run", 1)
    for step in steps:
        edit(tmp_path / "run" / "events" / "worker-1.jsonl", at[step], lambda event: event | {"weight": 23})
    judged = judge_folder(tmp_path / "run")
    assert judged.names("violated") == ["S5"]
    (verdict,) = (verdict for verdict in judged.verdicts if verdict.status == "violated")
    assert any(says in line for line in verdict.witness)


def test_a_plain_mean_is_none(tmp_path):
    simulate(replace(WEIGHTED, weights=()), tmp_path / "run")
    for worker, weight in enumerate(WEIGHTED.weights):
        for number in pushes(tmp_path / "run", worker):
            path = tmp_path / "run" / "events" / f"worker-{worker}.jsonl"
            edit(path, number, lambda event, weight=weight: event | {"weight": weight})
    judged = judge_folder(tmp_path / "run")
    (line,) = (line for verdict in judged.verdicts for line in verdict.witness)
    assert judged.names("violated") == ["S5"]
    assert "all gradients count alike" in line
    assert "10 of worker:0, 20 of worker:1 and 37 of worker:2" in line


def test_what_a_gradient_counts_must_be_said(tmp_path):
    simulate(WEIGHTED, tmp_path / "run")
    for number in pushes(tmp_path / "run", 1):
        edit(
            tmp_path / "run" / "events" / "worker-1.jsonl",
            number,
            lambda event: {name: value for name, value in event.items() if name != "weight"},
        )
    judged = judge_folder(tmp_path / "run")
    assert judged.names("violated") == []
    assert judged.names("unknown") == ["S5"]
    assert any("did not say what its gradient of step 0 counts" in verdict.reason for verdict in judged.verdicts)


@pytest.mark.parametrize(
    ("weight", "slip"), [(None, "no weight"), (-1, "no weight"), (float("nan"), "no weight"), ("x", "no weight")]
)
def test_a_push_without_a_proper_weight_is_a_slip(tmp_path: Path, weight, slip):
    (tmp_path / "events").mkdir()
    spec = {"workers": 1, "steps": 2, "unit": 840.0, "run": "r", "variables": 1, "weighted": True}
    probe = Probe(spec, task="worker:0", folder=str(tmp_path))
    probe.push(0, weight=3)
    probe.push(1, weight=weight)
    probe.close()
    lines = (tmp_path / "events" / "worker-0.jsonl").read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    assert [event["weight"] for event in events if event["kind"] == "push" and event["step"] == 0] == [3.0]
    (found,) = (event for event in events if event["kind"] == "slip")
    assert found["what"].startswith(slip)


def test_a_gradient_that_counts_nothing_need_not_show(tmp_path):
    schedule = replace(WEIGHTED, weights=(10, 20, 37))
    simulate(schedule, tmp_path / "run")
    run = Record(tmp_path / "run")
    for variable, grad in run.lasting:
        if grad == (1, 2):
            for read in run.of("read"):
                run.times(read, variable, grad, 0, 0)
    for life in run.lives:
        for event in life:
            if event["kind"] == "push" and (event["worker_"], event["step"]) == (1, 2):
                event["weight"] = 0.0
    run.write(tmp_path / "run")
    judged = judge_folder(tmp_path / "run")
    assert judged.names("violated") == ["S5"]  # the others have the shares of a round of three
    assert "worker:1, step 2" not in "".join(line for verdict in judged.verdicts for line in verdict.witness)


def test_what_was_said_twice_is_not_known(tmp_path):
    spec = {"workers": 1, "steps": 1, "unit": 840.0, "run": "r", "variables": 1, "weighted": True}
    (tmp_path / "events").mkdir()
    probe = Probe(spec, task="worker:0", folder=str(tmp_path))
    for weight in (3, None, 4):
        probe.push(0, weight=weight)
        probe.ack(0, "unknown")
    probe.close()
    lines = (tmp_path / "events" / "worker-0.jsonl").read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    assert [event["weight"] for event in events if event["kind"] == "push"] == [3.0, 3.0, 4.0]
    assert not [event for event in events if event["kind"] == "slip"]
