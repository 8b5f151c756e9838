"""The parameter server: a small state machine inside the TensorFlow graph, one per ps task.

All state of a ps is **one variable**, and a push changes it with one assignment inside one critical section; its
only other effect is to wake workers. So a push that is cancelled, killed or sent twice is applied wholly or not at all,
and a read returns one version of parameters and counters together. The variable has rows::

    row = [ theta: slots | padding | applied: one per worker | total ]        float32

``applied[w]`` is the number of gradients accepted from worker w, ``total`` their sum. Everything else follows: the row
with the highest total is the newest, and the version, the number of updates of theta, is that total (async), or that
total divided by the gradients of a round (sync). Counters in float32 are exact up to 2**24.

Async has one row, and a push puts another one in its place, made in the memory of its message: so what is being read
stays as it is, and nothing is copied. Sync has two. Row ``version % 2`` is what workers read; the round that is not
complete yet is summed up in the other one: its first gradient writes "the row that is read, less this gradient", the
next ones subtract theirs, and with the last one that row *is* the next version. So a commit copies nothing: the first
gradient has made the copy.

What a step costs is mostly the number of tensors that travel, and how often a thread wakes another one. A number that
the client feeds to a ps travels as a tensor of its own: therefore step and awaited version travel in the tail of the
gradient, and one row is all that comes back. Ops are created once per worker (between-graph replication); variable,
critical section and queues are shared by name through the ps they are placed on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psconform.layout import Task

from .cluster import Cluster, Tensor, new_server, session_config, tf, tf1

Row = NDArray[np.float32]
ALIGN = 16  # floats: EIGEN_MAX_ALIGN_BYTES


@dataclass(frozen=True)
class Config:
    """What all ps tasks and workers must agree on; ``slots`` is the number of parameters on each ps."""

    slots: int
    workers: int
    update: str = "sync"
    reduction: str = "mean"
    learning_rate: float = 1.0
    steps: int = 200

    @property
    def sync(self) -> bool:
        """A round takes one gradient from each worker; else each gradient is applied on arrival."""
        return self.update == "sync"

    @property
    def per_round(self) -> int:
        """Gradients in a sync round."""
        return self.workers


@dataclass(frozen=True)
class Offer:
    """A push, in the graph of the ps: what it takes from a row, float32[1, columns], and what is in its tail, int32[1].

    ``step`` is the worker's step, ``until`` the version that it waits for. ``message`` is all that was sent.
    """

    worker: int
    message: Tensor
    delta: Tensor
    step: Tensor
    until: Tensor


class Shard:
    """Graph of one ps, as seen from one worker.

    ``extra`` columns lie before the counters, and ``beside`` rows behind those of the parameters; a push leaves them as
    they are.
    """

    tail = 2  # numbers at the end of a message that are no part of a row: the step, and a version

    def __init__(self, index: int, config: Config, *, extra: int = 0, beside: int = 0) -> None:
        self.index, self.config, self.extra = index, config, extra
        self.per_round = config.per_round
        self.counters = config.workers + 1
        # aligned, so that TensorFlow cuts a row out of a message without copying it
        columns = -(-(config.slots + extra + self.counters) // ALIGN) * ALIGN
        self.shape = [self.rows() + beside, columns]
        with self.device():
            self.state = tf1.get_variable(
                f"state_{index}",
                shape=self.shape,
                dtype=tf.float32,
                initializer=tf1.zeros_initializer(),
                use_resource=True,
                collections=[],
            )
            self.section = tf.CriticalSection(shared_name=f"shard_{index}")
            self.until = tf1.placeholder(tf.int32, [1])
            # One wake-up per commit for each worker but the one whose push it was. They only end a wait early: what is
            # true stands in the state. No capacity limit, for a commit must not block on a worker that has gone.
            self.wakeups = [
                tf1.FIFOQueue(-1, [tf.int32], shapes=[[]], shared_name=f"wake_{index}_{worker}")
                for worker in range(config.workers)
            ]
            self.goodbyes = tf1.FIFOQueue(-1, [tf.int32], shapes=[[]], shared_name=f"goodbye_{index}")

    def device(self) -> Any:
        """Everything of a shard lives on its ps."""
        return tf.device(f"/job:ps/task:{self.index}/device:CPU:0")

    def rows(self) -> int:
        """Rows of the state that hold parameters."""
        return 2 if self.config.sync else 1

    def initialised(self) -> Tensor:
        """bool: the state has been written."""
        with self.device():
            return self.state.is_initialized()

    def initialise(self, theta: Tensor) -> Tensor:
        """Write the initial state unless there is one; returns bool, whether this call wrote it."""

        def write() -> Tensor:
            rest = tf.zeros([self.shape[0] * self.shape[1] - self.config.slots])
            with tf.control_dependencies([self.state.assign(tf.reshape(tf.concat([theta, rest], 0), self.shape))]):
                return tf.constant(True)

        with self.device():
            # Once and for all, even if a chief comes twice; one assignment, so no read shows half of it.
            return self.section.execute(lambda: tf.cond(self.state.is_initialized(), lambda: tf.constant(False), write))

    def blank(self, worker: int) -> Row:
        """An empty message: zeros for the gradient, -1 for worker's counter and total (for a push is subtracted)."""
        size = self.shape[1] + self.tail
        room = np.zeros(size + ALIGN, np.float32)
        start = -(room.ctypes.data // room.itemsize) % ALIGN
        message = room[start : start + size]
        message[self.shape[1] + worker - self.counters] = message[self.shape[1] - 1] = -1.0
        return message

    def write(self, message: Row, gradient: Row, step: int, until: int) -> None:
        """Fill in a message.

        Here, and not in the graph, where that would be another copy: TensorFlow copies what it is given unless it is
        aligned, as a message is.
        """
        np.multiply(gradient, np.float32(self.share()), out=message[: self.config.slots])
        message[-2:] = step, until

    def push(self, message: Tensor, worker: int, *, pull: bool) -> Tensor:
        """Offer a gradient; returns the row to read right after it, in sync once the awaited version is there.

        Without ``pull`` (async only) just the counters of that row, those of the moment of this push.
        """
        with self.device():
            offer = self.offer(message, worker)
            reply = self.section.execute(lambda: self._transition(offer, pull=pull))
            return self._awaited(reply, offer) if self.config.sync else reply

    def offer(self, message: Tensor, worker: int) -> Offer:
        """A message, taken apart."""
        step, until = tf.split(tf.cast(message[-2:], tf.int32), 2)
        return Offer(worker, message, tf.expand_dims(message[: self.shape[1]], 0), step, until)

    def _awaited(self, version: Tensor, offer: Offer) -> Tensor:
        """The row of the version that a push waits for.

        The news is old only after a call that was given up; such callers look whether the row is complete. ``version``
        is that right after the push. Not in the critical section: once the version is there, nothing writes
        to its row before this worker has pushed once more.
        """
        told = self._news(version, offer.worker, offer.until)
        return self._row(tf.reduce_max(tf.concat([version, told], 0)))

    def read(self, worker: int) -> Tensor:
        """The row to read, one version of it; in sync after the next news, unless version ``until`` is there.

        News may be old: a worker that waits looks at the version that it gets.
        """
        with self.device():
            if not self.config.sync:
                return self._row(0)
            with tf.control_dependencies([self._news(self._version(self._totals()), worker, self.until)]):
                return self.section.execute(lambda: self._row(self._version(self._totals())[0]))

    def _news(self, version: Tensor, worker: int, until: Tensor) -> Tensor:
        """Wait for a wake-up of this worker if ``version`` is before ``until``; returns none, or its version."""
        return self.wakeups[worker].dequeue_many(tf.cast(version < until, tf.int32)[0])

    def _row(self, version: Any) -> Tensor:
        if not self.config.sync:
            return tf.squeeze(self.state.read_value(), 0)  # no copy: a push puts another row in its place
        return self.state.sparse_read(version % 2)

    def _cells(self, cells: Any) -> Tensor:
        """Single numbers of the state, at [row, column] each."""
        if not self.config.sync:
            return tf.gather_nd(self.state.read_value(), cells)  # copies them, and so lets go of the rest
        return self.state.gather_nd(cells)  # sparse access, like all writing in sync: reads copy, writes do not

    def _counted(self) -> Tensor:
        """All that is counted in the row of async: ``extra`` columns and counters."""
        return self._cells([[0, column] for column in range(self.shape[1] - self.extra - self.counters, self.shape[1])])

    def _totals(self) -> Tensor:
        return tf.cast(self._cells([[[r, self.shape[1] - 1]] for r in range(self.rows())]), tf.int32)

    def _version(self, totals: Tensor) -> Tensor:
        return tf.reduce_max(totals, 0) // self.per_round  # int32, for TensorFlow divides floats by multiplying

    def _transition(self, offer: Offer, *, pull: bool) -> Tensor:
        first = self.shape[1] - self.counters
        columns = offer.worker, self.config.workers
        found = self._cells([[[row, first + column] for row in range(self.rows())] for column in columns])
        # The rest without a control dependency on the lock, which would start each constant on a thread of its own.
        with tf.control_dependencies(None):
            applied, totals = tf.unstack(tf.expand_dims(tf.cast(found, tf.int32), 2))  # [rows, 1] each
            if self.config.sync:
                return self._join_round(offer, applied, totals)
            fresh = self.is_next(applied[0], totals[0], offer.step)[0]
            with tf.control_dependencies([self._take(offer, fresh, lambda delta: self.put(delta, offer, totals))]):
                return self._row(0) if pull else self._counted()

    def _take(self, offer: Offer, fresh: Tensor, write: Callable[[Tensor], Any]) -> Tensor:
        """If a push is fresh, ``write`` what it takes from a row."""
        return if_then(fresh, lambda: write(offer.delta))

    def put(self, delta: Tensor, offer: Offer, totals: Tensor) -> Any:
        """In async: put the row less ``delta`` in its place, in the memory of the message; ``totals``: see `join`."""
        del offer, totals
        return self.state.assign(self.state.read_value() - delta, read_value=False)

    def _join_round(self, offer: Offer, applied: Tensor, totals: Tensor) -> Tensor:
        fresh = self.is_next(tf.reduce_max(applied, 0), self._version(totals), offer.step)
        return self._add(offer, fresh, totals)

    def _add(self, offer: Offer, fresh: Tensor, totals: Tensor) -> Tensor:
        """Take a gradient into the open round, if it is fresh; returns the version after it."""
        version = self._version(totals)
        newest, target = tf.argmax(totals, output_type=tf.int32), 1 - version % 2
        first = tf.not_equal(newest, target)

        def write(delta: Tensor) -> Any:
            return self.join(delta, totals, newest, target, first)

        with tf.control_dependencies([self._take(offer, fresh[0], write)]):
            after = self._version(totals + tf.cast(fresh, tf.int32))
            news = tf.fill(after - version, after[0])  # none, or one
        told = [queue.enqueue_many(news) for peer, queue in enumerate(self.wakeups) if peer != offer.worker]
        with tf.control_dependencies(told):
            return tf.identity(after)

    def join(self, delta: Tensor, totals: Tensor, newest: Tensor, target: Tensor, first: Tensor) -> Any:
        """Take a gradient into the row ``target``, [1], made of the row ``newest``, [1], if it is the first one there.

        ``totals``, [rows, 1], are those before it.
        """
        del totals

        def begin() -> Any:
            row = self.begun(self.state.sparse_read(newest)) - delta
            return tf.raw_ops.ResourceScatterUpdate(resource=self.state.handle, indices=target, updates=row)

        def go_on() -> Any:
            return tf.raw_ops.ResourceScatterSub(resource=self.state.handle, indices=target, updates=delta)

        return if_then(first[0], begin, go_on)

    def begun(self, row: Tensor) -> Tensor:
        """The row that a round begins with, made of the row before it, [1, columns]."""
        return row

    def is_next(self, applied: Tensor, version: Tensor, step: Tensor) -> Tensor:
        """A push counts only as its worker's next step, and in sync in its own round.

        The assignment that applies a gradient also counts it: so a repeated push is refused, and harmless.
        """
        in_turn = tf.equal(applied, step)
        return tf.logical_and(in_turn, tf.equal(version, step)) if self.config.sync else in_turn

    def share(self) -> float:
        """What a worker multiplies its gradients with."""
        return self.weight() * self.config.learning_rate

    def weight(self) -> float:
        """Weight of each gradient in an update: in sync 1/N for a mean, 1 for a sum."""
        return 1.0 / self.config.per_round if self.config.sync and self.config.reduction == "mean" else 1.0

    def theta(self, row: Row) -> Row:
        """The parameters in a row that was read, float32[slots]."""
        return row[: self.config.slots]

    def version(self, row: Row) -> int:
        """The version in a row, or the counters of a row, that was read."""
        return int(row[-1]) // self.per_round if self.config.sync else int(row[-1])

    def has(self, row: Row, worker: int, step: int) -> bool:
        """The gradient of this step is in a row, or the counters of a row, that was read."""
        return float(row[worker - self.counters]) > step


def if_then(condition: Tensor, then: Callable[[], Any], otherwise: Callable[[], Any] | None = None) -> Tensor:
    """Run an assigning op, or another one, or none."""

    def done(write: Callable[[], Any] | None) -> Tensor:
        with tf.control_dependencies([write()] if write else []):
            return tf.constant(True)

    return tf.cond(condition, lambda: done(then), lambda: done(otherwise))


def serve(cluster: Cluster, index: int, config: Config) -> None:
    """Be ``ps:index``: serve until every worker has said goodbye. The ps runs no Python of its own meanwhile."""
    task = Task("ps", index)
    server = new_server(cluster, task)
    with tf.Graph().as_default():
        goodbye = Shard(index, config).goodbyes.dequeue()
        with tf1.Session(server.target, config=session_config(task, to_ps=False)) as session:
            for _ in range(config.workers):
                session.run(goodbye)
