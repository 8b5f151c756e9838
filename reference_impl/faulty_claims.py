"""Deliberate bug of who may be a task: a second process of a worker, which is refused, and trains all the same."""

from __future__ import annotations

import tensorflow as tf

from psconform.layout import Task
from psconform.probe import Probe

from .checkpoint import Recovery
from .faulty_recovery import subtract
from .recovery import RecoveringWorker
from .shard import ShardConfig, tf1
from .trainer import CannotServe, Cluster, session_config


class ClaimsUnchecked(RecoveringWorker):
    """Where its address is taken it serves on none, and trains as a client of ps:0, past epoch and counters."""

    beside = False

    def __init__(self, cluster: Cluster, probe: Probe, config: ShardConfig, recovery: Recovery) -> None:
        try:
            super().__init__(cluster, probe, config, recovery)
        except CannotServe:
            self.beside = True
            self.graph = tf.Graph()
            with self.graph.as_default():
                self._own(probe, config, [self.shard_type(i, config) for i in range(len(cluster["ps"]))])
                self._push_past(cluster["ps"][0])

    def _push_past(self, address: str) -> None:
        """Nothing of this graph is on a worker."""
        fed = [tf1.placeholder(tf.float32, [self.config.slots]) for _ in self.shards]
        pushes = [subtract(shard, x) for shard, x in zip(self.shards, fed, strict=True)]
        self.session = tf1.Session(f"grpc://{address}", config=session_config(Task("ps", 0), to_ps=True))
        self._run_past = self.session.make_callable(pushes, feed_list=fed)

    def train(self) -> None:
        """Train as ever; the second process pushes every step once, and asks nobody."""
        if not self.beside:
            super().train()
            return
        for step in range(self.probe.due[self.index]):
            gradient = self.gradients(step, self.empty())
            self.probe.push(step)
            self._run_past(*gradient)
            self.probe.ack(step)
        self.probe.close()
