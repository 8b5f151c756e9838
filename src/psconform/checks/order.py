"""A8: the order in which updates were applied."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..history.columns import Ints
from ..history.model import History, Worker
from ..probe import ORDER
from ..verdict import Verdict, not_judged, unknown, valid, violated
from .ranks import Ranks, Seen, ranks, seen, shown_by
from .registry import MOST, at_most, check


@check("A8", "order", needs=(ORDER,), acked=True, faults="no rollback")
def apply_order(history: History) -> Verdict:
    """A8: the order in which a variable's updates were applied (of its rounds, in sync) fits every worker's own order,
    all reads, and the versions.

    In the decayed ledger each update takes 1/1024 of what is there, so that a slot tells how many came after it. From
    the full values of the final reads that gives each gradient its place, and then:

    * of two gradients of a worker the one that it sent first is applied first; what is sent again counts from there.
      In sync, the gradients of step s make round s;
    * a read that shows a gradient shows all that were applied before it;
    * a gradient is applied after everything that the read showed at which it was computed;
    * async, versions tell the same: of an acknowledgement the place of that gradient, of a read how many it shows
      (where reads are claimed atomic per shard), counted from the same start throughout.

    Worked interleaving: worker:0 is told that its gradient is version 7 and worker:1 that its own is version 8, but the
    server queues the first and applies it after the second: every gradient is there in the end, and the slots say that
    version 8 came before version 7.

    Assumes: theta <- (1 - 1/1024) theta - gradient at the server; a plain ledger of the same set-up in which all that
    a decayed one cannot show (amounts, weights, initialisation) is right, for a doubled gradient looks like a young
    one; final reads with full values that agree; no push of unknown outcome. Ages that are not whole or that leave
    places empty are unknown: something was lost, doubled or scaled.
    """
    if history.layout.update == "sync" and history.claims.reduction == "none":
        return not_judged("needs a claim: reduction is none")  # without a weight there is no age
    order = ranks(history)
    if isinstance(order, str):
        return unknown(order)
    stats = {"updates": int(order.rank.max(initial=-1)) + 1, "worst_rank_error": round(order.error, 5)}
    lines: list[str] = []
    views = {worker.index: seen(history, worker, order) for worker in history.workers}
    sync = history.layout.update == "sync"
    for worker in history.workers:
        lines += at_most(_own_order(history, worker, order))
    for worker in history.workers if sync else ():
        lines += at_most(_off_round(history, worker, order))
    if history.claims.read_atomicity != "none":
        for worker in history.workers:
            lines += at_most(_no_prefix(history, worker, order, views[worker.index]))
            lines += at_most(_before_its_read(history, worker, order, views[worker.index]))
    if not sync:
        lines += _versions(history, order, views)
    if lines:
        return violated(lines, **stats)
    what = "rounds" if sync else "updates"
    return valid(f"{stats['updates']} {what}, worst rank error {stats['worst_rank_error']}", **stats)


def _own_order(history: History, worker: Worker, order: Ranks) -> Iterator[str]:
    """A gradient that was applied before one of the same worker that had been sent before it."""
    pushes, name = worker.pushes.ok, history.variable
    by_last = np.argsort(pushes.last)
    before = np.searchsorted(pushes.last[by_last], pushes.first)  # so many had been sent for the last time
    for variable in range(history.variables):
        rank = order.rank[variable, worker.index, pushes.step]
        highest = np.maximum.accumulate(rank[by_last])
        late = np.flatnonzero((before > 0) & (highest[np.maximum(before, 1) - 1] >= rank))
        for at in late.tolist()[:MOST]:
            other = by_last[np.argmax(rank[by_last[: before[at]]])]
            yield (
                f"{name(variable)} applied step {pushes.step[at]} of {worker} as update {rank[at] + 1}, and its step "
                f"{pushes.step[other]}, sent before it, as update {rank[other] + 1}"
            )


def _off_round(history: History, worker: Worker, order: Ranks) -> Iterator[str]:
    """A gradient that is in the round of another step."""
    steps = np.flatnonzero(history.accepted.any(axis=0))
    due = np.searchsorted(steps, worker.pushes.ok.step)
    for variable in range(history.variables):
        rank = order.rank[variable, worker.index, worker.pushes.ok.step]
        for at in np.flatnonzero(rank != due).tolist()[:MOST]:
            gradient = history.gradient(worker.index, int(worker.pushes.ok.step[at]))
            yield f"{gradient}, is in the round of step {steps[rank[at]]} in {history.variable(variable)}"


def _no_prefix(history: History, worker: Worker, order: Ranks, view: Seen) -> Iterator[str]:
    """A read that shows a gradient and not all those applied before it."""
    for variable in range(history.variables):
        rank = order.rank[variable]
        through = np.concatenate([[0], np.cumsum(np.bincount(rank[rank >= 0], minlength=1))])  # gradients, by rank
        for index in np.flatnonzero(view.count[:, variable] != through[view.top[:, variable] + 1]).tolist()[:MOST]:
            shown = shown_by(history, worker, index, variable)
            has = np.argmax(np.where(shown, rank, -1))
            lacks = np.argmin(np.where(shown | (rank < 0), rank.size, rank))
            yield (
                f"{history.saw(worker, index, variable)} with {_update(history, rank, has)}, but without "
                f"{_update(history, rank, lacks)}"
            )


def _before_its_read(history: History, worker: Worker, order: Ranks, view: Seen) -> Iterator[str]:
    """A gradient that was applied before something that the read showed at which it was computed."""
    pushes = worker.pushes.take((worker.pushes.read >= 0) & (history.accepted[worker.index, worker.pushes.step]))
    for variable in range(history.variables):
        rank = order.rank[variable]
        mine = rank[worker.index, pushes.step]
        for at in np.flatnonzero(mine <= view.top[pushes.read, variable]).tolist()[:MOST]:
            index = int(pushes.read[at])
            has = np.argmax(np.where(shown_by(history, worker, index, variable), rank, -1))
            yield (
                f"{history.saw(worker, index, variable)} with {_update(history, rank, has)}; its gradient of step "
                f"{pushes.step[at]}, computed there, is update {mine[at] + 1}"
            )


def _update(history: History, rank: Ints, at: int | np.integer) -> str:
    peer, step = divmod(int(at), history.steps)
    return f"update {rank[peer, step] + 1} (worker:{peer}, step {step})"


def _versions(history: History, order: Ranks, views: dict[int, Seen]) -> Iterator[str]:
    """Versions of acknowledgements and reads that do not number the updates as the ranks do."""
    width, shards = history.layout.ps, history.shards
    whole = history.claims.read_atomicity in ("per-shard", "snapshot")
    for variable, shard in enumerate(shards or ()):
        if not whole and (shards or ()).count(shard) > 1:
            continue  # variables that change one by one: its version is that of none of them
        told: list[tuple[Worker, Ints, Ints, Ints]] = []  # worker, which, version, number of the update
        for worker in history.workers:
            # a gradient sent again may be answered with the version of that moment, not of its apply
            pushes = worker.pushes.ok.take((worker.pushes.ok.attempts == 1) & (worker.pushes.ok.width == width))
            if len(pushes):
                number = order.rank[variable, worker.index, pushes.step] + 1
                told.append((worker, pushes.step, pushes.versions[:, shard], number))
        told_by_reads = len(told)
        for worker in history.workers if whole else ():
            versions = worker.reads.versions
            if versions is not None and versions.shape[1] == width:
                index = np.arange(len(worker.reads))
                told.append((worker, index, versions[:, shard], views[worker.index].count[:, variable]))
        starts, counts = np.unique(
            np.concatenate([np.zeros(0, np.int64), *(v - n for _, _, v, n in told)]), return_counts=True
        )
        start = int(starts[np.argmax(counts)]) if told else 0
        for place, (worker, which, version, number) in enumerate(told):
            for at in np.flatnonzero(version - number != start).tolist()[:MOST]:
                if place < told_by_reads:
                    yield (
                        f"{worker} was told version {version[at]} of ps:{shard} for its step {which[at]}, which is "
                        f"update {number[at]} of {history.variable(variable)}: expected version {number[at] + start}"
                    )
                else:
                    yield (
                        f"{history.saw(worker, int(which[at]), variable)}, which shows {number[at]} updates: expected "
                        f"version {number[at] + start}"
                    )
