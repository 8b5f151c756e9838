"""--poison: how it is spelled, what the probe gives and records, what C3 and the others make of the answers."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from psconform.checks.training import finite_parameters
from psconform.errors import BadInput, Malformed
from psconform.faults.cli_syntax import parse_faults
from psconform.history.reasons import Missed
from psconform.layout import Layout
from psconform.models import Quadratic
from psconform.options import Options
from psconform.probe import Probe
from psconform.report.text import explain
from psconform.runner.fault_setup import never_poisoned
from psconform.runner.plan import make_plan
from psconform.runner.verdicts import judge_folder

from .simulate import Trainer
from .stories import Story
from .test_checks_recovery import statuses, violated, witness

TARGET = Path(__file__).parent / "socket_ps" / "target.toml"
LAYOUT = Layout(ps=2, workers=3)


def parsed(poison):
    return parse_faults(poison=poison, restart_after="1s", layout=LAYOUT, steps=50)


@pytest.mark.parametrize(
    ("text", "value", "again"),
    [
        ("worker:1@20", "nan", "worker:1@20"),
        ("worker:0@0=inf", "inf", "worker:0@0=inf"),
        ("worker:2@49=nan", "nan", "worker:2@49"),
    ],
)
def test_spelling(text, value, again):
    (fault,) = parsed([text])
    assert (fault.kind, fault.value, str(fault), fault.outside) == ("poison", value, again, False)
    assert parsed([str(fault)]) == (fault,)


@pytest.mark.parametrize(
    ("poison", "says"),
    [
        (["worker:1"], "--poison: must be TASK@WHEN, such as worker:1@20"),
        (["ps:0@3"], "--poison: is for workers, got 'ps:0'; valid: worker:0, worker:1, worker:2"),
        (["worker:9@3"], "--poison: layout ps=2,worker=3 has no such task"),
        (["worker:1@50"], "--poison: there are 50 steps, 0 to 49"),
        (["worker:1@after-push:3"], "--poison: must be TASK@STEP"),
        (["worker:1@1s"], "--poison: must be TASK@STEP"),
        (["worker:1@3=1e9"], "--poison: unknown value, got '1e9'; valid: nan, inf"),
        (["worker:1@3="], "--poison: unknown value"),
        (["worker:1@3", "worker:1@3=inf"], "--poison: is given twice"),
        ([3], "--poison: must be text"),
    ],
)
def test_bad_poison(poison, says):
    with pytest.raises(BadInput, match=re.escape(says)):
        parsed(poison)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"layout": "ps=0,worker=2"}, "--poison: needs a ps"),
        (
            {"replication": "model-parallel", "workload": "digits"},
            "--poison: needs --replication between-graph or",
        ),
        ({"workload": "dense-ledger", "compression": "topk"}, "--poison: needs --compression none"),
        ({"defect": "drop-gradient"}, "--poison: defect drop-gradient is not about it"),
        ({"defect": "no-fence", "kill": "ps:0@30"}, "--poison: defect no-fence is not about it"),
        ({"defect": "nan-applied", "poison": ()}, "--poison: defect nan-applied needs it, got 'none'. Give --poison"),
        ({"defect": "nan-applied", "kill": "ps:0@30"}, "--kill: defect nan-applied has no recovery"),
    ],
)
def test_where_it_cannot_be(tmp_path, options, says):
    with pytest.raises(BadInput, match=re.escape(says)):
        make_plan(Options(out=tmp_path, **{"poison": "worker:1@20", **options}))


def test_it_is_repeated_and_needs_no_checkpoints(tmp_path):
    plan = make_plan(Options(out=tmp_path, poison=["worker:1@20", "worker:0@3=inf"]))
    words = shlex.split(plan.repeat)
    assert [words[i + 1] for i, word in enumerate(words) if word == "--poison"] == ["worker:1@20", "worker:0@3=inf"]
    assert plan.checkpoint_every == 0


def probe_in(folder, task="worker:1", **spec):
    (folder / "events").mkdir(exist_ok=True)
    poison = [{"task": "worker:1", "step": 2, "value": "inf"}]
    return Probe(
        {"workers": 2, "steps": 5, "run": "r", "unit": 840.0, "poison": poison, **spec}, task=task, folder=str(folder)
    )


def recorded(folder, task="worker-1"):
    lines = (folder / "events" / f"{task}.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["kind"] == "poison"]


def test_the_probe_gives_it_once_and_records_it_once(tmp_path):
    probe = probe_in(tmp_path, padding=3)
    assert np.isfinite(probe.gradient(1)).all()
    assert np.isinf(probe.gradient(2)).all()
    assert np.isinf(probe.gradients(2, [0, 0])).all()  # asked again, it is the same
    assert np.isfinite(probe.gradients(3, [0])).all()
    (event,) = recorded(tmp_path)
    assert (event["step"], event["value"], event["seeded"]) == (2, "inf", True)
    other = probe_in(tmp_path, task="worker:0")
    assert np.isfinite(other.gradient(2)).all()


QUADRATIC = {"workload": "quadratic", "seed": 1, "variables": 2, "rate": 1.0, "delay": 0, "condition": 10.0}


def test_a_trainer_may_ask_for_the_model_that_it_trains(tmp_path):
    assert probe_in(tmp_path).trained is None  # a ledger
    assert probe_in(tmp_path, task="worker:0", **QUADRATIC).trained.model == Quadratic(size=100, mu=0.1, L=1.0, seed=1)


def test_a_gradient_of_training_that_has_diverged_is_recorded(tmp_path):
    probe = probe_in(tmp_path, **QUADRATIC, poison=())
    theta = np.zeros(50, np.float32)
    probe.gradients(0, [theta, theta])
    probe.gradients(1, [theta, theta + np.float32("inf")])
    (event,) = recorded(tmp_path)
    assert event["step"] == 1
    assert "seeded" not in event


def test_a_poison_that_never_struck_is_named(tmp_path):
    probe = probe_in(tmp_path)
    faults = parsed(["worker:1@2=inf", "worker:1@4", "worker:0@1"])
    probe.gradient(2)
    assert [(missed.fault, missed.how) for missed in never_poisoned(faults, tmp_path)] == [
        ("worker:1@4", Missed.NEVER_INJECTED),
        ("worker:0@1", Missed.NEVER_INJECTED),
    ]
    with (tmp_path / "events" / "worker-1.jsonl").open("a") as file:
        file.write('{"kind":"poison","seq":2,"mo')  # torn
    assert len(never_poisoned(faults, tmp_path)) == 2


class Refused(Trainer):
    """Applies nothing of worker:1's poisoned step 3, and says so."""

    poison = ((1, 3, "nan"),)
    says = "failed"

    def sent(self, worker, step, gradient):
        return np.where(np.isfinite(gradient), gradient, np.float32(0))

    def outcome(self, worker, step, attempt):
        return self.says if (worker, step) == (1, 3) else "ok"


