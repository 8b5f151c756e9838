"""What sound trainers do under faults, each in its own way: nobody is accused for it, and no check fails on it."""

from __future__ import annotations

import dataclasses
import os

import numpy as np
import pytest

from psconform.checks.order import apply_order
from psconform.checks.staleness import staleness
from psconform.claims import SYNC, Claims
from psconform.history.build import load_history
from psconform.history.manifest import Workload
from psconform.layout import Layout
from psconform.probe import DECAY, UNIT
from psconform.report.text import explain
from psconform.runner.verdicts import judge_folder
from psconform.simulation.record import simulate
from psconform.simulation.schedule import draw

from .stories import CLAIMS, Story
from .taken_apart import Record
from .test_checks_under_faults import Aware, Bounded, Rounds, ended, held_up, ps_lost, reason, statuses


class Counts(Story):
    """The ps count versions as ``base`` says: less so many, each by itself."""

    base = (0, 0)

    def versions(self):
        return [sum(applied) - base for applied, base in zip(self.applied, self.base, strict=True)]

    def read(self, worker, step=None, **final):
        self.probes[worker].read(self.theta, self.versions(), step=step, shards=range(2), **final)

    def one(self, worker):
        probe, step = self.probes[worker], self.next_step(worker)
        self.read(worker, step)
        probe.push(step)
        self.arrives(worker, step)
        probe.ack(step, "ok", self.versions())

    def arrives(self, worker, step):
        for p in range(2):
            self.put(p, worker, step)

    def rest(self):
        for worker in (0, 1):
            while self.next_step(worker) < self.steps:
                self.one(worker)
        return ended(self)


def three_steps(folder):
    """Both workers have taken them, in turn."""
    story = Counts(folder / "run", claims=CLAIMS)
    for _ in range(3):
        story.one(0)
        story.one(1)
    return story


def nobody_is_accused(judged, *judged_too):
    assert "violated" not in statuses(judged).values(), explain(judged)
    assert "crashed" not in explain(judged)
    assert {name for name in judged_too if statuses(judged).get(name) != "valid"} == set(), explain(judged)


@pytest.mark.parametrize("base", [(6, 6), (-1, -1), (0, 6)])
def test_versions_are_no_part_of_what_is_restored(tmp_path, base):
    """They begin anew, on one ps or on all, or go on by one, though nothing was lost."""
    story = three_steps(tmp_path)
    story.checkpoint("three")
    ps_lost(story)
    story.base = base
    nobody_is_accused(story.rest(), "A1", "A2", "A7")


def test_rounds_are_counted_anew_by_the_ps_that_was_lost(tmp_path):
    story, base = Rounds(tmp_path / "run"), [0, 0]

    def read(worker, step=None, **final):
        versions = [applied[0] - less for applied, less in zip(story.applied, base, strict=True)]
        story.probes[worker].read(story.theta, versions, step=step, shards=range(2), **final)

    story.read = read
    story.train(3)
    story.checkpoint("three")
    story.train(2)
    ps_lost(story)
    base[:] = [-2, 3]
    story.train(9)
    nobody_is_accused(ended(story), "S4")


def test_nothing_was_lost_so_there_is_no_new_epoch(tmp_path):
    """The ps has its parameters from a log, say, and counts from 0."""
    story = three_steps(tmp_path)
    story.read(0, 3)
    story.kill("ps:1")
    story.fault("kill", "ps:1", on=False)
    story.exits.clear()
    story.base = (0, 6)
    story.probes[0].push(3)
    story.arrives(0, 3)
    story.probes[0].ack(3, "ok", story.versions())
    judged = story.rest()
    nobody_is_accused(judged, "A7")
    assert "cluster epoch for each ps that dies" in reason(judged, "A2")


def test_who_is_gone_for_good_had_versions_that_others_get_after_a_rollback(tmp_path):
    story = Story(tmp_path / "run", claims=CLAIMS, layout=Layout(ps=2, workers=2, update="async", drop_after=0.1))
    story.checkpoint("three")
    story.step(0, 1)
    story.step(1, 5)
    story.kill("worker:1")
    here, both = story.probes[:1], story.probes
    story.probes = here
    ps_lost(story)
    story.exits["worker:1"] = -9
    story.probes = both
    story.step(0, 12)
    here[0].goes_without(1, 0)
    for worker in (0, 1):
        (story.folder / "done" / f"worker-{worker}").touch()
    here[0].wait_for_all()
    story.read(0, final=True)
    here[0].close()
    judged = story.end("finished")
    assert statuses(judged)["A1"] != "violated", explain(judged)


def test_who_died_in_a_call_had_sent_what_it_has_not_recorded(tmp_path):
    """probe.update: the ps has it already, and answers the next life with the version of now."""
    story = three_steps(tmp_path)
    story.read(1, 3)
    story.arrives(1, 3)
    story.kill("worker:1")
    story.back(1, step=3)
    story.one(0)
    story.read(1, 3)
    story.probes[1].update(3, "ok", story.versions())
    nobody_is_accused(story.rest(), "A1", "A2")


