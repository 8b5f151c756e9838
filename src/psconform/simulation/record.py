"""A simulated run as a run folder: the same event files as of a real one, written by the product's own probe."""

from __future__ import annotations

import atexit
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..claims import DEFAULTS
from ..history.build import RUNNER
from ..history.manifest import Manifest, Workload
from ..history.reasons import FaultMissed, Missed, NoProgress, Reason
from ..layout import Layout
from ..probe import UNIT, EventLog, Ledger, Probe, Vector
from ..runner.folder import new_folder, write_spec
from ..targets.target import MODES
from ..version import __version__
from .cluster import PATIENCE_S, Cluster, Injected, Parts
from .schedule import Fault, Schedule
from .trace import (
    HEAD,
    SHARED,
    TAIL,
    Evicted,
    Initialised,
    Kept,
    Read,
    Restored,
    Resumed,
    Sent,
    Stated,
    Told,
    Trace,
    View,
)

BEGAN_NS = 10**12
"""What CLOCK_MONOTONIC shows when virtual time is 0."""
SIGKILL = 9
NAME = "simulated"


class Recorded(Trace):
    """The trace of a run that is written to a folder as it happens."""

    def __init__(self, folder: Path, schedule: Schedule) -> None:
        super().__init__()
        self.folder, self.schedule = new_folder(folder), schedule
        self.manifest = manifest_of(schedule)
        self.now = 0.0
        write_spec(self.folder, self.manifest, wait_s=0.0)
        self._spec = {**self.manifest.spec, "vector_every": 0, "wait_s": 0.0}
        self._shards = [ps for ps in range(schedule.ps) for _ in range(schedule.variables)] or None
        self._ledger = Ledger(workers=schedule.workers, steps=schedule.steps)
        self._probes: dict[int, Probe] = {}
        self._held: dict[int, list[_Held]] = {}  # by worker, what it holds of each variable
        self._lives: dict[str, int] = {}
        path = self.folder / "events" / f"{RUNNER.slug}.jsonl"
        self._log = EventLog(path, clock=self._clock, run=self.manifest.run, task=str(RUNNER), incarnation=0)
        for worker in range(schedule.workers if schedule.work else 0):  # it may get no work, and record nothing more
            self._probe(worker)

    def _clock(self) -> int:
        return BEGAN_NS + int(self.now * 1e9)

    def _probe(self, worker: int) -> Probe:
        """That of the life that the worker has now."""
        if worker not in self._probes:
            task = f"worker:{worker}"
            life, folder = self._lives.get(task, 0), str(self.folder)
            self._probes[worker] = Probe(self._spec, task=task, incarnation=life, folder=folder, clock=self._clock)
            atexit.unregister(self._probes[worker].close)  # there may be a hundred thousand runs in this process
        return self._probes[worker]

    def tell(self, now: float, what: object) -> None:
        """Record it as the probe of that worker would, or psconform."""
        super().tell(now, what)
        self.now = now
        match what:
            case Injected():
                self._fault(what)
            case Initialised(worker, _, nonces):
                self._probe(worker).initialised([self._begin(nonce) for nonce in nonces])
            case Read(worker, _, epoch, step, views, versions, final):
                probe = self._probe(worker)
                probe.epoch = epoch
                if final:
                    probe.wait_for_all()
                values = [self._values(worker, n, view) for n, view in enumerate(views)]
                shown = versions if self.schedule.versions else None
                probe.read(values, shown, step=step, final=final, shards=self._shards)
            case Sent(worker, _, _, step, _, work):
                weights = self.schedule.weights
                weight = weights[worker] if weights else None
                piece = {} if work < 0 else {"work": work, "of": len(self.schedule.work)}
                self._probe(worker).push(step, weight=weight, **piece)
            case Told(worker, _, _, step, outcome, versions):
                told = versions if versions and self.schedule.versions else None
                self._probe(worker).ack(step, outcome, told)
            case Stated(worker, _, _, _, view):
                state = np.zeros((self.schedule.workers, self.schedule.steps))
                for entry in view.entries:
                    state[entry.worker, entry.step] += entry.weight
                self._probe(worker).state("moments", state)
            case Resumed(worker, _, epoch, step):
                probe = self._probe(worker)
                probe.epoch = epoch
                probe.resume(step)
            case Kept(worker, name, clock):
                self._probe(worker).checkpoint(name, clock)
            case Evicted(worker, _, step, absent):
                self._probe(worker).goes_without(absent, step)
            case Restored(worker, epoch, name):
                self._probe(worker).epoch = epoch
                self._probe(worker).restored(name)

    def done(self, now: float, worker: int) -> None:
        """A worker has its last answer."""
        self.now = now
        self._probe(worker).done()

    def closed(self, now: float, worker: int) -> None:
        """A worker has ended as it should."""
        self.now = now
        self._probe(worker).close()

    def killed(self, now: float, task: str) -> None:
        """A task was killed: its record just ends."""
        self.now = now
        job, _, index = task.partition(":")
        probe = self._probes.pop(int(index), None) if job == "worker" else None
        life = self._lives.get(task, 0)
        self._lives[task] = life + 1
        said: dict[str, Any] = {"incarnation": life}
        if probe is not None:
            if probe._log is not None:
                probe._log.abandon()
            name = f"worker-{index}" + (f".{life}" if life else "")
            said |= {"recorded": True, "recorded_bytes": (self.folder / "events" / f"{name}.jsonl").stat().st_size}
        self._log.write("exit", of=task, status=-SIGKILL, **said)

    def _fault(self, what: Injected) -> None:
        fault = what.fault
        said = {"fault": fault.kind.name, "of": _of(fault), "on": what.on, "at": str(fault.step), "number": what.number}
        said |= {"evidence": "the model did so", "harm": fault.kind.harm.value, "tasks": list(fault.tasks)}
        self._log.write("fault", **said, did_ns=self._clock())
        if what.on and fault.lasts_s is None:  # the others need not wait for it
            (self.folder / "done" / fault.tasks[0].replace(":", "-")).touch()

    def finish(self, cluster: Cluster) -> Path:
        """The run is over; returns its folder."""
        self.now = cluster.world.now
        for probe in self._probes.values():
            if probe._log is not None:
                probe._log.abandon()
        for task in cluster.world.machines:
            if task != "runner":
                stopped = {"stopped": True} if task.startswith("worker:") and cluster.status == "stalled" else {}
                status = -SIGKILL if stopped else 0
                self._log.write("exit", of=task, status=status, incarnation=self._lives.get(task, 0), **stopped)
        self._log.close()
        struck = {what.number for _, what in self.happened if isinstance(what, Injected)}
        missed = (pair for pair in enumerate(self.schedule.faults) if pair[0] not in struck)
        reasons: list[Reason] = [
            FaultMissed(fault.kind.name, _of(fault), Missed.NEVER_INJECTED, number=number) for number, fault in missed
        ]
        if cluster.status == "stalled":
            reasons.append(NoProgress(PATIENCE_S))
        self.manifest.reasons, self.manifest.status = reasons, cluster.status  # type: ignore[assignment]
        self.manifest.write(self.folder)
        return self.folder

    # Parameters.

    def _begin(self, nonce: int) -> Vector:
        values = np.zeros(self._ledger.slots + 1, np.float32)
        values[self._ledger.half] = nonce
        return values

    def _values(self, worker: int, variable: int, view: View) -> Vector:
        """The parameters that a view stands for, as float32; what the worker had before is gone on from."""
        number = max(1, self.schedule.ps) * self.schedule.variables
        held = self._held.setdefault(worker, [_Held() for _ in range(number)])[variable]
        if held.view is None or held.view.log is not view.log or held.view.length > view.length:
            held.values, before = self._begin(view.log.nonce), 0
        else:
            before = held.view.length
        half, steps, values = self._ledger.half, self.schedule.steps, held.values
        for peer, step, weight, end, _ in view.log.entries[before : view.length]:
            slot, amount = peer * steps + step, np.float32(UNIT * weight)
            if end & HEAD:
                values[slot] -= amount
            if end & SHARED:
                values[half + 1] -= amount * np.float32(self._ledger.in_shared(peer, step))
            if end & TAIL:
                values[half + 2 + slot] -= amount
        held.view = view
        return values


