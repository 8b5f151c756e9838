"""The events of one worker -> Worker: its reads, its pushes and what became of them, as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import Malformed
from ..layout import Task
from ..probe import Ledger, workload_of
from .columns import ANEW, FAILED, LOOK, OK, UNKNOWN, UNTOLD, UNUSED, Bools, Ints, Pushes, Reads, Sent, Values
from .events import Ack, Done, Read, Residual, Resume, Update
from .events import Push as PushEvent
from .events import Slip as SlipEvent
from .manifest import Manifest
from .model import Worker
from .read_decoder import decode_reads, read_vector
from .reader import EventFile, column
from .slips import lost_sends


def decode_worker(
    file: EventFile, *, task: Task, folder: Path, manifest: Manifest
) -> tuple[Worker, tuple[int, ...] | None]:
    """Index one worker's events; also returns the ps of each variable where the target told it.

    Raises:
        Malformed: an event does not fit the layout or the workload; names file and line.
    """
    reads, answers = file.of(Read), Answers(file, steps=manifest.workload.steps)
    at = column(reads, "seq")
    after = np.searchsorted(answers.acked_at, at)
    found, shards = decode_reads(file, reads, after=after, folder=folder, manifest=manifest)
    residual = _residual(file, last_push=int(answers.seq.max(initial=-1)), folder=folder, manifest=manifest)
    worker = Worker(
        task.index,
        answers.belonging(found, at),
        _refused(answers.pushes(at), found, at, worker=task.index),
        answers.acked,
        answers.whole,
        file.start.boot,
        residual,
        acked_ns=column(answers.told, "mono_ns")[answers.ok],
        acked_epoch=answers.acked_epoch,
        acked_versions=answers.acked_versions,
        still_open=answers.still_open,
        sent=answers.attempts(at),
    )
    return worker, shards


def _refused(pushes: Pushes, reads: Reads, at: Ints, *, worker: int) -> Pushes:
    """The same, with those as surely failed that show in a later read of this record though every attempt had failed.

    Of a record that does not end, later attempts may be missing, but none from before that read.
    """
    outcome, mine = pushes.outcome.copy(), reads.odd.take(reads.odd.zero & (reads.odd.peer == worker))
    unsure = (outcome == UNKNOWN) & (pushes.refused == pushes.attempts) & (pushes.attempts > 0)
    for index in np.flatnonzero(unsure).tolist():
        shown = reads.clock[:, :, worker] > pushes.step[index]  # [R, V]
        for row in np.flatnonzero(mine.step == pushes.step[index]).tolist():
            shown[mine.first[row] : mine.end[row], mine.variable[row]] = False
        shown[: np.searchsorted(at, pushes.last[index])] = False
        if shown[reads.finite].any():
            outcome[index] = FAILED
    return replace(pushes, outcome=outcome)


def _residual(file: EventFile, *, last_push: int, folder: Path, manifest: Manifest) -> Values | None:
    """What the worker had not sent in the end, [V, slots]; None: it did not say."""
    events = file.of(Residual)
    if not events:
        return None
    workload, event = manifest.workload, events[-1]
    kind = workload_of(workload.name)
    if not issubclass(kind, Ledger):
        raise Malformed(file.path, f"residual: workload {workload.name} has none", line=event.seq + 1)
    if len(events) > 1 or event.seq < last_push:
        problem = "residual: is recorded once, after the last push"
        raise Malformed(file.path, problem, line=events[-1].seq + 1)
    slots = kind(workers=manifest.layout.workers, steps=workload.steps).slots
    return read_vector(file, event, shape=(max(1, event.vector[1] // (4 * slots)), slots), folder=folder)


class Answers:
    """What was sent, and what it was answered with; an update event is both."""

    def __init__(self, file: EventFile, *, steps: int) -> None:
        self.file, self.steps = file, steps
        self.whole = file.ended and not lost_sends(file.of(SlipEvent))
        both = file.of(Update)
        self.sent: Sequence[PushEvent | Update] = _merged(file.of(PushEvent), both)
        self.told: Sequence[Ack | Update] = _merged(file.of(Ack), both)
        self.seq, self.step, self.attempt = (column(self.sent, name) for name in ("seq", "step", "attempt"))
        self.ack_seq, self.ack_step, self.ack_attempt = (column(self.told, n) for n in ("seq", "step", "attempt"))
        self._check()
        outcomes = [event.outcome for event in self.told]
        self.ok: Bools = np.array([outcome == "ok" for outcome in outcomes], np.bool_)
        self.failed: Bools = np.array([outcome == "failed" for outcome in outcomes], np.bool_)
        self.acked, self.acked_at = self.ack_step[self.ok], self.ack_seq[self.ok]
        told_in = column(self.told, "epoch")
        self.acked_epoch = np.where(told_in == self.sent_in, told_in, -1)[self.ok]
        named = [event.versions or [] for event in self.told if event.outcome == "ok"]
        widths = {len(versions) for versions in named} - {0}
        width = widths.pop() if len(widths) == 1 else 0
        self.acked_versions = np.full((len(named), width), UNTOLD, np.int64)
        for row, versions in enumerate(named if width else ()):
            self.acked_versions[row] = versions or UNTOLD

    @property
    def still_open(self) -> frozenset[tuple[int, int]]:
        """Cluster epoch and step of what was sent and not answered, so that it may still arrive."""
        answered = self.ok | self.failed
        sent = column(self.sent, "epoch") * self.steps + self.step
        told = (self.sent_in * self.steps + self.ack_step)[answered]
        return frozenset(divmod(each, self.steps) for each in np.setdiff1d(sent, told).tolist())

    def _check(self) -> None:
        """What must hold between these events; names the first that breaks it."""
        resumed = column(self.file.of(Resume), "seq")
        for done in self.file.of(Done):  # then the others' final reads prove nothing
            hint = "wait_for_all comes after the last acknowledgement"
            until = min((int(seq) for seq in resumed if seq > done.seq), default=2**62)  # training goes on there
            for seq, step in ((self.seq, self.step), (self.ack_seq, self.ack_step)):
                late = (seq > done.seq) & (seq < until)
                self._first(late, seq, step, "step {0} goes on after done", hint=hint)
        for seq, step in ((self.seq, self.step), (self.ack_seq, self.ack_step)):
            self._first(step >= self.steps, seq, step, f"step {{0}} of {self.steps}")
        # the n-th push of a step is its attempt n: rank of each within its step, in the order of the record
        order = np.argsort(self.step, kind="stable")
        ordered = self.step[order]
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order)) - np.searchsorted(ordered, ordered)
        self._first(
            self.attempt != rank, self.seq, self.step, "attempt {1} of step {0} is out of order", attempt=self.attempt
        )
        # each attempt is acknowledged after it was sent, and once
        most = len(self.step) + 1
        sent, answered = self.step * most + self.attempt, self.ack_step * most + np.minimum(self.ack_attempt, most - 1)
        by_key = np.argsort(sent)
        place = np.searchsorted(sent[by_key], answered)
        known = place < len(sent)
        place = by_key[place[known]]
        known[known] = (sent[place] == answered[known]) & (self.seq[place] <= self.ack_seq[known])
        self._first(~known, self.ack_seq, self.ack_step, "acknowledges step {0}, never pushed")
        self.sent_in = column(self.sent, "epoch")[place]  # the epoch of what each of them answers
        again = np.ones(len(answered), np.bool_)
        again[np.unique(answered, return_index=True)[1]] = False
        self._first(again, self.ack_seq, self.ack_step, "acknowledges step {0} twice")

    def _first(
        self, wrong: Bools, seq: Ints, step: Ints, problem: str, *, attempt: Ints | None = None, hint: str = ""
    ) -> None:
        if wrong.any():
            at = int(np.argmax(wrong))  # the record's order
            text = problem.format(step[at], attempt[at] if attempt is not None else "")
            raise Malformed(self.file.path, text, line=int(seq[at]) + 1, hint=hint)

    def belonging(self, reads: Reads, at: Ints) -> Reads:
        """The same reads, each with the step of the push that follows it, where that sends the last step again.

        The trainer that made them then tries that step once more; when it read, the probe took them for the next one.
        """
        following = np.searchsorted(self.seq, at)
        between = np.flatnonzero((following > 0) & (following < len(self.seq)) & ~reads.final)
        push = following[between]
        again = (self.step[push] == self.step[push - 1]) & (reads.step[between] - self.step[push] <= 1)
        again &= reads.step[between] >= self.step[push]
        between, push = between[again], push[again]
        same = np.array([event.same for event in self.sent], np.bool_)
        step, use = self._of_one_that_came_back(reads, at)
        step[between], use[between] = self.step[push], np.where(same[push], UNUSED, ANEW)
        # where a record ends, it is not known whether a step that was never accepted was to be sent again
        if len(self.step) and self.step[-1] not in self.acked:
            last = self.step[-1]
            open_ended = (following == len(self.seq)) & ~reads.final & (reads.step < self.steps)
            open_ended &= (reads.step >= last) & (reads.step <= last + 1)
            step[open_ended], use[open_ended] = last, UNUSED
        return replace(reads, step=step, use=use)

    def _of_one_that_came_back(self, reads: Reads, at: Ints) -> tuple[Ints, Ints]:
        """The step and the use of each read, if the worker that made them was started again.

        Until it says where it goes on (``probe.resume``), or sends a gradient, the probe takes what it reads for step
        0. The last of those reads is of the gradient that follows, if no other read comes between; with the others it
        only looked where it is.
        """
        step, use = reads.step.copy(), reads.use.copy()
        if self.file.start.incarnation:
            told = min((int(event.seq) for event in self.file.of(Resume)), default=2**62)
            pushed = int(self.seq[0]) if len(self.seq) else 2**62
            early = np.flatnonzero((at < min(told, pushed)) & ~reads.final)
            before = np.flatnonzero((at < pushed) & ~reads.final)
            if len(early) and len(self.seq) and early[-1] == before[-1]:
                step[early[-1]], early = self.step[0], early[:-1]
            use[early] = LOOK
        return step, use

    def attempts(self, reads_at: Ints) -> Sent:
        """Each by itself."""
        return Sent(self.step, column(self.sent, "epoch"), np.searchsorted(reads_at, self.seq) - 1)

    def pushes(self, reads_at: Ints) -> Pushes:
        """All attempts of a gradient taken together, in the order of their first sending."""
        attempts = np.bincount(self.step, minlength=self.steps)
        accepted = np.bincount(self.acked, minlength=self.steps)
        failed = np.bincount(self.ack_step[self.failed], minlength=self.steps)
        first, last = np.full(self.steps, -1, np.int64), np.full(self.steps, -1, np.int64)
        first[self.step[::-1]], last[self.step] = self.seq[::-1], self.seq
        sent = np.flatnonzero(attempts)
        step = sent[np.argsort(first[sent])]
        # of a record that is not whole, the attempt that was accepted may be missing
        surely = (failed == attempts) & self.whole
        outcome = np.where(accepted > 0, OK, np.where(surely, FAILED, UNKNOWN))
        width, versions = self._versions()
        when, answered = column(self.sent, "mono_ns"), np.zeros(self.steps, np.int64)
        answered[self.ack_step] = column(self.told, "mono_ns")
        epoch = np.full(self.steps, -1, np.int64)
        epoch[self.acked] = column(self.told, "epoch")[self.ok]
        return Pushes(
            step=step,
            attempts=attempts[step],
            outcome=outcome[step],
            width=width[step],
            versions=versions[step],
            read=np.searchsorted(reads_at, first[step]) - 1,
            first=first[step],
            last=last[step],
            at=when[np.searchsorted(self.seq, first[step])],
            answered=answered[step],
            epoch=epoch[step],
            refused=failed[step],
        )

    def _versions(self) -> tuple[Ints, Ints]:
        """By step, from its first acceptance that has any: number of counters, int64[K], and their values [K, P]."""
        told = [event for event in self.told if event.versions and event.outcome == "ok"]
        values = [event.versions or [] for event in told]
        widths = np.array([len(row) for row in values], np.int64)
        steps = column(told, "step")
        most = int(widths.max(initial=0))
        width, versions = np.zeros(self.steps, np.int64), np.zeros((self.steps, most), np.int64)
        if told and (widths == most).all():
            table = np.fromiter(chain.from_iterable(values), np.int64, len(values) * most).reshape(-1, most)
        else:
            table = np.array([[*row, *[0] * (most - len(row))] for row in values], np.int64).reshape(len(values), most)
        width[steps[::-1]], versions[steps[::-1]] = widths[::-1], table[::-1]
        return width, versions


def _merged(some: list[Any], both: list[Update]) -> list[Any]:
    """In the order of the record."""
    return sorted([*some, *both], key=attrgetter("seq")) if some and both else some or both
