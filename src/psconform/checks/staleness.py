"""A2, A3, A4: how old the parameters may be on which a gradient is computed, and what its age makes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np

from ..history.columns import Bools, Floats, Ints, Pushes
from ..history.model import COUNT_TOLERANCE, OK, History, Worker
from ..probe import ORDER, WEIGHTS
from ..verdict import Verdict, counted, not_judged, unknown, valid, violated
from .ranks import ranks, seen
from .reads import UNTOLD, too_low
from .registry import ASYNC, MOST, check


@check("A2", "staleness", dimension="staleness", weakest=(), updates=ASYNC, needs=(WEIGHTS, ORDER))
def staleness(history: History) -> Verdict:
    """A2: tau = version at apply - version read is recorded for each apply, and never negative.

    tau counts the updates of others that a server applied between the read on which a gradient was computed and its
    own application; about N-1 on average for N equal workers (Dutta et al. 2018, "Slow and Stale Gradients Can Win
    the Race"). Claimed unbounded, there is nothing to exceed: the distribution is reported.

    A gradient that was sent again (the answer may be to either), or over a rollback, has no tau.

    Assumes: versions in reads and acknowledgements, one per ps, that agree with the parameters of the same read (a
    version more, a gradient more). Without versions it is judged on a decayed ledger only, where tau is a gradient's
    place in the order (A8) less the gradients that its read shows.
    """
    workers = [worker for worker in history.workers if len(worker.pushes.ok)]
    taus = [taus_of(history, worker) for worker in workers]
    found = [t for t in taus if t is not None]
    if not found or len(found) < len(taus) or not history.counted:
        return _without_versions(history)
    lines = []
    for worker, rows in zip(workers, found, strict=True):
        pushes = computed_here(history, worker)
        for row, ps in np.argwhere(rows < 0).tolist()[:MOST]:
            version = int(pushes.versions[row, ps])
            lines.append(
                f"{worker} pushed step {pushes.step[row]}, computed at version {version - 1 - rows[row, ps]} of "
                f"ps:{ps}, and it was applied as version {version}"
            )
    if lines:
        return violated(lines)
    if contradiction := contradiction_of(history):
        return unknown(contradiction)
    if not any(len(rows) for rows in found):
        return not_judged("needs gradients that are sent once")
    return _distribution(np.concatenate(found))


def _without_versions(history: History) -> Verdict:
    if not history.counted:
        return not_judged("needs a cluster epoch for each ps that dies: its versions may begin anew")
    if history.disturbed and not history.straight:
        return not_judged("needs versions in reads and acknowledgements, or a run in which nothing was taken back")
    if history.workload.name == "decayed-ledger":
        return _from_order(history)
    return not_judged("needs versions in reads and acknowledgements, or --workload decayed-ledger")


def _distribution(tau: Ints) -> Verdict:
    stats = {
        "mean": round(float(tau.mean()), 3),
        "p50": int(np.percentile(tau, 50)),
        "p95": int(np.percentile(tau, 95)),
        "max": int(tau.max()),
    }
    return valid("tau " + ", ".join(f"{name} {value}" for name, value in stats.items()), **stats)


def contradiction_of(history: History) -> str:
    """Where the version of a read does not belong to its parameters, or to an acknowledgement of what they show.

    In one line; empty if it always does.
    """
    shards = history.shards
    if shards is None or history.claims.read_atomicity in ("none", "per-variable"):
        return ""
    dropped = not history.finals or not history.last.ever[:, history.outcomes != 0].all()
    if dropped or history.absences or not history.counted:
        return ""  # what was dropped may have got a version all the same, and so may what stands for an absent worker
    for worker in history.workers:
        for _, _, line in too_low(history, worker):
            return f"versions contradict each other: {line}"
    if any(w.reads.versions is None or w.reads.versions.shape[1] != history.layout.ps for w in history.workers):
        return ""
    start: dict[tuple[int, int], int] = {}  # version minus gradients shown, the same in every read of an epoch
    for worker in history.workers:
        versions = worker.reads.versions
        for variable, shard in enumerate(shards):
            number = worker.reads.gradients(variable)
            begin = versions[:, shard] - number if versions is not None else number
            for epoch in np.unique(worker.reads.epoch).tolist():
                here = np.flatnonzero(worker.reads.epoch == epoch)
                usual = start.setdefault((variable, epoch), int(begin[here[0]]))
                for index in here[begin[here] != usual][:1].tolist():
                    return (
                        f"versions and parameters contradict each other: {history.saw(worker, index, variable)}, "
                        f"which shows {counted(int(number[index]), 'gradient')}; in other reads the version is the "
                        f"number of gradients plus {usual}"
                    )
    line = next(_acknowledged_otherwise(history, shards), "")
    return f"versions contradict each other: {line}" if line else ""


def _acknowledged_otherwise(history: History, shards: tuple[int, ...]) -> Iterator[str]:
    """Reads that show a gradient below the version that acknowledged it, or lack it at that version or above."""
    made = [(peer.index, computed_here(history, peer)) for peer in history.workers]
    made = [(peer, pushes) for peer, pushes in made if pushes.same_width == history.layout.ps]
    if not made:
        return
    whose = np.concatenate([np.full(len(pushes), peer) for peer, pushes in made])
    step, epoch = (np.concatenate([getattr(pushes, name) for _, pushes in made]) for name in ("step", "epoch"))
    named = np.concatenate([pushes.versions[:, : history.layout.ps] for _, pushes in made])
    for worker, ps in product(history.workers, sorted(set(shards))):
        reads, variable = worker.reads, shards.index(ps)
        assert reads.versions is not None
        for now in np.unique(reads.epoch).tolist():
            here, grads = np.flatnonzero(reads.epoch == now), np.flatnonzero(epoch == now)
            versions = np.maximum.accumulate(reads.versions[here, ps])
            first = np.searchsorted(versions, named[grads, ps])  # of these reads, the first that should show it
            for offset, early in ((-1, True), (0, False)):
                inside = np.flatnonzero((first + offset >= 0) & (first + offset < len(here)))
                index, grad = here[first[inside] + offset], grads[inside]
                shown = reads.clock[index, variable, whose[grad]] > step[grad]
                for at in np.flatnonzero(shown == early).tolist():
                    one = slice(grad[at], grad[at] + 1)
                    if reads.shows(int(index[at]), whose[one], step[one])[variable, 0] == early:
                        has = "with" if early else "without"
                        yield (
                            f"{history.saw(worker, int(index[at]), variable)} {has} "
                            f"{history.gradient(int(whose[grad[at]]), int(step[grad[at]]))}, acknowledged as version "
                            f"{named[grad[at], ps]}"
                        )


def computed_here(history: History, worker: Worker) -> Pushes:
    """The accepted pushes of which is known which answer is theirs, and that were computed in the epoch that took them.

    Those with a staleness: the version of any other one is that of some other moment, or counted otherwise.
    """
    pushes, reads = worker.pushes, worker.reads
    epoch = np.full(history.steps, -1, np.int64)  # in which it was sent and accepted
    epoch[worker.acked] = worker.acked_epoch
    here = np.ones(len(pushes), np.bool_)
    if len(reads):
        here = (reads.epoch[pushes.read] == epoch[pushes.step]) | (pushes.read < 0)
    return pushes.take((pushes.outcome == OK) & history.sent_once(worker) & here)


def taus_of(history: History, worker: Worker) -> Ints | None:
    """tau per push of ``computed_here`` and ps, int64[A, P]; None if the target does not report versions."""
    versions, pushes = worker.reads.versions, computed_here(history, worker)
    if versions is None or not len(worker.pushes.ok) or (pushes.read < 0).any():
        return None
    if not len(pushes):
        return np.zeros((0, versions.shape[1]), np.int64)
    if pushes.same_width != versions.shape[1]:
        return None
    return np.asarray(pushes.versions[:, : versions.shape[1]] - 1 - versions[pushes.read])


def _from_order(history: History) -> Verdict:
    """The same without versions: updates of a shard that a gradient came after, less those that its read showed."""
    order = ranks(history)
    if isinstance(order, str):
        return unknown(order)
    shards = history.shards or range(history.variables)
    one_each = np.array([shards.index(shard) for shard in sorted(set(shards))], np.int64)
    found = []
    for worker in history.workers:
        pushes = worker.pushes.ok
        if not len(pushes) or (pushes.read < 0).any():
            return not_judged("needs a read before each push")
        shown = seen(history, worker, order).count[:, one_each]
        found.append(order.rank[one_each, worker.index][:, pushes.step].T - shown[pushes.read])
        if (found[-1] < 0).any():
            return unknown("some gradients were applied before what their read showed: see A8")
    return _distribution(np.concatenate(found))


@check("A4", "staleness-aware rate", dimension="rate", weakest=("constant",), updates=ASYNC)
def staleness_aware(history: History) -> Verdict:
    """A4: the effective learning rate of a gradient is lr / max(1, tau), where a staleness-aware rate is declared.

    Zhang et al. 2016, "Staleness-aware Async-SGD for Distributed Deep Learning". tau is that of A2, version at apply
    - 1 - version read, for each ps by itself. The final reads show the weight of each gradient: it must be
    1 / max(1, tau) of the unit, within a relative 1e-4. A gradient that does not show is lost (A1, R1); one that was
    sent more than once is left out, for its acknowledgement may name another version.

    Assumes: a final read; versions in reads and acknowledgements, one per ps, that agree with the parameters;
    psconform knows which ps holds which variable.
    """
    if not history.finals:
        return unknown(history.no_final)
    expected = _expected(history)
    if expected is None:
        return unknown("needs versions in reads and acknowledgements, one per ps, and the ps of each variable")
    if contradiction := contradiction_of(history):
        return unknown(contradiction)
    odd = history.last.odd
    weight = np.where(history.last.plain, 1.0, np.nan)  # [V, W, K], nan: nothing to judge
    shown = odd.take(~odd.zero & ~odd.torn)
    with np.errstate(invalid="ignore"):
        for end in (shown.head, shown.tail):
            cell = (shown.variable, shown.peer, shown.step)
            off = np.abs(end / expected[cell] - 1) > COUNT_TOLERANCE
            weight[tuple(part[off] for part in cell)] = end[off]  # a wrong one has the last word
            known = np.isnan(weight[cell])
            weight[tuple(part[known] for part in cell)] = end[known]
        wrong = np.abs(weight / expected - 1) > COUNT_TOLERANCE
    lines = [
        f"{history.gradient(peer, step)}, has weight {weight[variable, peer, step]:.4g} in "
        f"{history.variable(variable)}, expected {expected[variable, peer, step]:.4g}: its staleness was "
        f"{1 / expected[variable, peer, step]:.0f}"
        for variable, peer, step in np.argwhere(wrong).tolist()
    ]
    if lines:
        return violated(lines)
    stale = int((expected < 1).any(axis=0).sum())
    return valid(f"{stale} of {int(history.accepted.sum())} gradients had a staleness above 1", stale=stale)


def _expected(history: History) -> Floats | None:
    """1 / max(1, tau) of each accepted gradient, float64[V, W, K], NaN for others; None: tau is not known."""
    shards = history.shards
    if shards is None:
        return None
    expected = np.full((history.variables, history.layout.workers, history.steps), np.nan)
    for worker in history.workers:
        tau, pushes = taus_of(history, worker), computed_here(history, worker)
        if tau is None or tau.shape[1] != history.layout.ps:
            return None
        for variable, shard in enumerate(shards):
            expected[variable, worker.index, pushes.step] = 1 / np.maximum(1, tau[:, shard])
    return expected


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
            return unknown(
                f"{worker} pushed step {step} without a read of it (probe.read), so what it had seen is not known"
            )
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
