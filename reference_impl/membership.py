"""A chief that goes on without a worker that does not come (``--drop-after``), and takes it back when it returns.

In sync a round waits for every worker. When the chief has waited ``drop_after`` seconds for one, it takes that worker's
step in its place, with nothing for a gradient, in this round and in all that follow; on the ps that is a push like any
other, so whatever holds of rounds, counters and checkpoints still does. The weight of the other gradients stays what it
was: a round without one of N workers is the mean over N in which its gradient is zero. In async nobody waits before the
end, and that is where a worker is given up.

All shards must do so for the same steps. So first its gate is closed everywhere, and then the chief looks who has its
gradient of the open round: if all have it, it was in time; if some have, nobody knows the rest of it, and the last
checkpoint is restored. Its mark on every ps is then OUT. Once it is back it says that it TRAINS, and waits; the chief
sees that at its next step, opens the gate, and from that round on waits for it again.
"""

from __future__ import annotations

import logging
import time

import tensorflow as tf

from psconform.probe import Probe

from .calls import PATIENCE_S
from .checkpoint import Recovery
from .chief import RecoveringChief
from .recoverable import OPEN, OUT, Look
from .recovery import RolledBack
from .shard import Row, ShardConfig, tf1
from .trainer import Cluster, Values

LEAST_PATIENCE_S = 0.25
"""Between two looks at who has not come to a round: a call that takes longer is made again."""


class DroppingChief(RecoveringChief):
    """worker:0 of a job that waits ``drop_after`` seconds for a worker."""

    def __init__(self, cluster: Cluster, probe: Probe, config: ShardConfig, recovery: Recovery) -> None:
        self.out: set[int] = set()  # workers that the job goes on without
        self._said: set[tuple[int, int, int]] = set()  # (worker, step, epoch) recorded as gone on without
        self.round_patience_s = min(PATIENCE_S, max(LEAST_PATIENCE_S, config.drop_after))
        self._since = 0.0  # when this worker began to wait for the round
        # at the end, by worker: epoch and gradients, and since when
        self._counts: dict[int, tuple[tuple[int, int], float]] = {}
        self._asked = 0.0  # when it last looked who has come that far
        super().__init__(cluster, probe, config, recovery)

    def _build(self) -> None:
        super()._build()
        others = range(1, self.config.workers)
        with self.device():
            self._nothing = [tf1.placeholder(tf.float32, [len(shard.blank(0))]) for shard in self.shards]
        self._stand_in = {
            w: [
                shard.push(sent, w, pull=True, gated=False)
                for shard, sent in zip(self.shards, self._nothing, strict=True)
            ]
            for w in others
        }
        self._mark_of = {w: [shard.mark(w, self._mark_fed) for shard in self.shards] for w in others}

    def _bind(self) -> None:
        super()._bind()
        self._run_stand_in = {w: self._bound(pushes, self._nothing) for w, pushes in self._stand_in.items()}
        self._run_mark_of = {w: self._bound(mark, [self._mark_fed]) for w, mark in self._mark_of.items()}

    def settle(self) -> list[Look]:
        """As ever; a chief that was started again learns from the ps tasks who is out."""
        self.out = self.gone(self.looks())
        return super().settle()

    def gates(self) -> tuple[int, ...]:
        """Closed for those who are out."""
        return tuple(0 if worker in self.out else OPEN for worker in range(self.config.workers))

    def patience_s(self) -> float:
        """Seconds that the job waits for a worker."""
        return self.config.drop_after

    def gone(self, looks: list[Look]) -> set[int]:
        """Workers that are out, as any ps says."""
        return {w for look in looks for w, mark in enumerate(look.marks) if mark == OUT}

    def before(self, step: int) -> None:
        """See who has come back, and take the step of those who have not."""
        if self.out:
            self._take_back(self.still())
        super().before(step)
        if self.config.sync:
            for worker in sorted(self.out):
                self._go_without(worker, step)

    def _deliver(self, step: int, values: Values, gradient: Values) -> list[int]:
        self._since = time.monotonic()
        return super()._deliver(step, values, gradient)

    def lagging(self, counts: list[tuple[int, ...]], version: int) -> None:
        """Go on without those who have kept the round waiting for too long."""
        behind = {w for w in range(1, self.config.workers) if min(count[w] for count in counts) < version}
        if time.monotonic() - self._since >= self.patience_s():
            for worker in sorted(behind - self.out):
                self._drop(worker, version - 1)
        for worker in sorted(behind & self.out):
            self._go_without(worker, version - 1)

    def is_trained(self, looks: list[Look]) -> bool:
        """As ever, without those who have not got any further for too long."""
        self._take_back(looks)
        # what held up everybody (a ps that was away, gates closed for a checkpoint) is no worker's doing
        now = time.monotonic()
        lost, self._asked = max(0.0, now - self._asked - LEAST_PATIENCE_S), now
        self._counts = {worker: (state, since + lost) for worker, (state, since) in self._counts.items()}
        due = [self.config.steps] * self.config.workers if self.config.sync else self.probe.due
        for worker in sorted({*range(1, self.config.workers)} - self.out):
            counts = [look.applied[worker] for look in looks]
            state = self.epoch, sum(counts)  # after a rollback it is waited for anew
            before, since = self._counts.get(worker, (None, 0.0))
            if state != before:
                self._counts[worker] = state, time.monotonic()
            elif min(counts) < due[worker] and time.monotonic() - since >= self.patience_s():
                self._drop(worker, min(counts))
        return all(
            count >= least
            for look in looks
            for worker, (count, least) in enumerate(zip(look.applied, due, strict=True))
            if worker not in self.out
        )

    def _rolled_back(self) -> bool:
        """As ever; who comes back when the others have trained is let in again, too."""
        before = self._looked_at
        if super()._rolled_back():
            return True
        if self.out and self._looked_at != before:
            try:
                self._take_back(self.still())
            except RolledBack:
                return True
        return False

    def _take_back(self, looks: list[Look]) -> None:
        """Let those in again who say that they are back."""
        back = self.out - self.gone(looks)
        self.out -= back
        for worker in back:
            self._counts.pop(worker, None)  # it is waited for anew
        while back and not self._let_in(self.gates()):
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
        while not self._let_in(self.gates()):
            pass  # bounded by `Calls`
        counts = {look.applied[worker] for look in self.still()}
        if counts == {step}:
            while self._ask(self._run_mark_of[worker], OUT) is None:
                pass
            return
        self.out.discard(worker)
        if len(counts) > 1:
            logging.warning("worker:0: worker:%d was in half of its push of step %d", worker, step)
            self.restore(self.looks())
            raise RolledBack
        self._let_in(self.gates())  # it was in time

    def _go_without(self, worker: int, step: int) -> None:
        """Take this step of a worker; if the call goes wrong, whoever waits for the round comes here once more."""
        self._record_absence(worker, step)
        self._ask(self._run_stand_in[worker], *self._messages(worker, step))

    def _messages(self, worker: int, step: int) -> list[Row]:
        messages = [shard.nothing(worker) for shard in self.shards]
        for message in messages:
            message[-3:] = self.epoch, step, 0  # it waits for no version
        return messages

    def _record_absence(self, worker: int, step: int) -> None:
        if (worker, step, self.epoch) not in self._said:
            self._said.add((worker, step, self.epoch))
            self.probe.goes_without(worker, step)
