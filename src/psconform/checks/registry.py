"""Which checks there are, when each applies, and the rules that hold for all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..history.model import History
from ..verdict import Verdict, not_judged, unknown
from . import asynchronous, delivery, initialisation, reads, synchronous, training

Judge = Callable[[History], Verdict]


@dataclass(frozen=True)
class Check:
    """A guarantee, the claim it judges, and the function that does.

    ``dimension`` is empty for what every trainer owes; ``weakest`` are the levels of it at which nothing is promised;
    ``updates`` the update modes in which the guarantee has a meaning; ``reads`` the least number of reads each worker
    must have made for it to be decided; ``finite``: it counts, so that it is shown no read with a NaN or Inf;
    ``acked``: it is about accepted gradients, so that each worker must have one.
    """

    name: str
    title: str
    judge: Judge
    dimension: str
    weakest: tuple[str, ...] = ("none",)
    updates: tuple[str, ...] = ("sync", "async")
    reads: int = 2
    finite: bool = True
    acked: bool = False

    @property
    def definition(self) -> str:
        """What the guarantee promises, and what the check assumes."""
        return (self.judge.__doc__ or "").strip()


BOTH, SYNC, ASYNC = ("sync", "async"), ("sync",), ("async",)
CHECKS: tuple[Check, ...] = (
    Check("S1", "barrier", synchronous.barrier, "barrier", updates=SYNC),
    Check("S3", "one contributor set", synchronous.one_contributor_set, "barrier", updates=SYNC),
    Check("S4", "release together", synchronous.release_together, "barrier", updates=SYNC),
    Check("S5", "reduction", synchronous.reduction, "reduction", updates=SYNC),
    Check(
        "A1", "apply on arrival", asynchronous.apply_on_arrival, "delivery", ("none", "at-most-once"), ASYNC, acked=True
    ),
    Check("A2", "staleness", asynchronous.staleness, "staleness", (), ASYNC),
    Check("A5", "no lost update", asynchronous.no_lost_update, "delivery", updates=ASYNC, acked=True),
    Check("A6", "atomic read", reads.atomic_read, "read_atomicity"),
    Check("A7", "monotonic reads", reads.monotonic_reads, "read_atomicity"),
    Check("I1", "one initialisation", initialisation.one_initialisation, "init", ("repeated",)),
    Check("I2", "nothing before ready", initialisation.nothing_before_ready, "init", ("repeated",)),
    Check("R1", "delivery", delivery.delivery_class, "delivery", acked=True),
    Check("R2", "duplicates", delivery.duplicates, "delivery", ("none", "at-most-once"), acked=True),
    Check("C3", "finite parameters", training.finite_parameters, "", finite=False),
)


def judge_history(history: History) -> list[Verdict]:
    """Judge every guarantee that the Target claims; never raises.

    These rules hold for all checks: a check that crashes is ``unknown``; nothing is ``valid`` on an incomplete record
    (``History.gaps``) or with fewer reads than the check needs; nor is what is counted, where final reads disagree, or
    once a NaN or Inf is in the parameters.
    """
    return [_judge(check, history) for check in CHECKS]


def _judge(check: Check, history: History) -> Verdict:
    claimed = history.claims.level(check.dimension) if check.dimension else "always"
    if history.layout.update not in check.updates:
        verdict = not_judged(f"needs --update {' or '.join(check.updates)}")
    elif claimed in check.weakest:
        verdict = not_judged(f"needs a claim: {check.dimension} is {claimed}")
    else:
        verdict = _guarded(check, history)
    return verdict.named(check.name, check.title, claimed)


def _guarded(check: Check, history: History) -> Verdict:
    if not any(worker.pushes for worker in history.workers):
        return unknown("nothing was trained: no gradient was pushed")
    if all(push.outcome == "failed" for worker in history.workers for push in worker.pushes):
        return unknown("nothing was trained: every gradient was refused")
    try:
        verdict = check.judge(history.finite if check.finite else history)
        doubt = _doubt(check, history) if verdict.status == "valid" else ""
    except Exception as error:  # a crashed check says nothing, least of all valid
        return unknown(f"the check crashed: {type(error).__name__}: {error}")
    return unknown(doubt, **verdict.stats) if doubt else verdict


def _doubt(check: Check, history: History) -> str:
    """Why a check that found nothing wrong still cannot say that all is well; empty if it can."""
    if history.gaps:
        return history.incomplete
    few = [str(worker) for worker in history.workers if len(worker.reads) < check.reads]
    if few:
        return f"too few reads: {', '.join(few)} made less than {check.reads}"
    silent = [str(worker) for worker in history.workers if not worker.acked]
    if check.acked and silent:
        return f"no gradient of {', '.join(silent)} was acknowledged as ok: does the trainer call probe.ack?"
    if check.finite and history.finite is not history:
        return "a NaN or Inf in the parameters hides what was applied (C3)"
    return history.disagreement if check.finite else ""
