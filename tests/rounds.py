"""A story (stories.py) of synchronous training of a model, with an optimizer on its ps, that is rolled back."""

from __future__ import annotations

import dataclasses

import numpy as np

from psconform.claims import SYNC
from psconform.history.manifest import Workload
from psconform.layout import Layout
from psconform.probe import UNIT
from psconform.workloads.digits import write_data
from psconform.workloads.serial import Rule

from .stories import Story
from .training import update32

CLAIMS = dataclasses.replace(SYNC, recovery="checkpoint", liveness="progress")


class Rounds(Story):
    """Two workers, two ps; what the ps have is the whole state of training, kept and restored together."""

    vector_every = 1

    def __init__(self, folder, *, optimizer="adam", schedule="halving", workload="quadratic", steps=16, claims=CLAIMS):
        rate = {"sgd": 0.02, "momentum": 0.002, "adam": 0.01}[optimizer]
        self.rule = Rule(learning_rate=rate, optimizer=optimizer, schedule=schedule)
        super().__init__(
            folder,
            steps=steps,
            claims=claims,
            layout=Layout(ps=2, workers=2, optimizer=optimizer, schedule=schedule),
            workload=Workload(
                name=workload,
                steps=steps,
                unit=UNIT / 2,
                learning_rate=rate,
                rate=rate if self.rule.plain else 1.0,
            ),
        )
        write_data(self.folder)
        self.moments = [self.rule.begin(len(theta)).astype(np.float32) for theta in self.theta]
        self.updates = 0  # as the schedule counts them
        self.round = 0

    def train(self, count=1, *, weights=(0.5, 0.5), epoch=None):
        """So many rounds, whose gradients count as much as they should, or not."""
        for _ in range(count):
            step = self.round
            gradients = []
            for worker, probe in enumerate(self.probes):
                self.read(worker, step)
                gradients.append(probe.gradients(step, self.theta))
                probe.push(step)
            for p in range(len(self.theta)):
                mean = sum(np.float32(weight) * of[p] for weight, of in zip(weights, gradients, strict=True))
                rule = dataclasses.replace(self.rule, learning_rate=1.0) if self.rule.plain else self.rule
                change, self.moments[p] = update32(rule, self.moments[p], mean, self.updates)
                self.theta[p] = self.theta[p] - change
                self.applied[p] = [step + 1] * len(self.probes)
            self.round, self.updates = step + 1, self.updates + 1
            for probe in self.probes:
                probe.ack(step, "ok", [self.round] * len(self.theta))

    def read(self, worker, step=None, **final):
        versions = [self.round] * len(self.theta)
        self.probes[worker].read(self.theta, versions, step=step, shards=range(len(self.theta)), **final)

    def checkpoint(self, name, *, record=True):
        super().checkpoint(name, record=record)
        self.beside = [moment.copy() for moment in self.moments], self.updates, self.round

    def lose(self, name, *, moments=False, updates=False, shards=None):
        """A ps is killed, and the checkpoint restored; without the moments or the number of updates, if so told."""
        self.kill("ps:1", at=str(self.round))
        self.fault("kill", "ps:1", at=str(self.round), on=False, evidence="started again")
        self.exits.clear()
        kept, counted, self.round = self.beside
        self.moments = [np.zeros_like(moment) if moments else moment.copy() for moment in kept]
        self.updates = 0 if updates else counted
        self.restore(name, shards=shards, resume=False)
        for probe in self.probes:
            probe.resume(self.round)

    def finish(self):
        self.train(self.steps - self.round)
        for worker in range(len(self.probes)):
            (self.folder / "done" / f"worker-{worker}").touch()
        for worker, probe in enumerate(self.probes):
            probe.wait_for_all()
            self.read(worker, final=True)
            probe.close()
        return self.end("finished")
