"""S1, S3, S4, S5: what a full barrier promises."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np

from ..history.model import COUNT_TOLERANCE, History, Worker
from ..verdict import Verdict, unknown, valid, violated

Fault = tuple[str, int, int, int]
"""What is wrong (lacks, already has, has 2 times) in which variable with the gradient of which worker and step."""


def barrier(history: History) -> Verdict:
    """S1: commit k is the reduction of exactly one gradient from each worker, computed at version k-1.

    So a worker about to compute its gradient of step s must see every gradient of the steps before s exactly once and
    none of step s or later; the final read must see all rounds to which everybody pushed. Worked interleaving:
    worker:1 pushes step 7, the server commits round 7 without waiting for worker:0, worker:1 reads for step 8 and
    lacks worker:0's step 7.

    Assumes: workers number their steps alike; each step is read before it is pushed.
    """
    first: dict[Fault, str] = {}
    times: Counter[Fault] = Counter()
    for worker, index in history.every_read():
        for fault in _off_barrier(history, worker, index):
            times[fault] += 1
            if fault not in first:
                word, variable, peer, step = fault
                seen = history.saw(worker, index, variable)
                first[fault] = f"{seen}, which {word} {history.gradient(peer, step)}"
    if first:
        more = {fault: f" (as do {count - 1} other reads)" if count > 1 else "" for fault, count in times.items()}
        return violated(line + more[fault] for fault, line in first.items())
    for worker in history.workers:
        for push in worker.pushes:
            if push.read < 0 or worker.reads.step[push.read] != push.step:
                return unknown(f"{worker} pushed step {push.step} without a read of it: who knows what it had seen")
    return valid(f"{sum(len(w.reads) for w in history.workers)} reads")


def rounds_due(history: History, worker: Worker, index: int) -> int | None:
    """How many rounds this read must show; None: it says nothing of rounds.

    Read for step s: s. After the last step, while others still train: nothing, nobody was released. Final: the rounds
    for which somebody was released and those to which every worker pushed; whether one that hangs on a push of unknown
    outcome was committed, the read itself tells.
    """
    reads = worker.reads
    if not reads.final[index]:
        return None if reads.step[index] == history.steps else int(reads.step[index])
    least = most = history.released
    for step in range(least, history.steps):
        outcomes = [peer.push_of[step].outcome if step in peer.push_of else "" for peer in history.workers]
        if len(outcomes) < history.layout.workers or not all(outcomes):
            if not history.whole:
                return None  # a push may be missing from the record
            break
        most = step + 1
        least = most if set(outcomes) == {"ok"} else least
    return int(np.clip(reads.clock[index].max(), least, most))


def _off_barrier(history: History, worker: Worker, index: int) -> list[Fault]:
    reads = worker.reads
    step = rounds_due(history, worker, index)
    if step is None:
        return []
    faults: list[Fault] = []
    for variable, peer in np.argwhere(reads.clock[index] != step).tolist():
        clock = int(reads.clock[index][variable, peer])
        faults.append(("lacks", variable, peer, clock) if clock < step else ("already has", variable, peer, step))
    for (variable, peer, at), counts in reads.odd[index].items():
        if at >= step:
            continue  # counted above
        shown = [count for count in counts if count]  # in the head or tail only: torn, which is A6's business
        most = max(shown, key=lambda count: abs(count - 1.0), default=0.0)
        word = "lacks" if most == 0 else f"has {most:.4g} times" if _not_once(most) else ""
        if word:
            faults.append((word, variable, peer, at))
    return faults


def _not_once(count: float) -> bool:
    """Two, three, ... times: not a weight, which is S5's business, but one gradient too many."""
    return round(count) not in (0, 1) and abs(count - round(count)) <= COUNT_TOLERANCE


def one_contributor_set(history: History) -> Verdict:
    """S3: commit k has the same contributors for every variable and shard.

    Judged on the final reads: a gradient that one variable shows and another never shows was dropped on one shard
    only. With what weight it is there is S5's business.

    Assumes: a final read. With one variable there is nothing to differ, and it holds.
    """
    if not history.finals:
        return unknown(history.no_final)
    applied = np.any(np.all(np.abs(history.final_counts) > COUNT_TOLERANCE, axis=-1), axis=0)  # [V, W, K]
    differs = np.any(applied, axis=0) != np.all(applied, axis=0)  # [W, K]
    lines = []
    for peer, step in np.argwhere(differs).tolist():
        has = [history.variable(v) for v in np.flatnonzero(applied[:, peer, step])]
        lacks = [history.variable(v) for v in np.flatnonzero(~applied[:, peer, step])]
        lines.append(
            f"round {step}: {history.gradient(peer, step)}, is in {', '.join(has)} and not in {', '.join(lacks)} "
            f"(final reads of {', '.join(dict.fromkeys(str(worker) for worker, _ in history.finals))})"
        )
    return violated(lines) if lines else valid(f"{history.variables} variables, {history.steps} rounds")


