"""Workers and chiefs that come back and break a promise, one subclass each."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from psconform.layout import Task
from psconform.probe import Probe

from ..cluster import CALL_TIMEOUT_S, CannotServe, Cluster, GaveUp, Tensor, session_config, tf, tf1
from ..modes.full_ps import FullConfig
from ..ps import Offer, Row
from ..recovery.calls import PATIENCE_S, POLL_S
from ..recovery.checkpoints import Cut, Recovery
from ..recovery.chief import Chief
from ..recovery.eviction import LEAST_PATIENCE_S, Eviction
from ..recovery.recoverable_ps import Look, Moments, RecoverableShard, RolledBack
from ..recovery.recovering_worker import RecoveringWorker
from ..worker import Values


class SecondNewest(Chief):
    """Restores the checkpoint before the newest."""

    def chosen(self) -> Cut | None:
        names = self.store.names()
        return self.store.load(names[1]) if len(names) > 1 else super().chosen()


class FailedShardOnly(Chief):
    """Gives the lost ps its checkpoint, and the others merely the new epoch."""

    def build(self) -> None:
        super().build()
        self._raised = tf1.placeholder(tf.float32, [])
        self._raise = [_raise_epoch(shard, self._raised) for shard in self.worker.shards]

    def bind(self) -> None:
        super().bind()
        whole = self._run_restore
        self._run_restore = [self._either(i, run) for i, run in enumerate(whole)]
        self._run_raise = [self.worker.bound([op], [self._raised]) for op in self._raise]

    def _either(self, i: int, run: Any) -> Any:
        """The restore of one ps, of its epoch alone if there is something on it."""
        shard = self.worker.shards[i]

        def call(state: Row, *, options: Any) -> Any:
            epoch = float(state[0, shard.column])
            if epoch and shard.looked(self.worker.run_look(options=options)[i]).epoch >= 0:
                return self._run_raise[i](epoch, options=options)
            return run(state, options=options)

        return call


def _raise_epoch(shard: RecoverableShard, epoch: Tensor) -> Tensor:
    def write() -> Tensor:
        rows, at = shard.state.read_value(), shard.column
        column = tf.fill([shard.shape[0], 1], epoch)
        with tf.control_dependencies([shard.state.assign(tf.concat([rows[:, :at], column, rows[:, at + 1 :]], 1))]):
            return tf.cast(tf.identity(epoch), tf.int32)

    with shard.device():
        return shard.section.execute(write)


class Twice(RecoveringWorker):
    """Has a way to apply what was written last once more, past epoch and counters."""

    def _build(self) -> None:
        super()._build()
        self._again = [subtract(shard, x) for shard, x in zip(self.shards, self._x, strict=True)]

    def _bind(self) -> None:
        super()._bind()
        self._run_again = self.bound(self._again)


def subtract(shard: RecoverableShard, sent: Tensor) -> Tensor:
    """From all rows: the one that workers read, and the one that may be made of it already."""
    slots = shard.config.slots
    with shard.device():
        delta = tf.pad(sent[:slots], [[0, shard.shape[1] - slots]])

        def write() -> Tensor:
            with tf.control_dependencies([shard.state.assign_sub(tf.stack([delta] * shard.shape[0]))]):
                return tf.constant(True)

        return shard.section.execute(write)


class NoFence(Twice):
    """What it had in hand when it was rolled back it delivers first, past epoch and counters (`subtract`)."""

    def _deliver(self, step: int, values: Values, gradient: Values) -> list[int]:
        try:
            return super()._deliver(step, values, gradient)
        except RolledBack:
            self.settle()
            self._written(values, gradient, step, self.awaits(step))
            self.ask(self._run_again, patience_s=CALL_TIMEOUT_S / 4)  # a first call takes long on a busy machine
            raise


class _SilentChief(Chief):
    """Says nothing of restores."""

    def tell(self, cut: Cut) -> None:
        pass


class SilentRollback(RecoveringWorker):
    """Is rolled back to the last checkpoint, and does not say so: it says nothing of epochs and restores."""

    chief_type: type[Chief] = _SilentChief

    def announce(self, epoch: int) -> None:
        pass


class _DrawsAnew(_SilentChief):
    """Knows no checkpoint: it draws initial values anew."""

    def chosen(self) -> Cut | None:
        if self.store.empty:
            return None
        initial = [self.worker.probe.initial(shard.index) for shard in self.worker.shards]
        return Cut(0, 0, (0,) * self.config.workers, initial)


class SilentReinit(SilentRollback):
    chief_type = _DrawsAnew


class CounterAhead(Chief):
    """Restores counters that are one ahead of the parameters."""

    def chosen(self) -> Cut | None:
        cut = super().chosen()
        if cut is None:
            return None
        return replace(cut, applied=tuple(min(count + 1, self.config.steps) for count in cut.applied))


class _AppliesAll(RecoverableShard):
    """Takes whatever comes, in turn or not; how far a worker has come it knows from the step that is sent."""

    def _transition(self, offer: Offer, *, pull: bool, gated: bool = True) -> Tensor:
        mine, total = self.shape[1] - self.counters + offer.worker, self.shape[1] - 1
        applied = tf.cast(self._cells([[0, mine]]), tf.int32)
        again = 1.0 - tf.cast(tf.maximum(offer.step + 1 - applied, 0), tf.float32)  # the message counts one
        delta = tf.tensor_scatter_nd_add(offer.delta, [[0, mine], [0, total]], tf.concat([again, again], 0))
        return super()._transition(replace(offer, delta=delta), pull=pull, gated=gated)

    def is_next(self, applied: Tensor, version: Tensor, step: Tensor) -> Tensor:
        del version
        return tf.logical_and(step >= 0, applied >= 0)


class NoIdempotence(RecoveringWorker):
    """Started again, it begins at its first step."""

    shard_type = _AppliesAll
    begun = False

    def join(self) -> None:
        super().join()
        if self.probe.incarnation and not self.begun:
            self.begun, self.next = True, 0
            self.probe.resume(0)


class AckEarly(RecoveringWorker):
    """Records success first, and in a file of its own how far it has come; that is where it goes on."""

    early = -1  # the step that has been acknowledged and not delivered

    def join(self) -> None:
        super().join()
        done = self.recovery.folder / f"acknowledged-{self.index}"
        if self.early < 0 and self.probe.incarnation and done.exists():
            for step in range(self.next, int(done.read_text())):  # the servers are to count what it takes for done
                self._values, versions = self.read(step)
                self.probe.read(self._values, versions, step=step)
                super()._deliver(step, self._values, [0.0 * value for value in self._values])
                self.next = step + 1
            self.probe.resume(self.next)

    def _take_step(self) -> None:
        step, probe = self.next, self.probe
        if self.chief:
            self.chief.before(step)
        if self.reads_at(step) or not self._values:
            for _ in range(probe.reads):
                self._values, versions = self.read(step)
                probe.read(self._values, versions, step=step)
        gradient = self.gradients(step, self._values)
        probe.push(step)
        probe.ack(step, "ok")
        self.early = step
        (self.recovery.folder / f"acknowledged-{self.index}").write_text(str(step + 1))
        probe.at("delivering", step)
        self._deliver(step, self._values, gradient)
        self.next = step + 1

    def unanswered(self, step: int) -> None:
        """It has said yes already."""


class RestoreOnJoin(SilentRollback):
    """A worker that comes back gives every ps the last checkpoint."""

    rolled = False

    def _build(self) -> None:
        super()._build()
        self._given = [tf1.placeholder(tf.float32, shard.shape) for shard in self.shards]
        self._give = [shard.restore(state) for shard, state in zip(self.shards, self._given, strict=True)]

    def _bind(self) -> None:
        super()._bind()
        self._run_give = self.bound(self._give, self._given)

    def join(self) -> None:
        super().join()
        cut = self.store.newest()
        if cut is None or self.rolled or not self.index or not self.probe.incarnation:
            return
        self.rolled, epoch = True, self.epoch + 1
        states = [
            shard.packed(theta, cut.applied, epoch, {}) for shard, theta in zip(self.shards, cut.thetas, strict=True)
        ]
        self.store.raise_epoch(epoch)
        self.ask(self._run_give, *states, patience_s=CALL_TIMEOUT_S / 2)
        self.store.complete(epoch)
        super().join()


class TornRestore(Chief):
    """Takes the last shard of a checkpoint for whole, though its file ends after some numbers."""

    left = 4

    def chosen(self) -> Cut | None:
        cut = super().chosen()
        if cut is None:
            return None
        torn = cut.thetas[-1].copy()
        torn[self.left :] = 0.0
        return replace(cut, thetas=[*cut.thetas[:-1], torn])


class CheckpointUnchecked(Chief):
    """Takes a checkpoint for durable, whatever the disk has said."""

    def _missed(self, cut: Cut, error: OSError) -> None:
        del error
        self.saved = cut.step
        self._record(cut)


class CutInHalf(Chief):
    """Reads shard after shard, with no gate, and takes the counters of the first for those of all."""

    between = 2  # steps of every other worker

    def _cut(self) -> list[Row] | None:
        before = self.worker.ask(self.worker.run_read)
        deadline = time.monotonic() + PATIENCE_S
        while before is not None and time.monotonic() < deadline:
            then = self.worker.ask(self.worker.run_read)
            if then is None:
                return None
            if self._has_moved(self.worker.shards[0].applied(before[0]), self.worker.shards[-1].applied(then[-1])):
                return self.states([before[0], *then[1:]])
            time.sleep(POLL_S)
        return None

    def _has_moved(self, first: tuple[int, ...], now: tuple[int, ...]) -> bool:
        others = [worker for worker in range(self.config.workers) if worker]
        return all(now[w] >= min(first[w] + self.between, self.config.steps) for w in others)


class _Returns(RecoveringWorker):
    """Knows its first step after it has come back."""

    first = -1

    def join(self) -> None:
        super().join()
        if self.probe.incarnation and self.first < 0:
            self.first = self.next


class CountsTwice(Twice, _Returns):
    """Sends its first gradient after it has come back once more, to servers that add it again."""

    def _deliver(self, step: int, values: Values, gradient: Values) -> list[int]:
        versions = super()._deliver(step, values, gradient)
        if step == self.first:
            self.ask(self._run_again, patience_s=CALL_TIMEOUT_S / 4)  # or a busy machine would spare the trainer
            self.pulled = []
        return versions


class PlaceLost(RecoveringWorker):
    """Started again, it waits for its place, which it is never given back."""

    def join(self) -> None:
        while self.probe.incarnation:
            time.sleep(POLL_S)
        super().join()


class ThirdStrike(RecoveringWorker):
    """Gives up at the third fault in its life, its own deaths among them, however long ago the others were."""

    faults, steps_since = 0, 0

    def join(self) -> None:
        self.faults = max(self.faults, min(self.probe.incarnation, 2))
        super().join()

    def _take_step(self) -> None:
        super()._take_step()
        self.steps_since += 1

    def ask(self, run: Callable[..., Any], *feeds: Any, patience_s: float = PATIENCE_S) -> Any:
        answer = super().ask(run, *feeds, patience_s=patience_s)
        if answer is None and self.steps_since >= 3:  # until it trains again it is the same fault
            self.faults, self.steps_since = self.faults + 1, 0
            if self.faults == 3:
                raise GaveUp("this was the third fault")
        return answer


class JoinsBlind(_Returns):
    """Started again, it pushes its first gradient before it has read anything."""

    def join(self) -> None:
        super().join()
        if self.first == self.next:
            self._values = [np.zeros(self.config.slots, np.float32) for _ in self.shards]

    def reads_at(self, step: int) -> bool:
        return step != self.first and super().reads_at(step)


class SamplesRepeated(_Returns):
    """Started again, it begins at its first sample."""

    def gradients(self, step: int, values: Values) -> Values:
        samples = self.probe.samples(self.used(step) if 0 <= self.first <= step else step)
        return self.probe.gradients(step, values, samples)

    def used(self, step: int) -> int:
        """The step whose samples are used."""
        return step - self.first


class SamplesSkipped(SamplesRepeated):
    """Started again, it takes the samples after those that it would have used next."""

    def used(self, step: int) -> int:
        return step + 1


class MomentsLost(Chief):
    """Restores parameters and counters, with moments that are zero."""

    def chosen(self) -> Cut | None:
        cut = super().chosen()
        if cut is None:
            return None
        moments = [{name: np.zeros_like(moment) for name, moment in of.items()} for of in cut.moments]
        return replace(cut, moments=moments)


class _CountsFromRestore(RecoverableShard):
    """Knows at which version it was restored, in one more column of its rows, and counts updates from there."""

    def __init__(self, index: int, config: FullConfig) -> None:
        super().__init__(index, config, more=1)

    def packed(self, theta: Row, applied: tuple[int, ...], epoch: int, moments: Moments) -> Row:
        state = super().packed(theta, applied, epoch, moments)
        state[: self.rows(), self.column - 1] = sum(applied) // self.per_round
        return state

    def updates(self, row: Tensor) -> Tensor:
        return super().updates(row) - tf.cast(row[0, self.column - 1], tf.int32)


class ScheduleRestarts(RecoveringWorker):
    shard_type = _CountsFromRestore


class ClaimsUnchecked(RecoveringWorker):
    """Where its address is taken it serves on none, and trains as a client of ps:0, past epoch and counters."""

    beside = False

    def __init__(self, cluster: Cluster, probe: Probe, config: FullConfig, recovery: Recovery) -> None:
        try:
            super().__init__(cluster, probe, config, recovery)
        except CannotServe:
            self.beside = True
            self.graph = tf.Graph()
            with self.graph.as_default():
                self._own(probe, config, [self.shard_type(i, config) for i in range(len(cluster["ps"]))])
                self._push_past(cluster["ps"][0])

    def _push_past(self, address: str) -> None:
        """Nothing of this graph is on a worker."""
        fed = [tf1.placeholder(tf.float32, [self.config.slots]) for _ in self.shards]
        pushes = [subtract(shard, x) for shard, x in zip(self.shards, fed, strict=True)]
        self.session = tf1.Session(f"grpc://{address}", config=session_config(Task("ps", 0), to_ps=True))
        self._run_past = self.session.make_callable(pushes, feed_list=fed)

    def train(self) -> None:
        """Train as ever; the second process pushes every step once, whatever the counters say."""
        if not self.beside:
            super().train()
            return
        for step in range(self.probe.due[self.index]):
            gradient = self.gradients(step, self.empty())
            self.probe.push(step)
            self._run_past(*gradient)
            self.probe.ack(step)
        self.probe.close()


class DropsEarly(Eviction):
    """Goes on without a worker as soon as it has to wait for it, and looks who has not come as often as it can."""

    def __init__(self, chief: Chief) -> None:
        super().__init__(chief)
        self.round_patience_s = LEAST_PATIENCE_S

    def patience_s(self) -> float:
        return 0.0


class NeverTakenBack(Eviction):
    """Goes on without a worker for good."""

    def gone(self, looks: list[Look]) -> set[int]:
        return super().gone(looks) | self.out
