"""L1: every fault ends in progress or in an error that names its cause."""

from __future__ import annotations

from ..history.model import History
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
