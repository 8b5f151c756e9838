"""Sync with backup workers: R gradients complete a round, and what comes later is refused (``--quorum R``).

Chen et al. 2016, "Revisiting Distributed Synchronous SGD". A step is not a round here: a worker whose gradient is late
goes on to the current version, with its next gradient. What differs from the full barrier:

* A push counts if it was computed at the version that is current, and is the next accepted one of its worker (so a
  repeated push is harmless). ``applied[w]`` counts accepted gradients, not steps.
* Shards must agree whose gradients make a round, so **ps:0 decides**: a worker pushes to the others what ps:0 has
  accepted, and only that. They accept it, for they cannot be past the version without it. (A worker that dies between
  the two leaves the others waiting; recovery comes with checkpoints.)
* The next rounds do not wait until a slow worker has read, so its read is inside the critical section, and shards
  that it finds at different versions it reads again.
* Training is over after as many rounds as a worker has steps, for a worker pushes at most once per round. All begin
  together, or a worker that joins late would find it over.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from ..cluster import CALL_TIMEOUT_S, Tensor, tf, tf1
from ..ps import Offer, Row
from ..worker import Values
from .full_ps import FullShard
from .full_worker import FullWorker


class QuorumShard(FullShard):
    """A ps that takes the first R gradients computed at its version."""

    def push(self, message: Tensor, worker: int, *, pull: bool) -> Tensor:
        """Offer a gradient, with [how many of its worker were accepted before, version it was computed at] in its tail.

        Returns whether it is taken; does not wait for its round.
        """
        with self.device():
            offer = self.offer(message, worker)
            return self.section.execute(lambda: self._transition(offer, pull=pull))

    def _join_round(self, offer: Offer, applied: Tensor, totals: Tensor) -> Tensor:
        in_turn = tf.equal(tf.reduce_max(applied, 0), offer.step)
        fresh = tf.logical_and(in_turn, tf.equal(self._version(totals), offer.until))
        with tf.control_dependencies([self._add(offer, fresh, totals)]):
            return tf.identity(fresh)[0]


class QuorumWorker(FullWorker):
    """A worker that goes on to the current version when its gradient was late."""

    shard_type: type[FullShard] = QuorumShard

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.accepted = 0  # of its gradients, so far
        self.past = -1  # the last version at which it has pushed

    def _build(self) -> None:
        super()._build()
        with self.shards[0].device():
            joined = tf1.FIFOQueue(-1, [tf.int32], shapes=[[]], shared_name="joined")
        self._join, self._joined = joined.enqueue(self.index), joined.size()

    def _bind(self) -> None:
        super()._bind()
        feeds = self._theta if self._needs_theta else []
        self._offer, self._follow = self.bound(self._push_pull[:1], feeds), self.bound(self._push_pull[1:], feeds)

    def train(self) -> None:
        """As ever, but until the rounds are over."""
        probe, config = self.probe, self.config
        self.join()
        for step in range(config.steps):
            values, versions = self.read(step)
            if versions[0] >= config.steps:
                break
            probe.read(values, versions, step=step)
            for _ in range(probe.reads - 1):
                values, versions = self.read(step)
                probe.read(values, versions, step=step)
            if versions[0] >= config.steps:  # the last round was committed between two reads
                break
            gradient = self.gradients(step, values)
            probe.push(step)
            outcome, versions = self.push(step, values, gradient)
            probe.ack(step, outcome, versions)
        self.finish()
        self.leave()

    def join(self) -> None:
        """Wait until all workers have joined."""
        super().join()
        self.session.run(self._join)
        deadline = time.monotonic() + CALL_TIMEOUT_S
        while self.session.run(self._joined) < self.config.workers:
            if time.monotonic() > deadline:
                raise TimeoutError(f"worker:{self.index}: not all workers have joined within {CALL_TIMEOUT_S:.0f} s")
            time.sleep(0.005)

    def push(self, step: int, values: Values, gradient: Values) -> tuple[str, list[int]]:
        """Offer the gradient to ps:0, if it takes it to the others, and wait for the round; (outcome, versions)."""
        at = self.past = self.seen[0]
        accepted = self.offer(values, gradient, at)
        self.pulled = self._settled(self.pulled, at + 1)
        outcome = self.outcome(step, "ok" if accepted else "failed", self._refused(self.pulled))
        return outcome, [at + 1] * len(self.shards)

    def offer(self, values: Values, gradient: Values, at: int) -> bool:
        """Push a gradient as one computed at version ``at``; True if it is taken."""
        feeds = self._written(values, gradient, self.accepted, [at] * len(self.shards))
        accepted = bool(self._offer(*feeds)[0])
        if accepted and len(self.shards) > 1 and not all(self._follow(*feeds)):
            raise RuntimeError(f"worker:{self.index}: ps:0 took a gradient of version {at}, another ps did not")
        self.accepted += accepted
        return accepted

    def _settled(self, rows: list[Row], version: int) -> list[Row]:
        """These rows, or newer ones: all shards at one version, and past the last one at which this worker pushed."""
        del version
        until = self.past + 1
        while not rows or min(self._versions(rows)) < until:
            rows = self.run_read(*[np.array([until], np.int32)] * len(self.shards))
            until = max(until, *self._versions(rows))
        return rows