def release_together(history: History) -> Verdict:
    """S4: no read mixes versions of different rounds across shards; versions go up by one.

    A read is mixed if one variable shows a gradient that another does not show yet but has in the end. Between reads
    of successive steps a worker must see exactly that many rounds more. Version counters, where the target reports
    them, must say the same; counters that never do count something else (gradients, say) and
    are left out. An early release that nobody reads is invisible.

    Assumes: a final read, to tell late (this check) from lost (S1, S3, R1).
    """
    lines, counters = [], _count_rounds(history)
    for worker in history.workers:
        reads = worker.reads
        for index in range(len(reads)):
            if rounds_due(history, worker, index) is None:
                continue  # nobody was released for it
            where = history.where(worker, index)
            if counters and reads.versions is not None and len(set(reads.versions[index].tolist())) > 1:
                lines.append(f"{where} read the shards at versions {reads.versions[index].tolist()}")
            for variable, peer, step in mixed_cells(history, worker, index)[:1]:
                lines.append(
                    f"{where} read {history.gradient(peer, step)}, in another variable but not yet in "
                    f"{history.variable(variable)}"
                )
        lines += _rounds_up(history, worker, counters=counters)
    if lines:
        return violated(lines)
    if not history.finals:
        return unknown(history.no_final)
    return valid("" if counters else "version counters left out: they do not count rounds")


def _count_rounds(history: History) -> bool:
    """Versions go up by one per round at least somewhere, so they are meant as a count of rounds."""
    ratios = []
    for worker in history.workers:
        if worker.reads.versions is not None:
            steps, versions = np.diff(worker.reads.step), np.diff(worker.reads.versions.max(axis=1))
            ratios += (versions[steps > 0] / steps[steps > 0]).tolist()
    return not ratios or 1.0 in ratios


def mixed_cells(history: History, worker: Worker, index: int) -> list[tuple[int, int, int]]:
    """(variable, worker, step) that a read lacks in this variable, shows in another, and that came in the end."""
    reads = worker.reads
    if not history.finals or (not reads.odd[index] and (reads.clock[index] == reads.clock[index][0]).all()):
        return []
    applied = (history.counts(reads, index) != 0).any(axis=-1)
    late = applied.any(axis=0)[None] & ~applied & history.ever
    return [(v, w, s) for v, w, s in np.argwhere(late).tolist()]


def _rounds_up(history: History, worker: Worker, *, counters: bool) -> list[str]:
    reads, lines = worker.reads, []
    rounds = reads.clock.max(axis=(1, 2), initial=0)
    counters = counters and reads.versions is not None
    named = reads.versions.max(axis=1) if counters and reads.versions is not None else rounds
    due = [(index, rounds_due(history, worker, index)) for index in range(len(reads))]
    released = [(index, number) for index, number in due if number is not None]
    for (before, earlier), (index, later) in pairwise(released):
        steps, where = later - earlier, history.where(worker, index)
        if counters and named[index] - named[before] != steps:
            lines.append(
                f"{where} came {steps} step(s) after version {named[before]}, expected version {named[before] + steps}"
            )
        elif rounds[index] - rounds[before] != steps and history.ever[:, :, :later].all():
            lines.append(
                f"{where} shows {rounds[index]} rounds, {rounds[before]} at the read before: expected "
                f"{rounds[before] + steps}"
            )
    return lines


def reduction(history: History) -> Verdict:
    """S5: mean or sum as declared: every gradient of a round has the declared weight, 1/N or 1.

    A weight that (nearly) all gradients share is named; so is a single gradient with a weight that is no whole number
    of applications (whole numbers are duplicates, R1).

    Assumes: some gradient was applied. With one worker the mean is the sum, and both hold.
    """
    if not any(worker.reads.clock[-1].any() for worker in history.workers if len(worker.reads)):
        return unknown("no read shows any gradient")
    workers, lines = history.layout.workers, []
    if history.scale != 1.0:
        lines.append(
            f"every gradient was applied {history.scale:.4g} times the declared {history.layout.reduction} over "
            f"{workers} workers{_guess(history)}"
        )
    for worker, index in history.every_read():
        for (variable, peer, step), counts in worker.reads.odd[index].items():
            for count in counts:
                if np.isfinite(count) and abs(count - round(count)) > COUNT_TOLERANCE:
                    lines.append(
                        f"{history.where(worker, index)} read {history.variable(variable)} with "
                        f"{history.gradient(peer, step)}, at {count:.4g} times its weight"
                    )
                    break
    return violated(lines) if lines else valid()


def _guess(history: History) -> str:
    workers = history.layout.workers
    declared_mean = history.layout.reduction == "mean"
    weight = history.scale / workers if declared_mean else history.scale
    if declared_mean and abs(weight - 1) < COUNT_TOLERANCE:
        return ": a sum, not a mean"
    if weight > 0 and abs(1 / weight - round(1 / weight)) < COUNT_TOLERANCE:
        return f": a mean over {round(1 / weight)}" + ("" if declared_mean else ", not a sum")
    return ""