def test_nor_is_the_weight_of_that_one_known(tmp_path):
    story = Aware(tmp_path / "run")
    story.step(0, 3)
    for p in range(2):
        story.put(p, 1, 0)
    story.kill("worker:1")
    story.back(1, step=0)
    story.read(1, 0)
    for _ in range(3):
        story.late(0, lambda: None)
    story.probes[1].update(0, "ok", [sum(applied) for applied in story.applied])
    nobody_is_accused(story.finish(), "A4")


def test_a_second_process_was_a_moment_earlier(tmp_path):
    story = Story(tmp_path / "run", claims=CLAIMS)
    for _ in range(3):
        story.step(0)
        story.step(1)
    story.fault("twice", "worker:1")
    story.read(1, 3)
    story.probes[1].push(3)
    for p in range(2):
        story.put(p, 1, 3)  # of the second one
    story.step(0, 2)
    story.probes[1].ack(3, "ok", [sum(applied) for applied in story.applied])
    story.fault("twice", "worker:1", on=False)
    nobody_is_accused(story.finish(), "A1")


def test_an_answer_is_read_only_after_the_rollback(tmp_path):
    story = Counts(tmp_path / "run", claims=CLAIMS)
    story.checkpoint("three")
    story.one(1)
    story.read(0, 0)
    story.probes[0].push(0)
    story.arrives(0, 0)
    ps_lost(story)
    story.probes[0].ack(0, "ok", [2, 2], attempt=0)
    story.read(0, 0)
    story.probes[0].push(0)
    story.arrives(0, 0)
    story.probes[0].ack(0, "unknown")
    nobody_is_accused(story.rest(), "A7")


def test_and_the_worker_goes_on_until_it_knows(tmp_path):
    story = Bounded(tmp_path / "run")
    story.together(1)
    story.checkpoint("three")
    story.read(0, 1)
    story.probes[0].push(1)
    for p in range(2):
        story.put(p, 0, 1)
    ps_lost(story)
    story.probes[0].ack(1, "ok", [3, 3], attempt=0)
    story.read(0, 2)
    story.read(0, 1)
    story.probes[0].push(1)
    for p in range(2):
        story.put(p, 0, 1)
    story.probes[0].ack(1, "unknown")
    story.step(1)
    story.together(10)
    nobody_is_accused(story.finish(), "A3")


@pytest.mark.parametrize("delivery", ["at-most-once", "none"])
def test_recovery_was_never_promised(tmp_path, delivery):
    story = Story(tmp_path / "run", claims=Claims(delivery=delivery, read_atomicity="per-shard"))
    story.checkpoint("start", record=False)
    story.step(0, 3)
    story.step(1, 2)
    story.kill("ps:1")
    story.fault("kill", "ps:1", on=False)
    story.exits.clear()
    story.theta[1] = story.kept["start"][0][1].copy()
    judged = story.finish()
    nobody_is_accused(judged)
    assert reason(judged, "A7") == "needs a run in which no ps dies: recovery is none"


def test_what_is_in_flight_is_overtaken(tmp_path):
    """Each on a connection of its own: what is held back arrives after what was sent later."""
    workload = Workload(steps=12, unit=UNIT, name="decayed-ledger")
    story = Decayed(tmp_path / "run", claims=CLAIMS, workload=workload)
    story.one(0)
    story.one(1)
    held_up(story)
    probe = story.probes[0]
    for step in (1, 2):
        story.read(0, step)
        probe.push(step)
    story.arrives(0, 2)
    probe.ack(2, "ok")
    story.arrives(0, 1)
    probe.ack(1, "ok", attempt=0)
    judged = story.rest()
    nobody_is_accused(judged)
    assert not judged.history.straight
    assert apply_order(dataclasses.replace(judged.history, plain="")).status == "violated", "so it must not be asked"


def test_calls_that_are_recorded_when_they_return(tmp_path):
    story = Story(tmp_path / "run", claims=CLAIMS)
    story.step(0, 1)
    held_up(story)
    story.read(0, 1)
    for p in range(2):
        story.put(p, 0, 2)
    story.read(1, 0)
    for p in range(2):
        story.put(p, 0, 1)
    story.probes[0].update(1, "ok")
    story.probes[0].update(2, "ok")
    nobody_is_accused(story.finish(), "A7")


