"""The seeded defects of the reference trainer: what each needs to show, and which checks it concerns."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Defect:
    """One deliberate bug.

    ``meant`` is the guarantee whose check must call it violated, per update mode; ``also`` are the others whose own
    definition it breaks. No other check may call it violated.
    """

    title: str
    meant: str
    also: tuple[str, ...] = ()
    updates: tuple[str, ...] = ("sync", "async")
    workers: int = 1
    ps: int = 1
    steps: int = 1


BOTH, SYNC = ("sync", "async"), ("sync",)
LOST = ("S1", "A1", "A5")  # a gradient that is missing breaks the barrier's "exactly one", A1's "once", A5
DEFECTS: dict[str, Defect] = {
    "drop-gradient": Defect("one worker's gradient of one step is acknowledged and never applied", "R1", LOST),
    "apply-twice": Defect("one gradient is applied twice", "R1", ("R2", "S1", "A1")),
    "sum-not-mean": Defect("a sync round applies the sum, the mean is claimed", "S5", (), SYNC, workers=2),
    "wrong-n": Defect("a sync round divides by the number of workers plus one", "S5", (), SYNC),
    "early-commit": Defect(
        "a sync round commits one worker early", "S1", ("S3", "S4", "A6", "A7", "R1"), SYNC, workers=2, steps=5
    ),
    "run-ahead": Defect(
        "one worker goes on without waiting for the round",
        "S1",
        ("S3", "S4", "A6", "A7", "R1"),
        SYNC,
        workers=2,
        steps=5,
    ),
    "stale-cache": Defect("a worker sometimes reads what it read before", "A7", ("S1", "S4"), steps=5),
    "torn-read": Defect(
        "a worker reads the last shard from the round before", "A6", ("S1", "S4", "A7"), SYNC, ps=2, steps=5
    ),
    "reinit-on-join": Defect(
        "a worker that joins initialises the parameters again",
        "I1",
        ("I2", "R1", "S1", "S3", "S4", "A1", "A5", "A6", "A7"),
        workers=2,
    ),
    "lose-shard-update": Defect("one shard loses one update that the others apply", "R1", (*LOST, "S3"), ps=2),
}