class Swallowed(Refused):
    says = "ok"


class Applied(Trainer):
    poison = Refused.poison


@pytest.mark.parametrize("update", ["sync", "async"])
@pytest.mark.parametrize("workload", ["ledger", "dense-ledger", "decayed-ledger", "digits", "quadratic"])
def test_refused_and_said_so_is_valid(tmp_path, update, workload):
    judged = Refused(update=update, workload=workload, shards=(0, 1), workers=3).judge(tmp_path / "run")
    assert set(statuses(judged).values()) == {"valid"}, explain(judged)
    assert {"C3"} <= set(statuses(judged))
    assert ("S1" in statuses(judged)) == (update == "sync" and workload in ("ledger", "dense-ledger"))
    assert "fault: poison worker:1 at its step 3: its gradient was nan in every entry" in explain(judged)


@pytest.mark.parametrize("update", ["sync", "async"])
def test_swallowed_or_applied_is_not(tmp_path, update):
    judged = Swallowed(update=update).judge(tmp_path / "swallowed")
    assert violated(judged) == {"C3", "R1"} | ({"S1"} if update == "sync" else {"A1", "A5"}), explain(judged)
    line = "the gradient of worker:1, step 3, nan, was acknowledged as ok: nobody was told"
    assert witness(judged, "C3") == (line,)
    judged = Applied(update=update).judge(tmp_path / "applied")
    assert violated(judged) == {"C3"}, explain(judged)
    assert witness(judged, "C3")[-1] == line
    assert "read ps:0 with nan" in witness(judged, "C3")[0]


def test_without_an_answer_nobody_knows(tmp_path):
    class NotTold(Refused):
        says = "unknown"

    judged = NotTold(update="async").judge(tmp_path / "run")
    assert statuses(judged)["C3"] == "unknown"
    assert not violated(judged)


def test_told_too_late(tmp_path):
    history = Refused(update="async", steps=8).judge(tmp_path / "run").history
    worker = history.workers[1]
    row = int(np.flatnonzero(worker.pushes.step == 3)[0])
    for step, found in ((5, "violated"), (4, "valid")):
        answered = worker.pushes.answered.copy()
        answered[row] = worker.pushes.at[worker.pushes.step == step][0] + 1
        late = dataclasses.replace(worker, pushes=dataclasses.replace(worker.pushes, answered=answered))
        verdict = finite_parameters(dataclasses.replace(history, workers=(history.workers[0], late)))
        assert verdict.status == found
    assert "as failed only after the push of step 5" in _late_line(history, worker, row)


