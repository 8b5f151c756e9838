"""The parameter server: a small state machine inside the TensorFlow graph, one per ps task.

All state of a ps is **one variable**, and a push changes it with one assignment inside one critical section; nothing
else has a side effect on it. So a push that is cancelled, killed or sent twice is applied wholly or not at all, and a
read returns one version of parameters and counters together. The variable has rows::

    row = [ theta: slots | padding | refused: one per worker | applied: one per worker | total ]        float32

``applied[w]`` is the number of gradients accepted from worker w, ``total`` their sum. Everything else follows: the row
with the highest total is the newest, and the version, the number of updates of theta, is that total (async), or that
total divided by the gradients of a round (sync). Counters in float32 are exact up to 2**24.

``refused[w]`` counts those of them that were not finite. A NaN or Inf never gets into theta: a gradient of zero is
applied in its place. It counts as its worker's step all the same, so that nobody waits for a round that would never be
complete, and the worker reads off the row that answers its push that it was refused. Each ps decides that for itself.

Async has one row, and a push puts another one in its place, made in the memory of its message: so what is being read
stays as it is, and nothing is copied. Sync has two. Row ``version % 2`` is what everybody reads; the round that is not
complete yet is summed up in the other one: its first gradient writes "the row that is read, less this gradient", the
next ones subtract theirs, and with the last one that row *is* the next version. So a commit costs nothing.

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
import tensorflow as tf
from numpy.typing import NDArray

tf1 = tf.compat.v1
Tensor = Any  # TensorFlow's own annotations are not visible to type checkers
Row = NDArray[np.float32]
ALIGN = 16  # floats: EIGEN_MAX_ALIGN_BYTES
TAIL = 2  # numbers at the end of a message that are no part of a row: the step, and a version


@dataclass(frozen=True)
class ShardConfig:
    """What all shards and workers must agree on.

    ``slots`` is the number of parameters per shard, ``decay`` the share of each that an update takes away before it
    subtracts the gradients (decoupled weight decay: Loshchilov and Hutter 2019), ``quorum`` the gradients that complete
    a sync round (0: those of all workers), ``staleness`` how many steps a worker may be ahead of another in
    async (None: any number); with the ``rate`` staleness-aware a ps divides a gradient by max(1, its staleness).
    ``compression`` is what a worker does to gradients: see compress.py. ``optimizer`` and ``schedule`` other than sgd
    and constant are for the shards of optimizers.py. ``drop_after`` is how many seconds a job that recovers waits for a
    worker before it goes on without it (0: for ever), see membership.py. ``gpus`` is how many each worker has, with a
    tower on each (towers.py); ``emulated``: on as many logical CPUs.
    """

    slots: int
    workers: int
    update: str = "sync"
    reduction: str = "mean"
    learning_rate: float = 1.0
    steps: int = 200
    seed: int = 0
    decay: float = 0.0
    quorum: int = 0
    staleness: int | None = None
    rate: str = "constant"
    compression: str = "none"
    optimizer: str = "sgd"
    schedule: str = "constant"
    drop_after: float = 0.0
    gpus: int = 0
    emulated: bool = False

    @property
    def plain(self) -> bool:
        """An update is plain SGD at a constant rate."""
        return self.optimizer == "sgd" and self.schedule == "constant"

    @property
    def aware(self) -> bool:
        """The learning rate depends on how stale a gradient is (Zhang et al. 2016)."""
        return self.rate == "staleness-aware"

    @property
    def per_round(self) -> int:
        """Gradients in a sync round."""
        return self.quorum or self.workers

    @property
    def sync(self) -> bool:
        """A round takes one gradient from each worker; else each gradient is applied on arrival."""
        return self.update == "sync"


class Shard:
    """Graph of one ps, as seen from one worker."""

    tail = TAIL
    more = 0  # columns before the counters that a push leaves as they are

    def __init__(self, index: int, config: ShardConfig) -> None:
        self.index, self.config = index, config
        self.counters = config.workers + 1
        # aligned, so that TensorFlow cuts a row out of a message without copying it
        columns = config.slots + config.workers + self.more + self.counters
        self.shape = [self.rows() + self.beside(), -(-columns // ALIGN) * ALIGN]
        self.refusals = -(config.workers + self.more + self.counters)  # where these begin, from the end of a row
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

    def beside(self) -> int:
        """Rows behind them."""
        return 0

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
            # Once and for all, even if a chief comes twice; one assignment, so nobody sees half of it.
            return self.section.execute(lambda: tf.cond(self.state.is_initialized(), lambda: tf.constant(False), write))

    def blank(self, worker: int) -> Row:
        """Room for what a worker sends: what an accepted gradient takes from a row, and two numbers of its tail."""
        size = self.shape[1] + self.tail
        room = np.zeros(size + ALIGN, np.float32)
        start = -(room.ctypes.data // room.itemsize) % ALIGN
        message = room[start : start + size]
        message[self.shape[1] + worker - self.counters] = message[self.shape[1] - 1] = -1.0
        return message

    def nothing(self, worker: int) -> Row:
        """A message that takes a step of a worker without a gradient, as if it had been refused."""
        message = self.blank(worker)
        message[self.shape[1] + self.refusals + worker] = -1.0
        return message

    def write(self, message: Row, gradient: Row, step: int, second: int) -> None:
        """Fill in a message; ``second`` is the awaited version or, if staleness matters, the one that was read.

        Here, and not in the graph, where that would be another copy: TensorFlow copies what it is given unless it is
        aligned, as a message is.
        """
        np.multiply(gradient, np.float32(self.share()), out=message[: self.config.slots])
        message[-TAIL:] = step, second

    def message(self, sent: Tensor, worker: int) -> Tensor:
        """What a worker sends, of what it has written."""
        gradient = sent[: self.config.slots]
        contribution = self.contribution(gradient, worker, sent[-TAIL])
        return sent if contribution is gradient else tf.concat([contribution, sent[self.config.slots :]], 0)

    def push(self, message: Tensor, worker: int, *, pull: bool) -> Tensor:
        """Offer a gradient; returns the row to read right after it, in sync once the awaited version is there.

        Without ``pull`` (async only) just the counters of that row, those of the moment of this push.
        """
        with self.device():
            delta, sound = tf.expand_dims(message[: self.shape[1]], 0), self.sound(message)
            step, until = tf.split(tf.cast(message[self.shape[1] :], tf.int32), 2)
            at = until if self.config.aware else None
            reply = self.section.execute(lambda: self._transition(delta, worker, step, sound=sound, pull=pull, at=at))
            if not self.config.sync:
                return reply
            # Not in the critical section: nobody writes to this row before this worker has pushed once more.
            told = self._news(reply, worker, until)
            return self._row(tf.reduce_max(tf.concat([reply, told], 0)))

    def sound(self, message: Tensor) -> Tensor:
        """bool: no number of a message is NaN or Inf, for either makes a sum that is not finite, too.

        That is one pass, outside the critical section. The sum of large numbers may overflow: see `_take`.
        """
        return tf.math.is_finite(tf.reduce_sum(message))

    def read(self, worker: int) -> Tensor:
        """The row to read, one version of it; in sync after the next news, unless version ``until`` is there.

        News may be old: whoever waits looks at the version that it gets.
        """
        with self.device():
            if not self.config.sync:
                return self._row(0)
            with tf.control_dependencies([self._news(self._version(self._totals()), worker, self.until)]):
                return self.section.execute(lambda: self._row(self._version(self._totals())[0]))

    def _news(self, version: Tensor, worker: int, until: Tensor) -> Tensor:
        """Wait for the next commit that ``worker`` was not told of if ``version`` is before ``until``; none, or one."""
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

    def _tail(self) -> tuple[int, int]:
        """Columns of all that is counted."""
        return self.shape[1] + self.refusals, self.shape[1]

    def _totals(self) -> Tensor:
        return tf.cast(self._cells([[[r, self.shape[1] - 1]] for r in range(self.rows())]), tf.int32)

    def _version(self, totals: Tensor) -> Tensor:
        return tf.reduce_max(totals, 0) // self.quorum()  # int32, for TensorFlow divides floats by multiplying

    def _transition(
        self, delta: Tensor, worker: int, step: Tensor, *, sound: Tensor, pull: bool, at: Tensor = None
    ) -> Tensor:
        first = self.shape[1] - self.counters
        found = self._cells([[[r, first + c] for r in range(self.rows())] for c in (worker, self.config.workers)])
        # The rest without a control dependency on the lock, which would start each constant on a thread of its own.
        with tf.control_dependencies(None):
            applied, totals = tf.unstack(tf.expand_dims(tf.cast(found, tf.int32), 2))  # [rows, 1] each
            delta = self.arriving(delta, totals)
            if self.config.sync:
                return self._join_round(delta, worker, step, applied, totals, sound)
            fresh = self.is_next(applied[0], totals[0], step)[0]

            def apply(taken: Tensor) -> Any:
                row = self.state.read_value()
                less = taken if at is None else self.slowed(taken, totals[0] - at)
                less = less + self._decayed(row) if self.config.decay else less
                return self.put(row, less)

            with tf.control_dependencies([self._take(delta, worker, fresh, sound, apply)]):
                return self._row(0) if pull else self._cells([[0, c] for c in range(*self._tail())])

    def _take(self, delta: Tensor, worker: int, fresh: Tensor, sound: Tensor, write: Callable[[Tensor], Any]) -> Tensor:
        """If a push is fresh, write what it takes from a row: what was sent, or if it is not finite a zero, and a mark.

        What is sound costs no conditional beside the one that a push needs anyway: each keeps several threads busy.
        Whether a sum was not finite because it overflowed is looked at in the branch that is hardly ever taken.
        """

        def refusal() -> Tensor:
            counts = np.zeros([-self.refusals], np.float32)
            counts[[worker, worker - self.counters, -1]] = -1.0
            return tf.expand_dims(tf.concat([tf.zeros([self.shape[1] + self.refusals]), counts], 0), 0)

        def look() -> Any:
            return write(tf.cond(tf.reduce_all(tf.math.is_finite(delta)), lambda: delta, refusal))

        return _if(tf.logical_and(fresh, sound), lambda: write(delta), lambda: _if(fresh, look))

    def put(self, row: Tensor, less: Tensor) -> Any:
        """Put ``row`` less what a push takes from it in its place, in the memory of the message."""
        return self.state.assign(row - less, read_value=False)

    def _join_round(
        self, delta: Tensor, worker: int, step: Tensor, applied: Tensor, totals: Tensor, sound: Tensor
    ) -> Tensor:
        fresh = self.is_next(tf.reduce_max(applied, 0), self._version(totals), step)
        return self._add(delta, worker, fresh, totals, sound)

    def _add(self, delta: Tensor, worker: int, fresh: Tensor, totals: Tensor, sound: Tensor) -> Tensor:
        """Take a gradient into the open round, if it is fresh; returns the version after it."""
        version = self._version(totals)
        newest, target = tf.argmax(totals, output_type=tf.int32), 1 - version % 2
        first = tf.not_equal(newest, target)

        def write(taken: Tensor) -> Any:
            return self.join(taken, totals, newest, target, first)

        with tf.control_dependencies([self._take(delta, worker, fresh[0], sound, write)]):
            after = self._version(totals + tf.cast(fresh, tf.int32))
            news = tf.fill(after - version, after[0])  # none, or one
        told = [queue.enqueue_many(news) for peer, queue in enumerate(self.wakeups) if peer != worker]
        with tf.control_dependencies(told):
            return tf.identity(after)

    def join(self, delta: Tensor, totals: Tensor, newest: Tensor, target: Tensor, first: Tensor) -> Any:
        """Take a gradient into the row ``target``, [1], made of the row ``newest``, [1], if it is the first one there.

        ``totals``, [rows, 1], are those before it.
        """
        del totals

        def begin() -> Any:
            row = self.state.sparse_read(newest)
            row = (row - self._decayed(row) if self.config.decay else row) - delta  # once a round
            return tf.raw_ops.ResourceScatterUpdate(resource=self.state.handle, indices=target, updates=row)

        def go_on() -> Any:
            return tf.raw_ops.ResourceScatterSub(resource=self.state.handle, indices=target, updates=delta)

        return _if(first[0], begin, go_on)

    def _decayed(self, row: Tensor) -> Tensor:
        """What decay takes from a row: a share of each parameter, and nothing of the counters."""
        return row * self.columns(self.config.decay, 0.0)

    def columns(self, theta: Any, rest: float) -> Tensor:
        """One number for each parameter in a row, and another one for what is behind them, float32[columns].

        Made by the ps whenever it is used. A constant as long as a row is part of the graph, and every worker sends its
        graph to a ps that is new: with 80 MB in it, copied again for each pass of the optimiser, that took seconds.
        """
        parts = (theta, self.config.slots), (rest, self.shape[1] - self.config.slots)
        return tf.concat([tf.fill([length], tf.cast(number, tf.float32)) for number, length in parts], 0)

    def is_next(self, applied: Tensor, version: Tensor, step: Tensor) -> Tensor:
        """A push counts only as its worker's next step, and in sync in its own round: so a repeated one is harmless."""
        in_turn = tf.equal(applied, step)
        return tf.logical_and(in_turn, tf.equal(version, step)) if self.config.sync else in_turn

    def contribution(self, gradient: Tensor, worker: int, step: Tensor) -> Tensor:
        """What an accepted gradient adds to its round, or takes from theta; it is weighted already."""
        del worker, step
        return gradient

    def slowed(self, delta: Tensor, tau: Tensor) -> Tensor:
        """What a gradient takes from a row whose version is ``tau`` past the one it was computed at."""
        share = 1.0 / tf.cast(tf.maximum(tau, 1), tf.float32)
        return delta * self.columns(tf.reshape(share, []), 1.0)

    def arriving(self, delta: Tensor, totals: Tensor) -> Tensor:
        """What a push subtracts from the row that it changes, [1, columns]; ``totals``, [rows, 1], of each row."""
        del totals
        return delta

    def quorum(self) -> int:
        """Gradients in a sync round."""
        return self.config.per_round

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
        return int(row[-1]) // self.quorum() if self.config.sync else int(row[-1])

    def slowest(self, row: Row) -> int:
        """Gradients accepted from the worker that has the fewest, in a row that was read."""
        return int(row[-self.counters : -1].min())

    def refused(self, row: Row, worker: int) -> int:
        """Gradients of a worker that were not finite, in a row, or the counters of a row, that was read."""
        return int(row[self.refusals + worker])

    def has(self, row: Row, worker: int, step: int) -> bool:
        """The gradient of this step is in a row, or the counters of a row, that was read."""
        return float(row[worker - self.counters]) > step


def _if(condition: Tensor, then: Callable[[], Any], otherwise: Callable[[], Any] | None = None) -> Tensor:
    """Run an assigning op, or another one, or none."""

    def done(write: Callable[[], Any] | None) -> Tensor:
        with tf.control_dependencies([write()] if write else []):
            return tf.constant(True)

    return tf.cond(condition, lambda: done(then), lambda: done(otherwise))
