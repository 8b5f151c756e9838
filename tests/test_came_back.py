"""A worker that was started again reads before it says where it goes on: which read is of its gradient."""

from __future__ import annotations

import dataclasses

import pytest

from psconform.claims import SYNC
from psconform.faults.process_faults import KILL
from psconform.history.manifest import Workload
from psconform.layout import Layout
from psconform.probe import UNIT
from psconform.report.text import explain
from psconform.runner.verdicts import judge_folder
from psconform.simulation.cluster import Cluster, Parts
from psconform.simulation.record import Recorded
from psconform.simulation.schedule import Fault, Schedule
from psconform.simulation.server import Server
from psconform.simulation.trace import Resumed
from psconform.simulation.worker import Worker

from .stories import Story

CLAIMS = dataclasses.replace(SYNC, recovery="checkpoint", liveness="progress")


class Rounds(Story):
    """Two workers and two ps, in rounds, on a ledger; worker:1 may die and come back."""

    def __init__(self, folder, steps=10):
        layout = Layout(ps=2, workers=2, update="sync")
        workload = Workload(steps=steps, unit=UNIT / 2)
        super().__init__(folder / "run", steps=steps, ps=2, workers=2, claims=CLAIMS, layout=layout, workload=workload)
        self.round = 0

    def read(self, worker, step=None, **final):
        self.probes[worker].read(self.theta, [self.round] * 2, step=step, shards=range(2), **final)

    def start(self, worker):
        self.read(worker, self.round)
        self.probes[worker].push(self.round)

    def commit(self, times=1, answered=(0, 1)):
        for ps in range(2):
            gradients = sum(probe.gradient(self.round) for probe in self.probes)
            self.theta[ps] = self.theta[ps] - gradients / 2 * times
            self.applied[ps] = [self.round + 1] * 2
        self.round += 1
        for worker in answered:
            self.probes[worker].ack(self.round - 1, "ok", [self.round] * 2)

    def train(self, rounds=1):
        for _ in range(rounds):
            self.start(0)
            self.start(1)
            self.commit()

    def dies_and_comes_back(self):
        self.kill("worker:1", at=str(self.round))
        self.lives[1] += 1
        self.dead.discard(1)
        self.probes[1] = self._probe(1)
        self.fault("kill", "worker:1", at=str(self.round), on=False, evidence="started again")
        self.exits.pop("worker:1", None)

    def others_finish_the_round(self):
        self.start(0)
        self.commit(answered=(0,))

    def finish(self):
        self.train(self.steps - self.round)
        for worker in range(2):
            (self.folder / "done" / f"worker-{worker}").touch()
        for worker, probe in enumerate(self.probes):
            probe.wait_for_all()
            self.read(worker, final=True)
            probe.close()
        return self.end("finished")


def violated(judged):
    return judged.names("violated")


@pytest.mark.parametrize("step", [None, 4])
@pytest.mark.parametrize("resumes", [True, False])
def test_a_look_while_the_round_is_open_is_no_read_of_a_gradient(tmp_path, step, resumes):
    story = Rounds(tmp_path)
    story.train(4)
    story.start(1)
    story.dies_and_comes_back()
    story.read(1, step)  # round 4 is open; the ps then answers that it has the gradient of step 4
    if resumes:
        story.probes[1].resume(5)
    story.others_finish_the_round()
    judged = story.finish()
    assert violated(judged) == [], explain(judged)


@pytest.mark.parametrize("looks", [0, 1, 3])
def test_it_goes_on_and_does_not_say_where(tmp_path, looks):
    story = Rounds(tmp_path)
    story.train(4)
    story.dies_and_comes_back()
    for _ in range(looks):
        story.read(1)
    judged = story.finish()
    assert violated(judged) == [], explain(judged)


def test_killed_again_before_it_has_pushed(tmp_path):
    story = Rounds(tmp_path)
    story.train(4)
    for _ in range(2):
        story.dies_and_comes_back()
        story.read(1)
    judged = story.finish()
    assert violated(judged) == [], explain(judged)


