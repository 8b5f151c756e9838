"""A2: how old the parameters were on which a gradient was computed."""

from __future__ import annotations

import numpy as np

from ..history.columns import Ints, Odd, Pushes
from ..history.model import OK, History, Worker
from ..probe import ORDER, WEIGHTS
from ..verdict import Verdict, not_judged, unknown, valid, violated
from .ranks import ranks, seen
from .registry import ASYNC, check
from .witness import MOST


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
    """Where the version of a read and its parameters do not belong together, in one line; empty if they always do."""
    shards = history.shards
    if shards is None or history.claims.read_atomicity in ("none", "per-variable"):
        return ""
    if not history.finals or not history.last.ever[:, history.outcomes != 0].all():
        return ""  # what was dropped may have got a version all the same
    if history.absences or not history.counted:
        return ""  # so may what stands for whoever is away
    if any(w.reads.versions is None or w.reads.versions.shape[1] != history.layout.ps for w in history.workers):
        return ""
    start: dict[tuple[int, int], int] = {}  # version minus gradients shown, the same in every read of an epoch
    for worker in history.workers:
        odd, versions = worker.reads.odd, worker.reads.versions
        for variable, shard in enumerate(shards):
            mine = odd.take(odd.variable == variable)
            extra = worker.reads.tally(mine, _times(mine) - 1)
            shown = worker.reads.clock[:, variable].sum(axis=1) + extra
            begin = versions[:, shard] - shown if versions is not None else shown
            for epoch in np.unique(worker.reads.epoch).tolist():
                here = np.flatnonzero(worker.reads.epoch == epoch)
                usual = start.setdefault((variable, epoch), int(begin[here[0]]))
                for index in here[begin[here] != usual][:1].tolist():
                    return (
                        f"versions and parameters contradict each other: {history.saw(worker, index, variable)}, "
                        f"which shows {shown[index]} gradients, while others show version minus {usual}"
                    )
    return ""


def _times(odd: Odd) -> Ints:
    """How often each of these cells shows its gradient; at any weight less than one it is there once."""
    times = np.where(np.isfinite(odd.most), np.rint(odd.most), 1.0).astype(np.int64)
    return np.asarray(np.where(odd.zero, 0, np.maximum(times, 1)))


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
