"""L1: every fault ends in progress or in an error that names its cause."""

from __future__ import annotations

import numpy as np

from ..history.model import History
from ..history.told import OVER, Struck
from ..verdict import Verdict, not_judged, unknown, valid, violated


def no_hang(history: History) -> Verdict:
    """L1: every fault ends in progress, or in an attributed error within T (``--patience``).

    With the claim ``progress``, training ends as if nothing had happened, all faults being healed; with
    ``attributed-error`` a task may also end with an error that its log tells. A run in which training did not move for
    T, and no task had failed, is a hang: nothing was recorded, or only reads, pushes of the same gradients and
    rollbacks. The witness is what each task did last, and where it is stuck, if its probe can tell.

    Assumes: a fault that took effect and was healed, or a worker that the job may go on without (``--drop-after``);
    without any, nobody knows whether it is the target that hangs.
    """
    if not history.faults:
        return not_judged("needs a fault: --kill, --stop, --poison or --faults")
    owed = history.left  # a job that may go on without a worker owes progress without it
    lasting = [fault.what for fault in history.lasting if fault.of not in map(str, owed)]
    if lasting and history.claims.liveness == "progress":
        return unknown(f"{', '.join(lasting)} was not healed, so nobody owes progress")
    return _after_healing(history)


def _after_healing(history: History) -> Verdict:
    if history.ended in ("finished", "stalled") and history.failed and history.claims.liveness == "attributed-error":
        silent = [line for line in history.failed if "its log ends" not in line]
        if silent:
            return violated([f"{line}, and its log says nothing" for line in silent])
        return unknown(f"incomplete: {history.unstruck[0]}") if history.unstruck else valid("by an error")
    if history.ended == "stalled":
        struck = [f"{fault.what}: {fault.evidence}" for fault in history.faults]
        return violated([*(f"after {text}" for text in struck), *history.failed, *history.last_words])
    if history.failed:
        return violated(history.failed)
    if history.gaps:
        return unknown(history.incomplete)
    return valid(f"{len(history.faults)} fault(s)")


SPACED = 3


def windowed_budgets(history: History) -> Verdict:
    """L3: fault budgets are windowed, not for life: the third of spaced faults is no worse than the first.

    Faults are spaced if an update was accepted after the one was healed and before the next one struck. Of three or
    more that are, of one kind and of the same tasks or links, training survives the last as it did those before: it
    ends as L1 asks. The witness is how often it went well, and what L1 has to say.

    Assumes: as L1. A trainer that does not survive its first fault, or the first of a kind, is L1's alone.
    """
    faults = sorted((f for f in history.faults if f.on_ns and f.kind not in OVER), key=lambda fault: fault.on_ns)
    alike: dict[tuple[str, str], list[Struck]] = {}
    for fault in faults:
        alike.setdefault((fault.kind, fault.of), []).append(fault)
    spaced = {key: _spaced(history, group) for key, group in alike.items()}
    verdict = no_hang(history)
    if verdict.status == "violated":  # whatever struck last, it was not survived
        spaced = {key: rounds for key, rounds in spaced.items() if alike[key][-1] is faults[-1]}
    rounds = max(spaced.values(), key=len, default=[])
    if verdict.status == "violated" and _outlasts(rounds):
        return not_judged("needs faults that last as long: the last one lasted longer than those that were survived")
    if len(rounds) < SPACED:
        return not_judged("needs three faults of one kind and of the same, with updates between them")
    if verdict.status != "violated":
        return verdict if verdict.status != "valid" else valid(f"{len(rounds)} spaced faults")
    before = ", ".join(fault.what for fault in rounds[:-1])
    return violated([f"survived {before}; not {rounds[-1].what}", *verdict.witness])


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


def _between(times: np.ndarray[tuple[int, ...], np.dtype[np.int64]], first: int, last: int) -> bool:
    return bool(np.searchsorted(times, last) > np.searchsorted(times, first, side="right"))
