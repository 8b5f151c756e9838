"""A worker that reads again before it sends a step again: what it read is of that step."""

from __future__ import annotations

import json

import numpy as np
import pytest

from psconform.checks.registry import judge_history
from psconform.history.build import load_history
from psconform.probe import Probe

from .bugs import WHEN, WHO
from .replicas import Ring
from .simulate import Trainer


class ReadsAgain(Trainer):
    """Its first attempt reaches ps:0 only and is not answered; it reads again, and sends the same gradient again.

    A server takes each gradient once. ``reached``: the servers that the first attempt reaches.
    """

    reached: tuple[int, ...] = (0,)
    anew = False
    names_step = False
    first = None

    def attempts(self, worker, step):
        return 2 if (worker, step) == (WHO, WHEN) else 1

    def outcome(self, worker, step, attempt):
        return "unknown" if attempt + 1 < self.attempts(worker, step) else "ok"

    def compute(self, worker, step, values):
        if (worker, step) != (WHO, WHEN) or not self.version[0] > WHEN:
            found = super().compute(worker, step, values)
            self.first = found if worker == WHO else self.first
            return found
        probe: Probe = self.probes[worker]
        named = {"step": step} if self.names_step else {}
        probe.read([theta.copy() for theta in self.theta], self.version if self.versioned else None, **named)
        if self.anew:
            return super().compute(worker, step, self.theta)
        return self.first

    def push(self, worker, step, gradient, attempt):
        if (worker, step) != (WHO, WHEN):
            return (yield from super().push(worker, step, gradient, attempt))
        every, reached = self.servers, set(self.reached)
        self.servers = sorted(reached if attempt == 0 else set(every) - reached)
        servers, self.servers = self.servers, every
        for server in servers:
            for variable, shard in enumerate(self.shards):
                mine = gradient[variable] if self.trains else gradient
                self.pending[variable] += mine if shard == server else 0
            self.arrived[server] += 1
            if not self.sync or self.arrived[server] >= self.quorum():
                for variable, shard in enumerate(self.shards):
                    if shard == server:
                        self.apply(variable, self.pending[variable] / self.share())
                        self.pending[variable][:] = 0
                self.arrived[server] = 0
                self.version[server] += 1
            yield False
        while self.sync and any(self.version[server] <= step for server in servers):
            yield False
        return [step + 1 for _ in every] if self.sync else list(self.version)


class ComputesAnew(ReadsAgain):
    anew = True


class NamesTheStep(ComputesAnew):
    names_step = True


class Whole(ReadsAgain):
    """Both servers have the first attempt; only its answer is lost."""

    reached = (0, 1)


class WholeAnew(Whole):
    anew = True


def found(kind, folder, **options):
    judged = kind(shards=(0, 1), steps=6, **options).judge(folder)
    reads = judged.history.workers[WHO].reads
    assert reads.step.tolist().count(WHEN) == 2
    return judged, {v.guarantee: v for v in judged.verdicts if v.status == "violated"}


@pytest.mark.parametrize("workload", ["ledger", "quadratic"])
@pytest.mark.parametrize("kind", [ReadsAgain, Whole, WholeAnew])
def test_a_retry_with_the_same_gradient_is_valid(tmp_path, kind, workload):
    judged, wrong = found(kind, tmp_path / "run", workload=workload)
    assert not wrong
    assert judged.exit_code == 0


@pytest.mark.parametrize("kind", [ReadsAgain, ComputesAnew])
def test_a_worker_that_ends_before_it_sends_a_step_again_is_not_accused(tmp_path, kind):
    folder = kind(shards=(0, 1), steps=6).run(tmp_path / "run")
    path = folder / "events" / f"worker-{WHO}.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    kinds = [json.loads(line)["kind"] for line in lines]
    pushes = [number for number, name in enumerate(kinds) if name == "push"]
    again = pushes[WHEN + 1]
    assert kinds[again - 1] == "read"
    path.write_bytes(b"".join(lines[:again]))
    verdicts = judge_history(load_history(folder))
    assert not [verdict for verdict in verdicts if verdict.status == "violated"]


class ReadsBeforeTheAnswer(Ring):
    """Each worker records its replica after a step before it records that the step was answered."""

    def _train(self, probes):
        chief = probes[0].initial()
        self.theta = [chief.copy() for _ in range(self.workers)]
        probes[0].initialised([chief])
        for worker, probe in enumerate(probes):
            probe.read([self.theta[worker]], step=0)
        for step in range(self.steps):
            gradients = [probe.gradients(step, [self.theta[w]])[0] for w, probe in enumerate(probes)]
            for probe in probes:
                probe.push(step)
            if self.layout.local_steps == 1:
                total = np.sum(gradients, axis=0, dtype=np.float32)
                self.theta = [theta - total / np.float32(self.share) for theta in self.theta]
            else:
                self.theta = [theta - own for theta, own in zip(self.theta, gradients, strict=True)]
                if self.exchanges(step):
                    self.theta = [self.averaged(w, step, self.theta) for w in range(self.workers)]
            for worker, probe in enumerate(probes):
                probe.read([self.theta[worker]], step=step + 1)
                probe.ack(step, "ok")


@pytest.mark.parametrize("local_steps", [1, 2])
def test_a_read_before_an_answer_that_comes_is_of_the_next_step(tmp_path, local_steps):
    judged = ReadsBeforeTheAnswer(local_steps=local_steps).judge(tmp_path / "run")
    assert judged.exit_code == 0, judged.verdicts


@pytest.mark.parametrize("kind", [ComputesAnew, NamesTheStep])
def test_a_gradient_computed_anew_from_half_of_the_first_one_is_a_violation(tmp_path, kind):
    _, wrong = found(kind, tmp_path / "run")
    lines = wrong["S1"].witness
    says = "which already has the gradient of worker:1, step 3: it computed that gradient anew from this read, in which"
    assert any(f"worker:1 read version 4 of ps:0 at step 3, {says}" in line for line in lines), lines
    assert not any("at step 4" in line for line in lines)
