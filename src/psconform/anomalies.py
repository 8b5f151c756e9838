"""Anomalies: what was unusual in a run, of which task and since when. They change no verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .history.columns import OUTCOMES, Bools, Floats, Ints
from .history.model import History, Worker

Losses = Mapping[str, Sequence[float]]
"""By worker, the loss before each step, where a model is trained."""


@dataclass(frozen=True, kw_only=True)
class Anomaly:
    """One thing that went unusually: what, with which task, since when.

    ``step`` is the task's own step (None: not known), ``since_s`` seconds after the first read of the run; ``text``
    says what was seen, in one line.
    """

    kind: str
    task: str
    step: int | None
    since_s: float
    text: str

    def __str__(self) -> str:
        when = f"{self.since_s:.1f} s" if self.step is None else f"step {self.step} ({self.since_s:.1f} s)"
        return f"{self.kind}: {self.task} since {when}: {self.text}"


def seconds(history: History, worker: Worker, at: int) -> float:
    """Seconds from the first read of the run (of this worker, where clocks differ) to a moment of its clock, >= 0."""
    known = history.workers if history.one_clock else (worker,)
    began = min((int(w.reads.at[0]) for w in known if len(w.reads)), default=at)
    return round(max(0.0, (at - began) / 1e9), 3)


NON_FINITE = "non-finite"


def non_finite(history: History) -> list[Anomaly]:
    """Gradients that were not finite, by worker, and parameters that were not, by the worker that first read them.

    There is no threshold: one NaN is one too many. What the worker was told of its gradient is C3's business, and only
    repeated here. Only gradients that the probe has given are known.
    """
    return [*_bad_gradients(history), *_bad_parameters(history)]


def _bad_gradients(history: History) -> list[Anomaly]:
    found = []
    for worker in history.workers:
        mine = [poison for poison in history.poisons if poison.worker == worker.index]
        if not mine:
            continue
        first = min(mine, key=lambda poison: poison.step)
        told = OUTCOMES[history.outcomes[worker.index, first.step]]
        more = f", and {len(mine) - 1} more" if len(mine) > 1 else ""
        text = f"its gradient of step {first.step} is {first.value} ({told}){more}"
        since_s = seconds(history, worker, first.at)
        found.append(Anomaly(kind=NON_FINITE, task=str(worker), step=first.step, since_s=since_s, text=text))
    return found


def _bad_parameters(history: History) -> list[Anomaly]:
    first = [(int(w.reads.at[index]), w, index) for w in history.workers if (index := _first_bad(w)) is not None]
    if not first:
        return []
    at, worker, index = min(first, key=lambda item: item[0])
    others = f", as did {len(first) - 1} other worker(s)" if len(first) > 1 else ""
    step = int(worker.reads.step[index])
    text = f"it read parameters that are not finite{others}"
    return [Anomaly(kind=NON_FINITE, task=str(worker), step=step, since_s=seconds(history, worker, at), text=text)]


def _first_bad(worker: Worker) -> int | None:
    bad = np.flatnonzero(~worker.reads.finite)
    return int(bad[0]) if bad.size else None


STALL_S = 2.0
"""Shorter pauses happen: a machine with more tasks than cores has some of half a second and more."""
STALL_TIMES = 40.0
"""So many times the 95th percentile of all pauses of the run: if the machine is slow, all of them are long, and what a
trainer does for the first time (a call that TensorFlow has to prepare) was seen to take 24 times as long."""
STALL_WARM = 10
"""Steps of a worker that are left out at its start, in which it does everything for the first time."""
STALL_LEAST = 20
"""Least number of pauses from which the usual length can be told."""
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
        """It had read and not pushed: nothing outside the worker holds it up there."""
        return self.code == READ

    @property
    def place(self) -> int:
        """How far it had come."""
        return 3 * self.step + self.code


def stalled(history: History) -> list[Anomaly]:
    """Tasks that recorded nothing for more than `STALL_S` and `STALL_TIMES` the 95th percentile of all pauses.

    Counted from a worker's `STALL_WARM`-th acknowledgement (before that, processes start) to its last push (after which
    nothing is read, so it may be another call than those before, and then it waits for others), or to the end of the
    run if it never got through. Where several workers pause together, most wait for one: the one that was computing;
    or, in sync and bounded staleness, the one that is behind the others. If all wait alike it is a ps (``ps`` where
    there are several, for workers do not say which one they wait for).

    Silent where tasks share no clock, and on records with less than `STALL_LEAST` pauses. A stall shorter than that,
    such as a SIGSTOP for a second, is not told from a busy machine.
    """
    if not history.one_clock:
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
    if len(usual) < STALL_LEAST:
        return []
    p95 = float(np.quantile(usual, 0.95))
    least = max(STALL_S * 1e9, STALL_TIMES * p95)
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
    if len(answered) < STALL_WARM:
        return 1, 0
    through = worker.ended or bool(worker.reads.final.any())
    return int(answered[STALL_WARM - 1]), int(worker.pushes.at.max()) if through else last


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


SLOW_TIMES = 3.0
"""So many times as long as the others: half as much again is what a neighbour on the same core costs."""
SLOW_MS = 10.0
"""... and at least so much longer: a ledger's gradient takes 0.1 ms, a time slice of a busy machine some of them."""
SLOW_SHARE = 0.8
"""Of the steps since then that must be so slow: a pause, however long, is one step."""
SLOW_LEAST = 20
"""Steps: with fewer a few pauses are a share of them."""


