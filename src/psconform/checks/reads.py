"""A6, A7: what a worker may see when it reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from ..history.columns import UNUSED, Bools, Ints, Odd, Reads
from ..history.model import OK, History, Worker
from ..probe import GRADIENTS
from ..verdict import Verdict, not_judged, unknown, valid, violated
from .registry import MOST, at_most, check
from .witness import Seen, alike


@dataclass(frozen=True)
class Mixed:
    """The (variable, worker, step) that a read lacks, though the variable ``seen_in`` shows it and it comes in the end.

    The first one, if there are several.
    """

    cell: tuple[int, int, int]
    seen_in: int


def mixed_reads(
    history: History, worker: Worker, variables: Iterable[int], *, only: Bools | None = None
) -> dict[int, Mixed]:
    """The mixed reads of a worker, by index, comparing these variables with each other; at most ``MOST``."""
    among = np.array(list(variables), np.int64)
    reads, odd = worker.reads, worker.reads.odd
    if not history.finals or len(among) < 2 or not len(reads):
        return {}
    clock = reads.clock[:, among]
    suspect = (clock != clock[:, :1]).any(axis=(1, 2))
    late = odd.take(odd.zero & np.isin(odd.variable, among) & history.last.ever[odd.variable, odd.peer, odd.step])
    suspect |= reads.tally(late) > 0
    found: dict[int, Mixed] = {}
    for index in np.flatnonzero(suspect if only is None else suspect & only).tolist():
        peer, step = _cells(clock[index])
        here = late.at(index)
        peer, step = np.concatenate([peer, here.peer]), np.concatenate([step, here.step])
        shown = reads.shows(index, peer, step)[among]
        lacks = shown.any(axis=0) & ~shown & history.last.ever[among][:, peer, step]
        where, which = np.nonzero(lacks)
        if where.size:
            first = np.lexsort((step[which], peer[which], where))[0]
            cell = which[first]
            found[index] = Mixed(
                (int(among[where[first]]), int(peer[cell]), int(step[cell])), int(among[np.argmax(shown[:, cell])])
            )
            if len(found) == MOST:
                break
    return found


def _cells(clock: Ints) -> tuple[Ints, Ints]:
    """(peer, step) of the cells below some variable's clock and not below another's."""
    low, high = clock.min(axis=0), clock.max(axis=0)
    peer = np.repeat(np.arange(clock.shape[1]), high - low)
    step = np.concatenate([np.arange(a, b) for a, b in zip(low, high, strict=True)])
    return peer, step


@check("A6", "atomic read", dimension="read_atomicity", needs=(GRADIENTS,), whole_gradients=True, through="ps")
def atomic_read(history: History) -> Verdict:
    """A6: a read is atomic per variable; per shard or as a snapshot of all shards where that is claimed.

    Torn within a variable: head and tail of it disagree about a gradient that some final read shows at both. Torn
    across variables: one shows a gradient that another, of the same shard (per-shard) or of any (snapshot), does not
    show yet but has in the end. What never arrives in a variable is lost (R1, S3), not torn. Across variables, a read
    before the same gradient is sent again does not count: no gradient is computed at it.

    Assumes: a final read; for per-shard, that psconform knows which ps holds which variable.
    """
    level = history.claims.read_atomicity
    if level == "per-shard" and history.shards is None:
        return not_judged("needs the ps of each variable: probe.read(..., shards=...)")
    found: list[Seen] = []
    for worker in history.workers:
        mine = [*_torn(history, worker), *_across(history, worker, level)]
        found += sorted(mine, key=lambda each: each[0])
    if found:
        return violated(alike(found))
    return valid(level) if history.finals else unknown(history.no_final)


def _torn(history: History, worker: Worker) -> Iterator[Seen]:
    """A read of one variable that shows a gradient at the head or at the tail only."""
    if not history.finals:
        return
    odd = worker.reads.odd
    for row in np.flatnonzero(odd.torn & history.last.whole[odd.variable, odd.peer, odd.step]).tolist()[:MOST]:
        place = "the first half but not the second" if odd.head[row] else "the second half but not the first"
        yield (
            int(odd.first[row]),
            (worker.index, place, int(odd.variable[row])),
            f"{history.where(worker, int(odd.first[row]))} read {history.gradient(odd.peer[row], odd.step[row])}, in "
            f"{place} of {history.variable(odd.variable[row])}",
        )


def _across(history: History, worker: Worker, level: str) -> Iterator[Seen]:
    """A read of several variables that shows a gradient in one and not yet in another."""
    everything = range(history.variables)
    groups: list[Sequence[int]] = [everything] if level == "snapshot" else []
    if level == "per-shard" and history.shards is not None:
        groups = [[v for v in everything if history.shards[v] == shard] for shard in sorted(set(history.shards))]
    for group in groups:
        for index, mixed in mixed_reads(history, worker, group, only=worker.reads.use < UNUSED).items():
            variable, peer, step = mixed.cell
            yield (
                index,
                (worker.index, mixed.seen_in, variable),
                f"{history.where(worker, index)} read {history.gradient(peer, step)}, in "
                f"{history.variable(mixed.seen_in)} but not yet in {history.variable(variable)}"
                + history.anew(worker, index, peer, step),
            )


UNTOLD = ("none", "silent-reset", "partial")
"""Levels of recovery that allow what a rollback takes back to be taken back in silence."""


@check("A7", "monotonic reads", dimension="read_atomicity", needs=(GRADIENTS,), whole_gradients=True, through="ps")
def monotonic_reads(history: History) -> Verdict:
    """A7: monotonic reads, read-my-writes, and each worker's updates in its own order.

    Monotonic: what a worker has seen applied, it sees applied from then on. Read-my-writes: an acknowledged gradient
    is in the worker's next read (where a worker brings several to a round, S1 judges that). Order: no read has a later
    gradient of a worker before an earlier one of the same worker that arrives in the end; one that is sent again counts
    from there. A gradient that never arrives is lost (R1, A5), not late. Versions, where reported, do not go down
    either, nor below that of an acknowledgement.

    A rollback takes back what was applied: reads are compared with what came before in the same cluster epoch. Of a
    gradient that was sent more than once, or not answered, nobody knows when it arrived.

    Assumes: a final read; ``probe.epoch`` where there are rollbacks, which a job that claims no recovery need not tell.
    """
    if history.lost and history.claims.recovery in UNTOLD:
        return not_judged(f"needs a run in which no ps dies: recovery is {history.claims.recovery}")
    found: list[Seen] = []
    for worker in history.workers:
        found += at_most(_goes_back(history, worker))
        mine = [_own_writes(history, worker), _out_of_order(history, worker), too_low(history, worker)]
        found += sorted(chain.from_iterable(map(at_most, mine)), key=lambda each: each[0])
    if found:
        return violated(alike(found))
    return valid() if history.finals else unknown(history.no_final)


def _goes_back(history: History, worker: Worker) -> Iterator[Seen]:
    reads = worker.reads
    lower: Bools = np.zeros((len(reads), 0), np.bool_)
    if reads.versions is not None and history.counted:
        lower = np.diff(reads.versions, axis=0, prepend=reads.versions[:1]) < 0
        lower[1:] &= (np.diff(reads.epoch) == 0)[:, None]
    gone = {index: cells for index, cells in taken_back(reads) if reads.epoch[index] == reads.epoch[index - 1]}
    for index in sorted({*gone, *np.flatnonzero(lower.any(axis=1)).tolist()}):
        where, before = history.where(worker, index), f"its read before, at step {reads.step[index - 1]}"
        if reads.versions is not None:
            for counter in np.flatnonzero(lower[index]).tolist():
                was, now = reads.versions[index - 1][counter], reads.versions[index][counter]
                line = f"{where} read version {now} of ps:{counter} after {was}"
                yield index, (worker.index, "version", counter), line
        for variable, peer, step in gone.get(index, [])[:1]:
            yield (
                index,
                (worker.index, "gone", variable, peer),
                f"{where} read {history.variable(variable)} without {history.gradient(peer, step)}, which {before}, "
                "had",
            )


def taken_back(reads: Reads) -> Iterator[tuple[int, list[tuple[int, int, int]]]]:
    """Reads that lack what the read before them showed, and the (variable, worker, step) that they lack, sorted."""
    odd = reads.odd
    gone = odd.take(odd.zero & (odd.first > 0))
    gone = gone.take(reads.clock[gone.first - 1, gone.variable, gone.peer] > gone.step)  # it was below the clock before
    fewer: Bools = np.asarray((np.diff(reads.clock, axis=0, prepend=reads.clock[:1]) < 0).any(axis=(1, 2)))
    fewer[gone.first] = True
    for index in np.flatnonzero(fewer).tolist():
        if cells := _vanished(reads, index, gone):
            yield index, cells


def _vanished(reads: Reads, index: int, gone: Odd) -> list[tuple[int, int, int]]:
    """(variable, worker, step) that the read before showed and this one does not, sorted."""
    cells = [
        (variable, peer, step)
        for variable, peer in np.argwhere(reads.clock[index] < reads.clock[index - 1]).tolist()
        for step in range(reads.clock[index, variable, peer], reads.clock[index - 1, variable, peer])
    ]
    here = gone.take(gone.first == index)
    cells += list(zip(here.variable.tolist(), here.peer.tolist(), here.step.tolist(), strict=True))
    return sorted(cell for cell in cells if reads.count(index - 1, *cell) != (0.0, 0.0))


def _own_writes(history: History, worker: Worker) -> Iterator[Seen]:
    """It lacks a gradient of the worker's own that was acknowledged before."""
    reads, odd, mine = worker.reads, worker.reads.odd, worker.index
    if not history.finals or not len(worker.acked) or history.layout.accumulate > 1:
        return
    found: dict[tuple[int, int], int] = {}
    rows = odd.take(odd.zero & (odd.peer == mine))
    for epoch, place in worker.accepted_by(history.steps).items():
        highest = np.maximum.accumulate(np.where(worker.acked_epoch == epoch, worker.acked, -1))
        known = np.where(reads.after > 0, highest[np.maximum(reads.after, 1) - 1], -1)
        known[reads.epoch != epoch] = -1
        for index, variable in np.argwhere(reads.clock[:, :, mine] <= known[:, None]).tolist():
            steps = np.arange(reads.clock[index, variable, mine], known[index] + 1)
            lacks = steps[(place[steps] < reads.after[index]) & history.last.ever[variable, mine, steps]]
            if lacks.size:
                found[index, variable] = int(lacks[0])
                if len(found) >= MOST:
                    break
        for row in np.flatnonzero(history.last.ever[rows.variable, mine, rows.step]).tolist()[:MOST]:
            shown = slice(rows.first[row], rows.end[row])
            told = np.flatnonzero((reads.after[shown] > place[rows.step[row]]) & (reads.epoch[shown] == epoch))
            for index in (int(rows.first[row]) + told[:1]).tolist():
                key = (index, int(rows.variable[row]))
                found[key] = min(found.get(key, history.steps), int(rows.step[row]))
    for (index, variable), step in sorted(found.items()):
        yield (
            index,
            (worker.index, "own", variable),
            f"{history.where(worker, index)} read {history.variable(variable)} without its own gradient of step "
            f"{step}, acknowledged before",
        )


