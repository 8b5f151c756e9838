"""Runs with faults, told by hand: two workers, two ps, the real probe, and a trainer in this process.

A story is a few calls, one after the other: ``step``, ``kill``, ``back``, ``checkpoint``, ``restore``. Told as it
should be, every guarantee is valid; each test leaves something out, or does it wrongly.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from psconform.claims import Claims
from psconform.faults.kinds import kinds
from psconform.history.build import RUNNER
from psconform.history.manifest import Manifest, Workload
from psconform.history.reasons import Reason
from psconform.layout import Layout, Task
from psconform.probe import UNIT, EventLog, Probe
from psconform.runner.folder import new_folder, write_spec
from psconform.runner.verdicts import Judged, judge_folder

from .mutations import rechained
from .old_folders import TASK

CLAIMS = Claims(read_atomicity="per-shard", recovery="checkpoint", liveness="progress")


class Story:
    vector_every = 5

    def __init__(
        self, folder: Path, *, steps=12, workers=2, ps=2, claims=CLAIMS, update="async", layout=None, workload=None
    ):
        self.folder, self.steps = new_folder(folder), steps
        self.manifest = Manifest(
            run="told",
            created="2026-01-01T00:00:00+0000",
            target="told",
            source="tests/stories.py",
            layout=layout or Layout(ps=ps, workers=workers, update=update),
            claims=claims,
            workload=workload or Workload(steps=steps, unit=UNIT),
            faults=[],
        )
        self.spec_path = write_spec(self.folder, self.manifest, wait_s=0.0)
        self.log = EventLog(
            self.folder / "events" / f"{RUNNER.slug}.jsonl", run="told", task=str(RUNNER), incarnation=0
        )
        self.lives = [0] * workers
        self.epoch = 0
        self.probes = [self._probe(w) for w in range(workers)]
        self.theta = [self.probes[0].initial(p) for p in range(ps)]
        self.applied = [[0] * workers for _ in range(ps)]
        self.kept = {}
        self.exits = {}
        self.dead = set()
        self.probes[0].initialised(self.theta)

    def _probe(self, worker):
        spec = {**self.manifest.spec, "vector_every": self.vector_every, "wait_s": 0.0}
        return Probe(spec, task=f"worker:{worker}", incarnation=self.lives[worker], folder=str(self.folder))

    def next_step(self, worker):
        return min(applied[worker] for applied in self.applied)

    def step(self, worker, count=1, *, answer=True, apply=None, twice=False):
        """Read, push, be applied by these ps (all), be answered."""
        for _ in range(count):
            probe, step = self.probes[worker], self.next_step(worker)
            self.read(worker, step)
            probe.push(step)
            for p, applied in enumerate(self.applied):
                if (apply is None or p in apply) and (applied[worker] == step or twice):
                    self.put(p, worker, step)
            if answer:
                probe.ack(step, "ok", [sum(applied) for applied in self.applied])

    def put(self, p, worker, step):
        self.theta[p] = self.theta[p] - self.probes[worker].gradient(step)
        self.applied[p][worker] += 1

    def read(self, worker, step=None, **final):
        versions = [sum(applied) for applied in self.applied]
        self.probes[worker].read(self.theta, versions, step=step, shards=range(len(self.theta)), **final)

    def kill(self, name, *, at="5", status=-9):
        task = Task.parse(name)
        if task.job == "worker":
            log = self.probes[task.index]._log
            os.close(log._fd)
            log._fd = -1
            self.dead.add(task.index)
        self.fault("kill", name, at=at, evidence="the process ended by signal 9")
        self.log.write("exit", of=name, status=status)
        self.exits[name] = status

    def fault(self, kind, name, *, at="5", on=True, evidence="seen", **more):
        self.manifest.faults.append(f"{kind} {name}@{at}")
        said = {"harm": kinds()[kind].harm.value, "tasks": TASK.findall(name)}
        self.log.write("fault", fault=kind, of=name, on=on, at=at, evidence=evidence, **said, **more)

    def spaced(self, *, times=3, between=1):
        """ps:0 is killed so often, and updates are accepted in between; each time nothing is lost."""
        for number in range(times):
            self.step(0, between)
            self.kill("ps:0", at=str(number))
            self.fault("kill", "ps:0", at=str(number), on=False)
        self.exits.clear()

    def long_after(self, before):
        """Both workers take so many steps, ps:0 is killed and is back, and they take those that are left."""
        for count in (before, self.steps - before):
            for worker in (0, 1):
                self.step(worker, count)
            if count == before:
                self.kill("ps:0")
                self.fault("kill", "ps:0", on=False)
                self.exits.clear()

    def back(self, worker, *, step=None):
        """A worker that was killed is there again and resumes."""
        self.lives[worker] += 1
        self.dead.discard(worker)
        self.probes[worker] = self._probe(worker)
        self.probes[worker].epoch = self.epoch
        self.fault("kill", f"worker:{worker}", on=False, evidence="started again")
        self.exits.pop(f"worker:{worker}", None)
        self.probes[worker].resume(self.next_step(worker) if step is None else step)

    def checkpoint(self, name, *, record=True):
        self.kept[name] = ([theta.copy() for theta in self.theta], [list(applied) for applied in self.applied])
        if record:
            self.probes[0].checkpoint(name, self.applied)

    def restore(self, name, *, shards=None, record=True, resume=True):
        """All ps (or only some) from a checkpoint, in a new epoch; then everybody resumes."""
        self.epoch += 1
        theta, applied = self.kept[name]
        for p in range(len(self.theta)) if shards is None else shards:
            self.theta[p], self.applied[p] = theta[p].copy(), list(applied[p])
        for probe in self.probes:
            probe.epoch = self.epoch
        if record:
            self.probes[0].restored(name)
        if resume:
            for worker, probe in enumerate(self.probes):
                probe.resume(self.next_step(worker))

    def finish(self, *reasons: Reason) -> Judged:
        """All workers but those that are dead train what is left, read once more and end; judge."""
        alive = [worker for worker in range(len(self.probes)) if worker not in self.dead]
        for worker in alive:
            while self.next_step(worker) < self.steps:
                self.step(worker)
        for worker in range(len(self.probes)):
            (self.folder / "done" / f"worker-{worker}").touch()
        for worker in alive:
            probe = self.probes[worker]
            probe.wait_for_all()
            self.read(worker, final=True)
            probe.close()
        return self.end("finished", *reasons)

    def end(self, status: str, *reasons: Reason) -> Judged:
        for task in self.manifest.layout.tasks:
            if str(task) not in self.exits:
                self.log.write("exit", of=str(task), status=0)
        self.log.close()
        self.manifest.status, self.manifest.reasons = status, list(reasons)
        self.manifest.write(self.folder)
        return judge_folder(self.folder)


def stretched(folder, *, pause_s, slower):
    """Judge it as if nothing had happened for so long after the fault was healed, and all then came so much slower."""
    files = sorted((folder / "events").glob("*.jsonl"))
    events = {path: [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] for path in files}
    healed = next(e["mono_ns"] for told in events.values() for e in told if e["kind"] == "fault" and not e["on"])
    for path, told in events.items():
        for event in told:
            for name in ("mono_ns", "did_ns"):
                if (since := event.get(name, 0) - healed) > 0:
                    event[name] = healed + int(pause_s * 1e9 + since * slower)
        path.write_bytes(b"".join(rechained([json.dumps(event).encode() for event in told])))
    return judge_folder(folder)
