"""Hypothesis takes the model of training wherever it likes: what it does is healthy, and must be judged so."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from psconform.faults.packet_faults import DROP
from psconform.faults.process_faults import KILL, STOP
from psconform.faults.proxy_faults import STALL
from psconform.report.text import explain
from psconform.runner.verdicts import judge_folder
from psconform.simulation.cluster import Cluster, Injected
from psconform.simulation.record import Recorded
from psconform.simulation.schedule import Fault, Schedule
from psconform.simulation.worker import Worker
from psconform.simulation.world import Network

KINDS = {kind.name: kind for kind in (KILL, STOP, DROP, STALL)}
NUMBERS = {"ps": st.integers(0, 1), "worker": st.integers(0, 2), "of_ps": st.booleans()}
NETWORKS = st.builds(
    Network,
    jitter_s=st.sampled_from((0.0, 0.002, 0.05)),
    loss=st.sampled_from((0.0, 0.1)),
    doubled=st.sampled_from((0.0, 0.1)),
    ordered=st.booleans(),
)


class Training(RuleBasedStateMachine):
    """A cluster with checkpoints: any task may die, stand still or be cut off at any message, and comes back."""

    @initialize(
        mode=st.sampled_from(("sync", "async")),
        ps=st.integers(1, 2),
        workers=st.integers(2, 3),
        seed=st.integers(0, 999),
        network=NETWORKS,
    )
    def begin(self, mode, ps, workers, seed, network):
        self.kept = tempfile.TemporaryDirectory(prefix="psconform-simulated-")
        self.folder = Path(self.kept.name) / "run"
        # one fault in the manifest: how many there will be is not known yet
        some = (Fault(KILL, ("worker:1",), worker=0, step=10**6),)
        schedule = Schedule(
            seed=seed,
            mode=mode,
            ps=ps,
            workers=workers,
            steps=8,
            every=2,
            network=network,
            compute_s=0.002,
            faults=some,
        )
        self.trace = Recorded(self.folder, schedule)
        self.cluster = Cluster(schedule, self.trace)
        self.number = 0

    @property
    def trains(self):
        """Training has begun, and is not over."""
        workers = [machine for machine in self.cluster.world.machines.values() if isinstance(machine, Worker)]
        return self.cluster.status == "running" and all(machine.began for machine in workers) and len(workers) > 1

    @rule(messages=st.integers(1, 40))
    def goes_on(self, messages):
        for _ in range(messages):
            if self.cluster.status == "running":
                self.cluster.world.step()

    @precondition(lambda self: self.trains)
    @rule(name=st.sampled_from(sorted(KINDS)), lasts=st.sampled_from((0.01, 0.3, 2.0)), **NUMBERS)
    def is_disturbed(self, name, lasts, ps, worker, of_ps):
        schedule, kind = self.cluster.schedule, KINDS[name]
        ps, worker = f"ps:{ps % schedule.ps}", f"worker:{worker % schedule.workers}"
        links = ((ps, worker), (worker, ps)) if kind in (DROP, STALL) else ()
        tasks = (worker, ps) if links else (ps if of_ps else worker,)
        self.number += 1
        fault = Fault(kind, tasks, worker=0, step=0, lasts_s=lasts, links=links)
        self.cluster.inject(Injected(self.number, fault, on=True))

    def teardown(self):
        if not hasattr(self, "cluster"):
            return
        try:
            self.cluster.run()
            self.trace.finish(self.cluster)
            judged = judge_folder(self.folder)
            assert self.cluster.status == "finished"
            assert not judged.names("violated"), explain(judged)
            assert not judged.names("unknown"), explain(judged)
        finally:
            self.kept.cleanup()


Training.TestCase.settings = settings(
    max_examples=100, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
test_nothing_healthy_is_accused = Training.TestCase


class More(Training):
    """The same, twenty times as often."""


More.TestCase.settings = settings(Training.TestCase.settings, max_examples=2000)
test_nothing_healthy_is_accused_in_many_runs = pytest.mark.nightly(More.TestCase)
