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
    for worker, index in history.every_read():
        where = history.where(worker, index)
        for (variable, peer, step), pair in worker.reads.odd[index].items():
            if not np.isfinite(pair).all():
                lines.append(
                    f"{where} read {history.variable(variable)} with {pair[0]} and {pair[1]} for "
                    f"{history.gradient(peer, step)}"
                )
                break
        for variable in np.flatnonzero(~np.isfinite(worker.reads.nonce[index])).tolist():
            lines.append(f"{where} read {history.variable(variable)} with nonce {worker.reads.nonce[index][variable]}")
    return violated(lines) if lines else valid()
