"""L2: once faults are healed, training is as fast again as it was before them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..history.columns import Ints
from ..history.model import OK, History, Worker
from ..verdict import Verdict, not_judged, unknown, valid, violated
from .registry import check

BACK_S = 5.0
"""T2: so long after the last fault was healed nobody asks how fast training is."""
LEAST = 20
"""Steps on each side; of fewer nobody knows how long one takes."""
FEW = 5
"""Steps of a slow worker while another one is as fast as ever: enough to tell that it is not the machine."""
SLOWER = 4.0
EVEN = 2.0
"""A worker that takes less than so many times as long as before is as fast as ever."""


@dataclass(frozen=True, eq=False)
class _Pace:
    """How long a worker's steps took before the first fault, and when it took those from T2 after the last on."""

    worker: Worker
    before: Ints
    times: Ints

    @property
    def usual(self) -> float:
        return float(np.quantile(self.before, 0.75))

    def after(self, until: int | None = None) -> Ints:
        return np.diff(self.times if until is None else self.times[self.times <= until])

    def slow(self, after: Ints) -> bool:
        return bool(np.quantile(after, 0.25) >= SLOWER * self.usual)


@check(
    "L2",
    "throughput",
    dimension="liveness",
    weakest=("may-hang", "attributed-error"),
    needs=(),
    reads=0,
    finite=False,
)
def throughput_back(history: History) -> Verdict:
    """L2: throughput is back within T2 (5 s) after the last fault was healed.

    By each worker's own clock, from one accepted gradient to the next one: from T2 after the last fault on, even the
    quickest quarter of its steps takes 4 times as long as the slowest quarter took before the first fault, or longer.
    So much is no busy machine's doing, unless it got that busy just then; less is not accused. In sync, where workers
    wait for each other, every worker is that slow. In async one is enough, if meanwhile another took 20 steps as fast
    as ever (in less than twice the time): then it is not the machine. Without such a one, unless all are that slow, it
    is unknown. Unknown, too, is a worker that has not taken 20 steps by the end, was not done, and had time for four
    times as many while others took theirs.

    Assumes: all faults were healed, and a worker has 20 accepted gradients before the first, from when every worker has
    one, and 20 from T2 after the last; no bound on staleness, which lets workers be faster at first. Else it is not
    judged; a worker of which that does not hold is left out.
    """
    faults = [fault for fault in history.faults if fault.on_ns and fault.outage]
    if not faults:
        return not_judged("needs a fault: --kill, --stop or --faults")
    if history.lasting:
        return not_judged(f"needs faults that are healed: {history.lasting[0].what} was not")
    if history.layout.staleness is not None:
        return not_judged("needs --staleness unbounded: up to the bound a worker is faster than later")
    began = max((worker.acked_ns.min(initial=np.iinfo(np.int64).max) for worker in history.workers), default=0)
    first, last = min(fault.on_ns for fault in faults), max(fault.off_ns or fault.on_ns for fault in faults)
    since = last + int(BACK_S * 1e9)
    known = [_pace(worker, began=int(began), first=first, since=since) for worker in history.workers]
    known = [pace for pace in known if len(pace.before) >= LEAST]
    judged = [pace for pace in known if len(pace.after()) >= LEAST]
    if not judged:
        return not_judged(f"needs {LEAST} steps of a worker before the first fault, and {LEAST} from 5 s after")
    return _of(history, known, judged, since=since, fault=faults[0].what)


def _of(history: History, known: list[_Pace], judged: list[_Pace], *, since: int, fault: str) -> Verdict:
    slow = [pace for pace in judged if pace.slow(pace.after())]
    alone = [] if history.layout.update == "sync" else [pace for pace in slow if _not_the_machine(pace, judged)]
    if found := slow if len(slow) == len(judged) else alone:
        return violated([_in_words(pace, fault) for pace in found])
    if slow and history.layout.update != "sync":
        why = "no other worker was as fast as ever meanwhile, so it may be the machine"
        return unknown(f"{_in_words(slow[0], fault)}; {why}")
    end = max(int(pace.times[-1]) for pace in judged)
    for pace in known:
        if pace not in judged and _held_up(history, pace, end - since):
            took = f"{len(pace.times)} step(s) in {(end - since) / 1e9:.1f} s"
            usual = f"{pace.usual / 1e6:.1f} ms or less for each before {fault}"
            return unknown(f"{pace.worker} took {took}, {BACK_S:g} s after the last fault, and {usual}")
    most = max(float(np.median(pace.after()) / np.median(pace.before)) for pace in judged)
    return valid(f"a step takes {most:.1f} times as long as before, at most", slower=round(most, 2))


def _in_words(pace: _Pace, fault: str) -> str:
    return (
        f"{pace.worker}: a step took {pace.usual / 1e6:.1f} ms or less before {fault}, in three of four; "
        f"{BACK_S:g} s after the last fault {np.quantile(pace.after(), 0.25) / 1e6:.1f} ms or more"
    )


def _not_the_machine(pace: _Pace, others: list[_Pace]) -> bool:
    """Whether another worker was as fast as ever while this one was slow."""
    for other in others:
        until = int(min(pace.times[-1], other.times[-1]))
        mine, its = pace.after(until), other.after(until)
        even = len(its) >= LEAST and np.median(its) < EVEN * np.median(other.before)
        if even and len(mine) >= FEW and pace.slow(mine):
            return True
    return False


def _held_up(history: History, pace: _Pace, lasted: int) -> bool:
    """Whether a worker was to take more steps and had the time; whoever is done has nothing more to show."""
    worker = pace.worker
    done = worker.ended or len(worker.pushes) >= history.due[worker.index]
    gone = any(failed.task == str(worker) for failed in history.failed) or any(
        absence.worker == worker.index for absence in history.absences
    )
    return not done and not gone and lasted >= LEAST * SLOWER * pace.usual


def _pace(worker: Worker, *, began: int, first: int, since: int) -> _Pace:
    pushes = worker.pushes
    times = np.sort(pushes.answered[pushes.outcome == OK])
    return _Pace(worker, np.diff(times[(times >= began) & (times <= first)]), times[times >= since])
