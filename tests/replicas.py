"""Replicas that exchange gradients by all-reduce, or average themselves, in one process: numpy, one step after another.

As simulate.py does for parameter servers, it drives the real probe and leaves a complete run folder.
"""

from __future__ import annotations

import json

import numpy as np

from psconform.claims import SYNC, Claims
from psconform.history.build import RUNNER
from psconform.history.manifest import Manifest, Workload
from psconform.layout import Layout
from psconform.probe import UNIT, EventLog, Probe
from psconform.runner.folder import new_folder, write_spec
from psconform.runner.verdicts import judge_folder
from psconform.workloads.digits import write_data


class Ring:
    """Healthy; the subclasses break one promise each."""

    final = True

    def __init__(self, *, workers=3, steps=12, local_steps=1, reduction="mean", workload="ledger", reads=1):
        self.layout = Layout(ps=0, workers=workers, reduction=reduction, local_steps=local_steps)
        self.workers, self.steps, self.reads, self.workload = workers, steps, reads, workload
        self.share = workers if reduction == "mean" else 1

    def initial(self, worker, chief):
        return chief.copy()

    def reduced(self, worker, step, total, own):
        """What one replica applies of a round."""
        return total / np.float32(self.share)

    def averaged(self, worker, step, replicas):
        """What one replica becomes in an exchange."""
        return np.mean(replicas, axis=0, dtype=np.float32)

    def exchanges(self, step):
        return (step + 1) % self.layout.local_steps == 0 or step + 1 == self.steps

    def judge(self, folder):
        folder, layout = new_folder(folder), self.layout
        claims = Claims.from_dict({**SYNC.as_dict(), "reduction": layout.reduction})
        rate = 0.1 if layout.reduction == "mean" else 0.1 / self.workers
        training = {} if self.workload.endswith("ledger") else {"learning_rate": 0.1, "rate": rate}
        workload = Workload(name=self.workload, steps=self.steps, unit=UNIT / self.share, **training)
        about = {"run": "ring", "created": "2026-01-01T00:00:00+0000", "target": "ring", "source": "tests/replicas.py"}
        manifest = Manifest(**about, layout=layout, claims=claims, workload=workload)
        spec = json.loads(write_spec(folder, manifest, wait_s=0.0).read_text())
        if self.workload == "digits":
            write_data(folder)
        log = EventLog(folder / "events" / f"{RUNNER.slug}.jsonl", run=manifest.run, task=str(RUNNER), incarnation=0)
        probes = [Probe(spec, task=f"worker:{w}", folder=str(folder)) for w in range(self.workers)]
        self._train(probes)
        for worker, probe in enumerate(probes):
            (folder / "done" / f"worker-{worker}").touch()
            del probe
        for worker, probe in enumerate(probes):
            probe.wait_for_all()
            if self.final:
                probe.read([self.theta[worker]], final=True)
            probe.close()
            log.write("exit", of=f"worker:{worker}", status=0)
        log.close()
        manifest.status = "finished"
        manifest.write(folder)
        return judge_folder(folder)

    def _train(self, probes):
        chief = probes[0].initial()
        self.theta = [self.initial(worker, chief) for worker in range(self.workers)]
        probes[0].initialised([chief])
        for step in range(self.steps):
            gradients = []
            for worker, probe in enumerate(probes):
                for _ in range(self.reads):
                    probe.read([self.theta[worker]], step=step)
                gradients.append(probe.gradients(step, [self.theta[worker]])[0])
                probe.push(step)
            if self.layout.local_steps == 1:
                total = np.sum(gradients, axis=0, dtype=np.float32)
                for worker in range(self.workers):
                    self.theta[worker] = self.theta[worker] - self.reduced(worker, step, total, gradients[worker])
            else:
                self.theta = [theta - gradient for theta, gradient in zip(self.theta, gradients, strict=True)]
                if self.exchanges(step):
                    self.theta = [self.averaged(worker, step, self.theta) for worker in range(self.workers)]
            for probe in probes:
                probe.ack(step, "ok")


class OwnGradient(Ring):
    def reduced(self, worker, step, total, own):
        return (own if (worker, step) == (1, 5) else total) / np.float32(self.share)


class OwnNonce(Ring):
    def initial(self, worker, chief):
        theta = chief.copy()
        theta[(theta.size - 1) // 2] += worker
        return theta


class LastBit(Ring):
    """One replica differs in the last bit of one parameter, from round 3 on."""

    def reduced(self, worker, step, total, own):
        applied = super().reduced(worker, step, total, own)
        if (worker, step) == (1, 3):
            slot = int(np.argmax(np.abs(self.theta[worker])))
            theta = self.theta[worker]
            theta[slot] = np.nextafter(theta[slot], np.float32(np.inf))
        return applied


class SlightlyMore(Ring):
    """One replica applies one gradient a little more, within what counts as once."""

    def reduced(self, worker, step, total, own):
        applied = super().reduced(worker, step, total, own)
        return applied * np.float32(1 + 5e-6) if (worker, step) == (1, 5) else applied


class Poisoned(Ring):
    def reduced(self, worker, step, total, own):
        return total * np.float32("nan") if (worker, step) == (1, 5) else super().reduced(worker, step, total, own)


class KeepsItsOwn(Ring):
    def averaged(self, worker, step, replicas):
        kept = worker == 1 and step + 1 == self.layout.local_steps
        return replicas[worker] if kept else super().averaged(worker, step, replicas)


class LeavesOut(Ring):
    """All average over the others' replicas, not over the last one."""

    def averaged(self, worker, step, replicas):
        return super().averaged(worker, step, replicas[:-1] if step + 1 == self.layout.local_steps else replicas)


class AddsUp(Ring):
    def averaged(self, worker, step, replicas):
        nonce = (replicas[0].size - 1) // 2
        total = np.sum(replicas, axis=0, dtype=np.float32)
        total[nonce] = replicas[0][nonce]
        return total


class TooEarly(Ring):
    """An exchange after each step."""

    def exchanges(self, step):
        return True


class TooLate(Ring):
    def exchanges(self, step):
        return (step + 1) % (2 * self.layout.local_steps) == 0 or step + 1 == self.steps


class NoFinal(Ring):
    final = False
