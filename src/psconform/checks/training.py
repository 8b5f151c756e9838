"""C3: what training itself must not do."""

from __future__ import annotations

import numpy as np

from ..history.model import History
from ..verdict import Verdict, valid, violated


def finite_parameters(history: History) -> Verdict:
    """C3: no NaN or Inf gets into the parameters.

    Assumes: reads; every value of every read is looked at.
    """
    lines = []
    for worker in history.workers:
        for index, values in sorted(worker.reads.values.items()):
            bad = np.argwhere(~np.isfinite(values))
            if len(bad):
                variable, slot = bad[0].tolist()
                lines.append(
                    f"{history.where(worker, index)} read {history.variable(variable)} with {values[variable, slot]} "
                    f"at position {slot}, and {len(bad) - 1} more"
                )
                break  # what is NaN stays NaN
    for worker in history.workers:
        reads, odd = worker.reads, worker.reads.odd.take(~worker.reads.odd.finite)
        _, rows = np.unique(odd.first, return_index=True)  # one line per read in which something goes bad
        for row in rows.tolist():
            lines.append(
                f"{history.where(worker, int(odd.first[row]))} read {history.variable(odd.variable[row])} with "
                f"{odd.head[row]} and {odd.tail[row]} for {history.gradient(odd.peer[row], odd.step[row])}"
            )
        bad = ~np.isfinite(reads.nonce)
        bad[1:] &= ~(bad[:-1] & bad[1:])
        for index, variable in np.argwhere(bad).tolist():
            lines.append(
                f"{history.where(worker, index)} read {history.variable(variable)} with nonce "
                f"{reads.nonce[index][variable]}"
            )
    return violated(lines) if lines else valid()
