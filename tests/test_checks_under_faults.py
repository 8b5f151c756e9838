"""Guarantees of a good day, on a bad one: a rollback is no breach of them, and what is one is seen all the same."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from psconform.checks import all_checks
from psconform.claims import ASYNC, SYNC
from psconform.history.manifest import Workload
from psconform.layout import Layout
from psconform.probe import UNIT
from psconform.report.text import explain

from .stories import CLAIMS, Story

RECOVERS = {"recovery": "checkpoint", "liveness": "progress", "read_atomicity": "per-shard"}
ROUNDS = dataclasses.replace(SYNC, **RECOVERS)
BOUNDED = dataclasses.replace(ASYNC, staleness="bounded", **RECOVERS)
AWARE = dataclasses.replace(ASYNC, rate="staleness-aware", **RECOVERS)


class Rounds(Story):
    """Sync: two workers whose gradients make a round together, as a mean."""

    def __init__(self, folder, *, steps=12, layout=None, unit=UNIT / 2, claims=ROUNDS):
        workload = Workload(steps=steps, unit=unit)
        super().__init__(
            folder, steps=steps, claims=claims, layout=layout or Layout(ps=2, workers=2), workload=workload
        )

    def train(self, count=1, *, weight=0.5, between=lambda step: None):
        for _ in range(count):
            step = self.applied[0][0]
            for worker, probe in enumerate(self.probes):
                self.read(worker, step)
                probe.push(step)
            for p in range(len(self.theta)):
                for worker, probe in enumerate(self.probes):
                    self.theta[p] = self.theta[p] - np.float32(weight) * probe.gradient(step)
                    self.applied[p][worker] += 1
                if not p:
                    between(step)
            for probe in self.probes:
                probe.ack(step, "ok", [step + 1] * len(self.theta))

    def read(self, worker, step=None, **final):
        versions = [applied[0] for applied in self.applied]
        self.probes[worker].read(self.theta, versions, step=step, shards=range(len(self.theta)), **final)


def held_up(story):
    """Something strikes, nobody dies, and it is over."""
    story.fault("stall", "worker:1->ps:0", evidence="840 bytes held back")
    story.fault("stall", "worker:1->ps:0", on=False, evidence="840 bytes came through")


def ps_lost(story, name="three"):
    story.kill("ps:1")
    story.fault("kill", "ps:1", on=False, evidence="started again")
    story.exits.clear()
    story.restore(name)


def answered(story, step, versions):
    """Worker:1 takes a step, and is told these versions."""
    story.read(1, step)
    story.probes[1].push(step)
    for p in range(2):
        story.put(p, 1, step)
    story.probes[1].ack(step, "ok", versions)


def ended(story):
    """Read once more, and judge."""
    story.steps = 0  # nothing is left to train
    return story.finish()


def alone(story, weights):
    """Worker:0 goes on without worker:1 from step 2 on, at these weights by step; judged."""
    held_up(story)
    for step in range(2, len(weights)):
        story.read(0, step)
        story.probes[0].push(step)
        story.probes[0].goes_without(1, step)
        for p in range(2):
            story.theta[p] = story.theta[p] - np.float32(weights[step]) * story.probes[0].gradient(step)
            story.applied[p] = [step + 1] * 2
        story.probes[0].ack(step, "ok", [step + 1] * 2)
    return ended(story)


def statuses(judged):
    return {v.guarantee: v.status for v in judged.verdicts if v.status in ("valid", "violated", "unknown")}


def reason(judged, name):
    return next(v.reason for v in judged.verdicts if v.guarantee == name)


def test_all_guarantees_are_judged_under_faults_but_one():
    """S6 measures time. Those that know nothing of rollbacks are judged where there is none."""
    assert [check.name for check in all_checks() if check.faults == "none"] == ["S6"]
    assert sum(check.faults == "any" for check in all_checks()) > 25


def test_async_over_a_rollback(tmp_path):
    story = Story(tmp_path / "run", claims=CLAIMS)
    story.step(0, 3)
    story.step(1, 2)
    story.checkpoint("three")
    story.step(0, 2)
    story.step(1, 3)
    ps_lost(story)
    judged = story.finish()
    assert {"A1", "A2", "A7"} <= set(statuses(judged))
    assert set(statuses(judged).values()) == {"valid"}, explain(judged)


def test_an_answer_that_was_lost_over_a_rollback_is_nobodys_fault(tmp_path):
    """Accepted, rolled back, sent again, applied: and nobody has heard of that."""
    story = Story(tmp_path / "run", claims=CLAIMS)
    story.checkpoint("start")
    story.step(0, 2)
    ps_lost(story, "start")
    story.read(1, 0)
    story.step(0, 1, answer=False)
    story.step(0, 1)
    judged = story.finish()
    assert "violated" not in statuses(judged).values(), explain(judged)


@pytest.mark.parametrize("strike", [held_up, None])
def test_what_a_worker_has_seen_does_not_go_away_without_a_rollback(tmp_path, strike):
    story = Story(tmp_path / "run", claims=CLAIMS)
    story.step(0, 3)
    story.step(1, 2)
    story.read(0, 3)
    (strike or (lambda _: None))(story)
    kept, story.theta = story.theta, [theta + story.probes[1].gradient(1) for theta in story.theta]
    story.read(0, 3)
    story.theta = kept
    judged = story.finish()
    assert statuses(judged)["A7"] == "violated"
    assert statuses(judged).get("R3", "violated") == "violated"


@pytest.mark.parametrize("over_a_rollback", [False, True])
def test_its_own_gradient_that_was_accepted_is_in_its_next_read(tmp_path, over_a_rollback):
    story = Story(tmp_path / "run", claims=CLAIMS)
    story.checkpoint("start")
    story.step(0, 2)
    if over_a_rollback:
        ps_lost(story, "start")
        story.step(0, 2)
    else:
        held_up(story)
    kept, story.theta = story.theta, [theta + story.probes[0].gradient(1) for theta in story.theta]
    story.read(0, 2)
    story.theta = kept
    judged = story.finish()
    assert "without its own gradient of step 1, acknowledged before" in explain(judged)
    assert statuses(judged)["A7"] == "violated"


def test_a_version_that_was_given_twice(tmp_path):
    story = Story(tmp_path / "run", claims=CLAIMS)
    story.step(1, 1)
    story.step(0, 1)
    held_up(story)
    answered(story, 1, [2, 2])
    judged = story.finish()
    assert statuses(judged)["A1"] == "violated", explain(judged)
    assert "gave version 2 to" in explain(judged)


def test_half_a_gradient_is_seen_under_faults(tmp_path):
    story = Story(tmp_path / "run", claims=CLAIMS)
    story.step(0, 2)
    held_up(story)
    story.theta = [theta + np.float32(0.5) * story.probes[0].gradient(1) for theta in story.theta]
    judged = story.finish()
    assert statuses(judged)["A1"] == "violated"
    assert "0.5 times" in explain(judged)


def test_staleness_of_what_was_sent_once(tmp_path):
    """One that was not answered, and sent again after a rollback, was applied at a lower version than it was read."""
    story = Story(tmp_path / "run", claims=CLAIMS)
    story.checkpoint("start")
    story.step(0, 3)
    story.step(1, 1, answer=False, apply=[])
    ps_lost(story, "start")
    story.step(1, 1)
    judged = story.finish()
    assert statuses(judged)["A2"] == "valid", explain(judged)


def test_a_gradient_that_was_applied_before_it_was_computed_is_seen_under_faults(tmp_path):
    story = Story(tmp_path / "run", claims=CLAIMS)
    story.step(0, 3)
    held_up(story)
    answered(story, 0, [2, 2])
    judged = story.finish()
    assert statuses(judged)["A2"] == "violated", explain(judged)


class Counting(Story):
    """Versions go on where they were, also over a rollback."""

    more = 0

    def restore(self, name, **how):
        before = sum(self.applied[0])
        super().restore(name, **how)
        self.more += before - sum(self.applied[0])

    def read(self, worker, step=None, **final):
        versions = [sum(applied) + self.more for applied in self.applied]
        self.probes[worker].read(self.theta, versions, step=step, shards=range(len(self.theta)), **final)


def test_versions_need_not_go_back_with_the_parameters(tmp_path):
    story = Counting(tmp_path / "run", claims=CLAIMS)
    story.step(0, 3)
    story.checkpoint("three")
    story.step(1, 2)
    ps_lost(story)
    assert story.more == 2
    for worker in (0, 1):
        while story.next_step(worker) < story.steps:
            probe, step = story.probes[worker], story.next_step(worker)
            story.read(worker, step)
            probe.push(step)
            for p in range(2):
                story.put(p, worker, step)
            probe.ack(step, "ok", [sum(applied) + story.more for applied in story.applied])
    judged = story.finish()
    assert statuses(judged)["A2"] == "valid", explain(judged)


class CountingRounds(Rounds):
    more = 0

    def read(self, worker, step=None, **final):
        versions = [applied[0] + self.more for applied in self.applied]
        self.probes[worker].read(self.theta, versions, step=step, shards=range(len(self.theta)), **final)


def test_nor_with_rounds(tmp_path):
    story = CountingRounds(tmp_path / "run")
    story.train(3)
    story.checkpoint("three")
    story.train(2)
    ps_lost(story)
    story.more = 2
    story.train(9)
    judged = ended(story)
    assert statuses(judged)["S4"] == "valid", explain(judged)


class Bounded(Story):
    def __init__(self, folder):
        super().__init__(folder, claims=BOUNDED, layout=Layout(ps=2, workers=2, update="async", staleness=2))

    def together(self, count):
        for _ in range(count):
            self.step(0)
            self.step(1)


def test_a_bound_over_a_rollback(tmp_path):
    story = Bounded(tmp_path / "run")
    story.together(2)
    story.checkpoint("two")
    story.together(2)
    ps_lost(story, "two")
    story.together(10)
    judged = story.finish()
    assert statuses(judged)["A3"] == "valid", explain(judged)


@pytest.mark.parametrize("strike", [held_up, lambda story: (story.checkpoint("two"), ps_lost(story, "two"))])
def test_a_bound_that_is_not_kept_is_seen_under_faults(tmp_path, strike):
    story = Bounded(tmp_path / "run")
    story.together(2)
    strike(story)
    story.step(0, 4)
    judged = story.finish()
    assert statuses(judged)["A3"] == "violated", explain(judged)
    assert "3 steps behind, 2 allowed" in explain(judged)


def test_who_goes_on_without_an_answer_does_not_know_what_it_owes(tmp_path):
    """Its push is held back, it reads on, and sends it again: for its next read it was not accepted yet."""
    story = Bounded(tmp_path / "run")
    story.together(1)
    held_up(story)
    probe = story.probes[0]
    probe.push(1)
    probe.ack(1, "unknown")
    story.read(0, 2)  # without its step 1
    probe.push(1)
    for p in range(2):
        story.put(p, 0, 1)
    probe.ack(1, "ok", [sum(applied) for applied in story.applied])
    story.step(1)
    story.together(10)
    judged = story.finish()
    assert statuses(judged)["A3"] != "violated", explain(judged)


class Aware(Story):
    """The weight of a gradient is 1 / max(1, tau)."""

    right = True

    def __init__(self, folder):
        super().__init__(folder, claims=AWARE, layout=Layout(ps=2, workers=2, update="async", rate="staleness-aware"))

    def late(self, worker, between):
        """A gradient, of which ``between`` happens after it was computed."""
        probe, step = self.probes[worker], self.next_step(worker)
        self.read(worker, step)
        probe.push(step)
        before = [sum(applied) for applied in self.applied]
        between()
        for p, applied in enumerate(self.applied):
            tau = sum(applied) - before[p]
            weight = np.float32(1 / max(1, tau)) if self.right else np.float32(1)
            self.theta[p] = self.theta[p] - weight * probe.gradient(step)
            applied[worker] += 1
        probe.ack(step, "ok", [sum(applied) for applied in self.applied])


@pytest.mark.parametrize("right", [True, False])
def test_the_weight_of_stale_gradients_over_a_rollback(tmp_path, right):
    story = Aware(tmp_path / "run")
    story.step(0, 2)
    story.checkpoint("two")
    story.late(1, lambda: story.step(0, 3))
    ps_lost(story, "two")
    story.right = right
    story.late(1, lambda: story.step(0, 3))
    story.late(1, lambda: story.step(0, 2))
    judged = story.finish()
    assert statuses(judged)["A4"] == ("valid" if right else "violated"), explain(judged)


def test_rounds_over_a_rollback(tmp_path):
    story = Rounds(tmp_path / "run")
    story.train(3)
    story.checkpoint("three")
    story.train(2)
    ps_lost(story)
    story.train(9)
    judged = ended(story)
    assert {"S1", "S3", "S4", "S5"} <= set(statuses(judged))
    assert set(statuses(judged).values()) == {"valid"}, explain(judged)


def test_a_read_between_two_rounds_is_seen_under_faults(tmp_path):
    story = Rounds(tmp_path / "run")
    story.train(3)
    held_up(story)
    story.train(1, between=lambda step: story.read(0, step + 1))
    story.train(8)
    judged = ended(story)
    assert statuses(judged)["S4"] == "violated", explain(judged)


def test_versions_that_do_not_go_up_by_one_are_seen_under_faults(tmp_path):
    story = Rounds(tmp_path / "run")
    story.train(3)
    held_up(story)

    def ahead(worker, step=None, **final):
        versions = [applied[0] + 1 for applied in story.applied]
        story.probes[worker].read(story.theta, versions, step=step, shards=range(2), **final)

    story.read = ahead
    story.train(9)
    judged = ended(story)
    assert statuses(judged)["S4"] == "violated", explain(judged)
    assert "came after its read of version" in explain(judged)


@pytest.mark.parametrize("strike", [held_up, lambda story: (story.checkpoint("two"), ps_lost(story, "two"))])
def test_a_wrong_weight_is_seen_under_faults(tmp_path, strike):
    story = Rounds(tmp_path / "run")
    story.train(2)
    strike(story)
    story.train(1, weight=0.4)
    story.train(9)
    judged = ended(story)
    assert statuses(judged)["S5"] == "violated", explain(judged)


def test_what_a_round_without_a_worker_is_the_mean_of_is_the_jobs_affair(tmp_path):
    story = Rounds(tmp_path / "run", layout=Layout(ps=2, workers=2, drop_after=1.0))
    story.train(2)
    held_up(story)
    story.train(10)
    judged = ended(story)
    assert statuses(judged)["S5"] == "valid", explain(judged)


@pytest.mark.parametrize("weight", [0.4, 1.0])
def test_but_a_round_of_all_workers_has_the_declared_weight(tmp_path, weight):
    story = Rounds(tmp_path / "run", layout=Layout(ps=2, workers=2, drop_after=1.0))
    story.train(4)
    held_up(story)
    story.train(8, weight=weight)
    judged = ended(story)
    assert statuses(judged)["S5"] == "violated", explain(judged)


@pytest.mark.parametrize(("alone", "status"), [(2, "valid"), (10, "valid"), (12, "not judged")])
def test_a_round_without_a_worker_may_be_the_mean_of_the_others(tmp_path, alone, status):
    story = Rounds(tmp_path / "run", layout=Layout(ps=2, workers=2, drop_after=1.0))
    together = min(2, 12 - alone)
    story.train(together)
    held_up(story)
    for step in range(together, together + alone):
        story.read(0, step)
        story.probes[0].push(step)
        story.probes[0].goes_without(1, step)
        for p in range(2):
            story.theta[p] = story.theta[p] - story.probes[0].gradient(step)
            story.applied[p] = [step + 1] * 2
        story.probes[0].ack(step, "ok", [step + 1] * 2)
    story.train(12 - together - alone)
    judged = ended(story)
    assert statuses(judged).get("S5", "not judged") == status, explain(judged)


@pytest.mark.parametrize(
    ("divisor", "weights", "wrong", "says"),
    [
        ("any", (1.0, 1.0), "", "the mean of those in it"),
        ("live", (1.0, 1.0), "", "the mean of those in it"),
        ("initial", (1.0, 1.0), "S5", "the mean of those in it (live); declared is all workers (initial)"),
        ("any", (0.5, 0.5), "", "the mean of all workers"),
        ("live", (0.5, 0.5), "S5", "the mean of all workers (initial); declared is those in it (live)"),
        ("any", (0.3, 0.3), "S5", "rounds 2 to 11: 1 gradient of 2, each at 0.6 times its weight"),
        ("any", (0.5, 1.0), "S1 S5 R1 R2", "round 3 is the mean of the workers in it, round 2 of all 2"),
    ],
)
def test_rounds_without_a_worker_have_one_divisor(tmp_path, divisor, weights, wrong, says):
    """torch's Join divides by either; a story of two workers, so a mean of the other one alone doubles its gradient."""
    claims = dataclasses.replace(ROUNDS, divisor=divisor)
    story = Rounds(tmp_path / "run", layout=Layout(ps=2, workers=2, drop_after=1.0), claims=claims)
    story.train(2)
    judged = alone(story, [weights[step % 2] for step in range(12)])
    assert {*wrong.split()} == set(judged.names("violated")) - {"M2"}, explain(judged)
    assert says in explain(judged), explain(judged)
    told = {name: statuses(judged)[name] for name in ("R1", "R2") if not wrong}
    assert set(told.values()) <= {"unknown" if divisor == "any" and weights[0] == 1.0 else "valid"}, explain(judged)