class _Held:
    """What a worker holds of a variable: as which view, and the values."""

    view: View | None = None
    values: Vector = np.zeros(0, np.float32)


def _of(fault: Fault) -> str:
    if not fault.links:
        return fault.tasks[0]
    arrow = "->" if len(fault.links) == 1 else "<->"
    return f"{fault.links[0][0]} {arrow} {fault.links[0][1]}"


def manifest_of(schedule: Schedule) -> Manifest:
    """What a simulated run claims: all that the mode of training promises."""
    update = "sync" if schedule.sync else "async"
    layout = Layout(
        ps=schedule.ps,
        workers=schedule.workers,
        update=update,
        reduction=schedule.reduction,
        quorum=schedule.quorum,
        staleness=schedule.staleness,
        local_steps=schedule.local_steps,
        accumulate=schedule.accumulate,
        drop_after=schedule.drop_after,
        rate="staleness-aware" if schedule.mode == "staleness-aware" else "constant",
    )
    share = layout.per_round if schedule.sync and schedule.reduction != "sum" else 1
    modes = {claim: at for name, (claim, at) in MODES.items() if getattr(layout, name) != getattr(Layout(), name)}
    claims = replace(
        DEFAULTS[update],
        delivery=schedule.delivery,
        reduction=schedule.reduction if schedule.sync else DEFAULTS[update].reduction,
        recovery="checkpoint" if schedule.every or schedule.elastic else "none",
        liveness="progress",
        divisor="live" if schedule.live else "any",
        state="replicated" if schedule.state else "own",
        **modes,
    )
    return Manifest(
        run=f"simulated-{schedule.seed}",
        created="2026-01-01T00:00:00+0000",
        target=NAME,
        source="psconform simulate",
        layout=layout,
        claims=claims,
        workload=Workload(steps=schedule.steps, seed=schedule.seed, unit=UNIT / share),
        faults=[f"{fault.kind.name} {_of(fault)}@{fault.step}" for fault in schedule.faults],
        checkpoint_every=schedule.every,
        dynamic_work=bool(schedule.work),
        require_faults="none",
        versions={"psconform": __version__},
    )


def simulate(schedule: Schedule, folder: Path, *, parts: Parts | None = None) -> Cluster:
    """Simulate a run and write its folder.

    Raises:
        BadInput: the folder is not empty.
    """
    trace = Recorded(folder, schedule)
    cluster = Cluster(schedule, trace, parts or Parts())
    cluster.run()
    trace.finish(cluster)
    return cluster
