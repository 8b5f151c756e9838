"""Factors that gradients share, of all rounds or of those without some worker: found, and taken out of the counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from .columns import Bools, Floats, Odd, Reads
from .model import COUNT_TOLERANCE, History, Worker

ROUNDING = 2.0**-8
"""What a gradient may lose on its way as a bfloat16, twice rounded."""
LEAST_STEPS = 3
"""That have another weight than most, to be a part of a schedule."""


def short_rounds(history: History) -> Bools:
    """bool[K]: rounds that have the gradients of some workers in the end, while those of the others were not due."""
    if not _may_be_short(history):
        return np.zeros(history.steps, np.bool_)
    there: Bools = np.array(history.last.ever.all(axis=0))  # [W, K]
    short: Bools = np.array(there.any(axis=0) & ~there.all(axis=0) & (there | history.excused).all(axis=0))
    late = there & history.excused  # taken into another round, perhaps
    short[late.any(axis=0)] = False
    short[[poison.step for poison in history.poisons]] = False  # what is refused may be left out, or be a zero
    return short


def _may_be_short(history: History) -> bool:
    layout = history.layout
    means = layout.update == "sync" and not layout.quorum and layout.reduction == "mean"
    return means and (bool(history.absences) or bool(history.excused.any()))


def _held(history: History) -> Floats:
    """How often each gradient shows in the end, float64[V, W, K]; inf: more often at one end of a variable."""
    odd, held = history.last.odd, history.last.plain.astype(np.float64)
    shown = odd.take(~odd.zero)
    even = np.abs(shown.head - shown.tail) <= COUNT_TOLERANCE * np.maximum(1.0, np.abs(shown.head))
    held[shown.variable, shown.peer, shown.step] = np.where(even, shown.head, np.inf)
    return held


def weights_of(history: History, short: Bools) -> Floats:
    """The weight of the gradients of each short round, in those of whole rounds, float64[K]; inf: they differ.

    NaN for all other rounds.
    """
    there: Bools = np.array(history.last.ever.all(axis=0))
    whole: Bools = np.array(there.all(axis=0))
    held = _held(history)
    even = held[:, :, whole][np.isfinite(held[:, :, whole])]
    usual = float(np.median(even)) if even.size else 1.0
    weights = np.full(history.steps, np.nan)
    for step in np.flatnonzero(short).tolist():
        counts = held[:, there[:, step], step].ravel() / (usual or 1.0)
        least = counts[np.argmin(np.abs(counts))]
        weights[step] = np.inf
        if np.isfinite(counts).all() and least:
            times = counts / least  # twice, three times is a duplicate, which is for R1
            if (np.abs(times - np.rint(times)) <= COUNT_TOLERANCE * np.abs(times)).all():
                weights[step] = least
    return weights


def by_live(history: History) -> History:
    """The same history with its ``divisor``, if there are short rounds.

    If they are the means of the workers that are in them, a gradient in them counts for one, as in a whole round; also
    in what was read before a rollback.
    """
    short, factor = short_rounds(history), np.ones(history.steps)
    divisor = ""
    if short.any():
        weights = weights_of(history, short)[short]
        more = history.layout.workers / np.array(history.last.ever.all(axis=0))[:, short].sum(axis=0)
        times = np.where(np.isfinite(weights), weights, 0.0) / more
        once = np.abs(times - 1) <= COUNT_TOLERANCE
        often = (np.abs(times - np.rint(times)) <= COUNT_TOLERANCE * times) & (times > 0)
        if (np.abs(weights - 1) <= COUNT_TOLERANCE).all():
            divisor = "initial"
        elif often.all() and (history.claims.divisor == "live" or 3 * np.count_nonzero(once) >= 2 * len(once)):
            divisor, factor[short] = "live", more  # one that shows more often was applied again, which is for R1
        else:
            divisor = "mixed"
    if divisor in ("initial", "mixed") or not _may_be_short(history):
        return replace(history, divisor=divisor)
    newest = max((int(worker.reads.epoch.max(initial=0)) for worker in history.workers), default=0)
    odd = [_in_rounds_of_live(history, worker, factor, newest) for worker in history.workers]
    workers = tuple(replace(w, reads=replace(w.reads, odd=kept)) for w, kept in zip(history.workers, odd, strict=True))
    return replace(history, workers=workers, divisor=divisor)


def _in_rounds_of_live(history: History, worker: Worker, factor: Floats, newest: int) -> Odd:
    """The odd cells of a worker, in units of what a mean of the workers in a round makes of a gradient."""
    reads, odd = worker.reads, worker.reads.odd
    last = reads.epoch[odd.end - 1]
    by = np.where(last == newest, factor[odd.step], 1.0)
    everyone = np.arange(history.layout.workers)
    excused = {epoch: history.excused_in(epoch) for epoch in np.unique(last[last != newest]).tolist()}
    for row in np.flatnonzero((last != newest) & (odd.head > 1) & (odd.head == odd.tail)).tolist():
        step, read = int(odd.step[row]), int(odd.end[row]) - 1
        there = reads.shows(read, everyone, np.full(len(everyone), step)).all(axis=0)
        more = len(everyone) / max(1, there.sum())
        without_others = (there | excused[int(last[row])][:, step]).all()
        if without_others and abs(odd.head[row] / more - 1) < COUNT_TOLERANCE:
            by[row] = more
    divided = replace(odd, head=odd.head / by, tail=odd.tail / by)
    fits = (np.abs(divided.head - 1) < COUNT_TOLERANCE) & (np.abs(divided.tail - 1) < COUNT_TOLERANCE)
    return divided.take(~fits | (by == 1.0))


def by_rest(history: History) -> History:
    """The same history, in which a gradient of a last round with fewer counts for one, too, if it is their mean."""
    layout, rest = history.layout, history.steps % history.layout.accumulate
    if layout.update != "sync" or layout.reduction != "mean" or not rest or not history.finals:
        return history
    held, there, whole = _held(history), history.last.ever, np.arange(history.steps) < history.steps - rest
    before, last, factor = held[there & whole], held[there & ~whole], layout.accumulate / rest
    usual = float(np.median(before)) if before.size else 1.0
    if not last.size or not usual or not np.isfinite([usual, *last]).all():
        return history
    if not (np.abs(last / usual / factor - 1) <= COUNT_TOLERANCE).all():
        return history
    units = np.where(whole, 1.0, factor) + np.zeros(held.shape)
    return replace(history, workers=_in_units(history.workers, units))


def without_rounding(history: History) -> History:
    """The same history, with whole counts where they are nearly that, of variables with a magnitude of their own.

    ``UNIT`` and its parts are exact in numbers of few bits; other magnitudes (``probe.SIZES``) are not.
    """
    inexact = history.workload.sizes(history.variables) != 1
    workers = []
    for worker in history.workers:
        odd = worker.reads.odd
        ends = []
        for end in (odd.head, odd.tail):
            whole = np.rint(np.where(np.isfinite(end), end, 0.0))
            near = (np.abs(end - whole) <= ROUNDING * np.abs(whole)) & (whole != 0) & inexact[odd.variable]
            ends.append(np.where(near, whole, end))
        kept = replace(odd, head=ends[0], tail=ends[1])
        once = (kept.head == 1) & (kept.tail == 1) & inexact[odd.variable]
        workers.append(replace(worker, reads=replace(worker.reads, odd=kept.take(~once))))
    return replace(history, workers=tuple(workers))


def by_weight(history: History) -> History:
    """The same history, in which a gradient of a weighted mean counts for one if it has the share that it should have.

    If all have the same share all the same, it stays as it is, and is ``unweighted``. In a round of all workers whose
    shares are others, but together as much, gradients count for one, too: they are ``misweighted``, and none was
    applied again. Where a worker has not said what its gradients count, they count for what they show.
    """
    shares, held = history.shares, _held(history)
    exact = (history.workload.sizes(history.variables) == 1)[:, None, None]
    alike = np.abs(held - 1) <= np.where(exact, COUNT_TOLERANCE, ROUNDING)
    said: Bools = np.array(~history.unsaid.any(axis=0))  # [K]
    there = history.last.ever & said
    differ = np.abs(shares - 1) > COUNT_TOLERANCE
    if (there & differ).any() and alike[there].all():
        return replace(history, unweighted=True)
    shares = np.where(said | ~np.isfinite(held) | (held == 0), shares, held)
    off = np.abs(held / shares - 1) > np.where(exact, COUNT_TOLERANCE, ROUNDING)
    whole = np.abs(held.mean(axis=1, keepdims=True) - 1) <= np.where(exact, COUNT_TOLERANCE, ROUNDING)
    others = whole & there.all(axis=1, keepdims=True) & (held > 0).all(axis=1, keepdims=True) & off
    wrong = np.where(others, held / shares, 1.0) if others.any() else None
    return replace(history, workers=_in_units(history.workers, np.where(others, held, shares)), misweighted=wrong)


def by_rate(history: History) -> History:
    """The same history, in which each gradient counts for one, if their weight follows a schedule: its ``rates``.

    All gradients of a step have it then, of all workers and variables, in every read, and it changes at the beginning
    or towards the end, for a few steps at least. Where it changes for a while in between, gradients may have been
    applied again; where a rollback changes the weight of what was applied before, that is R4's.
    """
    held, there = _held(history), history.last.ever
    if not there.any() or not np.isfinite(held[there]).all():
        return history
    most, least = np.where(there, held, -np.inf).max(axis=0), np.where(there, held, np.inf).min(axis=0)  # [W, K]
    shown: Bools = np.array(there.any(axis=0))
    if (most[shown] - least[shown] > COUNT_TOLERANCE * np.abs(most[shown])).any():
        return history
    if history.layout.update == "sync":  # a step is a round
        most = np.broadcast_to(np.where(shown, most, -np.inf).max(axis=0), most.shape)
        least = np.where(shown, least, np.inf).min(axis=0)
        if (np.where(shown, most - least, 0) > COUNT_TOLERANCE * np.where(shown, np.abs(most), 1)).any():
            return history
    series = [most[worker, shown[worker]] for worker in range(len(most)) if shown[worker].any()]
    weights = np.where(shown, most, 1.0)
    if not all(_is_schedule(rates) for rates in series) or _were_sent_again(history.workers, weights):
        return history
    first = int(np.argmax(shown.any(axis=1)))
    begins = np.flatnonzero(_changes(series[0], before=np.inf))
    steps = np.flatnonzero(shown[first])[begins].tolist()
    units = np.broadcast_to(weights, held.shape)
    rates = tuple(zip(steps, series[0][begins].tolist(), strict=True))
    workers = _in_units(history.workers, units)
    ends = np.concatenate([end for worker in workers for end in (worker.reads.odd.head, worker.reads.odd.tail)])
    if ((ends != 0) & ~(np.abs(ends - 1) <= COUNT_TOLERANCE)).any():
        return history
    return replace(history, workers=workers, rates=rates)


def _changes(rates: Floats, *, before: float) -> Bools:
    """Whether each is another one than that before it."""
    return np.array(np.abs(rates / np.concatenate([[before], rates[:-1]]) - 1) > COUNT_TOLERANCE)


def _is_schedule(rates: Floats) -> bool:
    """Whether these weights, by step, change at the beginning or towards the end, or in every step in one direction."""
    changes = _changes(rates, before=rates[0])
    if len(rates) > LEAST_STEPS and changes[1:].all() and len(np.unique(np.diff(rates) > 0)) == 1:
        return True
    usual = max(np.split(rates, np.flatnonzero(changes)), key=len)[0]
    at = np.flatnonzero(np.abs(rates / usual - 1) <= COUNT_TOLERANCE)
    together = at[-1] - at[0] + 1 == len(at) >= LEAST_STEPS
    before, after = at[0], len(rates) - 1 - at[-1]
    return bool(together and before + after and all(part == 0 or part >= LEAST_STEPS for part in (before, after)))


def whole_scale(history: History) -> float:
    """The factor by which (nearly) every applied gradient is off, 1.0 if there is none.

    Two thirds of the cells that show in the workers' last reads must share it, and at least two.
    """
    total, heads = 0, []
    for worker in history.workers:
        if len(worker.reads):
            odd = worker.reads.odd.at(len(worker.reads) - 1)
            total += int(worker.reads.clock[-1].sum()) - int(odd.zero.sum())
            heads.append(odd.head[(odd.head == odd.tail) & (odd.head != 0) & np.isfinite(odd.head)])
    found = np.concatenate([*heads, np.zeros(0)])
    if 3 * len(found) < 2 * total or len(found) < 2:
        return 1.0
    # digits that count: a scale can be tiny
    digits = 10.0 ** (3 - np.floor(np.log10(np.abs(found))))
    _, which, number = np.unique(np.rint(found * digits) / digits, return_inverse=True, return_counts=True)
    most = found[which == np.argmax(number)]
    scale = float(np.median(most)) if len(most) >= 2 and 3 * len(most) >= 2 * total else 1.0
    if _were_sent_again(history.workers, np.full((history.layout.workers, history.steps), scale)):
        return 1.0
    return scale if abs(scale - 1.0) > COUNT_TOLERANCE else 1.0


def _were_sent_again(workers: Sequence[Worker], rates: Floats) -> bool:
    """Most of the gradients that show two times, or three times, were sent that often: so often they were applied."""
    again, several = 0, 0
    for worker in workers:
        pushes = worker.pushes
        rate = rates[worker.index, pushes.step]
        times: Bools = np.array((rate > 1.5) & (np.abs(rate - np.rint(rate)) <= COUNT_TOLERANCE))
        again += int(np.count_nonzero(times & (pushes.attempts >= np.rint(rate))))
        several += int(np.count_nonzero(times))
    return 2 * again > several


def rescaled(history: History, scale: float) -> History:
    """The same history with counts in units of ``scale``: a cell that holds exactly that is no longer odd."""
    units = np.full((history.variables, history.layout.workers, history.steps), scale)
    return replace(history, workers=_in_units(history.workers, units), scale=scale)


def _in_units(workers: Sequence[Worker], units: Floats) -> tuple[Worker, ...]:
    """The same workers, of which each cell counts in units of its own, float64[V, W, K]."""
    return tuple(replace(w, reads=replace(w.reads, odd=_odd_in_units(w.reads, units))) for w in workers)


def _odd_in_units(reads: Reads, units: Floats) -> Odd:
    odd = reads.odd
    by = units[odd.variable, odd.peer, odd.step]
    scaled = replace(odd, head=odd.head / by, tail=odd.tail / by)
    fits = (np.abs(scaled.head - 1) < COUNT_TOLERANCE) & (np.abs(scaled.tail - 1) < COUNT_TOLERANCE)
    kept = scaled.take(~fits)
    added = np.array(list(_plain_runs(reads)), np.int64).reshape(-1, 5)
    variable, peer, step, first, end = added[units[tuple(added[:, :3].T)] != 1].T
    ones = 1 / units[variable, peer, step]
    plain = Odd(variable, peer, step, first, end, head=ones, tail=ones)  # held exactly one: odd now
    names = ("variable", "peer", "step", "first", "end", "head", "tail")
    return Odd(*(np.concatenate([getattr(kept, name), getattr(plain, name)]) for name in names)).sorted()


def _plain_runs(reads: Reads) -> Iterator[tuple[int, int, int, int, int]]:
    """(variable, worker, step, first, end) of cells that hold exactly one."""
    odd = reads.odd
    for variable in range(reads.clock.shape[1]):
        for peer in range(reads.clock.shape[2]):
            clock = reads.clock[:, variable, peer]
            mine = odd.take((odd.variable == variable) & (odd.peer == peer))
            top = int(clock.max(initial=0))
            shown = len(clock) - np.cumsum(np.bincount(clock, minlength=top + 1))[:top]  # reads below whose clock
            number = np.zeros(top, np.int64)
            np.add.at(number, mine.step, mine.end - mine.first)
            for step in np.flatnonzero(shown > number).tolist():
                plain = clock > step
                for first, end in zip(*(getattr(mine, n)[mine.step == step] for n in ("first", "end")), strict=True):
                    plain[first:end] = False
                edges = np.flatnonzero(np.diff(np.concatenate([[False], plain, [False]])))
                for first, end in edges.reshape(-1, 2).tolist():
                    yield variable, peer, step, first, end