def test_a_round_without_a_refused_gradient_is_the_mean_of_the_others(tmp_path):
    claims = dataclasses.replace(SYNC, recovery="checkpoint", liveness="progress", read_atomicity="per-shard")
    workload = Workload(steps=12, unit=UNIT / 3)
    story = Story(tmp_path / "run", claims=claims, workers=3, layout=Layout(ps=2, workers=3), workload=workload)
    story.probes[2]._poisons = {4: "nan"}

    def read(worker, step=None, **final):
        story.probes[worker].read(story.theta, [min(row) for row in story.applied], step=step, shards=range(2), **final)

    story.read = read
    for step in range(12):
        bad = {2} if step == 4 else set()
        for worker, probe in enumerate(story.probes):
            story.read(worker, step)
            probe.gradient(step)
            probe.push(step)
        for p in range(2):
            for worker in {0, 1, 2} - bad:
                weight = np.float32(1 / (3 - len(bad)))
                story.theta[p] = story.theta[p] - weight * story.probes[worker].gradient(step)
            story.applied[p] = [step + 1] * 3
        for worker, probe in enumerate(story.probes):
            probe.ack(step, "failed" if worker in bad else "ok", [step + 1] * 2)
    story.fault("poison", "worker:2", at="4")
    judged = ended(story)
    assert statuses(judged)["S5"] == "valid", explain(judged)


class Decayed(Counts):
    """Each update takes a share of what is there, and versions are not told."""

    def put(self, p, worker, step):
        less = self.theta[p] * np.float32(1 - DECAY)
        self.theta[p] = (less - self.probes[worker].gradient(step)).astype(np.float32)
        self.applied[p][worker] += 1

    def read(self, worker, step=None, **final):
        self.probes[worker].read(self.theta, None, step=step, shards=range(2), **final)

    def one(self, worker):
        probe, step = self.probes[worker], self.next_step(worker)
        self.read(worker, step)
        probe.push(step)
        self.arrives(worker, step)
        probe.ack(step, "ok")


def test_the_order_tells_nothing_of_staleness_over_a_rollback(tmp_path):
    story = Decayed(tmp_path / "run", claims=CLAIMS, workload=Workload(steps=12, unit=UNIT, name="decayed-ledger"))
    story.checkpoint("three")
    story.one(0)
    ps_lost(story)
    judged = story.rest()
    found = staleness(dataclasses.replace(judged.history, plain=""))
    assert "a run in which nothing was taken back" in found.reason


@pytest.mark.parametrize("answers", [None, [1, 2, 3]])
def test_counters_that_say_nothing(tmp_path, answers):
    """No gradient is sent once and answered with a version; or another life counts otherwise."""
    story = Counts(tmp_path / "run", claims=CLAIMS)
    held_up(story)
    if answers:
        story.one(1)
        story.kill("worker:1")
        story.back(1)
        usual = story.read

        def read(worker, step=None, **final):
            if worker:
                story.probes[1].read(story.theta, answers, step=step, **final)
            else:
                usual(worker, step, **final)

        story.read = read
    while story.next_step(1) < story.steps:
        for worker in (0, 1):
            probe, step = story.probes[worker], story.next_step(worker)
            story.read(worker, step)
            probe.push(step)
            probe.ack(step, "unknown")
            probe.push(step)
            story.arrives(worker, step)
            probe.ack(step, "ok")
    judged = story.rest()
    assert "crashed" not in explain(judged)


def test_what_it_read_before_a_rollback_is_judged_as_it_was_then(tmp_path):
    story = Story(tmp_path / "run", claims=CLAIMS)
    story.checkpoint("three")
    story.step(0, 2)
    kept, story.theta = story.theta, [theta + story.probes[0].gradient(1) for theta in story.theta]
    story.read(0, 2)  # without its own step 1, which was accepted; after the rollback it is accepted again
    story.theta = kept
    ps_lost(story)
    judged = story.finish()
    assert statuses(judged)["A7"] == "violated", explain(judged)


def test_a_restore_or_another_life_is_no_mere_delay(tmp_path):
    restored = Story(tmp_path / "restored", claims=CLAIMS)
    held_up(restored)
    restored.probes[0].epoch = 1
    restored.probes[0].restored("three")
    restored.probes[0].epoch = 0
    assert not restored.finish().history.straight
    again = Story(tmp_path / "again", claims=CLAIMS)
    held_up(again)
    again.step(1, 2)
    log = again.probes[1]._log
    os.close(log._fd)
    log._fd = -1
    again.lives[1] = 1
    again.probes[1] = again._probe(1)
    again.probes[1]._next_step = 2
    assert not again.finish().history.straight
    slow = Story(tmp_path / "slow", claims=CLAIMS)
    held_up(slow)
    assert slow.finish().history.straight


def test_no_gradient_is_whole_in_a_run_with_short_rounds(tmp_path):
    """Weights of rounds without a worker are in those of whole rounds, of which here none has an even gradient."""
    simulate(draw(135, mode="sync"), tmp_path / "run")
    assert load_history(tmp_path / "run").divisor == "live"
    run = Record(tmp_path / "run")
    for variable, grad in run.lasting:
        for read in run.of("read"):
            run.times(read, variable, grad, 1, 0)
    run.write(tmp_path / "run")
    assert "R1" in judge_folder(tmp_path / "run").names("violated")
