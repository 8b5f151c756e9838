"""A ps/worker trainer in one process: numpy, no sockets, no threads, the order of events drawn from a seed.

It drives the real probe and leaves a complete run folder, as runner/execute.py does, in a few milliseconds. ``Trainer``
keeps its promises; the subclasses in bugs.py break them, each in one place.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from psconform.claims import DEFAULTS, Claims
from psconform.history.build import RUNNER
from psconform.history.manifest import PLAIN, Manifest, Workload
from psconform.layout import Layout
from psconform.probe import DECAY, UNIT, EventLog, Probe
from psconform.runner.folder import new_folder, write_spec
from psconform.runner.verdicts import Judged, judge_folder
from psconform.workloads.digits import write_data


class Trainer:
    """``shards[v]`` is the ps of variable v. A push reaches one ps after another, a read too; others run in between.

    On the decayed ledger it trains a plain one first, beside it.
    """

    level: tuple[str, ...] = ()  # a claim other than the usual one: dimension, level
    final = True
    names_shards = True
    distinct = False  # each variable gets a gradient of its own, of a ledger, too
    one_event = False  # a push and its acknowledgement are recorded together
    workload = "ledger"
    poison: tuple[tuple[int, int, str], ...] = ()  # worker, step and value of gradients that are not finite
    plain: type[Trainer] | None = None  # who trains the plain ledger; None: the same

    def __init__(
        self,
        *,
        update="sync",
        workers=2,
        shards=(0,),
        steps=8,
        reduction="mean",
        versions=True,
        seed=0,
        workload="",
        training=None,
        **modes,
    ):
        self.workload, self.seed = workload or self.workload, seed
        self.training = {"learning_rate": 0.1, **(training or {})}  # fields of the workload, where a model is trained
        shape = {"ps": max(shards) + 1, "workers": workers, "update": update, "reduction": reduction}
        self.layout = Layout(**shape, **modes)
        self.workers, self.shards, self.steps, self.versioned = workers, shards, steps, versions
        self.sync, self.random = update == "sync", random.Random(seed)
        self.servers = range(self.layout.ps)
        self.version = [0 for _ in self.servers]
        self.arrived = [0 for _ in self.servers]
        self.exits: dict[str, int] = {}
        self.mean = self.layout.per_round if self.sync and reduction == "mean" else 1
        self.applied = [[] for _ in shards]  # (worker, step) in the order of arrival

    # What a bug overrides.

    def weight(self, worker, step, variable, attempt):
        """How much of this gradient the server takes."""
        return 1.0

    def share(self):
        """What a sync round is divided by."""
        return self.mean

    def decay(self, server):
        """The share of each parameter that an update takes away."""
        return DECAY if self.workload == "decayed-ledger" else 0.0

    def quorum(self):
        """Gradients in a sync round."""
        return self.workers

    def waits_for(self, worker, step):
        """The version that a worker waits for before it reads."""
        return step if self.sync else 0

    def view(self, worker, step, values, versions):
        """What a worker gets to see of what it read."""
        return values, versions

    def reads(self, worker, step):
        """Reads before the push of this step."""
        return 1

    def attempts(self, worker, step):
        """How often this gradient is sent."""
        return 1

    def outcome(self, worker, step, attempt):
        """What the worker is told; None: nothing."""
        return "ok"

    def told(self, worker, step, versions):
        """The versions in an acknowledgement."""
        return versions

    def before(self, worker, step):
        """Called before a worker reads."""

    def sent(self, worker, step, gradient):
        """What a worker makes of its gradient before it sends it, the same for every variable."""
        return gradient

    def finish(self, worker):
        """Called when a worker has pushed its last gradient."""

    def ends(self, worker, step):
        """Does the worker end here? "killed" or "quits"."""
        return ""

    # The trainer.

    def run(self, folder: Path) -> Path:
        """Train into a new run folder."""
        if self.workload == "decayed-ledger":
            layout = self.layout
            (self.plain or type(self))(
                update=layout.update,
                workers=self.workers,
                shards=self.shards,
                steps=self.steps,
                reduction=layout.reduction,
                versions=self.versioned,
                seed=self.seed,
                workload="ledger",
            ).run(folder / PLAIN)
        folder = new_folder(folder)
        usual = {**DEFAULTS[self.layout.update].as_dict()}
        usual["reduction"] = self.layout.reduction if self.sync else "none"
        claims = Claims.from_dict(usual | dict([self.level] if self.level else []))
        manifest = Manifest(
            run="simulated",
            created="2026-01-01T00:00:00+0000",
            target="simulated",
            source="tests/simulate.py",
            layout=self.layout,
            claims=claims,
            workload=self._workload(),
            faults=[f"poison worker:{worker}@{step}={value}" for worker, step, value in self.poison],
        )
        spec = json.loads(write_spec(folder, manifest, wait_s=0.0).read_text())
        spec["poison"] = [{"task": f"worker:{w}", "step": step, "value": value} for w, step, value in self.poison]
        if self.workload == "digits":
            write_data(folder)
        if not self.trains:
            spec["vector_every"] = 4  # so that a short run has several
        log = EventLog(folder / "events" / f"{RUNNER.slug}.jsonl", run=manifest.run, task=str(RUNNER), incarnation=0)
        self.probes = [Probe(spec, task=f"worker:{w}", folder=str(folder)) for w in range(self.workers)]
        self.folder = folder
        self.theta = [self.probes[0].initial(variable) for variable in range(len(self.shards))]
        self.pending = [np.zeros_like(theta) for theta in self.theta]
        self.initialise()
        self._schedule()
        for probe in self.probes:
            probe.close()
        for task in self.layout.tasks:
            log.write("exit", of=str(task), status=self.exits.get(str(task), 0))
        log.close()
        manifest.status = "finished"
        manifest.write(folder)
        return folder

    def _workload(self):
        fields = {"name": self.workload, "steps": self.steps, "seed": self.seed, "unit": UNIT / self.mean}
        fields["distinct"] = self.distinct
        if self.trains:
            summed = self.sync and self.mean == 1
            fields |= {
                **self.training,
                "rate": self.training["learning_rate"] / (self.layout.per_round if summed else 1),
            }
        return Workload(**fields)

    @property
    def trains(self):
        """A model, so that each variable has a gradient of its own."""
        return self.workload in ("digits", "quadratic")

    def compute(self, worker, step, values):
        """The gradient of a ledger, or those of all variables."""
        probe = self.probes[worker]
        each = self.trains or self.distinct
        return np.stack(probe.gradients(step, values)) if each else probe.gradient(step)

    def judge(self, folder: Path) -> Judged:
        """Train, and judge the run."""
        return judge_folder(self.run(folder))

    @property
    def placed(self):
        """What a read says of the place of variables."""
        return self.shards if self.names_shards else None

    def initialise(self):
        """The chief has written the parameters."""
        self.probes[0].initialised(self.theta)

    def _schedule(self):
        """Let one worker after another go on; stops when all are through or all wait."""
        waiting: set[int] = set()
        running = {worker: self._train(worker) for worker in range(self.workers)}
        while set(running) - waiting:
            worker = self.random.choice(sorted(set(running) - waiting))
            try:
                idle = next(running[worker])
            except StopIteration:
                del running[worker]
                idle = False
            waiting = waiting | {worker} if idle else set()

    def _train(self, worker) -> Iterator[bool]:
        """Yields whether the worker waits for others."""
        probe, done, values = self.probes[worker], self.folder / "done", None
        for step in range(self.steps):
            self.before(worker, step)
            if how := self.ends(worker, step):
                yield from self._leave(worker, how)
                return
            while min(self.version) < self.waits_for(worker, step):
                yield True
            for _ in range(self.reads(worker, step)):
                values, versions = yield from self._pull()
                values, versions = self.view(worker, step, values, versions)
                probe.read(values, versions if self.versioned else None, step=step, shards=self.placed)
            for attempt in range(self.attempts(worker, step)):
                gradient = self.sent(worker, step, self.compute(worker, step, values))
                if self.one_event:
                    versions = self.told(worker, step, (yield from self.push(worker, step, gradient, attempt)))
                    probe.update(step, self.outcome(worker, step, attempt), versions if self.versioned else None)
                    continue
                probe.push(step, attempt)
                yield False
                versions = self.told(worker, step, (yield from self.push(worker, step, gradient, attempt)))
                if outcome := self.outcome(worker, step, attempt):
                    probe.ack(step, outcome, versions if self.versioned else None, attempt=attempt)
                yield False
        self.finish(worker)
        done.joinpath(f"worker-{worker}").touch()
        while len(list(done.iterdir())) < self.workers:
            yield True
        if self.final:
            probe.wait_for_all()
            while self.quorum() == self.workers and min(self.version) < self.waits_for(worker, self.steps):
                yield True
            values, versions = self.view(worker, self.steps, *(yield from self._pull()))
            probe.read(values, versions if self.versioned else None, final=True, shards=self.placed)

    def _leave(self, worker, how):
        marker = self.folder / "done" / f"worker-{worker}"
        if how == "killed":
            self.exits[f"worker:{worker}"] = -9
            self.probes[worker].close()
            path = self.folder / "events" / f"worker-{worker}.jsonl"
            path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))  # no end event
        marker.write_text("dead\n")
        yield False

    def _pull(self):
        values = [np.zeros(0, np.float32) for _ in self.shards]
        versions = []
        for server in self.servers:
            for variable, shard in enumerate(self.shards):
                if shard == server:
                    values[variable] = self.theta[variable].copy()
            versions.append(self.version[server])
            yield False
        return values, versions

    def push(self, worker, step, gradient, attempt):
        """Offer a gradient to every server; returns their versions at the apply."""
        versions = []
        for server in self.servers:
            mine = [variable for variable, shard in enumerate(self.shards) if shard == server]
            for variable in mine:
                mine_of_it = gradient[variable] if gradient.ndim == 2 else gradient
                self.pending[variable] += mine_of_it * np.float32(self.weight(worker, step, variable, attempt))
                self.applied[variable].append((worker, step))
            self.arrived[server] += 1
            versions.append(self.version[server] + 1)
            if not self.sync or self.arrived[server] >= self.quorum():
                for variable in mine:
                    self.apply(variable, self.pending[variable] / np.float32(self.share()))
                    self.pending[variable][:] = 0
                self.arrived[server] = 0
                self.version[server] += 1
            yield False
        return versions

    def apply(self, variable, amount):
        """One update of the parameters."""
        if decay := self.decay(self.shards[variable]):
            amount = amount + self.theta[variable] * np.float32(decay)
        self.theta[variable] -= amount
