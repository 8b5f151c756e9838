"""The parameter server: a small state machine inside the TensorFlow graph, one per ps task.

All state of a ps is **one variable**, and a push changes it with one assignment inside one critical section; nothing
else has a side effect on it. So a push that is cancelled, killed or sent twice is applied wholly or not at all, and a
read returns one version of parameters and counters together. ::

    state = [ theta: slots | pending: slots (sync only) | applied: one per worker | version ]        float32

``pending`` is the sum of the gradients of the round that is not complete yet, ``applied[w]`` the number of gradients
accepted from worker w, ``version`` the number of updates of theta. Counters in float32 are exact up to 2**24.

Ops are created once per worker (between-graph replication); variable, critical section and queues are shared by name
through the ps they are placed on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

tf1 = tf.compat.v1
Tensor = Any  # TensorFlow's own annotations are not visible to type checkers


@dataclass(frozen=True)
class ShardConfig:
    """What all shards and workers must agree on. ``slots`` is the number of parameters per shard."""

    slots: int
    workers: int
    update: str = "sync"
    reduction: str = "mean"
    learning_rate: float = 1.0
    steps: int = 50
    seed: int = 0

    @property
    def sync(self) -> bool:
        """A round takes one gradient from each worker; else each gradient is applied on arrival."""
        return self.update == "sync"


class Shard:
    """Graph of one ps, as seen from one worker."""

    def __init__(self, index: int, config: ShardConfig) -> None:
        self.index, self.config = index, config
        self.theta_size = config.slots
        self.pending_size = config.slots if config.sync else 0
        self.size = self.theta_size + self.pending_size + config.workers + 1
        with self.device():
            self.state = tf1.get_variable(
                f"state_{index}",
                shape=[self.size],
                dtype=tf.float32,
                initializer=tf1.zeros_initializer(),
                use_resource=True,
                collections=[],
            )
            self.section = tf.CriticalSection(shared_name=f"shard_{index}")
            # One wake-up per commit and worker. They only end a wait early: what is true stands in the state. No
            # capacity limit, for a commit must not block on a worker that has gone.
            self.wakeups = [
                tf1.FIFOQueue(-1, [tf.float32], shapes=[[]], shared_name=f"wake_{index}_{worker}")
                for worker in range(config.workers)
            ]
            self.goodbyes = tf1.FIFOQueue(-1, [tf.int32], shapes=[[]], shared_name=f"goodbye_{index}")

    def device(self) -> Any:
        """Everything of a shard lives on its ps."""
        return tf.device(f"/job:ps/task:{self.index}/device:CPU:0")

    def initialised(self) -> Tensor:
        """bool: the state has been written."""
        with self.device():
            return self.state.is_initialized()

    def initialise(self, theta: Tensor) -> Tensor:
        """Write the initial state unless there is one; returns bool, whether this call wrote it."""

        def write() -> Tensor:
            zeros = tf.zeros([self.size - self.theta_size])
            with tf.control_dependencies([self.state.assign(tf.concat([theta, zeros], 0))]):
                return tf.constant(True)

        with self.device():
            # Once and for all, even if a chief comes twice; one assignment, so nobody sees half of it.
            return self.section.execute(lambda: tf.cond(self.state.is_initialized(), lambda: tf.constant(False), write))

    def read(self) -> Tensor:
        """The whole state, one version of it."""
        with self.device():
            return self.state.read_value()

    def wait(self, worker: int) -> tuple[Tensor, Tensor]:
        """Block until the next commit that ``worker`` was not told of; returns (its version, the state)."""
        with self.device():
            version = self.wakeups[worker].dequeue()
            with tf.control_dependencies([version]):
                return version, self.state.read_value()

    def push(self, gradient: Tensor, worker: int, step: Tensor) -> Tensor:
        """Offer the gradient of ``step``; returns float32[2]: 1 if it was accepted, and the version it got (async)
        or belongs to (sync)."""
        with self.device():
            return self.section.execute(lambda: self._transition(gradient, worker, step))

    def _transition(self, gradient: Tensor, worker: int, step: Tensor) -> Tensor:
        config = self.config
        state = self.state.read_value()
        sizes = [self.theta_size, self.pending_size, config.workers, 1]
        _, pending, applied, version = tf.split(state, sizes)
        version = version[0]
        fresh = self.is_next(applied[worker], version, step)
        accepted = tf.cast(fresh, tf.float32)
        gradient = tf.where(fresh, self.contribution(gradient, worker, step), tf.zeros_like(gradient))
        if config.sync:
            arrived = tf.reduce_sum(applied) + accepted - version * self.quorum()
            commits = tf.logical_and(fresh, tf.equal(arrived, self.quorum()))
            total = (pending + gradient) * (config.learning_rate * self.weight())
            less_theta = tf.where(commits, total, tf.zeros_like(total))
            less_pending = tf.where(commits, pending, -gradient)  # to exactly 0, or one gradient more
            committed = tf.cast(commits, tf.float32)
        else:
            less_theta, less_pending, committed = config.learning_rate * gradient, pending, accepted
        less_applied = -tf.one_hot(worker, config.workers) * accepted
        delta = tf.concat([less_theta, less_pending, less_applied, [-committed]], 0)
        assigned = self.state.assign_sub(delta)
        with tf.control_dependencies([assigned]):
            told = self._tell(version + 1, committed) if config.sync else []
        with tf.control_dependencies([assigned, *told]):
            return tf.stack([accepted, version + (1.0 if config.sync else accepted)])

    def _tell(self, version: Tensor, committed: Tensor) -> list[Tensor]:
        news = tf.fill([tf.cast(committed, tf.int32)], version)  # none, or one
        return [queue.enqueue_many(news) for queue in self.wakeups]

    def is_next(self, applied: Tensor, version: Tensor, step: Tensor) -> Tensor:
        """A push counts only as its worker's next step, and in sync in its own round: so a repeated one is harmless."""
        in_round = tf.equal(version, step) if self.config.sync else tf.constant(True)
        return tf.logical_and(tf.equal(applied, step), in_round)

    def contribution(self, gradient: Tensor, worker: int, step: Tensor) -> Tensor:
        """What an accepted gradient adds to its round or, times the learning rate, takes from theta."""
        del worker, step
        return gradient

    def quorum(self) -> float:
        """Gradients in a sync round."""
        return float(self.config.workers)

    def weight(self) -> float:
        """Weight of each gradient in a sync round: 1/N for a mean, 1 for a sum."""
        return 1.0 / self.config.workers if self.config.reduction == "mean" else 1.0

    def theta(self, state: NDArray[np.float32]) -> NDArray[np.float32]:
        """The parameters in a state that was read, float32[slots]."""
        return state[: self.theta_size]

    def version(self, state: NDArray[np.float32]) -> int:
        """The version in a state that was read."""
        return int(state[-1])
