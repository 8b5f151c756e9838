"""Which checks there are, when each applies, and the rules that hold for all of them.

A check is a function of a module of this package, or of another package that names it in its entry points, with the
decorator `check`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any, Literal, TypeVar

from ..claims import BY_OPTION, LEVELS
from ..extensions import load
from ..history.model import FAILED, UNKNOWN, History, Worker
from ..probe import ENTRIES, WEIGHTS
from ..verdict import Verdict, not_judged, unknown
from ..workloads import all_workloads

Line = TypeVar("Line")

OF_FAULTS = ("recovery", "liveness")
"""Dimensions about what comes after a fault."""
MOST = 1000
"""A run that is wrong everywhere has as many faults as reads, and the first few tell."""


def at_most(lines: Iterable[Line]) -> Iterator[Line]:
    """The first ``MOST`` lines of one worker's faults."""
    return islice(lines, MOST)


ENTRY_POINTS = "psconform.checks"
"""The group in which another package names a module, or a function in one, that declares checks."""
SYNC, ASYNC = ("sync",), ("async",)
FAMILIES = "SAIRMLC"
"""The order in which guarantees are listed; those of other packages come last."""

Judge = Callable[[History], Verdict]


@dataclass(frozen=True)
class Check:
    """A guarantee, the claim that it judges, and the function that does.

    Attributes:
        name: as verdicts have it, a letter and a number.
        title: two words for a table.
        judge: its docstring is the definition of the guarantee.
        dimension: of the claims; empty for what every trainer owes.
        weakest: levels of the dimension at which nothing is promised.
        updates: update modes in which the guarantee has a meaning.
        needs: what the parameters of a workload must show (``probe.SHOWS``), one of these; none: any workload will do.
        reads: the least number of reads that each worker must have made for it to be decided.
        finite: it counts, so that it is shown no read with a NaN or Inf.
        ends: it is about how a run ends, so it looks at a run that stopped early, and at an incomplete record, itself.
        acked: it is about accepted gradients, so each worker must have one.
        whole_gradients: it takes a gradient of which some entries show for one that has arrived, and one that is late
            for a fault.
        through: what it is about: what a ``ps`` gives to read, ``replicas`` in the workers, or ``any``.
        local_steps: steps between two exchanges that it can judge: ``one``, ``several``, or ``any`` number.
        faults: what may happen in the run: ``none``, for it measures times, which a fault takes; ``no rollback``: no
            task that dies and comes back, nothing sent again or taken back; or ``any`` fault.
        final: no later event takes a violation of it back, unless a job may go on without a worker, or a gradient is
            poisoned: it looks at what reads show, and a read stays what it was once its gradient is pushed.
    """

    name: str
    title: str
    judge: Judge
    dimension: str = ""
    weakest: tuple[str, ...] = ("none",)
    updates: tuple[str, ...] = ("sync", "async")
    needs: tuple[str, ...] = (WEIGHTS,)
    reads: int = 2
    finite: bool = True
    ends: bool = False
    acked: bool = False
    whole_gradients: bool = False
    through: Literal["any", "ps", "replicas"] = "any"
    local_steps: Literal["one", "several", "any"] = "one"
    faults: Literal["none", "no rollback", "any"] = "any"
    final: bool = False

    @property
    def workloads(self) -> tuple[str, ...]:
        """Those that can show it."""
        return tuple(name for name, kind in all_workloads().items() if not self.needs or kind.shows & {*self.needs})

    @property
    def definition(self) -> str:
        """What the guarantee promises, and what the check assumes."""
        return (self.judge.__doc__ or "").strip()


_checks: dict[str, Check] = {}


def check(name: str, title: str, **said: Any) -> Callable[[Judge], Judge]:
    """Declare a check: decorates a function of a History that returns a Verdict, and leaves it as it is.

    Args:
        name: of the guarantee, as `Check` says, and so ``title`` and all others.

    Raises:
        ValueError: another function has that name already.
    """

    def declared(judge: Judge) -> Judge:
        if name in _checks:
            raise ValueError(f"check {name} is declared already, by {_checks[name].judge.__module__}")
        _checks[name] = Check(name, title, judge, **said)
        return judge

    return declared


@cache
def all_checks() -> tuple[Check, ...]:
    """All checks, those of other packages among them, in the order in which they are listed.

    Raises:
        BadInput: an entry point of another package cannot be loaded.
    """
    load(__name__.rpartition(".")[0], ENTRY_POINTS)
    return tuple(sorted(_checks.values(), key=_place))


def _place(check: Check) -> tuple[int, int, str]:
    family, number = check.name[:1], check.name[1:]
    known = number.isdigit() and family in FAMILIES
    return (FAMILIES.index(family), int(number), "") if known else (len(FAMILIES), 0, check.name)


def judge_history(history: History) -> list[Verdict]:
    """Judge every guarantee that the Target claims; never raises.

    These rules hold for all checks: a check that crashes is ``unknown``; nothing is ``valid`` on an incomplete record
    (``History.gaps``), or with fewer reads than the check needs; nor is what is counted, where final reads disagree, or
    once a NaN or Inf is in the parameters. Of a run that stopped early (``History.cut``) only violations count, and
    what is about its end.
    """
    return [_judge(check, history) for check in all_checks()]


def violated_for_good(history: History) -> tuple[str, ...]:
    """Guarantees of which a run that still goes on has shown a violation that stays one (`Check.final`)."""
    final = (check for check in all_checks() if check.final)
    return tuple(check.name for check in final if _judge(check, history.settled).status == "violated")


