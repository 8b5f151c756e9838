"""S2: rounds that some of the workers complete (sync with backup workers)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..history.columns import FAILED, Bools, Ints, Pushes
from ..history.model import History, Worker
from ..verdict import Verdict, not_judged, unknown, valid, violated
from .registry import SYNC, at_most, check
from .witness import listed

NAMED = 3
"""Gradients of one version that a line names, if there are more than one more."""


@check("S2", "r-of-n", dimension="barrier", weakest=("none", "full"), updates=SYNC, faults="no rollback")
def r_of_n(history: History) -> Verdict:
    """S2: commit k takes exactly R gradients, all computed at the current version; late ones leave no trace.

    Synchronous training with backup workers (Chen et al. 2016, "Revisiting Distributed Synchronous SGD"; TensorFlow's
    ``SyncReplicasOptimizer(replicas_to_aggregate=R)``). Judged on what reads show: a whole number of rounds of R
    gradients each, as many as the version says where versions are reported; a gradient computed on a read of round c is
    in every read of round c+1 or later (or in none at all), and in the acknowledgement, where that names versions, it
    is accepted for c+1; one that is acknowledged as failed shows in no read. Worked interleaving, R = 2: worker:2
    reads version 7 and is slow; worker:0 and worker:1 complete round 7; worker:2's gradient is taken into round 8 all
    the same: reads of version 8 lack it, those of version 9 have it.

    Assumes: a final read; that the reads on which gradients were computed are recorded.
    """
    if not history.layout.quorum:
        return not_judged("needs --quorum R")
    if not history.finals:
        return unknown(history.no_final)
    counters = counts_rounds(history)
    lines: list[str] = []
    late = 0
    for worker in history.workers:
        lines += at_most(_rounds_off(history, worker, counters=counters))
    for worker in history.workers:
        lines += at_most(_out_of_round(history, worker))
        late += int((worker.pushes.outcome == FAILED).sum())
    lines += at_most(_too_many(history))  # last: the others say which of them was late
    for peer, step in np.argwhere((history.outcomes == FAILED) & history.last.ever.any(axis=0)).tolist():
        lines.append(f"{history.gradient(peer, step)}, was refused as late and is in the final reads")
    if lines:
        return violated(lines)
    for worker in history.workers:
        for step in worker.pushes.step[worker.pushes.read < 0][:1]:
            return unknown(f"{worker} pushed step {step} without a read before: at which version, nobody knows")
    return valid(f"rounds of {history.layout.quorum}, {late} late gradients dropped", late=late)


def counts_rounds(history: History) -> bool:
    """The reported versions, one per ps, are meant as a count of rounds, not of gradients, as with some servers."""
    if history.shards is None:
        return False
    for worker in history.workers:
        versions = worker.reads.versions
        if versions is None or versions.shape[1] != history.layout.ps:
            return False
        for variable, shard in enumerate(history.shards):
            number = worker.reads.gradients(variable)
            if history.layout.quorum > 1 and number.any() and (number == versions[:, shard]).all():
                return False
    return True


def _rounds_off(history: History, worker: Worker, *, counters: bool) -> Iterator[str]:
    """Reads that show no whole number of rounds, or another one than the version says."""
    reads, size = worker.reads, history.layout.quorum
    for variable in range(history.variables):
        number = worker.reads.gradients(variable)
        wrong = number % size != 0
        if counters and reads.versions is not None and history.shards is not None:
            wrong |= number != size * reads.versions[:, history.shards[variable]]
        for index in np.flatnonzero(wrong).tolist():
            yield (
                f"{history.saw(worker, index, variable)}, which shows {number[index]} gradients: rounds of {size} "
                f"make {number[index] / size:.4g}"
            )


def _too_many(history: History) -> Iterator[str]:
    """More than R gradients of a variable that were computed at one version: one of them was applied in a later round.

    A gradient that was sent again is left out: the attempt that was taken may have been computed at an earlier read.
    """
    size = history.layout.quorum
    for variable in range(history.variables):
        at: dict[int, list[str]] = {}  # by version
        for worker in history.workers:
            pushes = worker.pushes.take((worker.pushes.read >= 0) & (worker.pushes.attempts == 1))
            in_it = history.last.ever[variable, worker.index, pushes.step]
            pushes = pushes.take(in_it & ~_read_ahead(worker, pushes)[:, variable])
            versions = worker.reads.gradients(variable)[pushes.read] // size
            for version, step in zip(versions.tolist(), pushes.step.tolist(), strict=True):
                at.setdefault(version, []).append(history.gradient(worker.index, step))
        for version, computed in at.items():
            if len(computed) > size:
                named = computed if len(computed) <= NAMED + 1 else [*computed[:NAMED], f"{len(computed) - NAMED} more"]
                yield (
                    f"{listed(named)}, computed at version {version} of {history.variable(variable)}, are in it in "
                    f"the end: a round takes {size}"
                )


def _read_ahead(worker: Worker, pushes: Pushes) -> Bools:
    """Whether the read before each push shows it in a variable, bool[N, V].

    Then it was made while that gradient was under way, for ``probe.update`` comes after the answer.
    """
    return np.asarray(worker.reads.clock[pushes.read, :, worker.index] > pushes.step[:, None])


def _out_of_round(history: History, worker: Worker) -> Iterator[str]:
    """Gradients of this worker that were applied at another version than the one after that of their read."""
    pushes, size, mine = worker.pushes, history.layout.quorum, worker.index
    known = pushes.take(pushes.read >= 0)
    for variable in range(history.variables):
        computed = worker.reads.gradients(variable)[known.read] // size
        missing = _last_without(history, variable, mine)[known.step]
        wrong = history.last.ever[variable, mine, known.step] & (missing > computed)
        for at in np.flatnonzero(wrong).tolist():
            yield (
                f"{history.gradient(mine, int(known.step[at]))}, computed at version {computed[at]} of "
                f"{history.variable(variable)}, is in it in the end, but not at version {missing[at]}"
            )
    versions, accepted = worker.reads.versions, pushes.ok.take(pushes.ok.read >= 0)
    if versions is None or accepted.same_width != versions.shape[1] or not counts_rounds(history):
        return
    accepted = accepted.take(~np.asarray(_read_ahead(worker, accepted).any(axis=1)))
    read = versions[accepted.read]
    for at, ps in np.argwhere(accepted.versions - 1 != read).tolist():
        yield (
            f"{history.gradient(mine, int(accepted.step[at]))}, computed at version {read[at, ps]} of ps:{ps}, was "
            f"accepted for version {accepted.versions[at, ps]}"
        )


def _last_without(history: History, variable: int, peer: int) -> Ints:
    """The latest round of which some read lacks each gradient of ``peer`` in a variable, int64[K]; -1: none."""
    latest = np.full(history.steps + 1, -1, np.int64)
    gaps = np.full(history.steps, -1, np.int64)
    for worker in history.workers:
        reads, rounds = worker.reads, worker.reads.gradients(variable) // history.layout.quorum
        np.maximum.at(latest, reads.clock[:, variable, peer], rounds)  # lacks this step and all after it
        odd = reads.odd.take(reads.odd.zero & (reads.odd.variable == variable) & (reads.odd.peer == peer))
        if len(odd):
            highest = np.maximum.accumulate(rounds)[odd.end - 1]
            np.maximum.at(gaps, odd.step, highest)
    return np.asarray(np.maximum(np.maximum.accumulate(latest)[: history.steps], gaps))
