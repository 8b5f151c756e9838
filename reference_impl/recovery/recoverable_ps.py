"""A ps that can be lost and filled again: pushes are fenced by an epoch, and held up while a checkpoint is read.

It adds one column to each row of the state, the **epoch**: each restore has a higher one than whatever came before it.
A message carries the epoch that its gradient was read in, and is refused in any other: what was sent before a rollback
cannot arrive after it, however long it was on its way. For the same reason a restore counts only if its epoch is higher
than the one that is there.

Async checkpoints need a **gate**: the push (w, s) is let in only while ``s < limit[w]``; so does sync, where the job
may go on without a worker (eviction.py). Limits, and how far each worker has come with leaving, are in a small
variable of their own, made by the ps when it starts: they are no part of what is restored. A gate that opens or closes
at the wrong moment costs time and never truth: a cut is what the counters of all shards agree on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from psconform.layout import Task
from psconform.optimizers import MOMENTS

from ..cluster import Cluster, Tensor, new_server, session_config, tf, tf1
from ..modes.full_ps import FullConfig, FullShard
from ..ps import Offer, Row
from .checkpoints import Recovery

Moments = Mapping[str, Row]
OPEN = 1 << 24
"""Limit of a worker that may push whatever it has."""
OUT, TRAINS, DONE, LEFT = -1, 0, 1, 2
"""Marks: how far a worker has come. The chief is DONE when its final checkpoint is durable; LEFT comes last. The job
goes on without one that is OUT."""
NEVER = 1 << 24
"""In place of a version, the answer to a push of another epoch: it has nothing to wait for."""
SERVE_S = 1.0
"""Between two looks of a ps at whether training is over."""


class RolledBack(Exception):
    """A shard is not in the epoch that this worker has joined."""


class PassedBy(RolledBack):
    """The job has gone on without this worker: the round that it waits for is over, and more after it."""


@dataclass(frozen=True)
class Look:
    """What a ps says of itself: its epoch (-1: it holds nothing), gradients, limits and marks by worker."""

    epoch: int
    applied: tuple[int, ...]
    limits: tuple[int, ...]
    marks: tuple[int, ...]


class RecoverableShard(FullShard):
    """Graph of one ps, as seen from one worker; a message is [what it takes from a row | epoch, step, version]."""

    tail = 3

    def __init__(self, index: int, config: FullConfig, *, more: int = 0) -> None:
        super().__init__(index, config, more=more + 1)  # the epoch, in the column before the counters
        self.column = self.shape[1] - self.counters - 1
        with self.device():
            self.control = tf1.get_variable(
                f"control_{index}",
                dtype=tf.int32,
                initializer=tf.constant([[OPEN] * config.workers, [TRAINS] * config.workers], tf.int32),
                use_resource=True,
                collections=[],
            )

    def blank(self, worker: int) -> Row:
        """As ever; unless it is filled in, it is no worker's next step."""
        message = super().blank(worker)
        message[-self.tail :] = -1.0
        return message

    def push(self, message: Tensor, worker: int, *, pull: bool, gated: bool = True) -> Tensor:
        """Offer a gradient; returns the row to read right after it, in sync once the awaited version is there.

        One that is not ``gated`` is let in whatever the limit of its worker is.
        """
        del pull  # the answer always needs the epoch
        with self.device():
            offer = self.offer(message, worker)
            reply = self.section.execute(lambda: self._transition(offer, pull=True, gated=gated))
            return self._awaited(reply, offer) if self.config.sync else reply

    def _transition(self, offer: Offer, *, pull: bool, gated: bool = True) -> Tensor:
        epoch = tf.cast(offer.message[-self.tail : -self.tail + 1], tf.int32)
        same = tf.equal(tf.cast(self._cells([[0, self.column]]), tf.int32), epoch)
        gate = gated and (not self.config.sync or self.config.drop_after > 0)
        let_in = tf.logical_and(same, offer.step < self.control.gather_nd([[0, offer.worker]])) if gate else same
        step = tf.where(let_in, offer.step, -1)  # which is no worker's next step
        reply = super()._transition(replace(offer, step=step), pull=pull)
        return tf.where(same, reply, NEVER) if self.config.sync else reply

    def read(self, worker: int) -> Tensor:
        """In async the row; in sync the row of version ``until``, after the next news if that is not there yet.

        That version, even if the next one is there already: then another shard lacks this worker's gradient for it,
        and this worker, started again, computes it once more, at the same parameters. Nothing writes to that row before
        the next round begins, and that takes this worker.
        """
        if not self.config.sync:
            return super().read(worker)
        with self.device(), tf.control_dependencies([self._news(self._version(self._totals()), worker, self.until)]):
            return self.section.execute(lambda: self._row(self.until[0]))

    def look(self) -> Tensor:
        """What `looked` makes a `Look` of, float32[rows x (2 + workers) + 2 x workers]."""
        with self.device():
            cells = [[row, column] for row in range(self.rows()) for column in range(self.column, self.shape[1])]
            known = tf.cond(
                self.state.is_initialized(), lambda: self._cells(cells), lambda: tf.fill([len(cells)], -1.0)
            )
            control = tf.reshape(tf.cast(self.control.read_value(), tf.float32), [-1])
            return tf.concat([known, control], 0)

    def looked(self, answer: Row) -> Look:
        """What the answer to `look` says."""
        workers, columns = self.config.workers, self.counters + 1
        rows = answer[: self.rows() * columns].reshape(-1, columns).astype(int)
        limits, marks = answer[-2 * workers :].reshape(2, -1).astype(int).tolist()
        return Look(int(rows[:, 0].min()), tuple(rows[:, 1:-1].max(0).tolist()), tuple(limits), tuple(marks))

    def restore(self, state: Tensor) -> Tensor:
        """Put a state, made by `packed`, in place of what is there, unless that has its epoch or a later one.

        Returns the epoch after it.
        """
        epoch = tf.cast(state[0, self.column], tf.int32)

        def replace() -> Tensor:
            with tf.control_dependencies([self.state.assign(state, read_value=False)]):
                return tf.identity(epoch)

        def known() -> Tensor:
            return tf.cast(self._cells([[0, self.column]]), tf.int32)[0]

        def transition() -> Tensor:
            before = tf.cond(self.state.is_initialized(), known, lambda: tf.constant(-1))
            return tf.cond(epoch > before, replace, lambda: tf.identity(before))

        with self.device():
            after = self.section.execute(transition)
            if not self.config.sync:
                return after
            with tf.control_dependencies([after]):  # a worker that waits for a round of the past looks again
                told = [queue.enqueue(0) for queue in self.wakeups]
            with tf.control_dependencies(told):
                return tf.identity(after)

    def whole(self) -> Tensor:
        """The row to read and the moments, of one version, [1 + moments, columns]."""

        def read() -> Tensor:
            if not self.config.sync:
                return self.state.read_value()
            version = self._version(self._totals())
            rows = tf.concat([version % 2, list(range(self.rows(), self.shape[0]))], 0)
            return self.state.sparse_read(rows)

        with self.device():
            return self.section.execute(read)

    def packed(self, theta: Row, applied: tuple[int, ...], epoch: int, moments: Moments) -> Row:
        """A state for `restore`, float32[all rows, columns]; ``moments`` are those of an optimizer, if there is one."""
        state = np.zeros(self.shape, np.float32)
        state[: self.rows(), self.column] = epoch
        row = state[sum(applied) // self.per_round % self.rows()]
        row[: self.config.slots] = theta
        row[-self.counters :] = *applied, sum(applied)
        for of, name in zip(state[self.rows() :], MOMENTS[self.config.optimizer], strict=True):
            of[: self.config.slots] = moments.get(name, 0.0)
        return state

    def limit(self, limits: Tensor) -> Tensor:
        """Let each worker push only steps below its limit, int32[workers]."""
        return self._control(0, limits)

    def nothing(self, worker: int) -> Row:
        """As ever; the epoch, the step and the version to wait for are to be filled in."""
        message = super().nothing(worker)
        message[-self.tail :] = 0.0
        return message

    def mark(self, worker: int, mark: Tensor) -> Tensor:
        """Say how far a worker has come."""
        with self.device():
            return tf.raw_ops.ResourceScatterNdUpdate(ref=self.control.handle, indices=[[1, worker]], updates=[mark])

    def dismiss(self) -> Tensor:
        """Let the ps end: all workers have left."""
        with self.device(), tf.control_dependencies([self._control(1, [LEFT] * self.config.workers)]):
            return self.goodbyes.enqueue(0)

    def _control(self, row: int, values: Tensor) -> Tensor:
        def write() -> Tensor:
            update = tf.raw_ops.ResourceScatterUpdate(resource=self.control.handle, indices=row, updates=values)
            with tf.control_dependencies([update]):
                return tf.constant(True)

        with self.device():  # in the section: when it returns, no push is under way that was let in before
            return self.section.execute(write)

    def epoch(self, row: Row) -> int:
        """The epoch of a row that was read."""
        return int(row[self.column])

    def applied(self, row: Row) -> tuple[int, ...]:
        """Gradients of each worker in a row that was read."""
        return tuple(row[-self.counters : -1].astype(int).tolist())

    def holds(self, row: Row, version: int) -> bool:
        """A row that was read in sync is that version, complete."""
        return int(row[-1]) == version * self.per_round


def serve_recoverable(cluster: Cluster, index: int, config: FullConfig, recovery: Recovery) -> None:
    """Be ``ps:index``: serve until the chief says that all workers have left. Until it is restored it is empty."""
    task = Task("ps", index)
    server, store = new_server(cluster, task), recovery.store()
    options = tf1.RunOptions(timeout_in_ms=int(SERVE_S * 1000))
    with tf.Graph().as_default():
        shard = RecoverableShard(index, config)
        goodbye = shard.goodbyes.dequeue()
        with tf1.Session(server.target, config=session_config(task, to_ps=False)) as session:
            session.run(shard.control.initializer)
            while not store.finished:
                try:
                    session.run(goodbye, options=options)
                    return
                except tf.errors.DeadlineExceededError:
                    continue