def _judge(check: Check, history: History) -> Verdict:
    claimed = history.claims.level(check.dimension) if check.dimension else "always"
    if history.calibration and not check.ends:
        verdict = not_judged("needs a calibration that comes to its end")
    elif history.layout.update not in check.updates:
        verdict = not_judged(f"needs --update {' or '.join(check.updates)}")
    elif history.workload.name not in check.workloads:
        verdict = not_judged(f"needs --workload {' or '.join(check.workloads)}")
    elif check.whole_gradients and ENTRIES in history.workload.shows and history.claims.compression != "lossless":
        verdict = not_judged(f"needs gradients that arrive whole: compression is {history.claims.compression}")
    elif history.disturbed and check.faults == "none":
        verdict = not_judged("needs a run without faults")
    elif history.layout.all_reduce and check.through == "ps":
        verdict = not_judged("needs a ps: replicas are read where they are")
    elif not history.layout.all_reduce and check.through == "replicas":
        verdict = not_judged("needs replicas, --layout ps=0,worker=N")
    elif history.layout.local_steps > 1 and check.local_steps == "one":
        verdict = not_judged("needs --local-steps 1")
    elif history.layout.local_steps == 1 and check.local_steps == "several":
        verdict = not_judged("needs --local-steps")
    elif claimed in check.weakest:
        verdict = _unclaimed(check, claimed, history)
    elif history.disturbed and check.faults == "no rollback" and not history.straight:
        verdict = not_judged("needs a run in which nobody died, and nothing was sent again or taken back")
    else:
        verdict = _guarded(check, history)
    return verdict.named(check.name, check.title, claimed)


def _unclaimed(check: Check, claimed: str, history: History) -> Verdict:
    """Too little is claimed: which option, or which line of a target file, would claim enough."""
    enough = next(level for level in reversed(LEVELS[check.dimension]) if level not in check.weakest)
    if option := BY_OPTION.get((check.dimension, enough)):
        return not_judged(f"needs {option}")
    shows = check.dimension not in OF_FAULTS or history.injected  # else a claim alone would not do
    claim = f'{check.dimension} = "{enough}"' if shows else ""
    return not_judged(f"needs a claim: {check.dimension} is {claimed}", claim=claim)


def _guarded(check: Check, history: History) -> Verdict:
    if not check.ends and (untrained := _untrained(history)):
        return not_judged(history.cut) if history.cut else unknown(untrained)
    try:
        verdict = check.judge(history.finite if check.finite else history)
        doubt = _doubt(check, history) if verdict.status == "valid" else ""
    except Exception as error:  # a crashed check says nothing, least of all valid
        return unknown(f"the check crashed: {type(error).__name__}: {error}")
    if verdict.status == "violated" and history.missing and history.layout.drop_after:
        # what the job went on without was said in records: with a part of one, what is excused looks like a violation
        return unknown(history.incomplete)
    if verdict.status == "valid" and not history.cut and (untrained := _untrained(history)):
        return unknown(untrained)
    if history.cut and not check.ends and verdict.status in ("valid", "unknown"):
        return not_judged(history.cut)  # there is nothing after it, least of all a final read
    return unknown(doubt, **verdict.stats) if doubt else verdict


def _untrained(history: History) -> str:
    if not any(len(worker.pushes) for worker in history.workers):
        return "nothing was trained: no gradient was pushed"
    if all((worker.pushes.outcome == FAILED).all() for worker in history.workers):
        return "nothing was trained: every gradient was refused"
    return ""


def _doubt(check: Check, history: History) -> str:
    """Why a check that found nothing wrong still cannot say that all is well; empty if it can."""
    if check.ends:
        return ""
    if history.gaps:
        return history.incomplete
    staying = [worker for worker in history.workers if not history.gone_for_good(worker)]
    # one that was late from the start has nothing to say, and its final read is enough
    few = [str(worker) for worker in staying if len(worker.reads) < check.reads and len(worker.pushes)]
    if few:
        return f"too few reads: {', '.join(few)} made less than {check.reads} (probe.read comes before each probe.push)"
    unheard = [worker for worker in staying if not len(worker.acked) and not _all_late(history, worker)]
    silent = [str(worker) for worker in unheard if not _never_answered(history, worker)]
    if check.acked and silent:
        return f"no gradient of {', '.join(silent)} was acknowledged as ok: does the trainer call probe.ack?"
    if check.finite and history.finite is not history:
        return "a NaN or Inf in the parameters hides what was applied (C3)"
    return history.disagreement if check.finite else ""


def _never_answered(history: History, worker: Worker) -> bool:
    """It died each time before it had an answer; or all that it sent was lost, as at-most-once delivery may have it."""
    pushes = worker.pushes
    if history.claims.delivery == "at-most-once" and history.disturbed:
        return len(pushes) > 0 and bool(((pushes.outcome == UNKNOWN) & (pushes.answered > 0)).all())
    due = pushes.take(~history.excused[worker.index, pushes.step])
    deaths = int(worker.reads.life.max(initial=0)) + (not worker.ended)
    return len(pushes) > 0 and bool((due.outcome == UNKNOWN).all()) and len(due) <= deaths


def _all_late(history: History, worker: Worker) -> bool:
    """Where a round does not wait for all, every gradient of a slow worker may be refused, or gone on without.

    Where work is dealt out, others may have done it all.
    """
    if history.excused[worker.index].all():
        return True
    spared = history.layout.quorum > 0 or (history.dynamic and worker.ended)
    return spared and bool((worker.pushes.outcome == FAILED).all())