def stragglers(history: History) -> list[Anomaly]:
    """Workers whose own time per step is `SLOW_TIMES` that of the others and `SLOW_MS` longer, persistently to the end.

    A step's own time is what passes from the last read for it to its push: computing, without waiting for anybody, so
    that in sync, where all take equally long, it shows who holds up the round. The others' time is the median of their
    medians (the lower one of two, so that two stragglers of three workers are seen). Slow ``since`` the first step from
    which on `SLOW_SHARE` of at least `SLOW_LEAST` steps are so.

    Silent with one worker, and where steps are not read one by one.
    """
    own = {worker.index: own_times_ms(worker) for worker in history.workers}
    medians = {index: float(np.median(times)) for index, (_, times) in own.items() if len(times) >= SLOW_LEAST}
    found = []
    for worker in history.workers:
        others = sorted(value for index, value in medians.items() if index != worker.index)
        if worker.index not in medians or not others:
            continue
        usual = others[(len(others) - 1) // 2]
        steps, times = own[worker.index]
        since = _slow_since(times > max(SLOW_TIMES * usual, usual + SLOW_MS))
        if since is None:
            continue
        step, slow = int(steps[since]), float(np.median(times[since:]))
        text = f"a gradient takes it {slow:.1f} ms, the others {usual:.1f} ms"
        at = int(worker.pushes.at[worker.pushes.step == step][0])
        since_s = seconds(history, worker, at)
        found.append(Anomaly(kind="straggler", task=str(worker), step=step, since_s=since_s, text=text))
    return found


def own_times_ms(worker: Worker) -> tuple[Ints, Floats]:
    """Steps that a worker has read and pushed once, and milliseconds from the read to the push of each."""
    pushes, reads = worker.pushes, worker.reads
    read = pushes.take((pushes.read >= 0) & (pushes.attempts == 1))
    read = read.take(reads.step[read.read] == read.step)
    read = read.take(np.argsort(read.step, kind="stable"))
    return read.step, (read.at - reads.at[read.read]) / 1e6


def _slow_since(slow: Bools) -> int | None:
    """The first position that is slow and from which on enough are."""
    left = np.arange(len(slow), 0, -1)
    share = np.cumsum(slow[::-1])[::-1] / left
    starts = np.flatnonzero(slow & (share >= SLOW_SHARE) & (left >= SLOW_LEAST))
    return int(starts[0]) if starts.size else None


LOSS_TIMES = 3.0
"""So many times the loss at the start: the noise of small batches and of staleness moves it by tenths."""
LOSS_SMALLEST = 1e-6
"""A start below this is one at the optimum, and any rounding many times as much."""
LOSS_SHARE = 0.1
"""Of the run, up to its end, in which the loss must be that high: a spike from which training recovers is none."""
LOSS_LEAST = 5
"""... and so many steps."""


def diverging(history: History, losses: Losses) -> list[Anomaly]:
    """The loss is not finite, or `LOSS_TIMES` what it was at first, from some step to the end, for `LOSS_SHARE` of all.

    One report for the run, with the worker that saw it first: all workers share the parameters. ``losses`` are those on
    the whole training set, by worker and step, so that no batch stands out. Silent on ledgers, which have no loss, and
    where that part of the run is less than `LOSS_LEAST` steps.
    """
    found = []
    for worker in history.workers:
        values = np.asarray(losses.get(str(worker), ()), np.float64)
        if not len(values) or not np.isfinite(values[0]):
            continue
        start = float(values[0])
        high = ~(values <= LOSS_TIMES * max(start, LOSS_SMALLEST))  # so is NaN
        since = len(high) - int(np.argmin(high[::-1])) if not high.all() else 0
        if len(high) - since < max(LOSS_LEAST, LOSS_SHARE * len(high)):
            continue
        reads = worker.reads
        seen = np.flatnonzero(reads.step >= since)[:1]
        since_s = seconds(history, worker, int(reads.at[seen[0]])) if seen.size else 0.0
        last = values[-1]
        now = f"{last:.4g}" if np.isfinite(last) else "no number"
        text = f"the loss is {now} in the end, {start:.4g} at the start"
        found.append(Anomaly(kind="diverging", task=str(worker), step=since, since_s=since_s, text=text))
    return sorted(found, key=lambda anomaly: anomaly.since_s)[:1]


DETECTORS: dict[str, Callable[[History, Losses], list[Anomaly]]] = {
    NON_FINITE: lambda history, _: non_finite(history),
    "stalled": lambda history, _: stalled(history),
    "straggler": lambda history, _: stragglers(history),
    "diverging": diverging,
}
"""By the kind of anomaly that they report."""


def find_anomalies(history: History, losses: Losses | None = None) -> tuple[Anomaly, ...]:
    """What all detectors report, by the time since when; never raises.

    Args:
        history: the run.
        losses: by worker, the loss before each step, where a model is trained.
    """
    found: list[Anomaly] = []
    for kind, detector in DETECTORS.items():
        try:
            found += detector(history, losses or {})
        except Exception as error:  # a crashed detector must not cost the verdicts, nor look as if all were well
            text = f"the detector crashed: {type(error).__name__}: {error}"
            found.append(Anomaly(kind=kind, task="psconform:0", step=None, since_s=0.0, text=text))
    return tuple(sorted(found, key=lambda anomaly: anomaly.since_s))
