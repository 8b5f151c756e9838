"""A worker reads, computes and pushes, step by step.

Between-graph replication: each worker builds a graph of its own over the same ClusterSpec and runs its own session. The
chief (worker:0) initialises once; the others wait until every shard is initialised. Parameters are sharded over all
ps tasks, each holding ``slots`` of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psconform.layout import Task
from psconform.probe import Probe

from .cluster import CALL_TIMEOUT_S, GONE, Cluster, Tensor, new_server, session_config, tf, tf1
from .ps import Config, Row, Shard

Values = list[NDArray[np.float32]]


@tf.custom_gradient  # type: ignore[untyped-decorator]
def inner(theta: Tensor, x: Tensor) -> Any:
    """<theta, x>. TensorFlow's own gradient of it is made in two passes over the parameters, this one in none."""
    return tf.reduce_sum(theta * x), lambda upstream: (upstream * x, upstream * theta)


class Worker:
    """One worker: its graph, its session, and the training loop. ``server`` is made if it is not given."""

    shard_type: type[Shard] = Shard

    def __init__(self, cluster: Cluster, probe: Probe, config: Config, server: Any = None) -> None:
        task = Task("worker", probe.index)
        self.server = server or new_server(cluster, task)
        self.graph = tf.Graph()
        with self.graph.as_default():
            self._own(probe, config, [self.shard_type(i, config) for i in range(len(cluster["ps"]))])
            self._build()
            self.session = tf1.Session(self.server.target, config=session_config(task, to_ps=True))
            self._bind()

    def _own(self, probe: Probe, config: Config, shards: list[Any]) -> None:
        """What belongs to one worker alone, whichever process runs its steps."""
        self.config, self.probe, self.index, self.shards = config, probe, probe.index, shards
        self.seen: list[int] = [0] * len(self.shards)  # version of each shard at the last read
        self._sent: list[Row] = [shard.blank(self.index) for shard in shards]  # to each, filled in step by step
        self.pulled: list[Row] = []  # what came with the answer to the last push, until it is read
        self._answer: list[Row] = []  # of the last call, from each shard

    def _build(self) -> None:
        config, shards = self.config, self.shards
        with self.device():
            messages = self._gradients()
        self._push_pull = [s.push(m, self.index, pull=True) for s, m in zip(shards, messages, strict=True)]
        if not config.sync:
            self._push = [s.push(m, self.index, pull=False) for s, m in zip(shards, messages, strict=True)]
        # A gradient that does not depend on theta, as the ledger's, needs none: spare feeding it.
        self._needs_theta = not _ancestors(messages).isdisjoint(theta.op for theta in self._theta)
        self._read = [s.read(self.index) for s in shards]
        self._initialise = [s.initialise(theta) for s, theta in zip(shards, self._theta, strict=True)]
        self._initialised = [s.initialised() for s in shards]
        self.goodbye = [s.goodbyes.enqueue(self.index) for s in shards]

    def _gradients(self) -> list[Tensor]:
        """The messages (see ``Shard.write``), as TensorFlow's gradient of a linear loss gives them back."""
        self._theta = [tf1.placeholder(tf.float32, [self.config.slots]) for _ in self.shards]
        self._x = self._inputs()
        # The ledger's loss is linear, <theta, x> over all shards, so its gradient is x whatever theta is. Other
        # workloads give their gradient at the values that were read: their loss is this one to first order. What
        # follows the gradient in a message goes through it as if it belonged to more parameters, all zero.
        rows = [tf.pad(t, [[0, x.shape[0] - self.config.slots]]) for t, x in zip(self._theta, self._x, strict=True)]
        loss = tf.add_n([inner(row, x) for row, x in zip(rows, self._x, strict=True)])
        gradients: list[Tensor] = tf.gradients(loss, rows)
        return gradients

    def _inputs(self) -> list[Tensor]:
        """``_sent`` in the graph. A function of this process gives it, which is less work than feeding it."""
        inputs: list[Tensor] = tf.numpy_function(lambda: self._sent, [], [tf.float32] * len(self.shards))
        return [tf.ensure_shape(x, message.shape) for x, message in zip(inputs, self._sent, strict=True)]

    def device(self) -> Any:
        """Everything of a worker lives here."""
        return tf.device(f"/job:worker/task:{self.index}/device:CPU:0")

    def _bind(self) -> None:
        feeds = self._theta if self._needs_theta else []
        self._run_push_pull = self.bound(self._push_pull, feeds)
        self._run_push = self._run_push_pull if self.config.sync else self.bound(self._push, feeds)
        self.run_read = self.bound(self._read, [s.until for s in self.shards] if self.config.sync else [])
        self._run_initialise = self.bound(self._initialise, self._theta)
        self._run_initialised = self.bound(self._initialised)

    def bound(self, fetches: Sequence[Any], feeds: Sequence[Any] = ()) -> Callable[..., Any]:
        """A call of this session, within ``CALL_TIMEOUT_S``."""
        call = self.session.make_callable(list(fetches), feed_list=list(feeds), accept_options=True)
        return partial(call, options=tf1.RunOptions(timeout_in_ms=int(CALL_TIMEOUT_S * 1000)))

    def train(self) -> None:
        """Join, train all steps, wait for the others, record the final read, say goodbye."""
        probe = self.probe
        self.join()
        for step in range(probe.due[self.index]):
            if self.reads_at(step):
                for _ in range(probe.reads):
                    values, versions = self.read(step)
                    probe.read(values, versions, step=step)
            gradient = self.gradients(step, values)
            probe.push(step)
            outcome, versions = self.push(step, values, gradient)
            probe.ack(step, outcome, versions)
        self.run_dry(values)
        self.finish()
        self.leave()

    def join(self) -> None:
        """The chief initialises, once; all wait until every shard is initialised."""
        if self.index == 0:
            initial = [self.probe.initial(shard.index) for shard in self.shards]
            if any(self._run_initialise(*initial)):
                self.probe.initialised(initial)
        deadline = time.monotonic() + CALL_TIMEOUT_S
        while not all(self._run_initialised()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"worker:{self.index}: not initialised within {CALL_TIMEOUT_S:.0f} s")
            time.sleep(0.005)

    def reads_at(self, step: int) -> bool:
        """In async a worker may go on with what it read some steps ago."""
        return self.config.sync or step % self.probe.read_every == 0

    def read(self, step: int) -> tuple[Values, list[int]]:
        """Parameters and version of each shard; in sync at version ``step``, after the round of step - 1."""
        rows, self.pulled = self._settled(self.pulled, step), []
        self.seen, self._answer = self._versions(rows), rows
        return [shard.theta(row) for shard, row in zip(self.shards, rows, strict=True)], self.seen

    def gradients(self, step: int, values: Values) -> Values:
        """The gradient of each shard at ``values``."""
        return self.probe.gradients(step, values)

    def push(self, step: int, values: Values, gradient: Values) -> tuple[str, list[int]]:
        """Compute the gradient at ``values`` and push it to every shard; returns (outcome to record, versions).

        If the next step begins with a read, the same call brings what is to be read, in sync when the round is
        complete: one call per step instead of two.
        """
        feeds = self._written(values, gradient, step, self.awaits(step))
        if self.config.sync:
            rows = self.pulled = self._settled(self._run_push_pull(*feeds), step + 1)
        elif step + 1 < self.probe.due[self.index] and self.reads_at(step + 1):  # the final read waits for the others
            rows = self.pulled = self._run_push_pull(*feeds)
        else:
            rows = self._run_push(*feeds)
        self._answer = rows
        accepted = all(shard.has(row, self.index, step) for shard, row in zip(self.shards, rows, strict=True))
        return "ok" if accepted else "failed", self._versions(rows)

    def awaits(self, step: int) -> list[int]:
        """The version that each shard must have before a worker that has pushed ``step`` goes on, in sync."""
        return [step + 1] * len(self.shards)

    def _written(self, values: Values, gradient: Values, step: int, awaited: Sequence[int]) -> Values:
        """Write what is to be sent, see Shard.write; returns what is to be fed.

        In the same memory each time, for no worker pushes before the last call has been answered.
        """
        for shard, sent, x, until in zip(self.shards, self._sent, gradient, awaited, strict=True):
            shard.write(sent, x, step, until)
        return values if self._needs_theta else []

    def _settled(self, rows: list[Row], version: int) -> list[Row]:
        """These rows, or in sync newer ones that are at ``version``; none: read them."""
        until = [np.array([version], np.int32)] * len(self.shards) if self.config.sync else []
        while not rows or (self.config.sync and min(self._versions(rows)) < version):
            rows = self.run_read(*until)
        return rows

    def _versions(self, rows: list[Row]) -> list[int]:
        return [shard.version(row) for shard, row in zip(self.shards, rows, strict=True)]

    def run_dry(self, values: Values) -> None:
        """Take part in the rounds for which this worker has no data left, with nothing, so that none waits for it.

        As the join operation of Horovod: https://horovod.readthedocs.io/en/stable/api.html. In async no worker waits.
        """
        if self.config.sync:
            for step in range(self.probe.due[self.index], self.config.steps):
                self.push(step, values, self.empty())

    def empty(self) -> Values:
        """What a worker without data contributes to each shard, float32[slots]."""
        return [np.zeros(self.config.slots, np.float32) for _ in self.shards]

    def finish(self) -> None:
        """Wait until all workers have trained, and record the final read.

        In sync that is the row which came with the last answer: nothing changes it any more.
        """
        self.probe.wait_for_all()
        self.probe.read(*self.read(self.config.steps), final=True)

    def leave(self) -> None:
        """Say goodbye to every ps, so that it can end, and close the record."""
        for goodbye in self.goodbye:
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
