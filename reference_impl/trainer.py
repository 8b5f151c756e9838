"""The tasks: a ps serves until every worker has said goodbye, a worker reads, computes and pushes, step by step.

Between-graph replication: each worker builds the same graph over the same ClusterSpec and runs its own session. The
chief (worker:0) initialises once; the others wait until every shard is initialised. Parameters are sharded over all
ps tasks, each holding ``slots`` of them. Device filters keep workers apart from each other, so that none of them hangs
at the end because another has left (and the ps from the workers, for the same reason).
"""

from __future__ import annotations

import logging
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

from . import towers
from .compress import TopK
from .shard import Row, Shard, ShardConfig, Tensor
from .towers import inner

tf1 = tf.compat.v1
Values = list[NDArray[np.float32]]
Cluster = dict[str, list[str]]

CALL_TIMEOUT_S = 60.0
"""Bound on every call to a ps, and on the wait for a round or for initialisation."""

GONE = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)
"""What a task may answer that has just been told that it may end."""

POLL_S = 0.002
"""Between two looks of a worker that waits for slower ones (``--staleness``)."""


class CannotServe(OSError):
    """The address of a task is taken, by a process that claims to be the same task."""


def serve(cluster: Cluster, index: int, config: ShardConfig) -> None:
    """Be ``ps:index``: serve until every worker has said goodbye. The ps runs no Python of its own meanwhile."""
    server = new_server(cluster, Task("ps", index))
    with tf.Graph().as_default():
        goodbye = Shard(index, config).goodbyes.dequeue()
        with tf1.Session(server.target, config=session_config(Task("ps", index), to_ps=False)) as session:
            for _ in range(config.workers):
                session.run(goodbye)


