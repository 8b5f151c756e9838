"""The chief: it alone initialises, writes checkpoints and restores, and it leaves last.

Restoring begins with a new epoch on disk and goes shard by shard. Until every shard is in it no worker trains, for they
wait for equal epochs, and a chief that finds an epoch that was not completed restores all shards again, in a new one.
Initialising is writing checkpoint 0 and then giving it to the servers: so a ps that is lost before the next checkpoint
gets the same parameters back, and a second chief has nothing to draw.

A checkpoint is read between two steps and written while training goes on: what it costs is mostly the wait for the disk
(CheckFreq: Mohan et al. 2021). There is one write at a time, and no restore before it is over.

A disk may be full, read-only or unreadable for a while. A checkpoint that it does not take is reported and does not
count, and training goes on; what cannot wait (the first checkpoint, a new epoch, reading what is to be restored) is
tried again until it works, for `give_up_s` at most.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import IO, TYPE_CHECKING, TypeVar

import numpy as np

from psconform.layout import Task
from psconform.optimizers import MOMENTS

from ..cluster import CALL_TIMEOUT_S, GaveUp, tf, tf1
from ..modes.full_ps import FullConfig
from ..ps import Row
from .calls import PATIENCE_S, POLL_S
from .checkpoints import TROUBLE, Cut
from .eviction import Eviction
from .recoverable_ps import DONE, LEFT, OPEN, Look

if TYPE_CHECKING:
    from .recovering_worker import RecoveringWorker

_Found = TypeVar("_Found")


class Chief:
    """What worker:0 alone does; ``worker`` is that task."""

    eviction_type: type[Eviction] = Eviction
    saved = -1  # step of the newest checkpoint; -1: not known
    saved_at = 0.0  # when, on the monotonic clock
    held: tuple[int, ...] = ()  # gradients of each worker in it, or when the last one after its own steps was begun
    postponed = 0  # no checkpoint before this step
    not_before = 0.0  # nor, after this worker's own steps, before this time of the monotonic clock

    def __init__(self, worker: RecoveringWorker, config: FullConfig) -> None:
        self.worker, self.config = worker, config
        self.recovery, self.store = worker.recovery, worker.store
        self.eviction = self.eviction_type(self) if config.drop_after else None
        self.recorded: set[str] = set()
        self._told = ""  # the last trouble with the disk, reported once
        self._writer = ThreadPoolExecutor(max_workers=1)
        self._writing: tuple[Cut, int, Future[None]] | None = None  # with the step of the one before
        self._claim: IO[bytes] | None = None  # kept as long as this process lives

    def claim(self) -> None:
        """Be the one chief of this job; raises GaveUp if there is another one."""
        self._claim = self.store.claim()
        if self._claim is None:
            raise GaveUp(f"cannot serve as worker:0: {self.recovery.folder} has a chief already")

    def build(self) -> None:
        """Its part of the worker's graph."""
        worker = self.worker
        self._states = [tf1.placeholder(tf.float32, shard.shape) for shard in worker.shards]
        self._restore = [shard.restore(state) for shard, state in zip(worker.shards, self._states, strict=True)]
        self._limits = tf1.placeholder(tf.int32, [self.config.workers])
        with worker.device():
            limits = tf.identity(self._limits)
        self._limit = [shard.limit(limits) for shard in worker.shards]
        self._dismiss = [shard.dismiss() for shard in worker.shards]
        self._whole = [shard.whole() for shard in worker.shards] if MOMENTS[self.config.optimizer] else []
        if self.eviction:
            self.eviction.build()

    def bind(self) -> None:
        """Its calls of the worker's session."""
        bound = self.worker.bound
        self._run_restore = [bound([r], [s]) for r, s in zip(self._restore, self._states, strict=True)]
        self._run_limit = bound(self._limit, [self._limits])
        self._run_dismiss = bound(self._dismiss)
        self._run_whole = bound(self._whole) if self._whole else None
        if self.eviction:
            self.eviction.bind()

    def joined(self) -> None:
        """Learn which checkpoint is the newest, once."""
        if self.saved < 0:
            names = self.store.names()
            newest = (
                self._insist("reading the newest checkpoint", partial(self.store.load, names[0])) if names else None
            )
            self.saved, self.saved_at = newest.step if newest is not None else 0, time.monotonic()
            self.held = newest.applied if newest is not None else ()

    def settle(self) -> list[Look]:
        """Restore until all shards are in one epoch, and open their gates: a chief may have died with them closed.

        One that was started again learns from the ps tasks which workers are out.
        """
        if self.eviction:
            self.eviction.out = self.eviction.gone(self.worker.looks())
        while True:
            looks = self.worker.looks()
            epoch = looks[0].epoch
            if epoch >= 0 and len({look.epoch for look in looks}) == 1 and self.store.is_complete(epoch):
                if all(look.limits == self.gates() for look in looks) or self.let_in(self.gates()):
                    return looks
            else:
                self.restore(looks)

    def restore(self, looks: list[Look]) -> None:
        """Put the newest checkpoint, or initial values, on every shard; it may take another call until all have it."""
        self._await_write()
        cut, probe = self._insist("reading the newest checkpoint", self.chosen), self.worker.probe
        anew = cut is None
        if cut is None:
            if not self.store.empty or any(look.epoch >= 0 for look in looks):
                raise GaveUp(f"no checkpoint in {self.recovery.folder} is whole")
            cut = self._initial()
        here = (self.config.workers, [shard.config.slots for shard in self.worker.shards])
        if (len(cut.applied), [len(theta) for theta in cut.thetas]) != here:
            had = f"{len(cut.applied)} workers, {len(cut.thetas)} ps with {cut.thetas[0].size} parameters each"
            needs = f"{here[0]}, {len(here[1])} with {here[1][0]}"
            raise GaveUp(f"{cut.name} in {self.recovery.folder} is of another job: of {had}; here it is {needs}")
        needed = MOMENTS[self.config.optimizer]
        if cut.named != needed:
            has, needs = (", ".join(names) or "none" for names in (cut.named, needed))
            raise GaveUp(f"{cut.name} is of another optimizer: its moments are {has}, here they are {needs}")
        epoch = 0 if anew else max(self.store.epoch, cut.epoch, 0, *(look.epoch for look in looks)) + 1
        self._insist(f"raising epoch {epoch}", partial(self.store.raise_epoch, epoch))
        moments = cut.moments or [{} for _ in self.worker.shards]
        for i, (shard, theta) in enumerate(zip(self.worker.shards, cut.thetas, strict=True)):
            if i == len(self.worker.shards) - 1 and not anew:
                probe.at("restoring")
            state = shard.packed(theta, cut.applied, epoch, moments[i])
            # A late one does no harm: it is refused by a shard that is in a later epoch.
            if self.worker.ask(self._run_restore[i], state, patience_s=CALL_TIMEOUT_S / 2) != [epoch]:
                return
        self.saved, self.saved_at, self.postponed, self.held = cut.step, time.monotonic(), 0, cut.applied
        self.worker.announce(epoch)
        if not anew:
            self.tell(cut)
        self._insist(f"completing epoch {epoch}", partial(self.store.complete, epoch))

    def chosen(self) -> Cut | None:
        """The checkpoint to restore; None: there is none that is whole. OSError: that cannot be told now."""
        return self.store.newest()

    def tell(self, cut: Cut) -> None:
        """Record what was restored."""
        self._record(cut)  # the chief that wrote it may have died before it could say so
        self.worker.probe.restored(cut.name)
        logging.info("worker:0 restored %s, epoch %d", cut.name, self.worker.probe.epoch)

    def _initial(self) -> Cut:
        initial = [self.worker.probe.initial(shard.index) for shard in self.worker.shards]
        named = MOMENTS[self.config.optimizer]
        moments = [{name: np.zeros_like(theta) for name in named} for theta in initial] if named else []
        cut = Cut(0, 0, (0,) * self.config.workers, initial, moments)
        self._insist(f"writing checkpoint {cut.name}", partial(self.store.save, cut))
        self.worker.probe.initialised(initial)
        self._record(cut)
        self.worker.probe.at("initialising")
        return cut

    def before(self, step: int) -> None:
        """Before a step of worker:0: let workers in again, see to checkpoints, take the step of those that are out."""
        if self.eviction and self.eviction.out:
            self.eviction.take_back(self.worker.still())
        self._see_to_checkpoints(step)
        if self.eviction and self.config.sync:
            self.eviction.stand_in(step)

    def _see_to_checkpoints(self, step: int) -> None:
        """Begin a checkpoint if one is due, and record the one before as soon as it is durable."""
        if self._writing is not None and self._writing[2].done():
            self._await_write()
        if not self._is_due(step) or step < self.postponed:
            return
        if self.config.sync:
            # At this version until this worker pushes again: no shard can be past it, so this is a cut.
            rows = self.worker.pulled = self.worker.pulled or self.worker.rows(step)
            found = self.states(rows)
        else:
            found = self._cut()
        if found is not None:
            self._save(step, found)
        else:
            self.postponed = step + max(1, self.recovery.every // 4)

    def _is_due(self, step: int) -> bool:
        every = self.recovery.every
        if every or not self.recovery.every_s:
            return bool(every) and step // every > self.saved // every
        return step > self.saved and time.monotonic() - self.saved_at >= self.recovery.every_s

    def states(self, rows: list[Row]) -> list[Row] | None:
        """These rows with the moments of the same version below them, float32[1 + moments, columns] each.

        None if a call went wrong, or a shard has gone on: in sync, to a round in which this worker, before it was
        started again, had a part already. The parameters before it are still there, the moments are not.
        """
        if self._run_whole is None:
            return [row[np.newaxis] for row in rows]
        found = self.worker.ask(self._run_whole)
        if found is None or any(
            shard.epoch(state[0]) != shard.epoch(row) or shard.applied(state[0]) != shard.applied(row)
            for shard, state, row in zip(self.worker.shards, found, rows, strict=True)
        ):
            return None
        return list(found)

    def _save(self, step: int, states: list[Row]) -> None:
        """Begin to write a checkpoint, of what `states` gives, once the one before is written."""
        self._await_write()
        thetas = [shard.theta(state[0]) for shard, state in zip(self.worker.shards, states, strict=True)]
        named = MOMENTS[self.config.optimizer]
        moments = [
            dict(zip(named, map(shard.theta, state[1:]), strict=True))
            for shard, state in zip(self.worker.shards, states, strict=True)
        ]
        applied = self.worker.shards[0].applied(states[0][0])
        cut = Cut(step, self.worker.epoch, applied, thetas, moments if named else [])
        before, self.saved_at, self.held = self.saved, time.monotonic(), applied
        try:
            written = self.store.load(cut.name)  # by this task before it was started again: it is not touched
        except OSError as error:
            self._missed(cut, error)
            return
        if written is None:
            commits = partial(self.worker.probe.at, "checkpointing", step)
            write = self._writer.submit(self.store.save, cut, before_commit=commits)
            self._writing = cut, before, write
        else:
            self._record(written)
        self.saved = step

    def _await_write(self) -> None:
        """Wait for the checkpoint that is being written, if there is one, and record it, or that it failed.

        Raises GaveUp if it is no trouble of the disk that may pass.
        """
        if self._writing is None:
            return
        (cut, before, write), self._writing = self._writing, None
        try:
            write.result()
        except OSError as error:
            self.saved = before
            self._missed(cut, error)
        else:
            self._record(cut)

    def _missed(self, cut: Cut, error: OSError) -> None:
        """Report a checkpoint that the disk has not taken; a few steps later there may be another one."""
        if error.errno not in TROUBLE:
            raise GaveUp(_said(f"checkpoint {cut.name} cannot be written to {self.recovery.folder}", error))
        self.postponed = cut.step + max(1, self.recovery.every // 4)
        self._warn(_said(f"checkpoint {cut.name} failed and does not count", error))

    def _insist(self, what: str, do: Callable[[], _Found]) -> _Found:
        """Do what the disk may not let be done now, again and again; raises GaveUp if it never lets it."""
        since = time.monotonic()
        while True:
            try:
                return do()
            except OSError as error:
                problem = _said(f"{what} in {self.recovery.folder} failed", error)
                if error.errno not in TROUBLE or time.monotonic() - since > self.recovery.give_up_s:
                    raise GaveUp(problem) from None
                self._warn(f"{problem}; it tries again")
                time.sleep(POLL_S)

    def _warn(self, problem: str) -> None:
        """Report trouble with the disk, in a row of the same once."""
        if problem != self._told:
            logging.warning("worker:0: %s", problem)
        self._told = problem

    def _record(self, cut: Cut) -> None:
        """Record a durable checkpoint, unless this process has done so before."""
        if cut.name not in self.recorded:
            self.recorded.add(cut.name)
            self.worker.probe.checkpoint(cut.name, cut.clock)

    def _cut(self) -> list[Row] | None:
        """In async, one state of all shards, as `states` gives it.

        None if that takes too long, as when a worker dies in half of a push.
        """
        workers = range(self.config.workers)
        try:
            if not self.let_in([0 for _ in workers]):
                return None
            counts = [look.applied for look in self.worker.still()]  # nothing is let in any more
            cut = tuple(max(count[w] for count in counts) for w in workers)
            if any(count != cut for count in counts) and not self.let_in(cut):
                return None
            deadline = time.monotonic() + PATIENCE_S
            while any(look.applied != cut for look in self.worker.still()):
                if time.monotonic() > deadline:
                    return None
                time.sleep(POLL_S / 4)
            rows = self.worker.ask(self.worker.run_read)
            if rows is None:
                return None
            rows = self.worker.of_epoch(rows)
            found = [shard.applied(row) for shard, row in zip(self.worker.shards, rows, strict=True)]
            return self.states(rows) if all(count == cut for count in found) else None
        finally:
            self.let_in(self.gates())

    def gates(self) -> tuple[int, ...]:
        """The limit of each worker, when no checkpoint is read: those that the job goes on without are closed out."""
        out = self.eviction.out if self.eviction else ()
        return tuple(0 if worker in out else OPEN for worker in range(self.config.workers))

    def let_in(self, limits: list[int] | tuple[int, ...]) -> bool:
        """Let each worker push only steps below its limit; False: the call went wrong."""
        return self.worker.ask(self._run_limit, limits) is not None

    def refused(self) -> None:
        """It has closed no gate: what it finds closed is a late message of a chief that died."""
        self.let_in(self.gates())

    def held_up(self) -> None:
        """Nor do the others come nearer as long as a gate stays closed."""
        if any(look.limits != self.gates() for look in self.worker.still()):
            self.let_in(self.gates())

    def conclude(self) -> None:
        """When every shard has every gradient: write the final checkpoint, and say so."""
        waiting = self.worker.stall("every worker to train")
        while True:
            looks = self.worker.still()
            if any(look.limits != self.gates() for look in looks):
                self.let_in(self.gates())
            if self.is_trained(looks):
                if (found := self.states(self.worker.rows(self.config.steps))) is None:
                    continue  # to `still`
                self._await_write()
                final = self._unused(self.config.steps)
                self._save(final, found)
                self._await_write()
                if self.saved == final:
                    break
            elif not self.config.sync and time.monotonic() >= self.not_before:
                self._save_meanwhile(looks)
            if waiting.over(looks):
                logging.warning("worker:0 %s: it ends without a final checkpoint", waiting)
                break
            time.sleep(POLL_S)
        self.worker.say(DONE)

    def _save_meanwhile(self, looks: list[Look]) -> None:
        """In async others may train for long after this worker: then checkpoints go by the steps of the fastest worker,
        or by time, as before."""
        if self._writing is not None:
            if self._writing[2].done():
                self._await_write()
            return
        counts = tuple(min(look.applied[w] for look in looks) for w in range(self.config.workers))
        come = max(now - before for now, before in zip(counts, self.held or counts, strict=True))
        every, every_s = self.recovery.every, self.recovery.every_s
        due = come >= every if every else come > 0 < every_s <= time.monotonic() - self.saved_at
        if not due:
            self.held = self.held or counts
            return
        began = time.monotonic()
        found = self._cut()
        self.held, self.saved_at = counts, time.monotonic()
        if found is not None:
            self._save(self._unused(self.config.steps + 1), found)
        else:  # the others were held up for nothing: let them train for longer than that
            self.not_before = self.saved_at + 2 * (self.saved_at - began)

    def _unused(self, step: int) -> int:
        """This step, or if there are checkpoints of this epoch from there on, whole or not, the one after them.

        A chief that was started again does not know what those hold that it cannot read.
        """
        last = self._insist("looking for checkpoints", partial(self.store.last, self.worker.epoch))
        return last + 1 if last >= step else step

    def due(self) -> list[int]:
        """How many gradients each worker is to have on every shard."""
        return [self.config.steps] * self.config.workers if self.config.sync else self.worker.probe.due

    def is_trained(self, looks: list[Look]) -> bool:
        """Every shard has every gradient that is still to come; the job may go on without some workers."""
        if self.eviction:
            self.eviction.look_for_absent(looks)
        out = self.eviction.out if self.eviction else ()
        return all(
            count >= least
            for look in looks
            for worker, (count, least) in enumerate(zip(look.applied, self.due(), strict=True))
            if worker not in out
        )

    def leave(self) -> None:
        """Leave last, and restore till then; then let every ps go."""
        waiting = self.worker.stall("all workers to leave")
        left = {0, *(Task.parse(task).index for task in self.worker.absent)}
        while True:
            looks = self.settle()
            left |= {w for look in looks for w, mark in enumerate(look.marks) if mark >= LEFT}
            if len(left | (self.eviction.gone(looks) if self.eviction else set())) == self.config.workers:
                break
            if any(look.marks[0] < DONE for look in looks):
                self.worker.say(DONE)
            if waiting.over(looks):
                logging.warning("worker:0 %s", waiting)
                break
            time.sleep(POLL_S)
        self._insist("saying that training is over", self.store.finish)
        self.worker.calls.ask(self._run_dismiss)  # once: who does not hear it sees the file


def _said(what: str, error: OSError) -> str:
    return f"{what}: {error.strerror or error}"
