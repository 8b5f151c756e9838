"""A1, A2, A5: what asynchronous updates promise."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..history.model import COUNT_TOLERANCE, History, Worker
from ..verdict import Verdict, not_judged, unknown, valid, violated


def apply_on_arrival(history: History) -> Verdict:
    """A1: every accepted gradient is applied once, whole; versions go up by one per apply.

    At-least-once, a gradient that was sent n times may be applied up to n times, each time whole.

    Judged on the final reads (each acknowledged gradient shows exactly once, at its full weight) and, where the
    target reports versions, on the acknowledgements: per shard, no two applies have the same version, and together
    they leave no version out.

    Assumes: a final read.
    """
    if not history.finals:
        return unknown(history.no_final)
    lines = []
    if history.scale != 1.0:
        lines.append(f"every gradient was applied at {history.scale:.4g} times its weight")
    accepted, counts = history.accepted, history.final_counts
    most = _most(history)[..., None]
    times = np.rint(counts)
    fits = ((np.abs(counts - times) <= COUNT_TOLERANCE) & (times >= 1) & (times <= most)).all(axis=-1)
    missing = (counts == 0).all(axis=-1)  # in some final reads only: they disagree, which decides nothing
    wrong = ((~fits & ~missing).any(axis=0) | missing.all(axis=0)) & accepted  # [V, W, K]
    for variable, peer, step in np.argwhere(wrong).tolist():
        seen = counts[:, variable, peer, step].ravel()
        worst = seen[np.argmax(np.abs(seen - 1.0))]
        lines.append(
            f"{history.gradient(peer, step)}, was accepted and is {worst:.4g} times in {history.variable(variable)}"
        )
    lines += _versions_by_one(history)
    return violated(lines) if lines else valid(f"{int(accepted.sum())} gradients")


def _most(history: History) -> NDArray[np.float64]:
    """How often each gradient may be applied, float64[W, K]."""
    most = np.ones((history.layout.workers, history.steps))
    if history.claims.delivery == "at-least-once":
        for worker in history.workers:
            for push in worker.pushes:  # of a record cut short, attempts may be missing
                most[worker.index, push.step] = push.attempts if worker.ended else np.inf
    return most


def _versions_by_one(history: History) -> list[str]:
    pushes = [push for worker in history.workers for push in worker.pushes]
    # a gradient sent again may be answered with the version of that moment, not of its apply
    known = [(w, p) for w in history.workers for p in w.pushes if p.outcome == "ok" and p.attempts == 1]
    if not known or any(push.versions is None for _, push in known):
        return []
    widths = {len(push.versions or ()) for _, push in known}
    if len(widths) != 1:
        return ["acknowledgements name different numbers of versions"]
    lines = []
    complete = history.whole and len(known) == len(pushes)  # any other push may have taken a version of its own
    for counter in range(widths.pop()):
        owner: dict[int, tuple[Worker, int]] = {}
        for worker, push in known:
            version = (push.versions or ())[counter]
            if version in owner:
                other, step = owner[version]
                lines.append(
                    f"ps:{counter} gave version {version} to {worker}, step {push.step}, and to {other}, step {step}"
                )
            owner[version] = (worker, push.step)
        if complete and not lines and max(owner) - min(owner) + 1 != len(owner):
            missing = sorted(set(range(min(owner), max(owner))) - set(owner))
            lines.append(f"ps:{counter} went from version {missing[0] - 1} to {missing[0] + 1} with no apply between")
    return lines


def staleness(history: History) -> Verdict:
    """A2: tau = version at apply - version read is recorded for each apply, and never negative.

    tau counts the updates of others that a server applied between the read on which a gradient was computed and its
    own application; about N-1 on average for N equal workers (Dutta et al. 2018, "Slow and Stale Gradients Can Win
    the Race"). Claimed unbounded, there is nothing to exceed: the distribution is reported.

    Assumes: versions in reads and acknowledgements, one per ps, that agree with the parameters of the same read (a
    version more, a gradient more); without versions it is not judged.
    """
    taus = [_taus(worker) for worker in history.workers]
    found = [t for t in taus if t is not None]
    if not found or len(found) < len(taus):
        return not_judged("needs versions in reads and acknowledgements")
    lines = [
        f"{worker} pushed step {push.step}, computed at version {push.versions[ps] - 1 - tau} of ps:{ps}, and it was "
        f"applied as version {push.versions[ps]}"
        for worker, taus in zip(history.workers, found, strict=True)
        for push, row in zip((p for p in worker.pushes if p.outcome == "ok"), taus.tolist(), strict=True)
        for ps, tau in enumerate(row)
        if push.versions is not None and tau < 0
    ]
    if lines:
        return violated(lines)
    if contradiction := _contradiction(history):
        return unknown(contradiction)
    tau = np.concatenate(found)
    stats = {
        "mean": round(float(tau.mean()), 3),
        "p50": int(np.percentile(tau, 50)),
        "p95": int(np.percentile(tau, 95)),
        "max": int(tau.max()),
    }
    return valid("tau " + ", ".join(f"{name} {value}" for name, value in stats.items()), **stats)


def _contradiction(history: History) -> str:
    """Where the version of a read and its parameters do not belong together, in one line; empty if they always do."""
    shards = history.shards
    pushed = [(worker.index, push.step) for worker in history.workers for push in worker.pushes]
    if shards is None or history.claims.read_atomicity in ("none", "per-variable"):
        return ""
    if not history.finals or not all(history.ever[:, peer, step].all() for peer, step in pushed):
        return ""  # what was dropped may have got a version all the same
    start: dict[int, int] = {}  # version minus gradients shown, the same in every read of a variable
    for worker, index in history.every_read():
        reads = worker.reads
        if reads.versions is None or reads.versions.shape[1] != history.layout.ps:
            return ""
        shown = reads.clock[index].sum(axis=1)
        for (variable, _, _), pair in reads.odd[index].items():
            shown[variable] += round(max(pair)) - 1
        for variable, shard in enumerate(shards):
            version = int(reads.versions[index][shard])
            if start.setdefault(variable, version - int(shown[variable])) != version - int(shown[variable]):
                return (
                    f"versions and parameters contradict each other: {history.saw(worker, index, variable)}, which "
                    f"shows {shown[variable]} gradients, while others show version minus {start[variable]}"
                )
    return ""


def _taus(worker: Worker) -> NDArray[np.int64] | None:
    """tau per accepted push and ps, int64[A, P]; None if the target does not report versions."""
    versions = worker.reads.versions
    pushes = [push for push in worker.pushes if push.outcome == "ok"]
    if versions is None or not pushes or any(push.versions is None or push.read < 0 for push in pushes):
        return None
    if {len(push.versions or ()) for push in pushes} != {versions.shape[1]}:
        return None
    at_apply = np.array([push.versions for push in pushes], np.int64)
    return np.asarray(at_apply - 1 - versions[[push.read for push in pushes]])


def no_lost_update(history: History) -> Verdict:
    """A5: applied = pushed where delivery is claimed at least once, applied <= pushed where it is not.

    Counts per variable the acknowledged gradients that the final reads do not show: two workers whose updates
    overwrite each other (read, modify, write without a lock) lose one.

    Assumes: a final read.
    """
    if not history.finals:
        return unknown(history.no_final)
    must = history.claims.delivery in ("at-least-once", "exactly-once")
    lines = []
    lost = (history.final_counts == 0).all(axis=(0, -1))  # [V, W, K]
    for variable in range(history.variables):
        gone = [(w.index, s) for w in history.workers for s in w.acked if lost[variable, w.index, s]]
        if gone and must:
            names = ", ".join(f"worker:{w} step {s}" for w, s in gone[:3]) + (" ..." if len(gone) > 3 else "")
            total = sum(len(w.acked) for w in history.workers)
            lines.append(f"{history.variable(variable)} lost {len(gone)} of {total} acknowledged gradients: {names}")
    pushed = sum(push.attempts for worker in history.workers for push in worker.pushes)
    applied = np.rint(history.final_counts.max(axis=-1, initial=0.0)).sum(axis=(2, 3)).max(initial=0.0)
    if not must and history.whole and applied > pushed:
        lines.append(f"{int(applied)} gradients were applied, {pushed} pushed")
    return violated(lines) if lines else valid()
