"""L0, L1, L3: training completes; every fault ends in progress, or in an error that names its cause."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator

import numpy as np

from ..history.columns import Ints
from ..history.logs import NOISE
from ..history.model import History
from ..history.reasons import Cause, EndedEarly, NoEnd, Stop, TaskFailed
from ..history.records import Struck
from ..verdict import Verdict, not_judged, unknown, valid, violated
from .registry import check

_ERROR = re.compile(
    r"error|exception|fail|fatal|abort|panic|\blost\b|\bgone\b|\bdead\b|\bdied\b|unavailable|unreachable|"
    r"time(d |-|)out|expired|exceeded|\brefus|\breset\b|\bclosed\b|broken|disconnect|cannot|can't|could not|unable|"
    r"denied|giv(e|es|ing) up|gave up|already in use|another process|no space|out of memory|cancelled|end of file",
    re.IGNORECASE,
)
"""What a line that names an error has in it."""
WENT_ON = 3
"""Accepted gradients after which a worker has survived what was healed before."""
NOT_AWAITED = "needs a run that comes to its end: psconform ended it, for it was violated already"
GANG = (signal.SIGTERM, signal.SIGABRT)
"""Signals by which a job ends the peers of a task that has failed, or they themselves."""


@check("L0", "completes", needs=(), reads=0, ends=True, local_steps="any")
def completes(history: History) -> Verdict:
    """L0: with no fault injected, training comes to its end: every task ends as declared and takes all its steps.

    A hang or a crash is a violation. A hang: no task made progress for as long as ``--patience`` and for ten times as
    long as any step had taken. The witness is the task, its last event, the last traceback or fatal message of its log,
    and of a hang where each task is stuck, if its probe can tell. A worker that exits with status 0 before it has taken
    all its steps did not complete, unless that is declared: ``--batches``, ``--quorum``, ``--drop-after``,
    ``dynamic_work`` in target.toml.

    Assumes: the tasks had started (a task that ends before is the user's set-up, and no run), and it was the trainer
    that ended them: after the OOM killer, another SIGKILL or a full disk this is unknown.
    """
    if history.injected or history.ended == "decided":
        return not_judged("needs a run without faults" if history.injected else NOT_AWAITED)
    outside = [failed for failed in history.failed if failed.cause or failed.status == -signal.SIGKILL]
    if outside and len(outside) == len(history.failed):
        return unknown(f"{outside[0].how}: {outside[0].cause or Cause.KILLED}")
    if history.gaps:
        return unknown(history.incomplete)
    if history.calibration and not history.stops and not history.endless:
        return unknown("calibration did not take its steps")
    if history.stops or history.endless:
        return violated([line for stop in (*history.stops, *history.endless) for line in _in_full(history, stop)])
    return valid()


def _in_full(history: History, stop: Stop | NoEnd) -> Iterator[str]:
    """What stopped, what it did last, and what its log says."""
    match stop:
        case TaskFailed():
            yield history.last_words.get(stop.task, "")
            yield f"{stop.how}{': ' + stop.log if stop.log else ', and its log is empty'}"
            yield from (f"    {line.strip()}" for line in stop.block if line != stop.log)
        case EndedEarly():
            yield str(stop)
            yield history.last_words.get(stop.task, "")
        case _:
            yield str(stop)
            failed = {each.task for each in history.failed}
            yield from (words for task, words in history.last_words.items() if task not in failed)


@check("L1", "no hang", dimension="liveness", weakest=("may-hang",), needs=(), reads=0, ends=True)
def no_hang(history: History) -> Verdict:
    """L1: every fault ends in progress, or in an attributed error within T (``--patience``).

    With the claim ``progress``, training ends as if nothing had happened (nothing is owed after a fault that is not
    healed); with ``attributed-error`` a task may also end with an error that its log names: an exit status that is not
    0, and a traceback, a fatal message or a last line with a word for what went wrong (``SomeError: ...``, failed,
    lost, refused, timed out and so on), which is not what TensorFlow logs when it starts. One task that names the cause
    explains the SIGTERM or SIGABRT of its peers; any other end by a signal that psconform did not send names nothing.
    An error of a worker that no fault concerned, or that had gradients accepted since the last one was healed, is
    unknown: it may be another error. A run in which training did not move for T, and no task had failed, is a hang:
    nothing was recorded, or only reads, pushes of the same gradients and rollbacks. The witness is what each task did
    last, and where it is stuck, if its probe can tell.

    Words are looked for, not sense: an earlier, harmless error counts if few lines follow it, and an error should be
    the last that a task says. A last line that is indented or has no letter belongs to a longer message whose
    beginning is not known, so that this is unknown.

    Assumes: a fault that took effect and was healed, or a worker that the job may go on without (``--drop-after``);
    without any, nobody knows whether it is the target that hangs.
    """
    if not history.faults:
        if history.attempts and (history.stops or history.endless):
            what = history.cut or history.endless[0]
            return unknown(f"{history.attempts[0].what} was injected and not observed, and then {what}")
        return not_judged("needs a fault: --kill, --stop, --poison or --faults")
    if history.ended == "decided":
        return not_judged(NOT_AWAITED)
    owed = history.left  # a job that may go on without a worker owes progress without it
    lasting = [fault.what for fault in history.lasting if fault.of not in map(str, owed)]
    went_on = history.ended == "finished" and not history.stops and not history.endless and history.gone
    if lasting and history.claims.liveness == "progress" and not went_on:
        return unknown(f"{', '.join(lasting)} was not healed, so nobody owes progress")
    return _after_healing(history)


def _after_healing(history: History) -> Verdict:
    early = [stop for stop in history.stops if isinstance(stop, EndedEarly)]
    attributed = history.claims.liveness == "attributed-error"
    if history.ended in ("finished", "stalled") and history.failed and attributed:
        return _by_an_error(history)
    if history.ended == "stalled" or history.endless:
        struck = [f"{fault.what}: {fault.evidence}" for fault in history.faults]
        ended = (*history.failed, *early, *history.endless)
        return violated([*(f"after {text}" for text in struck), *map(str, ended), *history.last_words.values()])
    if history.failed or early:
        return violated(map(str, (*history.failed, *early)))
    if history.gaps:
        return unknown(history.incomplete)
    return valid(f"{len(history.faults)} fault(s)")


def _by_an_error(history: History) -> Verdict:
    """Whether the job has said why it failed: one task that names the cause explains the ends of its peers.

    Ends that were psconform's doing are not among them.
    """
    for failed in history.failed:
        if failed.cause in (Cause.OUT_OF_MEMORY, Cause.DISK_FULL):
            return unknown(f"{failed.how}: {failed.cause}")
    if all(_unrelated(history, failed) for failed in history.failed):
        return unknown(f"{history.failed[0].how}, and no fault explains that: it may be another error")
    silent, unclear = [], []
    named = any(_names_error(failed) for failed in history.failed)
    for failed in history.failed:
        how, last = failed.how, failed.log
        if _names_error(failed) or (named and -failed.status in GANG):
            continue
        if failed.status < 0:
            silent.append(f"{how}, which psconform did not send" + (f"; its log ends: {last}" if last else ""))
        elif last and (last[0].isspace() or not re.search(r"[^\W\d_]", last)):
            unclear.append(f"{how}, and its log ends within a longer message, of which only this is known: {last}")
        else:
            silent.append(f"{how}, and its log names no error" + (f"; it ends: {last}" if last else ""))
    if silent:
        return violated(silent)
    return unknown(unclear[0]) if unclear else valid("by an error")


def _unrelated(history: History, failed: TaskFailed) -> bool:
    """No fault explains the end of a worker: none concerned it, or it has trained on since the last one was healed."""
    worker = next((worker for worker in history.workers if str(worker) == failed.task), None)
    if worker is None:
        return False  # of a ps nothing is known, or it never reported
    concern = [fault for fault in history.injected if _concerns(history, fault, failed.task)]
    until = max(int(found.max(initial=0)) for found in (worker.acked_ns, worker.reads.at, worker.pushes.at))
    before = [fault for fault in concern if fault.on_ns <= until + JUST_NS]
    if not before:
        return not concern
    since = (worker.acked_ns > max(fault.off_ns for fault in before)).sum()
    return all(fault.off_ns for fault in before) and int(since) >= WENT_ON


def _concerns(history: History, fault: Struck, task: str) -> bool:
    """In sync each task waits for all; in async a worker knows nothing of the others."""
    of_workers = [each for each in fault.tasks if each.startswith("worker:")]
    alone = history.layout.update == "async" and history.layout.staleness is None
    return not alone or task in fault.tasks or len(of_workers) < len(fault.tasks) or not fault.tasks


def _names_error(failed: TaskFailed) -> bool:
    """Its log names the error of which it ended; a task that aborts itself has done so with a message."""
    if failed.status < 0:
        return -failed.status == signal.SIGABRT and bool(failed.block)
    return bool(failed.block) or bool(_ERROR.search(failed.log) and not NOISE.search(failed.log))


SPACED = 3
JUST_NS = 10**8
"""A task whose record ends no longer than that before a fault may have been about to record more."""


@check("L3", "budgets", dimension="liveness", weakest=("may-hang",), needs=(), reads=0, ends=True)
def windowed_budgets(history: History) -> Verdict:
    """L3: fault budgets are windowed, not for life: the third of spaced faults is no worse than the first.

    Faults are spaced if an update was accepted after the one was healed and before the next one struck. Of three or
    more that are, of one kind and of the same tasks or links, training survives the last as it did those before. A
    task that went on after those and fails when the last has struck has not, also if its log names the error and L1
    accepts that. The witness is how often it went well, and what L1 has to say, or how the task failed.

    Assumes: as L1, and that all were healed, where a task failed. A trainer that does not survive its first fault, or
    the first of a kind, is L1's alone. So is a worker that had failed before the last fault; if it did so after an
    update since the last but one, this is unknown.
    """
    faults = sorted((f for f in history.faults if f.on_ns and f.outage), key=lambda fault: fault.on_ns)
    alike: dict[tuple[str, str], list[Struck]] = {}
    for fault in faults:
        alike.setdefault((fault.kind, fault.of), []).append(fault)
    spaced = {key: _spaced(history, group) for key, group in alike.items()}
    verdict = no_hang(history)
    if verdict.status == "violated" or history.failed:  # whatever struck last, it was not survived
        last = spaced[faults[-1].kind, faults[-1].of] if faults else []
        if len(last) >= SPACED:
            return _last_of(history, last, verdict)
        if verdict.status == "violated":
            return not_judged("needs three faults of one kind and of the same, with updates between them")
    rounds = max(spaced.values(), key=len, default=[])
    if len(rounds) < SPACED:
        return not_judged("needs three faults of one kind and of the same, with updates between them")
    return verdict if verdict.status != "valid" else valid(f"{len(rounds)} spaced faults")


def _last_of(history: History, rounds: list[Struck], verdict: Verdict) -> Verdict:
    """Of a run that failed or stalled after spaced faults: whether that was the last one's doing."""
    before, last = ", ".join(fault.what for fault in rounds[:-1]), rounds[-1]
    if lasting := [fault.what for fault in history.lasting if fault.of not in map(str, history.left)]:
        return (
            verdict
            if verdict.status == "unknown"
            else not_judged(f"needs faults that are healed: {lasting[0]} was not")
        )
    if _outlasts(rounds):
        return not_judged("needs faults that last as long: the last one lasted longer than those that were survived")
    when = {failed: _failed_when(history, failed, rounds) for failed in history.failed}
    if history.ended == "stalled" or "at the last" in when.values():
        told = verdict.witness if verdict.status == "violated" else tuple(map(str, history.failed))
        return violated([f"survived {before}; not {last.what}", *told])
    for failed, which in when.items():
        if which == "between":
            return unknown(f"{failed}: that may have been before {last.what}")
    if verdict.status == "violated":
        return not_judged(f"needs tasks that went on until {last.what}")
    return verdict if verdict.status != "valid" else valid(f"{len(rounds)} spaced faults")


def _failed_when(history: History, failed: TaskFailed, rounds: list[Struck]) -> str:
    """When a task failed: before these faults, between them, or at the last one, as its record shows.

    Neither a ps nor a job that trains nothing has a record. Training cannot go on without a ps, so that failed at the
    last one; it may have gone on without any other job, so that counts as before.
    """
    worker = next((w for w in history.workers if str(w) == failed.task), None)
    if worker is None:
        return "at the last" if failed.task.startswith("ps:") else "before"
    if not _between(np.sort(worker.acked_ns), rounds[-2].off_ns, rounds[-1].on_ns):
        return "before"
    times = (worker.acked_ns, worker.reads.at, worker.pushes.at)
    until = max(int(found.max(initial=0)) for found in times)
    step = int(np.diff(np.sort(worker.acked_ns)).max(initial=JUST_NS))
    return "at the last" if until + step >= rounds[-1].on_ns else "between"


def _outlasts(rounds: list[Struck]) -> bool:
    """The last lasted more than twice as long as each before it, and a second more: it may be that, not a budget."""
    lasted = [fault.off_ns - fault.on_ns for fault in rounds if fault.off_ns]
    return len(lasted) == len(rounds) > 1 and lasted[-1] > 2 * max(lasted[:-1]) + 10**9


def _spaced(history: History, faults: list[Struck]) -> list[Struck]:
    """The faults after each of which but the last there was an accepted update before the next one."""
    times = [worker.acked_ns for worker in history.workers]  # what was rolled back later was progress, too
    accepted = np.sort(np.concatenate(times)) if times else np.zeros(0, np.int64)
    found: list[Struck] = []
    for fault in faults:
        if found and not (found[-1].off_ns and _between(accepted, found[-1].off_ns, fault.on_ns)):
            found[-1] = fault if fault.off_ns > found[-1].off_ns or not fault.off_ns else found[-1]
            continue
        found.append(fault)
    return found


def _between(times: Ints, first: int, last: int) -> bool:
    return bool(np.searchsorted(times, last) > np.searchsorted(times, first, side="right"))
