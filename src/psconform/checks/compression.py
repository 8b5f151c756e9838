"""C4: what compression, clipping or rounding may do to a gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from ..history.columns import OK, UNKNOWN, Bools, Floats, Ints, Values
from ..history.model import History, Worker
from ..probe import ENTRIES, TOLERANCE, UNIT, DenseLedger
from ..verdict import Verdict, counted, not_judged, unknown, valid, violated
from .registry import MOST, check
from .witness import all_alike

KINDS = ("unchanged", "lost", "sign flipped", "applied again", "scaled", "capped", "sparsified", "rounded", "other")
UNCHANGED, LOST, FLIPPED, AGAIN, SCALED, CAPPED, SPARSE, ROUNDED, OTHER = range(len(KINDS))
WAYS = {"rounded to": np.rint, "cut off after": np.trunc}
ROUGHEST_BITS = 4
"""Coarser than 2^-4 it is no rounding any more."""
MOST_BITS = 18
FORMATS = {8: " (as bfloat16 has)", 11: " (as float16 and TF32 have)"}
"""Significant bits, the hidden one included."""


@dataclass(frozen=True)
class Changes:
    """Gradients of E entries each: as ``sent``, and as ``arrived``, in the same units, float64[..., E].

    ``weight`` is what reaches the parameters of a gradient of 1. Entries are equal within a relative ``TOLERANCE``
    (1e-5: float32 rounding of learning rate x gradient / workers).
    """

    sent: Floats
    arrived: Floats
    weight: float = 1.0

    @property
    def ratio(self) -> Floats:
        """What share of each entry arrived."""
        return np.asarray(self.arrived / self.sent)

    @property
    def kind(self) -> Ints:
        """An index into ``KINDS`` for each gradient: the first that fits."""
        ratio, first = self.ratio, self.ratio[..., :1]
        zero, same = self.arrived == 0, np.abs(ratio - 1) <= TOLERANCE
        alike = (np.abs(ratio - first) <= TOLERANCE * np.abs(first)).all(axis=-1)
        factor = first[..., 0]
        found = [
            (UNCHANGED, same.all(axis=-1)),
            (LOST, zero.all(axis=-1)),
            (FLIPPED, alike & (np.abs(factor + 1) <= TOLERANCE)),
            (AGAIN, alike & (factor > 1.5) & (np.abs(factor - np.rint(factor)) <= TOLERANCE * factor)),
            (SCALED, alike),
            (CAPPED, self._capped(same)),
            (SPARSE, zero.any(axis=-1) & self._kept_alike(~zero)),
            (ROUNDED, (np.abs(ratio - 1) <= 2.0**-ROUGHEST_BITS).all(axis=-1)),
        ]
        conditions, codes = [which for _, which in found], [np.int64(code) for code, _ in found]
        return np.asarray(np.select(conditions, codes, np.int64(OTHER)))

    def _capped(self, same: Bools) -> Bools:
        """Entries beyond a magnitude arrived with that magnitude, all others as they were."""
        size, cap = np.abs(self.arrived), self.cap[..., None]
        cut = ~same & (self.ratio > 0) & (np.abs(size - cap) <= TOLERANCE * cap) & (np.abs(self.sent) > cap)
        return np.asarray(((cap > 0) & (same | cut)).all(axis=-1))

    def _kept_alike(self, kept: Bools) -> Bools:
        """Entries that arrived did so with one factor."""
        low = np.where(kept, self.ratio, np.inf).min(axis=-1, initial=np.inf)
        high = np.where(kept, self.ratio, -np.inf).max(axis=-1, initial=-np.inf)
        return np.asarray(kept.any(axis=-1) & (high - low <= TOLERANCE * np.abs(high)))

    @property
    def cap(self) -> Floats:
        """The largest magnitude that arrived."""
        return np.asarray(np.abs(self.arrived).max(axis=-1, initial=0.0))

    def describe(self, index: tuple[int, ...], kind: int) -> str:
        """What happened to one gradient, in words."""
        sent, arrived, cap = self.sent[index], self.arrived[index], float(self.cap[index])
        low, high = float(self.ratio[index].min()), float(self.ratio[index].max())
        words: dict[int, Callable[[], str]] = {
            LOST: lambda: "lost",
            FLIPPED: lambda: "its sign is flipped",
            AGAIN: lambda: f"applied {round(high)} times",
            SCALED: lambda: f"scaled as a whole by {high:.4g}, from norm {_norm(sent):.6g} to {_norm(arrived):.6g}",
            CAPPED: lambda: f"entries above {cap:.6g} capped at {cap:.6g} (clip by value)",
            SPARSE: lambda: _sparse(sent, arrived),
            ROUNDED: lambda: _rounded(sent, arrived, self.weight),
        }
        if kind not in words:
            return f"entries arrived at {low:.4g} to {high:.4g} times their size"
        return words[kind]()


def _sparse(sent: Floats, arrived: Floats) -> str:
    kept = arrived != 0
    number, factor = int(kept.sum()), float((arrived[kept] / sent[kept])[0])
    largest = np.abs(sent[kept]).min() > np.abs(sent[~kept]).max()
    which = f"the {number} largest (top-k)" if largest else f"{number}, not the largest,"
    weight = f", at {factor:.4g} times their size" if abs(factor - 1) > TOLERANCE else ""
    return f"of {len(sent)} entries only {which} arrived{weight}"


def _rounded(sent: Floats, arrived: Floats, weight: float) -> str:
    """To how many significant bits it was rounded or cut off, before or after the weight; else from the worst error."""
    worst = float(np.abs(arrived / sent - 1).max())
    for bits, unit, (word, whole) in product(range(ROUGHEST_BITS, MOST_BITS), (1.0, weight), WAYS.items()):
        mantissa, exponent = np.frexp(sent * unit)
        expected = np.ldexp(whole(np.ldexp(mantissa, bits)), exponent - bits) / unit
        if np.allclose(expected, arrived, rtol=TOLERANCE, atol=0):
            return f"{word} {bits} bits{FORMATS.get(bits, '')}, off by up to {worst:.2g} of an entry"
    return f"rounded to about {int(np.floor(-np.log2(worst)))} bits, off by up to {worst:.2g} of an entry"


def common_factor(changes: Changes) -> float:
    """The factor by which two thirds of all that arrived, and at least two gradients, are scaled alike; else 1."""
    kind, factor = changes.kind, changes.ratio[..., 0]
    found = factor[np.isin(kind, (FLIPPED, AGAIN, SCALED))]
    total = np.count_nonzero(kind != LOST)
    if len(found) < 2 or 3 * len(found) < 2 * total:
        return 1.0
    middle = float(np.median(found))
    alike = np.count_nonzero(np.abs(found - middle) <= 10 * TOLERANCE * abs(middle))
    return middle if 3 * alike >= 2 * total else 1.0


def _norm(entries: Floats) -> float:
    return float(np.linalg.norm(entries))


@check(
    "C4", "compression", dimension="compression", weakest=("any",), needs=(ENTRIES,), acked=True, faults="no rollback"
)
def compression(history: History) -> Verdict:
    """C4: an acknowledged gradient arrives as its compression promises.

    lossless: entry by entry as sent. Each gradient of the dense ledger has eight entries of different magnitudes in
    slots of its own, and a norm that changes from step to step; the final reads say what became of them: lost, sign
    flipped, applied again, scaled as a whole (clipping by norm), capped (clipping by value), sparsified (top-k),
    rounded (to how many bits), or changed otherwise. A factor that all share is named once: it is a weight, for which
    workload ledger has S5 and A1. What is lost or applied again whole is allowed where delivery allows it.

    error-feedback: what a worker has not sent it keeps and adds to its next gradient (Karimireddy et al. 2019, "Error
    Feedback Fixes SignSGD and other Gradient Compression Schemes"): per worker, variable and entry, applied + weight x
    residual = pushed, where the residual is that of ``probe.residual`` after the last push. A weight is minus what
    reaches the parameters of a gradient of 1.

    Assumes: final reads with full values that agree; plain SGD. Entries are equal within a relative 1e-5 (float32).
    """
    reads = [worker.reads.values[index] for worker, index in history.finals if index in worker.reads.values]
    if history.untold or history.indistinct or not reads:
        lacks = history.no_final if not history.finals else "no final read has full values"
        return unknown(history.untold or history.indistinct or lacks)
    weighted = history.layout.update == "async" or history.claims.reduction != "none"
    if history.claims.compression == "error-feedback" and not weighted:
        return not_judged("needs a claim: reduction is none")
    if history.claims.compression == "error-feedback":
        return _error_feedback(history, reads)
    return _lossless(history, reads, weighted=weighted)


def _lossless(history: History, reads: list[Values], *, weighted: bool) -> Verdict:
    found = [_changes(history, values) for values in reads]
    kinds = np.array([_allowed(history, changes.kind) for changes in found])
    wrong = (kinds != UNCHANGED).all(axis=0)  # what one of them shows unchanged has arrived
    factor = common_factor(found[0])
    lines = []
    if wrong.any() and _counts_alike(history, reads[0]):
        return violated([all_alike(history)])
    if factor != 1.0:
        if weighted:
            lines.append(f"every gradient was scaled by {factor:.4g}: a weight, see S5 and A1 on workload ledger")
        found[0] = Changes(found[0].sent, found[0].arrived / factor, found[0].weight * factor)
        kinds[0] = _allowed(history, found[0].kind)
        wrong = kinds[0] != UNCHANGED
    number = {KINDS[code]: int((wrong & (kinds[0] == code)).any(axis=0).sum()) for code in np.unique(kinds[0][wrong])}
    if wrong.any():
        lines += [*_summary(history, found[0], kinds[0] * wrong), *_each(history, found[0], kinds[0] * wrong)]
    if lines:
        return violated(lines, **number)
    if any(not np.array_equal(reads[0], values) for values in reads[1:]):
        return unknown("final reads disagree about what is in the parameters")
    return valid(f"{counted(int(history.accepted.sum()), 'gradient')}, entry by entry")


def _ledger(history: History) -> DenseLedger:
    return DenseLedger(workers=history.layout.workers, steps=history.steps)


def _entries(history: History, values: Values) -> Floats:
    """Values of all variables by gradient, float64[V, W, K, 2 x entries]."""
    half, entries = _ledger(history).half, DenseLedger.entries
    shape = (len(values), history.layout.workers, history.steps, entries)
    ends = values[:, :half].reshape(shape), values[:, half + 1 :].reshape(shape)
    return np.concatenate(ends, axis=3).astype(np.float64)


def _counts_alike(history: History, values: Values) -> bool:
    """Of a weighted mean, all have the same share all the same."""
    changes = _changes(history, values)
    unweighted = Changes(changes.sent, changes.arrived * history.shares[..., None])
    plain = (_allowed(history, unweighted.kind) == UNCHANGED)[history.last.ever]
    return history.claims.reduction == "weighted" and bool(plain.all())


def _changes(history: History, values: Values) -> Changes:
    weight = float(history.workload.unit or 0.0) / UNIT
    sizes = history.workload.sizes(len(values))[:, None, None, None]
    sent = np.array([_ledger(history).magnitudes(step) for step in range(history.steps)])
    arrived = _entries(history, values) / (-weight * history.shares[..., None]) * sizes + 0.0  # 0, not -0
    changes = Changes(np.broadcast_to(sent * sizes, arrived.shape), arrived, weight)
    rest, several = history.steps % history.layout.accumulate, history.layout.accumulate
    if rest and history.layout.reduction == "mean":  # a last round with fewer may be their mean
        mean = Changes(changes.sent[:, :, -rest:], arrived[:, :, -rest:] * rest / several, weight)
        if (mean.kind == UNCHANGED).all():
            arrived[:, :, -rest:] = mean.arrived
    return changes


def _allowed(history: History, kind: Ints) -> Ints:
    """The same kinds, ``UNCHANGED`` where nobody has promised otherwise."""
    delivery, fine = history.claims.delivery, kind == UNCHANGED
    fine |= (kind == LOST) & (~history.accepted | (delivery in ("none", "at-most-once")))
    fine |= (kind == AGAIN) & (delivery in ("none", "at-least-once"))
    fine |= ~np.isin(history.outcomes, (OK, UNKNOWN))  # a phantom, or one that was refused: R1's business
    return np.where(fine, UNCHANGED, kind)


def _summary(history: History, changes: Changes, kind: Ints) -> Iterator[str]:
    """One line for each kind: how many gradients, and whether it is their norm that decides."""
    total = np.count_nonzero(history.outcomes)
    norms = np.linalg.norm(changes.sent, axis=3)
    for code in np.unique(kind[kind != UNCHANGED]).tolist():
        mine: Bools = kind == code
        text = f"{int(mine.any(axis=0).sum())} of {total} gradients {'were' if code != LOST else 'are'} {KINDS[code]}"
        struck, spared = norms[mine], norms[~mine & (history.outcomes > 0)]
        by_norm = bool(spared.size) and struck.min() > spared.max() * (1 + TOLERANCE)
        if by_norm:
            text += f": all of norm {struck.min():.6g} and more, none of {spared.max():.6g} and less"
        arrived = np.linalg.norm(changes.arrived[kind == code], axis=1)
        by_norm = by_norm or np.ptp(struck) > TOLERANCE * struck.max()
        if code == SCALED and by_norm and np.ptp(arrived) <= TOLERANCE * arrived.max():
            text += f" (clipped to norm {arrived[0]:.6g})"
        caps = changes.cap[kind == code]
        if code == CAPPED and np.ptp(caps) <= TOLERANCE * caps.max():
            text += f", all at {caps[0]:.6g}"
        yield text


def _each(history: History, changes: Changes, kind: Ints) -> Iterator[str]:
    for peer, step, variable in np.argwhere((kind != UNCHANGED).transpose(1, 2, 0)).tolist()[:MOST]:
        index = variable, peer, step
        what = changes.describe(index, int(kind[index]))
        if kind[index] == SCALED and (meant := history.made_for(variable, float(changes.ratio[index][0]))) is not None:
            what = f"the gradient that was made for {history.variable(meant)}"
        yield f"worker:{peer} step {step} in {history.variable(variable)}: {what}"


def _error_feedback(history: History, reads: list[Values]) -> Verdict:
    lines: list[str] = []
    for worker in history.workers:
        if worker.residual is None:
            return unknown(f"{worker} recorded no residual: does the trainer call probe.residual?")
        if not (worker.pushes.outcome == OK).all():
            return unknown(f"not every push of {worker} was accepted: what it carried of others is not known")
        lines += _missing(history, worker, worker.residual, reads)
    if lines:
        return violated(lines)
    if any(not np.array_equal(reads[0], values) for values in reads[1:]):
        return unknown("final reads disagree about what is in the parameters")
    kept = sum(np.count_nonzero(worker.residual) for worker in history.workers if worker.residual is not None)
    return valid(f"{counted(int(history.accepted.sum()), 'gradient')}; {kept} entries are still in residuals")


def _missing(history: History, worker: Worker, residual: Values, reads: list[Values]) -> Iterator[str]:
    """Where what was applied of a worker's gradients and what it has kept is not what it pushed."""
    mine, sizes = worker.index, history.workload.sizes(len(residual))
    kept = _entries(history, residual) * sizes[:, None, None, None]
    others = np.count_nonzero(np.delete(kept, mine, axis=1), axis=(1, 2, 3))
    for variable in np.flatnonzero(others).tolist():
        yield f"{worker} keeps others' gradients in its residual of {history.variable(variable)}"
    changes = [_changes(history, values) for values in reads]
    sent = np.where((history.outcomes[mine] == OK)[:, None], changes[0].sent[:, mine], 0.0)  # [V, K, E]
    # each final read alone: what all of them lack is missing
    off = np.array(
        [np.abs(c.arrived[:, mine] + kept[:, mine] - sent) > TOLERANCE * np.abs(c.sent[:, mine]) for c in changes]
    )
    wrong: Bools = np.asarray(off.all(axis=0))
    for variable in np.flatnonzero(np.count_nonzero(wrong, axis=(1, 2))).tolist():
        step, entry = np.argwhere(wrong[variable])[0].tolist()
        arrived = changes[0].arrived[variable, mine, step, entry]
        yield (
            f"{worker} in {history.variable(variable)}: {int(wrong[variable].sum())} of {wrong[variable].size} entries "
            f"do not add up; of step {step}, {sent[variable, step, entry]:.6g} was pushed, {arrived:.6g} applied, "
            f"{kept[variable, mine, step, entry]:.6g} is in the residual"
        )
