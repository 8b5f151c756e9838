"""What became of a dense gradient on its way: which of its entries arrived, and how they were changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np

from ..history.columns import Bools, Floats, Ints
from ..probe import TOLERANCE

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