def too_low(history: History, worker: Worker) -> Iterator[Seen]:
    """It shows a gradient of the worker's own, at a lower version than that which acknowledged it.

    Of gradients that were sent once in their epoch, for else it is not known which answer the version is from; in the
    next read.
    """
    reads, versions = worker.reads, worker.acked_versions
    if history.layout.update == "sync" or not history.counted:
        return  # in sync, what an acknowledgement has is the number of a round, and nothing follows from it
    if reads.versions is None or versions.shape[1] != reads.versions.shape[1]:
        return
    after = np.searchsorted(reads.after, np.arange(len(worker.acked)), side="right")
    known = np.flatnonzero(history.answers_one(worker) & (after < len(reads)))
    known = known[reads.epoch[after[known]] == worker.acked_epoch[known]]
    versions = versions[known]
    for at, ps in np.argwhere(versions > reads.versions[after[known]]).tolist():
        index, step = int(after[known[at]]), worker.acked[known[at : at + 1]]
        shown = reads.shows(index, np.array([worker.index]), step)[:, 0]
        if all(there for there, shard in zip(shown, history.shards or [ps] * len(shown), strict=True) if shard == ps):
            yield (
                index,
                (worker.index, "version", ps),
                f"{history.where(worker, index)} read version {reads.versions[index, ps]} of ps:{ps} with its own "
                f"gradient of step {step[0]}, acknowledged as version {versions[at, ps]}",
            )


