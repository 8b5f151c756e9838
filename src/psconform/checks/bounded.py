"""A3: stale synchronous parallel, a bound on how far workers are apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ..history.columns import Bools, Ints
from ..history.model import History, Worker
from ..verdict import Verdict, not_judged, unknown, valid, violated
from .reads import UNTOLD
from .registry import ASYNC, check
from .witness import MOST


@check("A3", "bounded staleness", dimension="staleness", weakest=("unbounded",), updates=ASYNC)
def bounded_staleness(history: History) -> Verdict:
    """A3: SSP(s): no worker is more than s steps ahead of another, and a read at clock c sees all updates up to c-s-1.

    Stale synchronous parallel (Ho et al. 2013, "More Effective Distributed ML via a Stale Synchronous Parallel
    Parameter Server"). A worker about to compute its gradient of step c must see in every variable each worker's
    gradients of steps 0 to c-s-1, and all of its own before c that were accepted (read-my-writes); so the slowest
    worker has pushed at least c-s. s = 0 is the full barrier of reads. A gradient that is in no final read is lost
    (R1), not late. Worked interleaving, s = 2: worker:2 sleeps after its step 3, worker:0 goes on, and reads for step 7
    what lacks worker:2's step 4.

    Assumes: a final read; workers number their steps alike; each step is read before it is pushed.
    """
    bound = history.layout.staleness
    if bound is None:
        return not_judged("needs --staleness S")
    if history.lost and history.claims.recovery in UNTOLD:
        return not_judged(f"needs a run in which no ps dies: recovery is {history.claims.recovery}")
    if not history.finals:
        return unknown(history.no_final)
    lines = [line for worker in history.workers for line in _too_far(history, worker, bound)]
    if lines:
        return violated(lines)
    for worker in history.workers:
        for step in worker.blind[:1]:
            return unknown(f"{worker} pushed step {step} without a read of it: who knows what it had seen")
    most = max((_ahead(worker) for worker in history.workers), default=0)
    return valid(f"at most {most} steps apart, {bound} allowed", apart=most)


def _due(worker: Worker, peer: int, bound: int) -> Ints:
    """How many steps of ``peer`` each read must show, int64[R]."""
    steps = worker.reads.step
    return np.asarray(steps if peer == worker.index else np.maximum(steps - bound, 0))


def _answered(worker: Worker, steps: int) -> Callable[[int, Ints], Bools]:
    """Which of its own steps were accepted before it made a read, in the epoch of that read.

    Under faults an answer may be lost, and a worker that goes on without it does not know what it owes.
    """
    reads, by_epoch = worker.reads, worker.accepted_by(steps)

    def answered(index: int, which: Ints) -> Bools:
        place = by_epoch.get(int(reads.epoch[index]))
        return np.zeros(len(which), np.bool_) if place is None else np.asarray(place[which] < reads.after[index])

    return answered


def _ahead(worker: Worker) -> int:
    """How many steps this worker was ahead of the slowest in what it read, at most."""
    clock = worker.reads.clock
    return int((worker.reads.step - clock.min(axis=(1, 2), initial=2**60)).max(initial=0)) if clock.size else 0


def _too_far(history: History, worker: Worker, bound: int) -> Iterator[str]:
    """The first gradient that each read lacks though it is due and there in the end."""
    reads = worker.reads
    lacks: dict[tuple[int, int, int], int] = {}  # read, variable, peer: the first step
    for peer in range(history.layout.workers):
        due = np.minimum(_due(worker, peer, bound), history.steps)
        counts = history.last.ever[:, peer]  # [V, K]
        if peer == worker.index:
            counts = counts & history.accepted[peer]
        answered = _answered(worker, history.steps) if peer == worker.index and history.disturbed else None
        behind = reads.clock[:, :, peer] < due[:, None]
        for index, variable in np.argwhere(behind).tolist():
            steps = np.arange(reads.clock[index, variable, peer], due[index])
            missing = steps[counts[variable, steps]]
            if answered is not None:
                missing = missing[answered(index, missing)]
            if missing.size and len(lacks) < MOST:
                lacks[index, variable, peer] = int(missing[0])
        gaps = reads.odd.take(reads.odd.zero & (reads.odd.peer == peer))
        for row in np.flatnonzero(counts[gaps.variable, gaps.step]).tolist()[:MOST]:
            variable, step = int(gaps.variable[row]), int(gaps.step[row])
            late = np.flatnonzero(due[gaps.first[row] : gaps.end[row]] > step)
            if answered is not None:
                late = late[[bool(answered(int(gaps.first[row] + at), np.array([step]))[0]) for at in late.tolist()]]
            for index in (int(gaps.first[row]) + late[:1]).tolist():
                key = (index, variable, peer)
                lacks[key] = min(lacks.get(key, step), step)
    for (index, variable, peer), step in sorted(lacks.items()):
        clock = int(reads.step[index])
        far = "its own, accepted before" if peer == worker.index else f"{clock - step} steps behind, {bound} allowed"
        yield f"{history.saw(worker, index, variable)}, which lacks {history.gradient(peer, step)}: {far}"
