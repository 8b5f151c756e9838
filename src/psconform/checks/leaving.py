"""M1, M2: what a worker that joins a running job must do first, and what becomes of one that leaves it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..history.model import History, Worker
from ..history.records import Absence, Harm, Mark
from ..verdict import Verdict, not_judged, unknown, valid, violated
from .registry import at_most, check


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


EARLY = 0.9
"""Share of ``--drop-after`` below which a worker was not waited for: a clock is read a moment before or after."""
HARMLESS = (Harm.DOUBLES, Harm.SLOWS, Harm.NONE)
"""What keeps no worker away."""
RECONNECTS_S = 6.0
"""So long after a fault has been healed a worker may still be on its way: a call that is lost is given up after 5 s."""
BEHIND = 20
"""Rounds within which a worker that is back takes part again; the one that is open when it comes may go by."""


@check("M2", "leaving", needs=(), reads=0, finite=False)
def leaves_as_declared(history: History) -> Verdict:
    """M2: a leaver is waited for, replaced, or reported, as declared.

    A worker that has data for n steps (``--batches worker:1=n``) pushes n gradients, and the others go on to the end. A
    worker that does not come is waited for, unless the layout has ``--drop-after T``: then the job goes on without it
    after T, says so (``probe.goes_without``), and takes it back when it returns. Worked interleaving: worker:1 has
    pushed its last batch and leaves; worker:0 pushes the next step and waits for it for good (tensorflow#20342).

    How long a round was waited for is counted from the first push of its step by another worker, in async from the
    leaver's own last push.

    Assumes: steps are recorded, and absences before they take effect; one clock.
    """
    if not (history.workload.batches or history.absences or history.left):
        return not_judged(
            "needs a worker that leaves: --batches worker:1=50, or --drop-after 2s and --kill worker:1@20"
        )
    lines = [*_of_data(history), *_not_declared(history), *_too_early(history), *_unsaid(history)]
    lines += _not_taken_back(history)
    lasting = [fault.what for fault in history.lasting if fault.of not in map(str, history.left)]
    if not lasting:  # or training stopped, or ended, for another reason
        lines += _held_up(history)
    if lines:
        return violated(lines)
    if lasting:
        return unknown(f"{', '.join(lasting)} was not healed, so nobody owes progress")
    away = {absence.worker for absence in history.absences}
    dry = f"{len(history.workload.batches)} worker(s) ran out of data" if history.workload.batches else ""
    return valid(", ".join(filter(None, (dry, f"{len(away)} worker(s) gone on without" if away else ""))))


def _of_data(history: History) -> Iterator[str]:
    """Gradients of a worker that has no data for them."""
    for worker in history.workers:
        due = int(history.due[worker.index])
        for step in worker.pushes.step[worker.pushes.step >= due].tolist()[:1]:
            yield f"{worker} pushed step {step}, and had data for {due} step(s)"


def _not_declared(history: History) -> Iterator[str]:
    for absence in history.absences if not history.layout.drop_after else ():
        yield f"the job went on without worker:{absence.worker} at step {absence.step}, and is declared to wait for it"
        return


def _too_early(history: History) -> Iterator[str]:
    """Workers that were not waited for as long as declared."""
    declared, sync = history.layout.drop_after, history.layout.update == "sync"
    before: dict[int, Absence] = {}
    lines = []
    for absence in history.absences if declared else ():
        last = before.get(absence.worker)
        before[absence.worker] = absence
        if last is not None and sync and _still_away(history, last, absence):
            continue
        since = _waited_since(history, absence) if sync else _last_push(history, absence)
        waited = (absence.at - since) / 1e9 if since is not None else declared
        if waited < EARLY * declared:
            lines.append(
                f"the job went on without worker:{absence.worker} at step {absence.step} after "
                f"{max(0.0, waited):.2f} s, and is declared to wait {declared:g} s"
            )
    yield from at_most(lines)


def _still_away(history: History, last: Absence, absence: Absence) -> bool:
    """Nobody has heard of the worker since; after a rollback the job comes to the same steps again."""
    if last.epoch == absence.epoch:
        return absence.step in (last.step, last.step + 1)
    heard = [worker.acked_ns for worker in history.workers if worker.index == absence.worker]
    return absence.step <= last.step + 1 and not any(((at > last.at) & (at < absence.at)).any() for at in heard)


def _waited_since(history: History, absence: Absence) -> int | None:
    """When the first of the others pushed that step, in that epoch.

    Not later than that: of a push only the first attempt is known, which may have been before a rollback; then it was
    after its read in that epoch, if it has recorded one.
    """
    pushed = []
    for worker in history.workers:
        mine = worker.pushes.at[worker.pushes.step == absence.step]
        if worker.index == absence.worker or not mine.size:
            continue
        read = worker.reads.at[(worker.reads.step == absence.step) & (worker.reads.epoch == absence.epoch)]
        pushed.append(max(int(mine.min()), int(read.min()) if read.size else 0))
    return max(min(pushed), _began(history, absence.epoch)) if pushed else None


def _began(history: History, epoch: int) -> int:
    """When an epoch that a rollback began was there: it was recorded, or else the first worker was in it.

    Who has trained all its steps reads nothing while it waits.
    """
    reads = [worker.reads.at[worker.reads.epoch == epoch] for worker in history.workers]
    said = [mark.at for mark in history.marks if mark.kind == "restore" and mark.epoch == epoch]
    return min([*said, *(int(at.min()) for at in reads if at.size)], default=0) if epoch else 0


def _last_push(history: History, absence: Absence) -> int | None:
    """When the leaver pushed the last step before."""
    for worker in history.workers:
        mine = worker.pushes.at[worker.pushes.step < absence.step]
        if worker.index == absence.worker and mine.size:
            return max(int(mine.max()), _began(history, absence.epoch))
    return None


def _unsaid(history: History) -> Iterator[str]:
    """A job that went on without a worker that is gone for good, and nobody said so."""
    sync = history.layout.update == "sync"
    for task in sorted(history.left):
        trained = history.ended == "finished" and not history.failed  # else it ended for another reason
        if not sync and trained and not history.excused[task.index].any():
            yield f"training ended without {task}, which was killed for good, and nobody said so"
        if not sync or history.claims.barrier != "full":
            continue
        gone, others = history.outcomes[task.index], np.delete(history.accepted, task.index, axis=0)
        silent = others.any(axis=0) & (gone == 0) & ~history.excused[task.index]
        for step in np.flatnonzero(silent).tolist()[:1]:
            yield f"round {step} went on without {task}, which was killed for good, and nobody said so"


def _not_taken_back(history: History) -> Iterator[str]:
    """Workers that came back and were in no round any more."""
    if history.layout.update != "sync" or not history.layout.drop_after:
        return
    for worker in history.workers:
        resumed = [mark for mark in history.marks if mark.kind == "resume" and str(mark.task) == str(worker)]
        if not resumed or any(str(task) == str(worker) for task in history.left):
            continue
        life = max(mark.life for mark in resumed)  # those before were ended, and owed no more
        came = min((mark for mark in resumed if mark.life == life), key=lambda mark: mark.at)
        since = max(came.at, int(worker.acked_ns.max(initial=0)))
        held = list(_held(history, worker, came.at, shown=[mark.at for mark in resumed]))
        for row in _rows(history, worker, came, since):
            if any(_was_waited_for(history, absence) for absence in row):
                continue  # it had been let in
            rounds = max(_in_a_row(row, held), default=0)
            if rounds >= BEHIND:
                yield (
                    f"{worker} was back at step {came.step}, and {rounds} rounds from step {row[0].step} on "
                    "went on without it"
                )
                break


def _rows(history: History, worker: Worker, came: Mark, since: int) -> Iterator[list[Absence]]:
    """Absences of one epoch, of a worker that is in no round any more."""
    away = [
        absence
        for absence in history.absences
        if absence.worker == worker.index
        and absence.at > since
        and (absence.epoch > came.epoch or absence.step >= came.step)
    ]
    for epoch in sorted({absence.epoch for absence in away}):
        yield [absence for absence in away if absence.epoch == epoch]


def _in_a_row(row: list[Absence], held: list[tuple[int, float]]) -> Iterator[int]:
    """How many rounds there were between two moments in which the worker was held up."""
    steps: set[int] = set()
    for absence in row:
        if any(begin <= absence.at <= end for begin, end in held):
            steps.clear()
        else:
            steps.add(absence.step)
            yield len(steps)


def _held(history: History, worker: Worker, came: int, *, shown: list[int]) -> Iterator[tuple[int, float]]:
    """From when until when a fault may have kept a worker away that had come: its own, of a ps, of everybody.

    It is on its way for a while once that is healed, until it shows itself by a read or a resumption.
    """
    alive = np.sort(np.concatenate([worker.reads.at, np.array(shown, np.int64)]))
    for fault in history.injected:
        others = str(worker) not in fault.tasks and any(task.startswith("worker:") for task in fault.tasks)
        if others or fault.harm in HARMLESS or fault.file or (fault.healed and fault.off_ns <= came):
            continue
        until = fault.off_ns + RECONNECTS_S * 1e9 if fault.healed else np.inf
        later = alive[alive > fault.off_ns] if fault.healed else alive[:0]
        yield fault.on_ns, min(until, float(later[0])) if later.size else until


def _was_waited_for(history: History, absence: Absence) -> bool:
    since = _waited_since(history, absence)
    return since is not None and (absence.at - since) / 1e9 >= EARLY * history.layout.drop_after


def _held_up(history: History) -> Iterator[str]:
    """Training that has stopped for want of a worker that has left."""
    if history.ended != "stalled":
        return
    gone = {absence.worker for absence in history.absences} if history.layout.drop_after else set()
    lines = [
        f"{task} was killed for good, and training stopped, which is declared to go on without it"
        for task in sorted(history.left)
    ]
    lines += [
        f"the job had gone on without {worker}, which came back, and then training stopped"
        for worker in history.workers
        if worker.index in gone and not any(str(task) == str(worker) for task in history.left)
    ]
    for worker in history.workers:
        due = int(history.due[worker.index])
        if due < history.steps and len(worker.pushes) >= due:
            lines.append(f"{worker} had pushed its {due} batches, and then training stopped")
    yield from lines and [*lines, *history.last_words.values()]
