"""A6, A7: what a worker may see when it reads."""

from __future__ import annotations

import numpy as np

from ..history.model import History, Worker
from ..verdict import Verdict, not_judged, unknown, valid, violated
from .synchronous import mixed_cells


def atomic_read(history: History) -> Verdict:
    """A6: a read is atomic per variable; per shard or as a snapshot of all shards where that is claimed.

    Torn within a variable: head and tail of it disagree about a gradient. Torn across variables: one shows a gradient
    that another, of the same shard (per-shard) or of any (snapshot), does not show yet but has in the end. What never
    arrives in a variable is lost (R1, S3), not torn.

    Assumes: a final read; for per-shard, that psconform knows which ps holds which variable.
    """
    level = history.claims.read_atomicity
    if level == "per-shard" and history.shards is None:
        return not_judged("needs the ps of each variable: probe.read(..., shards=...)")
    lines = []
    for worker, index in history.every_read():
        where = history.where(worker, index)
        for (variable, peer, step), (head, tail) in worker.reads.odd[index].items():
            if (head != 0) != (tail != 0) and _whole_in_the_end(history, variable, peer, step):
                place = "head but not the tail" if head else "tail but not the head"
                lines.append(
                    f"{where} read {history.gradient(peer, step)}, in the {place} of {history.variable(variable)}"
                )
        if level != "per-variable":
            lines += _across(history, worker, index, same_shard=level == "per-shard")
    if lines:
        return violated(lines)
    return valid(level) if history.finals else unknown(history.no_final)


def _whole_in_the_end(history: History, variable: int, peer: int, step: int) -> bool:
    if not history.finals:
        return False
    return bool((history.final_counts[:, variable, peer, step] != 0).all())


def _across(history: History, worker: Worker, index: int, *, same_shard: bool) -> list[str]:
    mixed = mixed_cells(history, worker, index)
    applied = (history.counts(worker.reads, index) != 0).any(axis=-1) if mixed else np.zeros(0)
    shards = history.shards or ()
    for variable, peer, step in mixed:
        has = np.flatnonzero(applied[:, peer, step]).tolist()
        if same_shard:
            has = [other for other in has if shards[other] == shards[variable]]
        if has:
            return [
                f"{history.where(worker, index)} read {history.gradient(peer, step)}, in "
                f"{history.variable(has[0])} but not yet in {history.variable(variable)}"
            ]
    return []


def monotonic_reads(history: History) -> Verdict:
    """A7: monotonic reads, read-my-writes, and each worker's updates in its own order.

    Monotonic: what a worker has seen applied, it sees applied from then on. Read-my-writes: an acknowledged gradient
    is in the worker's next read. Order: nobody sees a later gradient of a worker before an earlier one of the same
    worker that arrives in the end; one that is sent again counts from there. A gradient that never arrives is lost
    (R1, A5), not late. Versions, where reported, do not go down either.

    Assumes: one ps incarnation; a final read.
    """
    lines = []
    for worker in history.workers:
        lines += _goes_back(history, worker)
        for index in range(len(worker.reads)):
            lines += _own_writes(history, worker, index)
            lines += _out_of_order(history, worker, index)
    if lines:
        return violated(lines)
    return valid() if history.finals else unknown(history.no_final)


def _goes_back(history: History, worker: Worker) -> list[str]:
    reads, lines = worker.reads, []
    for index in range(1, len(reads)):
        where, before = history.where(worker, index), f"its read before, at step {reads.step[index - 1]}"
        if reads.versions is not None:
            for counter in np.flatnonzero(reads.versions[index] < reads.versions[index - 1]).tolist():
                was = reads.versions[index - 1][counter]
                lines.append(f"{where} read version {reads.versions[index][counter]} of ps:{counter} after {was}")
        lower = bool((reads.clock[index] < reads.clock[index - 1]).any())
        if not lower and reads.odd[index] is reads.odd[index - 1]:
            continue
        now = (history.counts(reads, index) != 0).any(axis=-1)
        then = (history.counts(reads, index - 1) != 0).any(axis=-1)
        for variable, peer, step in np.argwhere(then & ~now).tolist()[:1]:
            lines.append(
                f"{where} read {history.variable(variable)} without {history.gradient(peer, step)}, which {before}, had"
            )
    return lines


def _own_writes(history: History, worker: Worker, index: int) -> list[str]:
    reads = worker.reads
    mine = worker.acked[: reads.after[index]]
    if not mine or not history.finals:
        return []
    odd = reads.odd[index]
    for variable in range(history.variables):
        clock = reads.clock[index][variable, worker.index]
        for step in mine if odd else mine[-1:] if mine[-1] == max(mine) else mine:
            lacks = step >= clock or odd.get((variable, worker.index, step)) == (0.0, 0.0)
            if lacks and history.ever[variable, worker.index, step]:
                return [
                    f"{history.where(worker, index)} read {history.variable(variable)} without its own gradient of "
                    f"step {step}, acknowledged before"
                ]
    return []


def _out_of_order(history: History, worker: Worker, index: int) -> list[str]:
    if not history.finals:
        return []
    pushes = {w.index: w.push_of for w in history.workers}
    for (variable, peer, step), counts in worker.reads.odd[index].items():
        if counts == (0.0, 0.0) and history.ever[variable, peer, step]:
            later = int(worker.reads.clock[index][variable, peer]) - 1
            early, late = (pushes.get(peer, {}).get(s) for s in (step, later))
            if early is None or late is None or early.last > late.first:
                continue
            return [
                f"{history.where(worker, index)} read {history.variable(variable)} with step {later} of "
                f"worker:{peer} but not yet its step {step}"
            ]
    return []
