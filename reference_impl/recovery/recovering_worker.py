"""Workers that survive: whatever is killed or stopped and comes back, every gradient ends up applied exactly once.

For between-graph replication, without a quorum. What a worker believes is what the ps tasks say: after a call that went
wrong it looks at the counters of every shard and goes on from there. A shard refuses what it has already, so a gradient
whose answer was lost is pushed again; what was rolled back has another epoch, and is computed again.

A worker trains only while all shards are in the epoch that it has joined. Whatever tells it otherwise raises
`RolledBack`, and it joins again: that waits until the chief (chief.py) has restored every shard.

At the end no task leaves before everything is on disk: the chief waits until every shard has every gradient, writes a
final checkpoint and says so; the others wait for that, and the chief leaves last. So a ps that is lost late can still
be restored, and no worker that has left would have to train again.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from psconform.layout import Task
from psconform.probe import Probe

from ..cluster import CALL_TIMEOUT_S, Cluster, GaveUp, session_config, tf, tf1
from ..modes.full_ps import FullConfig, FullShard
from ..modes.full_worker import FullWorker
from ..ps import Row
from ..worker import Values
from .calls import PATIENCE_S, POLL_S, Calls, Stall
from .checkpoints import Recovery
from .chief import Chief
from .recoverable_ps import DONE, LEFT, OPEN, OUT, TRAINS, Look, PassedBy, RecoverableShard, RolledBack

HELD_UP_S = 0.5
"""A worker that has waited so long for slower ones looks why."""

SLOWEST = 8e6
"""Bytes a second: with a large state a call has so much longer. A machine whose memory is new to a ps that was started
again takes seconds for a push that takes milliseconds later, and one that is broken off is paid for again."""


class Over(Exception):
    """Training is over, and all workers have left."""


class RecoveringWorker(FullWorker):
    """A worker that goes on after its own death, that of any other task, or a stop of either.

    worker:0 has a `Chief`, which does what it alone does.
    """

    shard_type: type[FullShard] = RecoverableShard
    calls_type = Calls
    chief_type: type[Chief] = Chief
    round_patience_s = PATIENCE_S  # after so long it looks who has not come to a round
    shards: list[Any]  # of RecoverableShard

    def __init__(self, cluster: Cluster, probe: Probe, config: FullConfig, recovery: Recovery) -> None:
        self.recovery, self.store = recovery, recovery.store()
        self.epoch, self.next, self._looked_at = -1, 0, 0.0
        self._left_behind: list[Any] = []  # sessions: forgetting one would close it
        self._values: Values = []  # what was read last, of this epoch
        self._refusing: list[int] = []  # shards that found the last push not finite
        self.absent: list[str] = []  # who had not come when the final read was made
        self.calls = self.calls_type(
            cluster["ps"], most_s=recovery.give_up_s, connect=self._connect, idle=self._unless_over
        )
        self.chief = self.chief_type(self, config) if probe.index == 0 else None
        if self.chief and self.chief.eviction:
            self.round_patience_s = self.chief.eviction.round_patience_s
        super().__init__(cluster, probe, config)
        if self.chief:
            self.chief.claim()
        if not config.drop_after:  # there, how long a round is waited for is declared
            self.calls.carry_s = max(4 * math.prod(shard.shape) for shard in self.shards) / SLOWEST

    def _build(self) -> None:
        super()._build()
        self._look = [shard.look() for shard in self.shards]
        self._mark_fed = tf1.placeholder(tf.int32, [])
        self._mark = [shard.mark(self.index, self._mark_fed) for shard in self.shards]
        if self.chief:
            self.chief.build()

    def _bind(self) -> None:
        super()._bind()
        self.run_look, self._run_mark = self.bound(self._look), self.bound(self._mark, [self._mark_fed])
        if self.chief:
            self.chief.bind()

    def _connect(self) -> None:
        self._left_behind.append(self.session)
        config = session_config(Task("worker", self.index), to_ps=True)
        self.session = tf1.Session(self.server.target, graph=self.graph, config=config)
        self._bind()

    def _unless_over(self) -> None:
        if self.store.finished:
            raise Over

    def ask(self, run: Callable[..., Any], *feeds: Any, patience_s: float = PATIENCE_S) -> Any:
        """The answer of one call, or None: then nothing says what became of it. Raises Over, and as `Calls.ask`."""
        answer = self.calls.ask(run, *feeds, patience_s=patience_s)
        if answer is None:
            self._unless_over()
            # the call that went wrong may still be at the memory of its messages
            self._sent = [shard.blank(self.index) for shard in self.shards]
        return answer

    def train(self) -> None:
        """Train until every worker has, and everything is on disk; however often that is interrupted."""
        try:
            self._unless_over()
            self._say_devices()
            while True:
                try:
                    self.join()
                    while self.next < self.config.steps:
                        self._take_step()
                    self.conclude()
                    if self._read_finally():
                        break
                except RolledBack:
                    continue
            self.leave()
        except Over:
            logging.info("worker:%d: training is over, as %s says", self.index, self.recovery.folder)
        self.probe.close()

    def join(self) -> None:
        """Wait until all shards are in one epoch, and go on from what they have of this worker."""
        looks = self.settle()
        first = self.epoch < 0 and self.probe.incarnation == 0
        self.epoch = looks[0].epoch
        self.announce(self.epoch)
        looks = self.come_back(looks)
        self.next = min(look.applied[self.index] for look in looks)
        self.pulled, self._values = [], []
        if not first or self.next or self.epoch:
            self.probe.resume(self.next)
        if self.chief:
            self.chief.joined()

    def come_back(self, looks: list[Look]) -> list[Look]:
        """If the job has gone on without this worker, say that it is there again, and wait until it is let in.

        Said once more if the job goes on without it again before it has seen that it was let in: its calls may take
        longer than the job waits.
        """
        if all(look.marks[self.index] != OUT for look in looks):
            return looks
        waiting = self.stall("worker:0 to let it in again")
        while True:
            if any(look.marks[self.index] == OUT for look in looks):
                step = min(look.applied[self.index] for look in looks)
                logging.info("worker:%d is back, at step %d", self.index, step)
                self.probe.resume(step)
                self.say(TRAINS)
            elif all(look.limits[self.index] == OPEN for look in looks):
                return looks
            waiting.look([look.applied for look in looks])
            time.sleep(POLL_S)
            looks = self.still()

    def announce(self, epoch: int) -> None:
        """What is recorded from now on belongs to this epoch."""
        self.probe.epoch = epoch

    def settle(self) -> list[Look]:
        """Wait until all shards are in one epoch; the chief sees to that."""
        if self.chief:
            return self.chief.settle()
        deadline = time.monotonic() + self.recovery.give_up_s
        while True:
            looks = self.looks()
            if looks[0].epoch >= 0 and len({look.epoch for look in looks}) == 1:
                return looks
            if time.monotonic() > deadline:
                lost = ", ".join(f"ps:{i} is in epoch {look.epoch}" for i, look in enumerate(looks))
                within = f"within {self.recovery.give_up_s:.0f} s"
                raise GaveUp(f"worker:0 has not restored the parameters {within} ({lost})")
            time.sleep(POLL_S)

    def stall(self, what: str) -> Stall:
        """A wait for others, which begins now."""
        return Stall(what, self.recovery.give_up_s)

    def looks(self) -> list[Look]:
        """What every ps says of itself."""
        while (answer := self.ask(self.run_look)) is None:
            pass  # bounded by `Calls`
        return [shard.looked(vector) for shard, vector in zip(self.shards, answer, strict=True)]

    def still(self) -> list[Look]:
        """The same; raises RolledBack if a shard is not in the epoch that this worker has joined."""
        looks = self.looks()
        if any(look.epoch != self.epoch for look in looks):
            raise RolledBack
        return looks

    def of_epoch(self, rows: list[Row]) -> list[Row]:
        """These rows; raises RolledBack if a shard is not in the epoch that this worker has joined."""
        if any(shard.epoch(row) != self.epoch for shard, row in zip(self.shards, rows, strict=True)):
            raise RolledBack
        return rows

    def _take_step(self) -> None:
        step, probe = self.next, self.probe
        if self.chief:
            self.chief.before(step)
        if step >= probe.due[self.index]:
            if self.config.sync:
                self._deliver(step, self._values or self.empty(), self.empty())
            self.next = step + 1 if self.config.sync else self.config.steps
            return
        if self.reads_at(step) or not self._values:
            for _ in range(probe.reads):
                self._values, versions = self.read(step)
                probe.read(self._values, versions, step=step)
        gradient = self.gradients(step, self._values)
        probe.push(step)
        try:
            versions = self._deliver(step, self._values, gradient)
        except RolledBack:
            probe.ack(step, "unknown")
            raise
        probe.ack(step, self.outcome(step, "ok", self._refusing), versions)
        self.next = step + 1

    def read(self, step: int) -> tuple[Values, list[int]]:
        """Parameters and version of each shard, of one epoch; in sync at version ``step``."""
        rows, self.pulled = self.pulled, []
        if not rows or not self._near(rows, step):
            rows = self.rows(step)
        self.seen = self._versions(rows)
        self._refused(rows)
        return [shard.theta(row) for shard, row in zip(self.shards, rows, strict=True)], self.seen

    def rows(self, step: int) -> list[Row]:
        """A row of each shard, newly read; in sync of version ``step``, in async near enough to the slowest worker."""
        if self.config.sync:
            rows = self._round(step)
            assert rows is not None, "a worker reads only the version that it has pushed for"
            return rows
        waiting, looked = self.stall(f"steps below {self._least(step)}"), time.monotonic()
        while True:
            if (rows := self.ask(self.run_read)) is None:
                self.still()
                continue
            if self._near(self.of_epoch(rows), step):
                return list(rows)
            waiting.look([shard.applied(row) for shard, row in zip(self.shards, rows, strict=True)], self._least(step))
            if self.chief and time.monotonic() - looked > HELD_UP_S:
                self.chief.held_up()
                looked = time.monotonic()
            time.sleep(POLL_S / 10)

    def _least(self, step: int) -> int:
        """How many gradients of each worker a read for this step must show."""
        bound = self.config.staleness
        return step - bound if bound is not None and step < self.config.steps else 0

    def _near(self, rows: list[Row], step: int) -> bool:
        """The slowest worker is near enough; what came with an answer was read before anybody looked for that."""
        return all(min(shard.applied(row)) >= self._least(step) for shard, row in zip(self.shards, rows, strict=True))

    def _round(self, version: int, *, unsure: bool = False) -> list[Row] | None:
        """In sync, wait for a version of every shard; None if one lacks this worker's gradient for it.

        With ``unsure``, after a push that was not answered, it looks for its gradient before it waits.
        """
        until = [np.array([version], np.int32)] * len(self.shards)
        waiting = self.stall(f"the round of step {version - 1}")
        patience_s = self.round_patience_s
        while True:
            rows = None if unsure else self.ask(self.run_read, *until, patience_s=patience_s)
            if rows is not None and self._complete(self.of_epoch(rows), version):
                return list(rows)
            counts = [look.applied for look in self.still()]
            if not unsure and min(map(min, counts)) >= version:  # no worker is missing: the answer takes long
                patience_s = min(2 * patience_s, CALL_TIMEOUT_S / 4)
            mine = min(count[self.index] for count in counts)
            if mine < version:
                return None
            if mine > version:
                raise PassedBy
            if not unsure:
                if self.chief and self.chief.eviction:
                    self.chief.eviction.lagging(counts, version)
                waiting.look(counts, version)
            unsure = False

    def _complete(self, rows: list[Row], version: int) -> bool:
        return all(shard.holds(row, version) for shard, row in zip(self.shards, rows, strict=True))

    def _deliver(self, step: int, values: Values, gradient: Values) -> list[int]:
        """Push until every shard has this gradient, and in sync until its round is complete; returns versions."""
        if self.chief and self.chief.eviction:
            self.chief.eviction.since = time.monotonic()
        versions: dict[int, int] = {}
        waiting = self.stall(f"a gate, closed for a checkpoint, at step {step}")
        patience_s = self.round_patience_s
        while True:
            feeds = self._written(values, gradient, step, self.awaits(step))
            rows = self.ask(self._run_push_pull, *feeds, patience_s=patience_s)
            if rows is not None:
                self.of_epoch(rows)
            if self.config.sync:
                if rows is None or not self._complete(rows, step + 1):
                    rows = self._round(step + 1, unsure=rows is None)
                if rows is not None:
                    self.pulled, self._refusing = rows, self._refused(rows)
                    if self._refusing:
                        self._unless_out()
                    return self._versions(rows)
            elif rows is not None:
                for i, (shard, row) in enumerate(zip(self.shards, rows, strict=True)):
                    if shard.has(row, self.index, step):
                        versions.setdefault(i, shard.version(row))  # of the answer that first said yes
                if len(versions) == len(self.shards):
                    self.pulled = rows if self.reads_at(step + 1) else []
                    self._refusing = self._refused(rows)
                    return [versions[i] for i in range(len(self.shards))]
                waiting.look([shard.applied(row) for shard, row in zip(self.shards, rows, strict=True)])
                self._not_let_in()
                continue
            self.still()
            # Neither said yes nor no. What was sent may still arrive, and then this one is refused.
            if step < self.probe.due[self.index]:
                self.unanswered(step)
            patience_s = min(2 * patience_s, CALL_TIMEOUT_S / 4)  # or what is too large would never get through

    def unanswered(self, step: int) -> None:
        """Record that what is in hand may have been applied or not, and is sent once more."""
        self.probe.ack(step, "unknown")
        self.probe.push(step)

    def _not_let_in(self) -> None:
        """A shard does not let this push in: a checkpoint is being read, or the job has gone on without this worker."""
        if self.chief:
            self.chief.refused()
            return
        time.sleep(POLL_S / 4)
        self._unless_out()

    def _unless_out(self) -> None:
        """Raise PassedBy if the job goes on without this worker: what it found applied was pushed in its place."""
        if self.config.drop_after and any(look.marks[self.index] == OUT for look in self.still()):
            raise PassedBy

    def _written(self, values: Values, gradient: Values, step: int, awaited: Sequence[int]) -> Values:
        feeds = super()._written(values, gradient, step, awaited)
        for sent in self._sent:
            sent[-RecoverableShard.tail] = self.epoch  # last: until then it is no message
        return feeds

    def conclude(self) -> None:
        """Wait until the chief has written the final checkpoint."""
        if self.chief:
            self.chief.conclude()
            return
        waiting = self.stall("worker:0 to write the final checkpoint")
        while True:
            looks = self.still()
            self.come_back(looks)
            if all(look.marks[0] >= DONE for look in looks):
                return
            if waiting.over([(look.applied, look.marks) for look in looks]):
                logging.warning("worker:%d: %s", self.index, waiting)
                return
            time.sleep(POLL_S)

    def _read_finally(self) -> bool:
        """The final read, once all workers have trained; False if that has been rolled back."""
        if (absent := self.probe.wait_for_all(self._rolled_back)) is None:
            return False
        self.absent = absent
        self.pulled = []
        self.probe.read(*self.read(self.config.steps), final=True)
        return True

    def _rolled_back(self) -> bool:
        """A shard is in another epoch; asked often, it looks now and then."""
        if time.monotonic() < self._looked_at + POLL_S:
            return False
        try:
            looks = self.still()
            if self.chief and self.chief.eviction:
                self.chief.eviction.take_back(looks)
        except RolledBack:
            return True
        finally:
            self._looked_at = time.monotonic()
        return False

    def leave(self) -> None:
        """Say goodbye to every ps, as often as it takes; the chief leaves last."""
        if self.chief:
            self.chief.leave()
        else:
            self.say(LEFT)

    def say(self, mark: int) -> None:
        """Tell every ps how far this worker has come."""
        while self.ask(self._run_mark, mark) is None:
            pass  # bounded by `Calls`