class Worker:
    """One worker: its graph, its session, and the training loop."""

    shard_type = Shard

    def __init__(self, cluster: Cluster, probe: Probe, config: ShardConfig) -> None:
        task = Task("worker", probe.index)
        cpus = config.gpus if config.emulated else 0
        self.server = new_server(cluster, task, session_config(task, to_ps=True, cpus=cpus))
        self.graph = tf.Graph()
        with self.graph.as_default():
            self._own(probe, config, [self.shard_type(i, config) for i in range(len(cluster["ps"]))])
            self._build()
            self.session = tf1.Session(self.server.target, config=session_config(task, to_ps=True))
            self._bind()

    def _own(self, probe: Probe, config: ShardConfig, shards: list[Shard]) -> None:
        """What belongs to one worker alone, whoever runs its steps."""
        self.config, self.probe, self.index, self.shards = config, probe, probe.index, shards
        self.seen: list[int] = [0] * len(self.shards)  # version of each shard at the last read
        self.compressor = None if config.compression == "none" else TopK(len(self.shards), config.slots)
        self._sent = [shard.blank(self.index) for shard in shards]  # to each, to be filled in step by step
        self.refusals: list[int] = [0] * len(self.shards)  # gradients of this worker that each shard found not finite
        self.refusing: list[int] = []  # shards that found the last push not finite
        self._pulled: list[Row] = []  # what came with the answer to the last push, until it is read

    def _build(self) -> None:
        config, shards = self.config, self.shards
        with self.device():
            messages = [s.message(g, self.index) for s, g in zip(shards, self._gradients(), strict=True)]
        self._push_pull = [s.push(m, self.index, pull=True) for s, m in zip(shards, messages, strict=True)]
        if not config.sync:
            self._push = [s.push(m, self.index, pull=False) for s, m in zip(shards, messages, strict=True)]
        # A gradient that does not depend on theta, as the ledger's, needs none: spare feeding it.
        self._needs_theta = not _ancestors(messages).isdisjoint(theta.op for theta in self._theta)
        self._read = [s.read(self.index) for s in shards]
        self._initialise = [s.initialise(theta) for s, theta in zip(shards, self._theta, strict=True)]
        self._initialised = [s.initialised() for s in shards]
        self._goodbye = [s.goodbyes.enqueue(self.index) for s in shards]

    def _gradients(self) -> list[Tensor]:
        """What is to be sent to each shard, written by ``Shard.write``, with the gradient made by TensorFlow."""
        self._theta = [tf1.placeholder(tf.float32, [self.config.slots]) for _ in self.shards]
        self._x = self._inputs()
        # The ledger's loss is linear, <theta, x> over all shards, so its gradient is x whatever theta is. Other
        # workloads give their gradient at the values that were read: their loss is this one to first order. What
        # follows the gradient in a message goes through it as if it belonged to more parameters, all zero.
        if self.config.gpus:
            return self._of_towers()
        rows = [tf.pad(t, [[0, x.shape[0] - self.config.slots]]) for t, x in zip(self._theta, self._x, strict=True)]
        loss = tf.add_n([inner(row, x) for row, x in zip(rows, self._x, strict=True)])
        gradients: list[Tensor] = tf.gradients(loss, rows)
        return gradients

    def _of_towers(self) -> list[Tensor]:
        """The same of a tower on each GPU; what follows the gradient in a message is none."""
        slots = self.config.slots
        on = towers.devices(self.index, self.config.gpus, emulated=self.config.emulated)
        self._towers = towers.gradients(self._theta, [x[:slots] for x in self._x], on)
        means = self.averaged(self._towers)
        return [tf.concat([mean, x[slots:]], 0) for mean, x in zip(means, self._x, strict=True)]

    def averaged(self, gradients: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """What is pushed, by shard, of the gradients of the towers."""
        return towers.averaged(gradients)

    def _say_devices(self) -> None:
        """Record where the towers are: once, before anything is pushed."""
        if self.config.gpus:
            zeros = {theta: np.zeros(self.config.slots, np.float32) for theta in self._theta}
            self.probe.devices(towers.placed(self.session, self._towers, zeros))

    def _inputs(self) -> list[Tensor]:
        """``_sent`` in the graph. A function of this process gives it, which is less work than feeding it."""
        inputs: list[Tensor] = tf.numpy_function(lambda: self._sent, [], [tf.float32] * len(self.shards))
        return [tf.ensure_shape(x, message.shape) for x, message in zip(inputs, self._sent, strict=True)]

    def device(self) -> Any:
        """Everything of a worker lives here."""
        return tf.device(f"/job:worker/task:{self.index}/device:CPU:0")

    def _bind(self) -> None:
        options = tf1.RunOptions(timeout_in_ms=int(CALL_TIMEOUT_S * 1000))

        def bound(fetches: Sequence[Any], feeds: Sequence[Any] = ()) -> Any:
            call = self.session.make_callable(fetches, feed_list=list(feeds), accept_options=True)
            return partial(call, options=options)

        feeds = self._theta if self._needs_theta else []
        self._run_push_pull = bound(self._push_pull, feeds)
        self._run_push = self._run_push_pull if self.config.sync else bound(self._push, feeds)
        self._run_read = bound(self._read, [s.until for s in self.shards] if self.config.sync else [])
        self._run_initialise, self._run_initialised = bound(self._initialise, self._theta), bound(self._initialised)

    def train(self) -> None:
        """Join, train all steps, wait for the others, read once more, say goodbye."""
        probe, config = self.probe, self.config
        self._say_devices()
        self.join()
        for step in range(probe.due[self.index]):
            if self.reads_at(step):
                for _ in range(probe.reads):
                    values, versions = self.read(step)
                    probe.read(values, versions, step=step)
            gradient = self.gradients(step, values)
            if self.compressor is not None:
                gradient = self.compressor.compress(gradient)
            probe.push(step)
            accepted, versions = self.push(step, values, gradient)
            probe.ack(step, self.outcome(step, accepted), versions)
        self.run_dry(values)
        if self.compressor is not None:
            probe.residual(self.compressor.residual)
        probe.wait_for_all()
        probe.read(*self.read(config.steps), final=True)
        self.leave()

    def run_dry(self, values: Values) -> None:
        """Take part in the rounds for which this worker has no data left, with nothing, so that none waits for it.

        As the join operation of Horovod: https://horovod.readthedocs.io/en/stable/api.html. In async nobody waits.
        """
        if self.config.sync:
            for step in range(self.probe.due[self.index], self.config.steps):
                self.push(step, values, self.empty())

    def empty(self) -> Values:
        """What a worker without data contributes to each shard, float32[slots]."""
        return [np.zeros(self.config.slots, np.float32) for _ in self.shards]

    def gradients(self, step: int, values: Values) -> Values:
        """The gradient of each shard at ``values``."""
        return self.probe.gradients(step, values)

    def reads_at(self, step: int) -> bool:
        """In async a worker may go on with what it read some steps ago."""
        return self.config.sync or step % self.probe.read_every == 0

    def join(self) -> None:
        """The chief initialises, once; everybody waits until every shard is initialised."""
        if self.index == 0:
            initial = [self.probe.initial(shard.index) for shard in self.shards]
            if any(self._run_initialise(*initial)):
                self.probe.initialised(initial)
        deadline = time.monotonic() + CALL_TIMEOUT_S
        while not all(self._run_initialised()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"worker:{self.index}: not initialised within {CALL_TIMEOUT_S:.0f} s")
            time.sleep(0.005)

    def read(self, step: int) -> tuple[Values, list[int]]:
        """Parameters and version of each shard; in sync at version ``step``, once that round is committed."""
        rows, self._pulled = self._settled(self._pulled, step), []
        if self.config.staleness is not None and step < self.config.steps:
            rows = self._close(rows, step - self.config.staleness)
        self.seen = self._versions(rows)
        self._refused(rows)
        return [shard.theta(row) for shard, row in zip(self.shards, rows, strict=True)], self.seen

    def _close(self, rows: list[Row], least: int) -> list[Row]:
        """These rows, or newer ones in which every shard has ``least`` gradients of each worker (SSP: Ho et al. 2013).

        By asking again and again: what is true stands in the row that is read, so no wake-up can be lost.
        """
        deadline = time.monotonic() + CALL_TIMEOUT_S
        while min(shard.slowest(row) for shard, row in zip(self.shards, rows, strict=True)) < least:
            if time.monotonic() > deadline:
                raise TimeoutError(f"worker:{self.index}: a worker has not pushed {least} gradients in time")
            time.sleep(POLL_S)
            rows = self._run_read()
        return rows

    def push(self, step: int, values: Values, gradient: Values) -> tuple[bool, list[int]]:
        """Compute the gradient at ``values`` and push it to every shard; returns (all accepted, versions).

        If the next step begins with a read, the same call brings what is to be read, in sync when the round is
        complete: one call per step instead of two.
        """
        seconds = self.seen if self.config.aware else [self.awaits(step)] * len(self.shards)
        feeds = self._written(values, gradient, step, seconds)
        if self.config.sync:
            rows = self._pulled = self._settled(self._run_push_pull(*feeds), self.awaits(step))
        elif step + 1 < self.probe.due[self.index] and self.reads_at(
            step + 1
        ):  # the final read comes when all are done
            rows = self._pulled = self._run_push_pull(*feeds)
        else:
            rows = self._run_push(*feeds)
        accepted = all(shard.has(row, self.index, step) for shard, row in zip(self.shards, rows, strict=True))
        self.refusing = self._refused(rows)
        return accepted, self._versions(rows)

    def _refused(self, rows: list[Row]) -> list[int]:
        """Shards that have found a gradient of this worker not finite since they were last asked."""
        before = self.refusals
        self.refusals = [shard.refused(row, self.index) for shard, row in zip(self.shards, rows, strict=True)]
        return [i for i, (was, now) in enumerate(zip(before, self.refusals, strict=True)) if now > was]

    def outcome(self, step: int, accepted: bool) -> str:
        """What to record of the push of ``step``; one that was not finite goes into the log, too.

        Unknown, if only some shards found it so: each decides for itself, and the others have applied their part.
        """
        refusing, self.refusing = self.refusing, []
        if not refusing:
            return "ok" if accepted else "failed"
        names = ", ".join(f"ps:{shard}" for shard in refusing)
        logging.warning("worker:%d: gradient of step %d is not finite, rejected by %s", self.index, step, names)
        return "failed" if len(refusing) == len(self.shards) else "unknown"

    def _written(self, values: Values, gradient: Values, step: int, seconds: Sequence[int]) -> Values:
        """Write what is to be sent, see Shard.write; returns what is to be fed.

        In the same memory each time, for nobody pushes before the last call has been answered.
        """
        for shard, sent, x, second in zip(self.shards, self._sent, gradient, seconds, strict=True):
            shard.write(sent, x, step, second)
        return values if self._needs_theta else []

    def awaits(self, step: int) -> int:
        """The version that every shard must have before a worker that has pushed ``step`` goes on, in sync."""
        return step + 1

    def _settled(self, rows: list[Row], version: int) -> list[Row]:
        """These rows, or in sync newer ones that are at ``version``; none: read them."""
        until = [np.array([version], np.int32)] * len(self.shards) if self.config.sync else []
        while not rows or (self.config.sync and min(self._versions(rows)) < version):
            rows = self._run_read(*until)
        return rows

    def _versions(self, rows: list[Row]) -> list[int]:
        return [shard.version(row) for shard, row in zip(self.shards, rows, strict=True)]

    def leave(self) -> None:
        """Say goodbye to every ps, so that it can end, and close the record."""
        for goodbye in self._goodbye:
            # The last goodbye ends a ps, perhaps before its answer has left. A call for each: of one call for all,
            # TensorFlow takes back what the others have not begun when one of them goes away.
            with suppress(*GONE):
                self.session.run(goodbye)
        self.probe.close()


def _ancestors(tensors: Sequence[Any]) -> set[Any]:
    """All ops that these tensors depend on."""
    found, todo = set(), [tensor.op for tensor in tensors]
    while todo:
        op = todo.pop()
        if op not in found:
            found.add(op)
            todo += [tensor.op for tensor in op.inputs]
    return found


def new_server(cluster: Cluster, task: Task, config: Any = None) -> Any:
    config = config or session_config(task, to_ps=task.job == "worker")
    spec = tf1.train.ClusterSpec(cluster)
    try:
        return tf1.train.Server(spec, job_name=task.job, task_index=task.index, config=config)
    except (tf.errors.UnknownError, tf.errors.InternalError):  # TensorFlow says no more than that
        address = cluster[task.job][task.index]
        raise CannotServe(f"cannot serve as {task} on {address}: another process has that address already") from None


def session_config(task: Task, *, to_ps: bool, to_workers: bool = False, cpus: int = 0) -> Any:
    """``cpus``: logical ones of this process, if not one."""
    filters = [f"/job:{task.job}/task:{task.index}", *(["/job:ps"] if to_ps else [])]
    filters += ["/job:worker"] if to_workers else []
    # Small graphs: more threads than these only fight for the cores.
    return tf1.ConfigProto(
        device_filters=filters,
        intra_op_parallelism_threads=1,
        inter_op_parallelism_threads=4,
        device_count={"CPU": cpus} if cpus else {},
        gpu_options=tf1.GPUOptions(allow_growth=True),
    )