@pytest.mark.parametrize("divisor", ["live", "any", "initial"])
def test_one_round_without_a_worker_is_applied_twice(tmp_path, divisor):
    """It is named, and not the others, which are twice as much as with the other worker by right."""
    claims = dataclasses.replace(ROUNDS, divisor=divisor)
    story = Rounds(tmp_path / "run", layout=Layout(ps=2, workers=2, drop_after=1.0), claims=claims)
    story.train(2)
    judged = alone(story, [2.0 if step == 7 else 1.0 for step in range(12)])
    assert {*judged.names("violated")} - {"M2"} == {"S1", "R1", "R2"} | ({"S5"} if divisor == "initial" else set())
    lines = {verdict.guarantee: verdict.witness for verdict in judged.verdicts}
    assert lines["R1"] == ("the gradient of worker:0, step 7, (ok) was applied 2 times to ps:0 and ps:1",)
    assert all("declared is all workers (initial)" in line for line in lines["S5"])


@pytest.mark.parametrize("weight", [1.0, 2.0, 3.0])
@pytest.mark.parametrize("whole", [1.0, 0.7])
def test_a_sum_without_a_worker_may_be_as_large_as_one_with_it(tmp_path, weight, whole):
    """Most rounds have one of the two; those of both tell what the weight is."""
    story = Rounds(tmp_path / "run", layout=Layout(ps=2, workers=2, drop_after=1.0, reduction="sum"), unit=UNIT)
    story.train(2, weight=whole)
    judged = alone(story, [weight] * 12)
    assert statuses(judged)["S5"] == ("valid" if whole == 1.0 else "violated"), explain(judged)


@pytest.mark.parametrize("dies", [False, True])
def test_what_knows_nothing_of_rollbacks_is_judged_where_nobody_died(tmp_path, dies):
    """C6 and A8 take more than a story; that they are asked is what matters here."""
    story = Story(tmp_path / "run", claims=CLAIMS, workload=Workload(steps=12, unit=UNIT, name="decayed-ledger"))
    story.step(0, 3)
    held_up(story)
    if dies:
        story.kill("worker:1")
        story.back(1)
    judged = story.finish()
    said = reason(judged, "A8")
    assert ("needs a run in which nobody died" in said) is dies, said
