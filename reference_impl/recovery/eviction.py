"""Going on without a worker that does not come (``--drop-after``), and taking it back when it returns.

In sync a round waits for every worker. When the chief has waited ``drop_after`` seconds for one, it takes that worker's
step in its place, with nothing for a gradient, in this round and in all that follow; on the ps that is a push like any
other, so whatever holds of rounds, counters and checkpoints still does. The weight of the other gradients stays what it
was: a round without one of N workers is the mean over N in which its gradient is zero. In async no worker waits before
the end, and that is where a worker is given up.

All shards must do so for the same steps. So first its gate is closed everywhere, and then the chief looks who has its
gradient of the open round: if all have it, it was in time; if some have, the rest of it is lost, and the last
checkpoint is restored. Its mark on every ps is then OUT. Once it is back it says that it TRAINS, and waits; the chief
sees that at its next step, opens the gate, and from that round on waits for it again.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from ..cluster import tf, tf1
from ..ps import Row
from .calls import PATIENCE_S
from .recoverable_ps import OUT, Look, RolledBack

if TYPE_CHECKING:
    from .chief import Chief

LEAST_PATIENCE_S = 0.25
"""Between two looks at who has not come to a round: a call that takes longer is made again."""


class Eviction:
    """Which workers the job goes on without; ``chief`` waits ``drop_after`` seconds for each."""

    def __init__(self, chief: Chief) -> None:
        self.chief, self.worker, self.config = chief, chief.worker, chief.config
        self.out: set[int] = set()
        self.since = 0.0  # when worker:0 began to wait for the round
        self.round_patience_s = min(PATIENCE_S, max(LEAST_PATIENCE_S, self.config.drop_after))
        self._said: set[tuple[int, int, int]] = set()  # (worker, step, epoch) recorded as gone on without
        # at the end, by worker: epoch and gradients, and since when
        self._counts: dict[int, tuple[tuple[int, int], float]] = {}
        self._asked = 0.0  # when it last looked who has come that far

    def build(self) -> None:
        """Its part of the worker's graph."""
        shards, others = self.worker.shards, range(1, self.config.workers)
        with self.worker.device():
            self._nothing = [tf1.placeholder(tf.float32, [len(shard.blank(0))]) for shard in shards]
        self._stand_in = {
            w: [shard.push(sent, w, pull=True, gated=False) for shard, sent in zip(shards, self._nothing, strict=True)]
            for w in others
        }
        self._mark = tf1.placeholder(tf.int32, [])
        self._mark_of = {w: [shard.mark(w, self._mark) for shard in shards] for w in others}

    def bind(self) -> None:
        """Its calls of the worker's session."""
        bound = self.worker.bound
        self._run_stand_in = {w: bound(pushes, self._nothing) for w, pushes in self._stand_in.items()}
        self._run_mark_of = {w: bound(mark, [self._mark]) for w, mark in self._mark_of.items()}

    def patience_s(self) -> float:
        """Seconds that the job waits for a worker."""
        return self.config.drop_after

    def gone(self, looks: list[Look]) -> set[int]:
        """Workers that are out, as any ps says."""
        return {w for look in looks for w, mark in enumerate(look.marks) if mark == OUT}

    def stand_in(self, step: int) -> None:
        """Take this step of those who are out."""
        for worker in sorted(self.out):
            self._go_without(worker, step)

    def lagging(self, counts: list[tuple[int, ...]], version: int) -> None:
        """Go on without those who have kept the round waiting for too long.

        ``counts`` are the gradients of each worker on each shard.
        """
        behind = {w for w in range(1, self.config.workers) if min(count[w] for count in counts) < version}
        if time.monotonic() - self.since >= self.patience_s():
            for worker in sorted(behind - self.out):
                self._drop(worker, version - 1)
        for worker in sorted(behind & self.out):
            self._go_without(worker, version - 1)

    def look_for_absent(self, looks: list[Look]) -> None:
        """When worker:0 has trained: go on without those who have not got any further for too long."""
        self.take_back(looks)
        # what held up all workers (a ps that was away, gates closed for a checkpoint) is no worker's doing
        now = time.monotonic()
        lost, self._asked = max(0.0, now - self._asked - LEAST_PATIENCE_S), now
        self._counts = {worker: (state, since + lost) for worker, (state, since) in self._counts.items()}
        for worker in sorted({*range(1, self.config.workers)} - self.out):
            counts = [look.applied[worker] for look in looks]
            state = self.worker.epoch, sum(counts)  # after a rollback it is waited for anew
            before, since = self._counts.get(worker, (None, 0.0))
            if state != before:
                self._counts[worker] = state, time.monotonic()
            elif min(counts) < self.chief.due()[worker] and time.monotonic() - since >= self.patience_s():
                self._drop(worker, min(counts))

    def take_back(self, looks: list[Look]) -> None:
        """Let those in again who say that they are back."""
        back = self.out - self.gone(looks)
        self.out -= back
        for worker in back:
            self._counts.pop(worker, None)  # it is waited for anew
        if back:
            self._open_gates()

    def _open_gates(self) -> None:
        while not self.chief.let_in(self.chief.gates()):
            pass  # bounded by `Calls`

    def _drop(self, worker: int, step: int) -> None:
        """Go on without a worker, from this step on.

        Raises:
            RolledBack: some shards have its gradient of this step, so the last checkpoint was restored.
        """
        logging.warning(
            "worker:0 goes on without worker:%d, which has not pushed step %d within %g s",
            *(worker, step, self.config.drop_after),
        )
        self._record_absence(worker, step)
        self.out.add(worker)
        self._open_gates()
        counts = {look.applied[worker] for look in self.worker.still()}
        if counts == {step}:
            while self.worker.ask(self._run_mark_of[worker], OUT) is None:
                pass
            return
        self.out.discard(worker)
        if len(counts) > 1:
            logging.warning("worker:0: worker:%d was in half of its push of step %d", worker, step)
            self.chief.restore(self.worker.looks())
            raise RolledBack
        self.chief.let_in(self.chief.gates())  # it was in time

    def _go_without(self, worker: int, step: int) -> None:
        """Take this step of a worker; if the call goes wrong, worker:0 comes here once more."""
        self._record_absence(worker, step)
        self.worker.ask(self._run_stand_in[worker], *self._messages(worker, step))

    def _messages(self, worker: int, step: int) -> list[Row]:
        messages = [shard.nothing(worker) for shard in self.worker.shards]
        for message in messages:
            message[-3:] = self.worker.epoch, step, 0  # it waits for no version
        return messages

    def _record_absence(self, worker: int, step: int) -> None:
        if (worker, step, self.worker.epoch) not in self._said:
            self._said.add((worker, step, self.worker.epoch))
            self.worker.probe.goes_without(worker, step)