def _out_of_order(history: History, worker: Worker) -> Iterator[Seen]:
    """It shows a later gradient of some worker, and lacks an earlier one."""
    if not history.finals:
        return
    reads, odd = worker.reads, worker.reads.odd
    lacking = np.flatnonzero(odd.zero & history.last.ever[odd.variable, odd.peer, odd.step]).tolist()
    if not lacking:
        return
    first, last = _sent(history)
    for row in lacking:
        variable, peer, step = int(odd.variable[row]), int(odd.peer[row]), int(odd.step[row])
        later = reads.clock[odd.first[row] : odd.end[row], variable, peer] - 1
        # what is sent again counts from there, whatever was sent in between
        wrong = np.flatnonzero((first[peer, later] >= last[peer, step]) & (first[peer, later] >= 0))
        if wrong.size and last[peer, step] >= 0:
            index = int(odd.first[row] + wrong[0])
            yield (
                index,
                (worker.index, "early", variable, peer),
                f"{history.where(worker, index)} read {history.variable(variable)} with step {later[wrong[0]]} of "
                f"worker:{peer} but not yet its step {step}",
            )


def _sent(history: History) -> tuple[Ints, Ints]:
    """Place of the first and of the last sending of each gradient in its worker's record, int64[W, K]; -1: none.

    Under faults what was sent may arrive at any time: there it is when it was first sent, and when it was answered, of
    those that were sent once and accepted.
    """
    shape = (history.layout.workers, history.steps)
    first, last = np.full(shape, -1, np.int64), np.full(shape, -1, np.int64)
    for worker in history.workers:
        pushes = worker.pushes
        first[worker.index, pushes.step] = pushes.at if history.disturbed else pushes.first
        # of a push that is recorded with its answer nobody knows when it was sent
        sure = history.sent_once(worker) & (pushes.outcome == OK) & (pushes.at < pushes.answered)
        last[worker.index, pushes.step] = np.where(sure, pushes.answered, -1) if history.disturbed else pushes.last
    return first, last
