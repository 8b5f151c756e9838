"""Which checks there are, when each applies, and the rules that hold for all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..history.model import FAILED, History, Worker
from ..verdict import Verdict, not_judged, unknown
from . import (
    asynchronous,
    bounded,
    compression,
    convergence,
    delivery,
    initialisation,
    leaving,
    liveness,
    membership,
    order,
    quorum,
    rate,
    reads,
    recovery,
    replicas,
    replication,
    resumed,
    serial,
    staleness,
    straggler,
    synchronous,
    throughput,
    torn,
    training,
)

Judge = Callable[[History], Verdict]


@dataclass(frozen=True)
class Check:
    """A guarantee, the claim it judges, and the function that does.

    ``dimension`` is empty for what every trainer owes; ``weakest`` are the levels of it at which nothing is promised;
    ``updates`` the update modes in which the guarantee has a meaning; ``reads`` the least number of reads each worker
    must have made for it to be decided; ``finite``: it counts, so that it is shown no read with a NaN or Inf;
    ``ends``: it is about how a run ends, and so looks at an incomplete record itself;
    ``acked``: it is about accepted gradients, so that each worker must have one; ``workloads``: those that can show it.
    """

    name: str
    title: str
    judge: Judge
    dimension: str
    weakest: tuple[str, ...] = ("none",)
    updates: tuple[str, ...] = ("sync", "async")
    reads: int = 2
    finite: bool = True
    ends: bool = False
    acked: bool = False
    workloads: tuple[str, ...] = ("ledger",)

    @property
    def definition(self) -> str:
        """What the guarantee promises, and what the check assumes."""
        return (self.judge.__doc__ or "").strip()


BOTH, SYNC, ASYNC = ("sync", "async"), ("sync",), ("async",)
TRAINED, DECAYED, DENSE = ("digits", "quadratic"), ("decayed-ledger",), ("dense-ledger",)
ALL = ("ledger", *DECAYED, *DENSE, *TRAINED)
COUNTED = ("ledger", *DENSE)
"""For what looks at which gradients show and at nonces, not at weights."""
SHOWN = ("ledger", *DECAYED, *DENSE)
"""For what looks only at which gradients show."""
CHECKS: tuple[Check, ...] = (
    Check("S1", "barrier", synchronous.barrier, "barrier", ("none", "r-of-n"), SYNC, workloads=COUNTED),
    Check("S2", "r-of-n", quorum.r_of_n, "barrier", ("none", "full"), SYNC),
    Check("S3", "one contributor set", synchronous.one_contributor_set, "barrier", updates=SYNC, workloads=SHOWN),
    Check("S4", "release together", synchronous.release_together, "barrier", updates=SYNC, workloads=SHOWN),
    Check("S5", "reduction", synchronous.reduction, "reduction", updates=SYNC),
    Check("S6", "straggler", straggler.waits_for_slowest, "barrier", ("none", "r-of-n"), SYNC, workloads=ALL),
    Check("S7", "replicas equal", replicas.replicas_equal, "", (), SYNC, workloads=ALL),
    Check(
        "A1", "apply on arrival", asynchronous.apply_on_arrival, "delivery", ("none", "at-most-once"), ASYNC, acked=True
    ),
    Check("A2", "staleness", staleness.staleness, "staleness", (), ASYNC, workloads=("ledger", *DECAYED)),
    Check("A3", "bounded staleness", bounded.bounded_staleness, "staleness", ("unbounded",), ASYNC),
    Check("A4", "staleness-aware rate", rate.staleness_aware, "rate", ("constant",), ASYNC),
    Check(
        "A5", "no lost update", asynchronous.no_lost_update, "delivery", updates=ASYNC, acked=True, workloads=COUNTED
    ),
    Check("A6", "atomic read", reads.atomic_read, "read_atomicity", workloads=SHOWN),
    Check("A7", "monotonic reads", reads.monotonic_reads, "read_atomicity", workloads=SHOWN),
    Check("A8", "order", order.apply_order, "", acked=True, workloads=DECAYED),
    Check("I1", "one initialisation", initialisation.one_initialisation, "init", ("repeated",), workloads=COUNTED),
    Check("I2", "nothing before ready", initialisation.nothing_before_ready, "init", ("repeated",), workloads=SHOWN),
    Check("R1", "delivery", delivery.delivery_class, "delivery", acked=True),
    Check("R2", "duplicates", delivery.duplicates, "delivery", ("none", "at-most-once"), acked=True),
    Check("R3", "rollback", recovery.rollback, "recovery", workloads=COUNTED),
    Check("R4", "one cut", resumed.one_cut, "recovery", ("none", "partial"), workloads=(*COUNTED, *TRAINED)),
    Check("R5", "samples", convergence.samples_once, "", workloads=("digits",), reads=1),
    Check("R6", "fencing", recovery.fencing, "recovery", workloads=COUNTED),
    Check("R7", "torn checkpoint", torn.whole_checkpoint, "recovery", workloads=COUNTED),
    Check("M1", "joining", membership.joins_by_reading, "recovery", workloads=ALL),
    Check("M2", "leaving", leaving.leaves_as_declared, "", reads=0, ends=True, workloads=ALL),
    Check("L1", "no hang", liveness.no_hang, "liveness", ("may-hang",), reads=0, ends=True, workloads=ALL),
    Check(
        "L2",
        "throughput",
        throughput.throughput_back,
        "liveness",
        ("may-hang", "attributed-error"),
        reads=0,
        ends=True,
        workloads=ALL,
    ),
    Check(
        "L3",
        "budgets",
        liveness.windowed_budgets,
        "liveness",
        ("may-hang",),
        reads=0,
        ends=True,
        workloads=ALL,
    ),
    Check(
        "C1",
        "serial SGD",
        serial.follows_serial,
        "barrier",
        ("none", "r-of-n"),
        SYNC,
        workloads=TRAINED,
        acked=True,
    ),
    Check(
        "C2",
        "convergence",
        convergence.converges,
        "delivery",
        ("none", "at-most-once"),
        ASYNC,
        workloads=TRAINED,
        acked=True,
    ),
    Check("C3", "finite parameters", training.finite_parameters, "", finite=False, workloads=ALL),
    Check("C4", "compression", compression.compression, "compression", ("any",), acked=True, workloads=DENSE),
    Check("C5", "local steps", replicas.local_steps, "reduction", updates=SYNC),
    Check(
        "C6",
        "replication",
        replication.same_as_between_graph,
        "barrier",
        ("none", "r-of-n"),
        SYNC,
        workloads=TRAINED,
        acked=True,
    ),
)


THROUGH_PS = ("A6", "A7")
"""They are about what a ps gives to read; a replica is read where it is."""
OF_REPLICAS = ("S7", "C5")
WITH_LOCAL_STEPS = ("S7", "I1", "I2", "C3", "C5")
"""The others take it that a round has one step."""
GOOD_DAY = ("S6",)
"""They measure times, and whoever breaks something takes time."""
UNLESS_STRAIGHT = ("S2", "S7", "A8", "C2", "C4", "C5", "C6")
"""They know nothing of tasks that die and come back, of what is sent again, and of rollbacks. All others do."""
ARRIVAL = ("S1", "S3", "S4", "A5", "A6", "A7")
"""They take a gradient of which some entries show for one that has arrived, and one that is late for a fault."""


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
    elif history.workload.name not in check.workloads:
        verdict = not_judged(f"needs --workload {' or '.join(check.workloads)}")
    elif check.name in ARRIVAL and history.workload.name in DENSE and history.claims.compression != "lossless":
        verdict = not_judged(f"needs gradients that arrive whole: compression is {history.claims.compression}")
    elif history.disturbed and check.name in GOOD_DAY:
        verdict = not_judged("needs a run without faults")
    elif history.layout.all_reduce and check.name in THROUGH_PS:
        verdict = not_judged("needs a ps: replicas are read where they are")
    elif not history.layout.all_reduce and check.name in OF_REPLICAS:
        verdict = not_judged("needs replicas, --layout ps=0,worker=N")
    elif history.layout.local_steps > 1 and check.name not in WITH_LOCAL_STEPS:
        verdict = not_judged("needs --local-steps 1")
    elif history.layout.local_steps == 1 and check.name == "C5":
        verdict = not_judged("needs --local-steps")
    elif claimed in check.weakest:
        verdict = not_judged(f"needs a claim: {check.dimension} is {claimed}")
    elif history.disturbed and check.name in UNLESS_STRAIGHT and not history.straight:
        verdict = not_judged("needs a run in which nobody died, and nothing was sent again or taken back")
    else:
        verdict = _guarded(check, history)
    return verdict.named(check.name, check.title, claimed)


def _guarded(check: Check, history: History) -> Verdict:
    if not any(len(worker.pushes) for worker in history.workers):
        return unknown("nothing was trained: no gradient was pushed")
    if all((worker.pushes.outcome == FAILED).all() for worker in history.workers):
        return unknown("nothing was trained: every gradient was refused")
    try:
        verdict = check.judge(history.finite if check.finite else history)
        doubt = _doubt(check, history) if verdict.status == "valid" else ""
    except Exception as error:  # a crashed check says nothing, least of all valid
        return unknown(f"the check crashed: {type(error).__name__}: {error}")
    if verdict.status == "violated" and history.missing and history.layout.drop_after:
        # what the job went on without was said in records: with a part of one, what is excused looks like a violation
        return unknown(history.incomplete)
    return unknown(doubt, **verdict.stats) if doubt else verdict


def _doubt(check: Check, history: History) -> str:
    """Why a check that found nothing wrong still cannot say that all is well; empty if it can."""
    if check.ends:
        return ""
    if history.gaps:
        return history.incomplete
    few = [str(worker) for worker in history.workers if len(worker.reads) < check.reads]
    if few:
        return f"too few reads: {', '.join(few)} made less than {check.reads}"
    silent = [str(worker) for worker in history.workers if not len(worker.acked) and not _all_late(history, worker)]
    if check.acked and silent:
        return f"no gradient of {', '.join(silent)} was acknowledged as ok: does the trainer call probe.ack?"
    if check.finite and history.finite is not history:
        return "a NaN or Inf in the parameters hides what was applied (C3)"
    return history.disagreement if check.finite else ""


def _all_late(history: History, worker: Worker) -> bool:
    """Where a round does not wait for all, every gradient of a slow worker may be refused, or gone on without."""
    if history.excused[worker.index].all():
        return True
    return history.layout.quorum > 0 and bool((worker.pushes.outcome == FAILED).all())
