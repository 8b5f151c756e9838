"""The tasks: a ps serves until every worker has said goodbye, a worker reads, computes and pushes, step by step.

Between-graph replication: each worker builds the same graph over the same ClusterSpec and runs its own session. The
chief (worker:0) initialises once; the others wait until every shard is initialised. Parameters are sharded over all
ps tasks, each holding ``slots`` of them. Device filters keep workers apart from each other, so that none of them hangs
at the end because another has left (and the ps from the workers, for the same reason).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from psconform.layout import Task
from psconform.probe import Probe

from .shard import Shard, ShardConfig

tf1 = tf.compat.v1
Values = list[NDArray[np.float32]]
Cluster = dict[str, list[str]]

CALL_TIMEOUT_S = 60.0
"""Bound on every call to a ps, and on the wait for a round or for initialisation."""


def serve(cluster: Cluster, index: int, config: ShardConfig) -> None:
    """Be ``ps:index``: serve until every worker has said goodbye. The ps runs no Python of its own meanwhile."""
    server = _server(cluster, Task("ps", index))
    with tf.Graph().as_default():
        goodbye = Shard(index, config).goodbyes.dequeue()
        with tf1.Session(server.target, config=_session(Task("ps", index), to_ps=False)) as session:
            for _ in range(config.workers):
                session.run(goodbye)


class Worker:
    """One worker: its graph, its session, and the training loop."""

    shard_type = Shard

    def __init__(self, cluster: Cluster, probe: Probe, config: ShardConfig) -> None:
        self.config, self.probe, self.index = config, probe, probe.index
        task = Task("worker", probe.index)
        self.server = _server(cluster, task)
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.shards = [self.shard_type(i, config) for i in range(len(cluster["ps"]))]
            self._build()
            self.session = tf1.Session(self.server.target, config=_session(task, to_ps=True))
            self._bind()
        self.seen: list[int] = [0] * len(self.shards)  # version of each shard at the last read

    def _build(self) -> None:
        config, shards = self.config, self.shards
        self._theta = [tf1.placeholder(tf.float32, [config.slots]) for _ in shards]
        self._x = tf1.placeholder(tf.float32, [config.slots])
        self._step = tf1.placeholder(tf.float32, [])
        with tf.device(f"/job:worker/task:{self.index}/device:CPU:0"):
            # The ledger's loss is linear, <theta, x> over all shards, so its gradient is x whatever theta is.
            loss = tf.add_n([tf.reduce_sum(theta * self._x) for theta in self._theta])
            gradients = tf.gradients(loss, self._theta)
        self._push = [s.push(g, self.index, self._step) for s, g in zip(shards, gradients, strict=True)]
        self._initialise = [s.initialise(theta) for s, theta in zip(shards, self._theta, strict=True)]
        self._initialised = [s.initialised() for s in shards]
        self._read = [s.read() for s in shards]
        self._wait = [s.wait(self.index) for s in shards]
        self._goodbye = [s.goodbyes.enqueue(self.index) for s in shards]

    def _bind(self) -> None:
        options = tf1.RunOptions(timeout_in_ms=int(CALL_TIMEOUT_S * 1000))

        def bound(fetches: Sequence[Any], feeds: Sequence[Any] = ()) -> Any:
            call = self.session.make_callable(fetches, feed_list=list(feeds), accept_options=True)
            return partial(call, options=options)

        self._run_push = bound(self._push, [*self._theta, self._x, self._step])
        self._run_initialise = bound(self._initialise, self._theta)
        self._run_initialised, self._run_read, self._run_wait = map(bound, (self._initialised, self._read, self._wait))

    def train(self) -> None:
        """Join, train all steps, wait for the others, read once more, say goodbye."""
        probe, config = self.probe, self.config
        self.join()
        for step in range(config.steps):
            if config.sync or step % probe.read_every == 0:  # async may go on with what it read some steps ago
                for _ in range(probe.reads):
                    values, versions = self.read(step)
                    probe.read(values, versions, step=step)
            gradient = probe.gradient(step)
            probe.push(step)
            accepted, versions = self.push(step, values, gradient)
            probe.ack(step, "ok" if accepted else "failed", versions)
        probe.wait_for_all()
        probe.read(*self.read(config.steps), final=True)
        self.leave()

    def join(self) -> None:
        """The chief initialises, once; everybody waits until every shard is initialised."""
        if self.index == 0:
            initial = [self.probe.initial() for _ in self.shards]
            if any(self._run_initialise(*initial)):
                self.probe.initialised(initial)
        deadline = time.monotonic() + CALL_TIMEOUT_S
        while not all(self._run_initialised()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"worker:{self.index}: not initialised within {CALL_TIMEOUT_S:.0f} s")
            time.sleep(0.005)

    def read(self, step: int) -> tuple[Values, list[int]]:
        """Parameters and version of each shard; in sync at version ``step``, once that round is committed."""
        if self.config.sync and min(self.seen) < step:
            states = self.wait_for(step)
        else:
            states = self._run_read()
        self.seen = [shard.version(state) for shard, state in zip(self.shards, states, strict=True)]
        return [shard.theta(state) for shard, state in zip(self.shards, states, strict=True)], self.seen

    def wait_for(self, version: int) -> Values:
        """Block until every shard has committed ``version`` rounds; returns their states."""
        while True:
            answers = self._run_wait()
            if all(told >= version for told, _ in answers):
                return [state for _, state in answers]

    def push(self, step: int, values: Values, gradient: NDArray[np.float32]) -> tuple[bool, list[int]]:
        """Compute the gradient at ``values`` and push it to every shard; returns (all accepted, versions)."""
        answers = self._run_push(*values, gradient, np.float32(step))
        return all(accepted == 1 for accepted, _ in answers), [int(version) for _, version in answers]

    def leave(self) -> None:
        """Say goodbye to every ps, so that it can end, and close the record."""
        # the last goodbye ends a ps, perhaps before its answer has left
        with suppress(tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError):
            self.session.run(self._goodbye)
        self.probe.close()


def _server(cluster: Cluster, task: Task) -> Any:
    config = _session(task, to_ps=task.job == "worker")
    spec = tf1.train.ClusterSpec(cluster)
    return tf1.train.Server(spec, job_name=task.job, task_index=task.index, config=config)


def _session(task: Task, *, to_ps: bool) -> Any:
    filters = [f"/job:{task.job}/task:{task.index}", *(["/job:ps"] if to_ps else [])]
    # Small graphs: more threads than these only fight for the cores.
    return tf1.ConfigProto(device_filters=filters, intra_op_parallelism_threads=1, inter_op_parallelism_threads=4)
