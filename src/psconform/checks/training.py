"""C3: what training itself must not do."""

from __future__ import annotations

import numpy as np

from ..history.columns import OK
from ..history.model import History, Worker
from ..history.records import Poisoned
from ..verdict import Verdict, unknown, valid, violated
from .registry import check


@check("C3", "finite parameters", needs=(), finite=False, local_steps="any")
def finite_parameters(history: History) -> Verdict:
    """C3: no NaN or Inf gets into the parameters, and a poisoned gradient is reported within a step.

    Every value of every read is looked at. A gradient that is not finite, by ``--poison`` or because training a model
    has diverged, is reported if its push is acknowledged as failed, before its worker pushes the step after the next.
    Acknowledged as ok it was swallowed, if it is not in the parameters: somebody believes that it counts. A trainer
    may also end with an error that its log tells.

    Assumes: reads; that a gradient comes from the probe, which records one that is not finite.
    """
    lines = _not_finite(history)
    told, silent = 0, []
    for poison in history.poisons:
        line, reported = _reported(history, poison)
        told += reported
        if line:
            lines.append(line)
        elif not reported:
            silent.append(poison)
    if lines:
        return violated(lines)
    if silent:
        return unknown(f"{_name(history, silent[0])}, was neither accepted nor refused, as far as the record goes")
    return valid(f"{told} gradient(s) refused" if told else "")


def _name(history: History, poison: Poisoned) -> str:
    return f"{history.gradient(poison.worker, poison.step)}, {poison.value}"


def _reported(history: History, poison: Poisoned) -> tuple[str, bool]:
    """What is wrong with the answer to such a gradient, empty if nothing is; and whether its worker was told."""
    worker = next(worker for worker in history.workers if worker.index == poison.worker)
    row = np.flatnonzero(worker.pushes.step == poison.step)[:1]
    name = _name(history, poison)
    if not row.size:
        return "", _ended(history, worker)
    if worker.pushes.outcome[row[0]] == OK:
        return f"{name}, was acknowledged as ok: nobody was told", False
    if not worker.pushes.refused[row[0]]:
        return "", _ended(history, worker)
    after = worker.pushes.at[worker.pushes.step == poison.step + 2]
    once = worker.pushes.attempts[row[0]] == 1  # what is sent again, after a rollback, is answered again
    if once and after.size and worker.pushes.answered[row[0]] > after[0]:
        return f"{name}, was acknowledged as failed only after the push of step {poison.step + 2}", True
    return "", True


def _ended(history: History, worker: Worker) -> bool:
    """The worker has ended with an error, and its log says why."""
    return any(failed.task == str(worker) and failed.log for failed in history.failed)


def _not_finite(history: History) -> list[str]:
    """Reads that show a NaN or Inf."""
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
        for index, pairs in sorted(reads.shared.items()):
            for variable in np.flatnonzero(~np.isfinite(pairs[:, 0])).tolist():
                what = f"{pairs[variable, 0]} in the row that all gradients change"
                lines.append(f"{history.where(worker, index)} read {history.variable(variable)} with {what}")
            if not np.isfinite(pairs).all():
                break  # what is NaN stays NaN
        bad = ~np.isfinite(reads.nonce)
        bad[1:] &= ~(bad[:-1] & bad[1:])
        for index, variable in np.argwhere(bad).tolist():
            lines.append(
                f"{history.where(worker, index)} read {history.variable(variable)} with nonce "
                f"{reads.nonce[index][variable]}"
            )
    return lines
