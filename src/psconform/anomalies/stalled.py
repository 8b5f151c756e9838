"""Stalls: tasks of which nothing is heard for much longer than usual, though they are not through."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..history.columns import Ints
from ..history.model import History, Worker
from .anomaly import Anomaly, one_clock, seconds

FLOOR_S = 2.0
"""Shorter pauses happen: a machine with more tasks than cores has some of half a second and more."""
TIMES = 40.0
"""So many times the 95th percentile of all pauses of the run: if the machine is slow, all of them are long, and what a
trainer does for the first time (a call that TensorFlow has to prepare) was seen to take 24 times as long."""
WARM = 10
"""Steps of a worker that are left out at its start, in which it does everything for the first time."""
LEAST = 20
"""Pauses; with fewer nobody knows what is usual."""
READ, PUSH, ACK = range(3)
_DID = ("read for step {}", "pushed step {}", "got the answer of step {}")


@dataclass(frozen=True)
class Gap:
    """A long time without an event of a worker, after event ``code`` of a step; nanoseconds of CLOCK_MONOTONIC."""

    worker: Worker
    begin: int
    end: int
    code: int
    step: int

    @property
    def own(self) -> bool:
        """It had read and not pushed: nobody but itself can hold it up there."""
        return self.code == READ

    @property
    def place(self) -> int:
        """How far it had come."""
        return 3 * self.step + self.code


def stalled(history: History) -> list[Anomaly]:
    """Tasks that recorded nothing for more than `FLOOR_S` and `TIMES` the 95th percentile of all pauses of the run.

    Counted from a worker's `WARM`-th acknowledgement (before that, processes start) to its last push (after which
    nothing is read, so it may be another call than those before, and then it waits for others), or to the end of the
    run if it never got through. Where several workers pause together, most wait for one: the one that was computing;
    or, in sync and bounded staleness, the one that is behind the others. If all wait alike it is a ps (``ps`` where
    there are several, for workers do not say which one they wait for).

    Silent where tasks share no clock, and on records with less than `LEAST` pauses. A stall shorter than that, such as
    a SIGSTOP for a second, is not told from a busy machine.
    """
    if not one_clock(history):
        return []
    lines = {worker.index: _timeline(worker) for worker in history.workers}
    last = max([history.until, *(int(times[-1]) for times, _ in lines.values() if len(times))])
    pauses, windows = [np.zeros(0, np.int64)], {}
    for worker in history.workers:
        times, codes = lines[worker.index]
        begin, end = _window(worker, last)
        inside = (times >= begin) & (times <= end)
        windows[worker.index] = np.append(times[inside], [end] if end == last else []), codes[inside]
        pauses.append(np.diff(windows[worker.index][0]))
    usual = np.concatenate(pauses)
    if len(usual) < LEAST:
        return []
    p95 = float(np.quantile(usual, 0.95))
    least = max(FLOOR_S * 1e9, TIMES * p95)
    gaps = [gap for worker in history.workers for gap in _gaps(worker, *windows[worker.index], least)]
    first: dict[str, Anomaly] = {}
    for together in _together(sorted(gaps, key=lambda gap: gap.begin)):
        for task, gap in _blamed(history, together, windows):
            text = (
                f"nothing for {(gap.end - gap.begin) / 1e9:.1f} s after {gap.worker} {_DID[gap.code].format(gap.step)}"
            )
            text += f"; 95 % of all pauses are below {p95 / 1e6:.0f} ms"
            since_s = seconds(history, gap.worker, gap.begin)
            first.setdefault(task, Anomaly(kind="stalled", task=task, step=gap.step, since_s=since_s, text=text))
    return list(first.values())


def _timeline(worker: Worker) -> tuple[Ints, Ints]:
    """When a worker read, pushed and was answered, int64[N], and 3 x step + code of each, int64[N]."""
    reads, pushes = worker.reads, worker.pushes
    told = pushes.answered > 0
    times = np.concatenate([reads.at, pushes.at, pushes.answered[told]])
    places = np.concatenate([3 * reads.step + READ, 3 * pushes.step + PUSH, 3 * pushes.step[told] + ACK])
    order = np.lexsort((places, times))
    return times[order], places[order]


def _window(worker: Worker, last: int) -> tuple[int, int]:
    """From its first answers to its last push, or to the end of the run if it did not get through; none: 1, 0."""
    answered = np.sort(worker.pushes.answered[worker.pushes.answered > 0])
    if len(answered) < WARM:
        return 1, 0
    through = worker.ended or bool(worker.reads.final.any())
    return int(answered[WARM - 1]), int(worker.pushes.at.max()) if through else last


def _gaps(worker: Worker, times: Ints, places: Ints, least: float) -> list[Gap]:
    long = np.flatnonzero(np.diff(times) > least).tolist()
    return [
        Gap(worker, int(times[i]), int(times[i + 1]), int(places[i]) % 3, int(places[i]) // 3)
        for i in long
        if i < len(places)
    ]


def _together(gaps: list[Gap]) -> list[list[Gap]]:
    """Gaps that overlap, one list for each time."""
    groups: list[list[Gap]] = []
    for gap in gaps:
        if groups and gap.begin < max(other.end for other in groups[-1]):
            groups[-1].append(gap)
        else:
            groups.append([gap])
    return groups


def _blamed(history: History, gaps: list[Gap], windows: dict[int, tuple[Ints, Ints]]) -> list[tuple[str, Gap]]:
    """Who is stalled, of workers that pause together: the others wait for it."""
    if own := [gap for gap in gaps if gap.own]:
        return [(str(gap.worker), gap) for gap in own]
    begin, end = max(gap.begin for gap in gaps), min(gap.end for gap in gaps)
    paused = {gap.worker.index for gap in gaps}
    moving = [i for i, (times, _) in windows.items() if i not in paused and ((times > begin) & (times < end)).any()]
    if moving:
        return [(str(gap.worker), gap) for gap in gaps]
    layout = history.layout
    behind = min(gap.place for gap in gaps)
    if (layout.update == "sync" or layout.staleness is not None) and behind < max(gap.place for gap in gaps):
        return [(str(gap.worker), gap) for gap in gaps if gap.place == behind]
    if layout.all_reduce:
        return []
    return [("ps:0" if layout.ps == 1 else "ps", gaps[0])]
