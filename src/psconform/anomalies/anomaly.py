"""What a detector reports, and the clock it goes by."""

from __future__ import annotations

from dataclasses import dataclass

from ..history.model import History, Worker


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


def one_clock(history: History) -> bool:
    """All workers ran under one boot, so that their clocks may be compared."""
    boots = {worker.boot for worker in history.workers}
    return len(boots) == 1 and "" not in boots


def seconds(history: History, worker: Worker, at: int) -> float:
    """Seconds from the first read of the run (of this worker, where clocks differ) to a moment of its clock, >= 0."""
    known = history.workers if one_clock(history) else (worker,)
    began = min((int(w.reads.at[0]) for w in known if len(w.reads)), default=at)
    return round(max(0.0, (at - began) / 1e9), 3)