def test_what_it_computes_its_gradient_from_is_judged(tmp_path):
    story = Rounds(tmp_path)
    story.train(2)
    old = [theta.copy() for theta in story.theta]
    story.train(2)
    story.dies_and_comes_back()
    new, story.theta, story.round = story.theta, old, 2
    story.read(1)
    story.theta, story.round = new, 4
    story.probes[1].push(4)
    story.start(0)
    story.commit()
    judged = story.finish()
    assert "S1" in violated(judged), explain(judged)
    assert "worker:1 read version 2 of ps:0 at step 4, which lacks the gradient of worker:0, step 2" in explain(judged)


@pytest.mark.parametrize("times", [1, 2])
def test_what_its_life_before_had_sent_arrives_after_it_has_asked_where_to_go_on(tmp_path, times):
    story = Rounds(tmp_path)
    story.train(4)
    story.start(1)
    story.dies_and_comes_back()
    story.probes[1].resume(4)  # the ps have not got the gradient of step 4 yet
    story.others_finish_the_round()
    story.read(1, 4)  # now they have
    story.probes[1].push(4)
    if times == 2:  # the ps do not know it again
        story.theta = [theta - story.probes[1].gradient(4) / 2 for theta in story.theta]
    story.probes[1].ack(4, "ok", [5, 5])
    judged = story.finish()
    assert violated(judged) == ([] if times == 1 else ["S1", "R1", "R2"]), explain(judged)


def test_a_step_that_a_life_in_between_saw_answered_is_not_open(tmp_path):
    story = Rounds(tmp_path)
    story.train(4)
    story.start(1)
    story.dies_and_comes_back()
    story.probes[1].resume(4)
    story.start(1)
    story.start(0)
    story.commit()  # the life in between has its answer
    story.dies_and_comes_back()
    story.probes[1].resume(4)
    story.read(1, 4)
    story.probes[1].push(4)
    story.probes[1].ack(4, "ok", [5, 5])
    judged = story.finish()
    assert "S1" in violated(judged), explain(judged)


def test_it_begins_again_at_a_step_that_was_answered(tmp_path):
    story = Rounds(tmp_path)
    story.train(4)
    story.dies_and_comes_back()
    story.probes[1].resume(2)
    story.read(1, 2)
    story.probes[1].push(2)
    story.probes[1].ack(2, "ok", [3, 3])
    judged = story.finish()
    assert "S1" in violated(judged), explain(judged)


def test_a_gradient_that_is_doubled_later_is_not_put_down_to_it(tmp_path):
    story = Rounds(tmp_path)
    story.train(4)
    story.dies_and_comes_back()
    story.train(3)
    story.start(0)
    story.start(1)
    story.commit(times=2)
    judged = story.finish()
    assert "R1" in violated(judged), explain(judged)
    assert "came back" not in str([verdict.witness for verdict in judged.verdicts])


def rolled_back(story, name):
    """ps:0 dies, and all are restored; worker:1 begins its next life in the new epoch."""
    story.kill("ps:0", at=str(story.round))
    story.fault("kill", "ps:0", at=str(story.round), on=False, evidence="started again")
    story.exits.pop("ps:0", None)
    story.restore(name)
    story.round = story.kept[name][1][0][0]


def test_what_was_acknowledged_before_a_rollback_is_open_when_it_is_sent_again(tmp_path):
    story = Rounds(tmp_path)
    story.train(3)
    story.checkpoint("three")
    story.train(2)  # step 4 is acknowledged, and rolled back
    rolled_back(story, "three")
    story.train()
    story.start(1)  # step 4 once more; it is under way when the worker dies
    story.dies_and_comes_back()
    story.probes[1].epoch = story.epoch
    story.probes[1].resume(4)
    story.others_finish_the_round()
    story.read(1, 4)
    story.probes[1].push(4)
    story.probes[1].ack(4, "ok", [5, 5])
    judged = story.finish()
    assert violated(judged) == [], explain(judged)


