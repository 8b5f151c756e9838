"""L2: once faults are healed, training is as fast again as it was before them."""

from __future__ import annotations

import numpy as np

from ..history.columns import Ints
from ..history.model import OK, History, Worker
from ..history.told import OVER
from ..verdict import Verdict, not_judged, valid, violated

BACK_S = 5.0
"""T2: so long after the last fault was healed nobody asks how fast training is."""
LEAST = 20
"""Steps on each side; of fewer nobody knows how long one takes."""
SLOWER = 4.0


def throughput_back(history: History) -> Verdict:
    """L2: throughput is back within T2 (5 s) after the last fault was healed.

    By each worker's own clock, from one accepted gradient to the next one: from T2 after the last fault on, even the
    quickest quarter of its steps takes 4 times as long as the slowest quarter took before the first fault, or longer;
    and so it is for every worker. So much is no busy machine's doing, unless it got that busy just then; less is not
    accused.

    Assumes: all faults were healed, and a worker has 20 accepted gradients before the first, from when every worker has
    one, and 20 from T2 after the last; no bound on staleness, which lets workers be faster at first. Else it is not
    judged.
    """
    faults = [fault for fault in history.faults if fault.on_ns and fault.kind not in OVER]
    if not faults:
        return not_judged("needs a fault: --kill, --stop or --faults")
    if history.lasting:
        return not_judged(f"needs faults that are healed: {history.lasting[0].what} was not")
    if history.layout.staleness is not None:
        return not_judged("needs --staleness unbounded: up to the bound a worker is faster than later")
    began = max((worker.acked_ns.min(initial=np.iinfo(np.int64).max) for worker in history.workers), default=0)
    first, last = min(fault.on_ns for fault in faults), max(fault.off_ns or fault.on_ns for fault in faults)
    slow, told = [], []
    for worker in history.workers:
        before, after = (
            _intervals(worker, since=int(began), until=first),
            _intervals(worker, since=last + int(BACK_S * 1e9)),
        )
        if len(before) < LEAST or len(after) < LEAST:
            continue
        usual, quickest = np.quantile(before, 0.75) / 1e6, np.quantile(after, 0.25) / 1e6
        told.append(float(np.median(after) / np.median(before)))
        if quickest >= SLOWER * usual:
            slow.append(
                f"{worker}: a step took {usual:.1f} ms or less before {faults[0].what}, in three of four; "
                f"{BACK_S:g} s after the last fault {quickest:.1f} ms or more"
            )
    if slow and len(slow) == len(told):
        return violated(slow)
    if not told:
        return not_judged(f"needs {LEAST} steps of a worker before the first fault, and {LEAST} from 5 s after")
    return valid(f"a step takes {max(told):.1f} times as long as before, at most", slower=round(max(told), 2))


def _intervals(worker: Worker, *, since: int = 0, until: int | None = None) -> Ints:
    """Nanoseconds from one accepted gradient to the next, in this part of the run."""
    pushes = worker.pushes
    times = np.sort(pushes.answered[pushes.outcome == OK])
    times = times[times >= since]
    return np.diff(times if until is None else times[times <= until])