def _late_line(history, worker, row):
    answered = worker.pushes.answered.copy()
    answered[row] = worker.pushes.at[-1] + 1
    late = dataclasses.replace(worker, pushes=dataclasses.replace(worker.pushes, answered=answered))
    return finite_parameters(dataclasses.replace(history, workers=(history.workers[0], late))).witness[0]


class Other(Refused):
    """It lacks another gradient, too."""

    also = 4

    def sent(self, worker, step, gradient):
        return 0 * gradient if (worker, step) == (1, self.also) else super().sent(worker, step, gradient)


@pytest.mark.parametrize("also", [2, 4, 5])
def test_s1_excuses_the_poisoned_gradient_and_no_other(tmp_path, also):
    trainer = Other()
    trainer.also = also
    judged = trainer.judge(tmp_path / "run")
    assert {"S1", "R1"} <= violated(judged)
    assert all(f"worker:1, step {also}" in line for line in witness(judged, "S1")), witness(judged, "S1")


def refuse(story, worker):
    """A step whose gradient is poisoned, refused by all ps, and counted."""
    step = story.next_step(worker)
    probe = story.probes[worker]
    probe._poisons = {step: "nan"}
    story.manifest.faults.append(f"poison worker:{worker}@{step}")
    story.read(worker, step)
    probe.gradient(step)
    probe.push(step)
    for applied in story.applied:
        applied[worker] += 1
    probe.ack(step, "failed", [sum(applied) for applied in story.applied])
    probe._poisons = {}


def test_a_checkpoint_right_after_it_and_a_rollback_to_that(tmp_path):
    story = Story(tmp_path / "run")
    story.step(0, 3)
    story.step(1, 2)
    refuse(story, 1)
    story.checkpoint("step-3")
    story.step(1, 2)
    story.kill("ps:1")
    story.fault("kill", "ps:1", on=False, evidence="started again")
    story.exits.clear()
    story.restore("step-3")
    judged = story.finish()
    assert set(statuses(judged).values()) == {"valid"}, explain(judged)
    assert {"R1", "R3", "R4", "R6", "L1", "C3"} <= set(statuses(judged))


def test_refused_once_more_after_a_rollback(tmp_path):
    story = Story(tmp_path / "run")
    story.step(0, 3)
    story.step(1, 2)
    story.checkpoint("step-2")
    refuse(story, 1)
    story.step(1, 3)
    story.kill("ps:1")
    story.fault("kill", "ps:1", on=False, evidence="started again")
    story.exits.clear()
    story.restore("step-2")
    refuse(story, 1)
    judged = story.finish()
    assert set(statuses(judged).values()) == {"valid"}, explain(judged)


def test_a_poison_in_a_run_without_faults_is_malformed(tmp_path):
    folder = Refused(update="async").run(tmp_path / "run")
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "faults": []}))
    with pytest.raises(Malformed, match="is poisoned, and this run had no faults"):
        judge_folder(folder)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "options",
    [
        {"update": "sync"},
        {"update": "async", "poison": ["worker:1@20", "worker:0@29=inf"], "read_every": 3},
        {"update": "sync", "kill": "ps:0@20", "restart_after": "0s", "checkpoint_every": 7},
        {"update": "async", "kill": "worker:1@21", "restart_after": "0s", "workload": "digits"},
        {"update": "sync", "quorum": 2, "poison": "worker:1@4"},
        {"update": "sync", "replication": "in-graph"},
    ],
    ids=lambda options: " ".join(f"{key}={value}" for key, value in options.items()),
)
def test_the_reference_refuses_it_at_the_ps_and_says_so(judge, options):
    run = judge("reference", layout="ps=2,worker=3", **{"steps": 30, "poison": "worker:1@20", **options})
    assert run.valid, run.explain()
    assert run.verdicts["C3"].status == "valid"
    (step,) = re.findall(r"worker:1@(\d+)", str(options.get("poison", "worker:1@20")))
    logs = "".join(path.read_text() for path in (run.folder / "logs").iterdir())
    refused = f"worker:1: gradient of step {step} is not finite, rejected by ps:0, ps:1"
    assert refused in logs or (options.get("quorum") and "R1" in run.verdicts)  # there it may have been late


@pytest.mark.engine
def test_a_trainer_that_applies_it_is_found(judge):
    run = judge(TARGET, layout="ps=1,worker=2", update="async", steps=20, poison="worker:1@8")
    assert run.violated == ("C3",), run.explain()
    assert run.verdicts["C3"].witness[-1].startswith("the gradient of worker:1, step 8, nan, was acknowledged as ok")
