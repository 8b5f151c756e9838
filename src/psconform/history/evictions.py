"""Which gradients a job went on without, by epoch: a rollback may bring back who was away, or lose who was there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from ..layout import Layout
from .columns import Bools, Ints


def said_by_epoch(
    absences: Iterable[tuple[int, int, int, int]],
    *,
    layout: Layout,
    steps: int,
    begun: Mapping[int, int],
    last_ok: Ints,
) -> dict[int, Bools]:
    """By epoch, bool[W, K]: what was said in it to be gone on without.

    Args:
        absences: worker, step, time (nanoseconds) and epoch of each.
        layout: in sync an absence is one round, in async all steps from there on, until the worker is back.
        steps: K.
        begun: by epoch, the round at which a rollback has left it; what is said of rounds before says nothing.
        last_ok: int64[W], when the last gradient of each worker was accepted; who pushes again was taken back.
    """
    said: dict[int, Bools] = {}
    for worker, step, at, epoch in absences if layout.drop_after else ():
        mine = said.setdefault(epoch, np.zeros((layout.workers, steps), np.bool_))
        if layout.update == "sync":
            mine[worker, step] |= step >= begun.get(epoch, 0)
        elif last_ok[worker] <= at:
            mine[worker, step:] = True
    return said


def absent_in(said: Mapping[int, Bools], accepted_in: Ints, epoch: int) -> Bools:
    """bool[W, K]: gone on without, as a read of that epoch shows it.

    That is, said in that epoch or before, and not accepted since; ``accepted_in`` (int64[W, K], -1: in none) has the
    last epoch in which a gradient was.
    """
    latest = np.full(accepted_in.shape, -1, np.int64)
    for which in sorted(said):
        if which <= epoch:
            latest[said[which]] = which
    return np.asarray((latest >= 0) & ~((accepted_in >= latest) & (accepted_in <= epoch)))
