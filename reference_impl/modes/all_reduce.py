"""All-reduce training, without parameter servers: every worker holds a replica of all parameters.

TensorFlow's MultiWorkerMirroredStrategy does the exchange (ring all-reduce over its own collectives); the replica is an
ordinary variable of its process. A step reduces the workers' gradients and every replica applies the result, so all of
them stay equal, bit by bit, without ever being compared: that is what check S7 looks at.

With ``clip_norm`` a gradient has at most that norm, before it is exchanged or as the mean (``clip_when``).

With ``accumulate`` A a replica adds up A gradients, and the replicas exchange those sums (of a mean, 1/A of them).

With ``local_steps`` H a replica takes H steps with its own gradients alone, then all are averaged: local SGD (Stich
2019). An exchange comes after steps H-1, 2H-1, ... and after the last one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from psconform.optimizers import CLIP_WHEN, clipped
from psconform.probe import Probe

from ..cluster import tf

Values = NDArray[np.float32]
TIMEOUT_S = 60.0
"""Bound on every exchange; a worker that waits longer fails."""


class Replica:
    """One worker of the ring: its replica, and the training loop. Must be made before any other use of TensorFlow."""

    def __init__(
        self,
        probe: Probe,
        *,
        workers: int,
        reduction: str,
        local_steps: int,
        accumulate: int,
        learning_rate: float,
        clip_norm: float,
        clip_when: str,
    ) -> None:
        self.learning_rate, self.clip_norm, self.clips_first = learning_rate, clip_norm, clip_when == CLIP_WHEN[0]
        self.probe, self.workers, self.local_steps, self.accumulate = probe, workers, local_steps, accumulate
        self.weight = 1.0 / workers if reduction == "mean" else 1.0
        self.brings = np.float32(accumulate if reduction == "mean" else 1)  # what is added up is divided by that
        self.kept = np.zeros(probe.slots, np.float32)  # what this worker will bring to the next round
        options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=TIMEOUT_S)
        self.strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
        with tf.device("/CPU:0"):
            self.theta = tf.Variable(tf.zeros([probe.slots]), trainable=True)
            # What this replica was right after the last exchange, to average the changes since then.
            self.base = tf.Variable(tf.zeros([probe.slots]), trainable=False) if local_steps > 1 else None
        self._initialise = tf.function(self._initial_step)
        self._exchange, self._local, self._average = map(
            tf.function, (self._exchange_step, self._local_step, self._average_step)
        )

    def train(self) -> None:
        """Take the chief's initial parameters, train all steps, wait for the others, read once more."""
        probe = self.probe
        self.join()
        for step in range(probe.steps):
            for _ in range(probe.reads):
                values = self.read()
                probe.read([values], step=step)
            gradient = probe.gradients(step, [values])[0]
            probe.push(step)
            self.step(step, gradient)
            probe.ack(step, "ok")
        probe.wait_for_all()
        probe.read([self.read()], final=True)
        probe.close()

    def join(self) -> None:
        """The chief's initial parameters become those of all: the sum of them and of zeros, which is exact."""
        mine = self.initial()
        self.run(self._initialise, mine)
        if self.probe.index == 0:
            self.probe.initialised([mine])

    def initial(self) -> Values:
        """What this worker brings to the initialisation, float32[slots]."""
        return self.probe.initial() if self.probe.index == 0 else np.zeros(self.probe.slots, np.float32)

    def read(self) -> Values:
        """This worker's own replica, float32[slots]."""
        return np.array(self.theta.numpy())

    def step(self, step: int, gradient: Values) -> None:
        """Exchange gradients, or take a local step and, when it is due, average the replicas."""
        if self.local_steps == 1:
            self.kept += clipped(gradient, self.clip_norm) if self.clips_first else gradient
            if (step + 1) % self.accumulate == 0 or step + 1 == self.probe.steps:
                self.run(self._exchange, self.kept / self.brings)
                self.kept[:] = 0
            return
        self._local(tf.constant(gradient))
        if (step + 1) % self.local_steps == 0 or step + 1 == self.probe.steps:
            self.average(step)

    def average(self, step: int) -> None:
        """Every replica becomes the average of all."""
        del step
        self.run(self._average)

    def run(self, function: Any, *arrays: Values) -> None:
        """One collective call; all workers make the same ones in the same order."""
        self.strategy.run(function, args=tuple(tf.constant(array) for array in arrays))

    def summed(self, tensor: Any) -> Any:
        """Sum over all workers."""
        with tf.device("/CPU:0"):
            local = tf.identity(tensor)
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, local)

    def _initial_step(self, mine: Any) -> None:
        self.theta.assign(self.summed(mine))
        if self.base is not None:
            self.base.assign(self.theta)

    def _exchange_step(self, gradient: Any) -> None:
        # The ledger's loss is <theta, x>: x is its gradient. Other workloads give theirs at the values that were read.
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(self.theta * gradient)
        found = self.summed(tape.gradient(loss, self.theta)) * self.weight
        if self.clip_norm and not self.clips_first:
            found = tf.clip_by_norm(found, self.clip_norm)
        self.theta.assign_sub(found * self.learning_rate)

    def _local_step(self, gradient: Any) -> None:
        self.theta.assign_sub(gradient)

    def _average_step(self) -> None:
        assert self.base is not None
        # The changes and not the parameters: what no worker changed stays exactly as it is.
        self.theta.assign(self.base + self.summed(self.theta - self.base) * self.share())
        self.base.assign(self.theta)

    def share(self) -> float:
        """Weight of each replica in an exchange."""
        return 1.0 / self.workers