def test_what_was_under_way_before_a_rollback_is_in_no_round_after_it(tmp_path):
    """The servers take a gradient of the epoch before, which its worker has not computed in this one."""
    story = Rounds(tmp_path)
    story.train(3)
    story.checkpoint("three")
    story.train(2)
    story.start(1)
    story.dies_and_comes_back()
    rolled_back(story, "three")
    story.train(2)
    story.others_finish_the_round()
    story.read(1, 5)
    story.probes[1].push(5)
    story.probes[1].ack(5, "ok", [6, 6])
    assert violated(story.finish()) == ["S1", "S4"]


def test_half_a_round_is_seen_by_a_worker_that_comes_back(tmp_path):
    """The servers apply each gradient on arrival; M1 looks at the read before the push alone."""
    story = Rounds(tmp_path)
    story.train(4)
    story.read(0, 4)
    story.start(1)
    story.dies_and_comes_back()
    story.probes[1].resume(4)
    mine, other = (story.probes[worker].gradient(4) / 2 for worker in (1, 0))
    story.theta[:] = [theta - mine for theta in story.theta]
    story.read(1, 4)
    story.probes[0].push(4)
    story.theta[:] = [theta - other for theta in story.theta]
    story.applied[:] = [[5, 5], [5, 5]]
    story.round = 5
    story.probes[0].ack(4, "ok", [5, 5])
    story.read(1, 4)
    story.probes[1].push(4)
    story.probes[1].ack(4, "ok", [5, 5])
    assert violated(story.finish()) == ["S1", "S4"]


def came_back(folder, worker, *, at, kind=Recorded, parts=None, **options):
    """A simulated run in which a worker is killed and comes back, of a trainer that promises no recovery."""
    kill = Fault(KILL, (f"worker:{worker}",), worker=worker, step=at)
    trace = kind(folder / "run", Schedule(ps=2, workers=3, faults=(kill,), **options))
    trace.manifest.claims = dataclasses.replace(trace.manifest.claims, recovery="none", liveness="attributed-error")
    cluster = Cluster(trace.schedule, trace, parts or Parts())
    cluster.run()
    return judge_folder(trace.finish(cluster))


class DoesNotSayWhere(Recorded):
    """No worker that comes back says where it goes on."""

    def tell(self, now, what):
        if isinstance(what, Resumed):
            self._probe(what.worker).epoch = what.epoch
        else:
            super().tell(now, what)


@pytest.mark.parametrize("update", ["sync", "async"])
def test_a_worker_that_goes_on_and_does_not_say_where_is_not_accused(tmp_path, update):
    judged = came_back(tmp_path, 1, at=35, kind=DoesNotSayWhere, mode=update, steps=60)
    assert judged.exit_code == 0, explain(judged)
    assert '"kind":"resume"' not in (tmp_path / "run" / "events" / "worker-1.1.jsonl").read_text(encoding="utf-8")


class InitialisesAgain(Recorded):
    """A chief that comes back initialises; the ps refuse it, and it says that it has."""

    def tell(self, now, what):
        if isinstance(what, Resumed):
            self.now = now
            self._probe(what.worker).initialised([self._begin(7) for _ in range(self.schedule.ps)])
        super().tell(now, what)


def test_an_initialisation_that_was_refused_is_not_one(tmp_path):
    judged = came_back(tmp_path, 0, at=20, kind=InitialisesAgain, steps=60)
    events = (tmp_path / "run" / "events" / "worker-0.1.jsonl").read_text(encoding="utf-8")
    assert '"kind":"init"' in events
    assert judged.exit_code == 0, explain(judged)


class BeginsAgain(Worker):
    """It comes back with its first step."""

    def resume(self):
        yield from self.join()


class Forgets(Server):
    """It does not know what it has had of a worker."""

    def push(self, push):
        self.applied[push.worker] = push.step
        return super().push(push)


def test_of_a_worker_that_begins_again_the_cause_is_named_once(tmp_path):
    parts = Parts(server=Forgets, worker=BeginsAgain)
    judged = came_back(tmp_path, 1, at=20, parts=parts, mode="async", steps=40)
    (line,) = next(verdict for verdict in judged.verdicts if verdict.guarantee == "R1").witness
    begins = "the gradients of worker:1, steps 0 to 20, (ok) were applied 2 times to ps:0 and ps:1 (21 gradients): "
    assert line.startswith(f"{begins}worker:1 came back and began again at step 0 ")
