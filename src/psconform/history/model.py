"""The History: what the checks look at. Immutable, indexed by worker, with counts instead of parameter values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import msgspec
import numpy as np

from ..claims import Claims
from ..layout import Layout, Task
from ..models import Data
from ..probe import LIGHTEST, Slip
from .columns import (
    ANEW,
    FAILED,
    OK,
    UNKNOWN,
    Bools,
    Finals,
    Floats,
    Ints,
    Pushes,
    Reads,
    Sent,
    Values,
    final_reads,
    no_sent,
)
from .manifest import Workload
from .reasons import FaultMissed, NoEnd, Stop, TaskFailed
from .records import Absence, Harm, Mark, Poisoned, State, Struck
from .rollbacks import Rollback, rollbacks_of
from .slips import Slipped

__all__ = ["COUNT_TOLERANCE", "FAILED", "OK", "UNKNOWN", "History", "Init", "Worker"]

COUNT_TOLERANCE = 1e-4
"""Deviation up to which a count is called whole; the probe's own tolerance for exactly one is 1e-5."""
NEWEST = NEVER = 2**62
"""An epoch after all others; a place that nothing has."""


@dataclass(frozen=True)
class Join:
    """A worker that was started again: its first push of that life, and the read before it (-1: none of that life).

    ``last``: the highest step that it had pushed before; -1: none.
    """

    life: int
    step: int
    read: int
    last: int = -1


@dataclass(frozen=True)
class Worker:
    """What one worker recorded.

    ``acked`` are the steps acknowledged as ok, in the order of the acknowledgements, ``acked_ns`` when each was, and
    ``acked_epoch`` in which cluster epoch (-1: it was sent in another one), also of what was rolled back since, and
    ``acked_versions`` by which versions, [A, P] (UNTOLD where it named none; no columns if their number differs). A
    record that has ``ended`` is whole; of any other the end may be missing, or a push that was a slip, so that what is
    not in it may have happened all the same. ``still_open``: (epoch, step) of what was not answered. ``residual`` is
    what a compression with error feedback had not sent in the end, [V, slots].
    """

    index: int
    reads: Reads
    pushes: Pushes
    acked: Ints
    ended: bool
    boot: str = ""  # of its machine; empty: not known
    residual: Values | None = None
    joins: tuple[Join, ...] = ()
    acked_ns: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    acked_epoch: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    acked_versions: Ints = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    still_open: frozenset[tuple[int, int]] = frozenset()
    sent: Sent = field(default_factory=no_sent)

    def __str__(self) -> str:
        return f"worker:{self.index}"

    def accepted_by(self, steps: int) -> dict[int, Ints]:
        """By cluster epoch, int64[K]: place of each step's acceptance among all of the worker; NEVER: it has none."""
        found = {}
        for epoch in np.unique(self.acked_epoch[self.acked_epoch >= 0]).tolist():
            place = np.full(steps, NEVER, np.int64)
            which = np.flatnonzero(self.acked_epoch == epoch)[::-1]
            place[self.acked[which]] = which
            found[epoch] = place
        return found

    @cached_property
    def blind(self) -> Ints:
        """Steps that it pushed without having read for them."""
        pushes, blind = self.pushes, self.pushes.read < 0
        blind[~blind] = self.reads.step[pushes.read[~blind]] != pushes.step[~blind]
        return pushes.step[blind]

    @cached_property
    def finite(self) -> Worker:
        """The same worker without the reads that show a NaN or Inf."""
        return self._with(self.reads.finite)

    @cached_property
    def settled(self) -> Worker:
        """The same worker without the reads after its last new push: what it does next says what those were for."""
        return self._with(self.reads.at <= self.pushes.at.max(initial=0))

    def sent_before(self, read: int, *, epoch: int) -> Ints:
        """Steps whose gradients it has sent in that epoch before this read, as far as is recorded."""
        return np.asarray(self.sent.step[(self.sent.epoch == epoch) & (self.sent.read < read)])

    def _with(self, reads: Bools) -> Worker:
        keep = np.flatnonzero(reads)
        last, sent = (np.searchsorted(keep, of.read, side="right") - 1 for of in (self.pushes, self.sent))
        joins = tuple(replace(j, read=int(np.searchsorted(keep, j.read, side="right")) - 1) for j in self.joins)
        pushes, sends = replace(self.pushes, read=last), replace(self.sent, read=sent)
        return replace(self, reads=self.reads.take(keep), pushes=pushes, sent=sends, joins=joins)


