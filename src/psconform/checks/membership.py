"""M1: what a worker that joins a running job must do first."""

from __future__ import annotations

from collections.abc import Iterator

from ..history.model import History, Worker
from ..verdict import Verdict, not_judged, valid, violated
from .registry import check


@check("M1", "joining", dimension="recovery", needs=())
def joins_by_reading(history: History) -> Verdict:
    """M1: a joiner first reads committed state, and contributes to no round that it did not read.

    A worker that was started again reads before it pushes, for the very step that it pushes; in sync what it reads is a
    complete round, the same of every worker in every variable.

    Assumes: reads and pushes recorded in the order in which they are made.
    """
    joined = [(worker, join) for worker in history.workers for join in worker.joins]
    if not joined:
        return not_judged("needs a worker that comes back: --kill worker:1@20")
    lines = []
    for worker, join in joined:
        who = f"{worker}, started again ({join.life})"
        if join.read < 0:
            lines.append(f"{who}, pushed step {join.step} before it had read anything")
        elif (step := int(worker.reads.step[join.read])) != join.step:
            lines.append(f"{who}, pushed step {join.step} first, and had read for step {step}")
        elif history.layout.update == "sync" and history.claims.barrier == "full" and history.workload.is_ledger:
            lines += list(_half_a_round(history, worker, join.read))
    return violated(lines) if lines else valid(f"{len(joined)} time(s) a worker came back")


def _half_a_round(history: History, worker: Worker, index: int) -> Iterator[str]:
    """In a joiner's first read, who is missing from a round that others are in, and is in it in the end.

    Whose gradient never comes was lost, or refused, or, in the epoch of that read, gone on without: then this is the
    round as it was committed.
    """
    if not history.finals:
        return
    clock = worker.reads.clock[index]
    most, excused = int(clock.max()), history.excused_in(int(worker.reads.epoch[index]))
    for variable in range(history.variables):
        behind = [
            f"worker:{peer}"
            for peer, count in enumerate(clock[variable].tolist())
            if (history.last.ever[variable, peer, count:most] & ~excused[peer, count:most]).any()
        ]
        if behind:
            yield (
                f"{worker}, started again, first read {history.variable(variable)} at step {worker.reads.step[index]} "
                f"with round {most - 1} half in: without {', '.join(behind)}"
            )