@dataclass(frozen=True)
class Init:
    """One task said that it initialised the servers."""

    task: Task
    nonce: tuple[float, ...]
    life: int = 0
    second: bool = False  # a second process did, beside the task's own

    @property
    def by(self) -> str:
        """Which process."""
        if self.second:
            return f"a second process of {self.task}"
        return f"{self.task} in incarnation {self.life}" if self.life else str(self.task)


@dataclass(frozen=True)
class History:
    """The record of one run.

    Counts are in units of ``scale`` x the declared unit: a trainer that scales every gradient alike (a sum instead of
    a mean) has ``scale`` != 1, which is S5's or A1's business, and whole counts, so that the others can still judge.
    """

    layout: Layout
    claims: Claims
    steps: int
    workers: tuple[Worker, ...]  # those that recorded anything, by index
    inits: tuple[Init, ...]
    variables: int
    shards: tuple[int, ...] | None  # ps of each variable; None: not known
    scale: float
    gaps: tuple[str, ...]  # why the record is not complete; nothing is called valid then
    workload: Workload = field(default_factory=Workload)
    samples: Mapping[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)  # ids by (worker, step), recorded
    resampled: frozenset[tuple[int, int]] = frozenset()  # of those, gradients that were sent with several
    weights: Mapping[tuple[int, int], float] = field(default_factory=dict)  # by (worker, step), as its push said
    work: Mapping[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)  # pieces of it, by (worker, step)
    pieces: int = 0  # of it, numbered from 0; 0: it is not known how many there are
    states: tuple[State, ...] = ()  # by worker, each in the order of its record
    data: Data | None = None  # what was trained on, workload digits
    plain: str | None = None  # a plain ledger of the same set-up: what was wrong with it, empty if clean; None: not run
    twin: History | str = "was not run"  # the same training between-graph, where this one is not; or why there is none
    marks: tuple[Mark, ...] = ()
    faults: tuple[Struck, ...] = ()  # that took effect
    attempts: tuple[Struck, ...] = ()  # injected, and not observed: each may have disturbed training, or not
    poisons: tuple[Poisoned, ...] = ()  # by worker and step
    absences: tuple[Absence, ...] = ()  # in the order of time
    devices: Mapping[int, tuple[str, ...]] = field(default_factory=dict)  # by worker, where each of its towers is
    ended: str = "finished"  # how the run did, as in the manifest
    until: int = 0  # when psconform ended its own record, nanoseconds of CLOCK_MONOTONIC; 0: not known
    stops: tuple[Stop, ...] = ()  # why training did not come to its end; empty: it did
    endless: tuple[NoEnd, ...] = ()  # tasks that did not end after it
    missing: tuple[str, ...] = ()  # parts of the record that are lost, or may be, for nobody saw its end
    missed: tuple[FaultMissed, ...] = ()
    slips: tuple[Slipped, ...] = ()  # what the trainer got wrong with the probe
    last_words: Mapping[str, str] = field(default_factory=dict)  # what each task did last, if training stopped early
    dynamic: bool = False  # work is dealt out as workers ask for it, so each takes as many steps as it comes to
    rates: tuple[tuple[int, float], ...] = ()  # where the weight of all gradients changes: from which step, and to what
    misweighted: Floats | None = None  # wrong shares of a weighted mean, in those that are right, float64[V, W, K]
    unweighted: bool = False  # gradients of a weighted mean all have the same share
    divisor: str = ""  # of rounds without some workers: initial, live, or mixed; empty: there are none
    calibration: bool = False  # it is the run that was to find the unit of the ledger, and did not come to its end
    notes: tuple[str, ...] = ()  # what a reader should know and that takes nothing away

    @property
    def spec(self) -> dict[str, Any]:
        """The workload as `trained.model_of` takes it."""
        return {**msgspec.to_builtins(self.workload), "workload": self.workload.name, "workers": self.layout.workers}

    @property
    def one_clock(self) -> bool:
        """All workers ran under one boot of one machine, so that their clocks may be compared."""
        boots = {worker.boot for worker in self.workers}
        return len(boots) == 1 and "" not in boots

    @property
    def incomplete(self) -> str:
        """Why the record is not complete, in one line; empty if it is."""
        more = f" (and {len(self.gaps) - 1} more)" if len(self.gaps) > 1 else ""
        return f"incomplete: {self.gaps[0]}{more}" if self.gaps else ""

    @property
    def failed(self) -> tuple[TaskFailed, ...]:
        """Tasks that ended by themselves, and not well."""
        return tuple(stop for stop in self.stops if isinstance(stop, TaskFailed))

    @property
    def cut(self) -> str:
        """At which step training stopped, though the record is complete up to there; empty if it came to its end."""
        if not self.stops or self.gaps:
            return ""
        steps = [int(worker.pushes.step.max(initial=-1)) for worker in self.workers]
        hows = {"stalled": "hung", "decided": "was ended"}
        how = "ended by an error" if self.failed else hows.get(self.ended, "ended early")
        last = max(steps, default=-1)
        return f"training {how} at step {last}" if last >= 0 else f"training {how} before the first step"

    @property
    def no_final(self) -> str:
        """Why there is no final read."""
        return self.incomplete or self.cut or "no worker made a final read"

    @property
    def disturbed(self) -> bool:
        """A fault was injected, or a task came back, or something was rolled back."""
        return bool(self.injected) or self.struck

    @property
    def injected(self) -> tuple[Struck, ...]:
        """Faults that took effect, and those that may have."""
        return (*self.faults, *self.attempts)

    @property
    def struck(self) -> bool:
        """The same of processes: a poisoned gradient alone is none of it."""
        faults = any(fault.outage for fault in self.faults)
        return faults or any(mark.kind != "checkpoint" for mark in self.marks)

    @cached_property
    def straight(self) -> bool:
        """Whatever struck has made it slower at most: nobody died or was gone on without, nothing was sent again,
        overtaken or stayed without an answer, poisoned or taken back."""
        died = any(fault.kills for fault in self.injected)
        if died or self.absences or self.poisons or any(mark.kind == "resume" for mark in self.marks):
            return False
        epochs = {mark.epoch for mark in self.marks if mark.kind == "restore"}
        for worker in self.workers:
            pushes, reads = worker.pushes, worker.reads
            epochs |= {*reads.epoch.tolist(), *worker.acked_epoch.tolist()}
            in_turn = (pushes.answered[:-1] <= pushes.at[1:]).all() and (pushes.at < pushes.answered).all()
            once = (pushes.attempts == 1) & (pushes.outcome != UNKNOWN)
            if not in_turn or not once.all() or worker.joins or reads.life.any():
                return False
        return len(epochs) <= 1

    @cached_property
    def lost(self) -> bool:
        """A ps died; without a new cluster epoch nobody can tell what that has taken back, and when."""
        return any(fault.kills and fault.of.startswith("ps:") for fault in self.injected)

    @cached_property
    def counted(self) -> bool:
        """Versions can be compared with each other, within a cluster epoch: none is known to have begun anew."""
        epochs = {epoch for worker in self.workers for epoch in worker.reads.epoch.tolist()}
        return not self.lost or len(epochs) > 1

    def sent_once(self, worker: Worker) -> Bools:
        """Of each push of a worker, whether it was surely sent once, by it alone: the answer to it is about it.

        Not the first of a later life, of which the life before may have died while it sent it, nor what a second
        process of that worker may have sent, too.
        """
        pushes = worker.pushes
        return np.asarray((pushes.attempts == 1) & ~self._sent_by_another(worker, pushes.step))

    def answers_one(self, worker: Worker) -> Bools:
        """The same of each acknowledgement. What was sent before a rollback that took it back does not count."""
        step, epoch, sent = worker.acked, worker.acked_epoch, worker.sent
        once = np.bincount(sent.step, minlength=self.steps)[step] == 1
        for back in self.rollbacks:
            clock = back.checkpoint.clock if back.checkpoint is not None else ((NEVER,) * self.layout.workers,)
            holds = max((row[worker.index] for row in clock if worker.index < len(row)), default=NEVER)
            here = np.bincount(sent.step[sent.epoch == back.restore.epoch], minlength=self.steps)
            once |= (epoch == back.restore.epoch) & (step >= holds) & (here[step] == 1)
        return np.asarray(once & ~self._sent_by_another(worker, step))

    def _sent_by_another(self, worker: Worker, step: Ints) -> Bools:
        """Whether a second process of it, or its life before, may have sent the gradient of a step, too."""
        twice = any(fault.harm is Harm.DOUBLES and fault.of == str(worker) for fault in self.injected)
        return np.asarray(np.isin(step, [join.step for join in worker.joins]) | twice)

    @cached_property
    def finite(self) -> History:
        """The same history without the reads that show a NaN or Inf: no count can be read from such a slot."""
        if all(worker.reads.finite.all() for worker in self.workers):
            return self
        return replace(self, workers=tuple(worker.finite for worker in self.workers))

    @cached_property
    def settled(self) -> History:
        """The same history without reads of which later events may say that no gradient was taken at them."""
        return replace(self, workers=tuple(worker.settled for worker in self.workers))

    @cached_property
    def whole(self) -> bool:
        """Every worker's record is there to its end: what is not in it did not happen."""
        return len(self.workers) == self.layout.workers and all(worker.ended for worker in self.workers)

    @cached_property
    def outcomes(self) -> Ints:
        """What became of each gradient, codes int64[W, K]: 0 where the record has no push of it."""
        outcomes = np.zeros((self.layout.workers, self.steps), np.int64)
        for worker in self.workers:
            outcomes[worker.index, worker.pushes.step] = worker.pushes.outcome
        return outcomes

    @cached_property
    def accepted(self) -> Bools:
        """bool[W, K]: gradients acknowledged as ok, not given up after a rollback, and not of weight zero.

        Nor of a piece of work that another gradient, which shows in the end, has done.
        """
        accepted = np.array((self.outcomes == OK) & ~self._absent(NEWEST) & (self.weighs != 0))
        shown = np.array(self.last.ever.any(axis=0)) if self.work else accepted
        done = {pieces[0] for grad, pieces in self.work.items() if shown[grad] and len(pieces) == 1}
        for grad, pieces in self.work.items():
            accepted[grad] &= bool(shown[grad]) or pieces[0] not in done
        return accepted

    @cached_property
    def barred(self) -> Bools:
        """bool[W, K]: gradients that must never show: surely failed, or never pushed though the record is whole."""
        whole = np.zeros((self.layout.workers, 1), np.bool_)
        whole[[worker.index for worker in self.workers if worker.ended]] = True
        return np.asarray((self.outcomes == FAILED) | (whole & (self.outcomes == 0)))

    @cached_property
    def excused(self) -> Bools:
        """bool[W, K]: gradients, not accepted, of which nothing has to show: none was due, or psconform poisoned it.

        None is due of a worker without data, nor where a job that may do so (``--drop-after``) goes on without it, nor
        in a round that was skipped.
        """
        return self.excused_in(NEWEST)

    def excused_in(self, epoch: int) -> Bools:
        """The same as a read of that epoch is to be judged: what the job had gone on without by then."""
        excused = np.arange(self.steps) >= self.due[:, np.newaxis]
        for poison in self.poisons:
            excused[poison.worker, poison.step] |= poison.seeded
        excused |= self.skipped
        return np.asarray((excused & ~self.accepted) | self._absent(epoch) | (self.weighs == 0))

    @cached_property
    def skipped(self) -> Bools:
        """bool[K]: rounds of all workers that were refused, and that show nowhere in the end.

        In mixed precision a round is skipped if a gradient overflows, on all workers and all shards (Micikevicius et
        al. 2018, "Mixed Precision Training"; torch.amp.GradScaler). A worker may have died before it learnt of it.
        """
        refused = np.zeros(self.steps, np.bool_)
        for worker in self.workers if self.layout.update == "sync" and not self.layout.quorum else ():
            refused[worker.pushes.step] |= worker.pushes.refused > 0
        due = (np.arange(self.steps) < self.due[:, np.newaxis]) & ~self._absent(NEWEST)
        pushed = ((self.outcomes != 0) | ~due).all(axis=0)
        return np.asarray(refused & pushed & (self.outcomes != OK).all(axis=0) & ~self.last.ever.any(axis=(0, 1)))

    def _absent(self, epoch: int) -> Bools:
        """bool[W, K]: gone on without, as a read of that epoch shows it: said in it or before, and not accepted since.

        A rollback may bring back who was away, or lose who was there.
        """
        said, accepted_in = self._said
        latest = np.full(accepted_in.shape, -1, np.int64)
        for which in sorted(said):
            if which <= epoch:
                latest[said[which]] = which
        return np.asarray((latest >= 0) & ~((accepted_in >= latest) & (accepted_in <= epoch)))

    @cached_property
    def _said(self) -> tuple[dict[int, Bools], Ints]:
        """What was gone on without, by epoch, and the last epoch in which each gradient was accepted; -1: in none.

        In sync an absence is one round, in async all steps from there on, until the worker pushes again.
        """
        shape = (self.layout.workers, self.steps)
        accepted_in = np.full(shape, -1, np.int64)
        last_ok = np.zeros(self.layout.workers, np.int64)
        for worker in self.workers:
            accepted_in[worker.index, worker.pushes.step] = worker.pushes.epoch
            last_ok[worker.index] = worker.pushes.ok.answered.max(initial=0)
        accepted_in[self.outcomes != OK] = -1
        cuts = ((b.restore.epoch, b.checkpoint.clock if b.checkpoint is not None else ()) for b in self.rollbacks)
        # rounds before it say nothing
        begun = {epoch: max((count for row in clock for count in row), default=0) for epoch, clock in cuts}
        said: dict[int, Bools] = {}
        for away in self.absences if self.layout.drop_after else ():
            mine = said.setdefault(away.epoch, np.zeros(shape, np.bool_))
            if self.layout.update == "sync":
                mine[away.worker, away.step] |= away.step >= begun.get(away.epoch, 0)
            elif last_ok[away.worker] <= away.at:
                mine[away.worker, away.step :] = True
        return said, accepted_in

    @property
    def lasting(self) -> tuple[Struck, ...]:
        """Faults that were not healed; what is over at once, or a damaged file, need not be."""
        return tuple(f for f in self.faults if f.outage and not f.file and not f.healed)

    @cached_property
    def rollbacks(self) -> tuple[Rollback, ...]:
        """All restores, in the order of the epochs that they began."""
        return rollbacks_of(self.marks, self.injected)

    @property
    def astray(self) -> str:
        """A checkpoint file that a fault has damaged, of which no recorded name tells whose it is; empty: none."""
        names = {mark.name for mark in self.marks if mark.kind == "checkpoint"}
        files = (fault for fault in self.injected if fault.file)
        return next((fault.file for fault in files if not any(map(fault.damaged, names))), "")

    @cached_property
    def gone(self) -> frozenset[Task]:
        """Workers that were killed for good, while others trained to the end: nothing of their records is missing.

        In async; in sync the others wait. Not where a restore may have taken back what only they could send again.
        """
        if self.layout.update == "sync" or any(mark.kind == "restore" for mark in self.marks):
            return frozenset()
        killed = {fault.of for fault in self.lasting if fault.harm is Harm.ENDS}
        others = (worker for worker in self.workers if str(worker) not in killed)
        if not any(worker.ended and worker.reads.final.any() for worker in others):
            return frozenset()
        return frozenset(task for task in self.layout.worker_tasks if str(task) in killed)

    @cached_property
    def left(self) -> frozenset[Task]:
        """Workers, the chief not among them, that were killed for good in a job that may go on without them."""
        killed = {fault.of for fault in self.lasting if fault.harm is Harm.ENDS} if self.layout.drop_after else ()
        return frozenset(task for task in self.layout.worker_tasks if str(task) in killed and task.index)

    def gone_for_good(self, worker: Worker) -> bool:
        """It was killed and never started again, and the others do not wait for it."""
        return Task("worker", worker.index) in (self.left | self.gone)

    @cached_property
    def due(self) -> Ints:
        """int64[W]: how many steps each worker has data for."""
        due = np.full(self.layout.workers, self.steps)
        for task, number in self.workload.batches:
            due[Task.parse(task).index] = number
        return due

    def visible_in(self, epoch: int) -> Ints:
        """int64[W, K + 1]: the clock of a worker in a read of that epoch that shows its first so many gradients.

        That many, unless the last of them are excused.
        """
        steps = np.where(self.excused_in(epoch), 0, np.arange(1, self.steps + 1))
        first = np.zeros((self.layout.workers, 1), np.int64)
        return np.asarray(np.maximum.accumulate(np.concatenate([first, steps], axis=1), axis=1))

    @cached_property
    def released(self) -> int:
        """The last step, first of its round, for which a worker read before all were done."""
        steps = [worker.reads.step[worker.reads.step < self.steps] for worker in self.workers]
        last = max((int(read.max()) for read in steps if read.size), default=0)
        return last - last % self.layout.accumulate

    @cached_property
    def rounds(self) -> tuple[int, int] | None:
        """The least and the most rounds that a final read may show; None: the record cannot tell.

        Those for which somebody was released, and those to which every worker pushed; whether one that hangs on a push
        of unknown outcome was committed, the read itself tells.
        """
        none_due = self.excused & (self.outcomes == 0)
        pushed = ((self.outcomes != 0) | none_due)[:, self.released :].all(axis=0)
        rounds = int(np.argmin(pushed)) if not pushed.all() else pushed.size
        if rounds < pushed.size and not self.whole:
            return None  # a push may be missing from the record
        rounds -= rounds % self.layout.accumulate if rounds < pushed.size else 0
        sure = (self.accepted | none_due)[:, self.released : self.released + rounds].all(axis=0)
        least = int(np.flatnonzero(sure)[-1]) + 1 if sure.any() else 0
        return self.released + least, self.released + rounds

    @cached_property
    def disagreement(self) -> str:
        """Where final reads differ about an accepted gradient, in one line; empty if they agree.

        After all is done there is one state, so one of them is stale or something was lost between them: which, the
        record cannot tell.
        """
        last = self.last
        for variable, peer, step in np.argwhere(last.ever & ~last.always & self.accepted).tolist()[:1]:
            shown = [w.reads.count(r, variable, peer, step) != (0.0, 0.0) for w, r in self.finals]
            has, lacks = (
                [w for (w, _), s in zip(self.finals, shown, strict=True) if s == wanted] for wanted in (True, False)
            )
            return (
                f"final reads disagree: {has[0]} has {self.gradient(peer, step)}, in {self.variable(variable)}, "
                f"{lacks[0]} has not"
            )
        return ""

    @cached_property
    def finals(self) -> tuple[tuple[Worker, int], ...]:
        """(worker, index) of the reads made after every worker was done."""
        return tuple((w, int(r)) for w in self.workers for r in np.flatnonzero(w.reads.final))

    @cached_property
    def last(self) -> Finals:
        """What the final reads show, taken together."""
        reads = [(worker.reads, index) for worker, index in self.finals]
        return final_reads(reads, shape=(self.variables, self.layout.workers, self.steps))

    @cached_property
    def weighs(self) -> Floats:
        """What each gradient counts in a weighted mean, as its worker said, float64[W, K]; NaN: it did not."""
        weighs = np.full((self.layout.workers, self.steps), np.nan)
        for grad, weight in self.weights.items() if self.claims.reduction == "weighted" else ():
            weighs[grad] = weight if weight >= LIGHTEST else 0.0 * weight  # NaN stays
        return weighs

    @property
    def untold(self) -> str:
        """A gradient of a weighted mean of which it is not known what it counts; empty if there is none."""
        for worker, step in np.argwhere(self.unsaid)[:1].tolist():
            said = "said two things of" if (worker, step) in self.weights else "did not say"
            return f"worker:{worker} {said} what its gradient of step {step} counts: probe.push(step, weight=...)"
        return ""

    @property
    def unsaid(self) -> Bools:
        """bool[W, K]: gradients of a weighted mean of which it is not known what they count."""
        shown = (self.outcomes > 0) | self.last.ever.any(axis=0)
        return np.asarray(shown & np.isnan(self.weighs) & (self.claims.reduction == "weighted"))

    @cached_property
    def shares(self) -> Floats:
        """What each gradient makes of its round, in shares of gradients that all count alike, float64[V, W, K].

        Of a weighted mean that of what its worker said, of those that show in the end; else one.
        """
        shares = np.ones((self.variables, self.layout.workers, self.steps))
        if self.claims.reduction != "weighted":
            return shares
        there = self.last.ever if self.finals else np.ones_like(shares, np.bool_)
        there = there & (self.weighs > 0)
        total = np.where(there, self.weighs, 0.0).sum(axis=1, keepdims=True)
        known = there & (total > 0)
        shares[known] = (self.weighs * self.layout.workers / np.where(total, total, 1.0))[known]
        return shares

    @property
    def indistinct(self) -> str:
        """Gradients that may be of any variable, in a run in which each has a magnitude of its own; empty: none."""
        calls = {slip.call: slip for slip in self.slips if slip.what in (Slip.WORKLOAD, Slip.SIZE)}
        slip = calls.get("gradient") or calls.get("gradients")
        return f"{slip}: the variable of a gradient is not known" if self.workload.distinct and slip else ""

    @property
    def places(self) -> tuple[int, ...] | None:
        """Which row of a checkpoint's clock is of each variable: that of its ps, of replicas the only one."""
        return (0,) * self.variables if self.layout.all_reduce else self.shards

    def variable(self, index: int | np.integer) -> str:
        """A variable's name in a witness."""
        if self.shards is not None:
            shared = self.shards.count(self.shards[index]) > 1
            return f"ps:{self.shards[index]}" + (f" (variable {index})" if shared else "")
        if self.layout.all_reduce and self.variables == 1:
            return "its replica"
        return f"variable {index}"

    def made_for(self, variable: int, count: float) -> int | None:
        """The other variable of whose gradients this one shows ``count`` times its own; None: of none."""
        sizes = self.workload.sizes(self.variables)
        found = np.flatnonzero(np.abs(sizes - count * sizes[variable]) <= COUNT_TOLERANCE * sizes)
        return int(found[0]) if len(found) == 1 and found[0] != variable else None

    @cached_property
    def meanings(self) -> Ints:
        """How many gradients there are of each worker and step, int64[W, K]: a worker that was started again, and does
        not say where it goes on (``probe.resume``), may count its steps anew, for other pieces of the work."""
        number = np.ones((self.layout.workers, self.steps), np.int64)
        for grad, pieces in self.work.items():
            number[grad] = len(pieces)
        return number

    def gradient(self, worker: int, step: int) -> str:
        """A gradient's name in a witness."""
        return f"the gradient of worker:{worker}, step {step}"

    def saw(self, worker: Worker, index: int, variable: int) -> str:
        """A read of one variable in a witness: ``worker:1 read version 7 of ps:0 at step 8``."""
        reads, what = worker.reads, self.variable(variable)
        when = "in its final read" if reads.final[index] else f"at step {reads.step[index]}"
        if reads.versions is not None and self.shards is not None and reads.versions.shape[1] == self.layout.ps:
            what = f"version {reads.versions[index][self.shards[variable]]} of {what}"
        return f"{worker} read {what} {when}"

    def anew(self, worker: Worker, index: int, peer: int, step: int) -> str:
        """Of a worker's own gradient that a read shows: that it computed it anew at that read; empty if it did not."""
        reads = worker.reads
        if reads.use[index] != ANEW or (peer, step) != (worker.index, reads.step[index]):
            return ""
        return (
            ": it computed that gradient anew from this read, in which the first one is half applied, and sent it again"
        )

    def where(self, worker: Worker, index: int) -> str:
        """A read's name in a witness: who, when, which version."""
        reads = worker.reads
        when = "in its final read" if reads.final[index] else f"at step {reads.step[index]}"
        if reads.versions is None:
            return f"{worker} {when}"
        versions = sorted(set(reads.versions[index].tolist()))
        return f"{worker} {when}, version {' and '.join(map(str, versions))},"
