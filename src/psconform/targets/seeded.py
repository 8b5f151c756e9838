"""Seeded defects of the reference trainer that show on a good day."""

from __future__ import annotations

from .defect import Defect

SYNC, ASYNC = ("sync",), ("async",)
LOST = ("S1", "A1", "A5")  # a gradient that is missing breaks the barrier's "exactly one", A1's "once", A5
DENSE = "dense-ledger"
TRAINING: dict[str, Defect] = {
    "drop-gradient": Defect("one worker's gradient of one step is acknowledged and never applied", "R1", LOST),
    "apply-twice": Defect("one gradient is applied twice", "R1", ("R2", "S1", "A1")),
    "flip-sign": Defect("the sign of every 500th gradient of a ps is flipped", "R1", ("S1", "A1"), gradients=500),
    "scale-500th": Defect(
        "every 500th gradient of a ps counts one and a half times", "S5", meant_async="A1", gradients=500
    ),
    "sum-not-mean": Defect("a sync round applies the sum, the mean is claimed", "S5", (), SYNC, workers=2),
    "wrong-n": Defect("a sync round divides by the number of workers plus one", "S5", (), SYNC),
    "unequal-weights": Defect(
        "a sync round weighs gradients by unequal batch shares, equal ones are declared", "S5", (), SYNC, workers=2
    ),
    "early-commit": Defect(
        "a sync round commits one worker early", "S1", ("S3", "S4", "S6", "A6", "A7", "R1"), SYNC, workers=2, steps=5
    ),
    "early-release": Defect(
        "workers are let through to their read before the last, slow shard has committed the round",
        "S4",
        ("S1", "A6", "A7"),
        SYNC,
        workers=2,
        ps=2,
        steps=5,
    ),
    "run-ahead": Defect(
        "one worker goes on without waiting for the round",
        "S1",
        ("S3", "S4", "S6", "A6", "A7", "R1"),
        SYNC,
        workers=2,
        steps=5,
    ),
    "late-to-next-round": Defect(
        "a gradient that comes late is acknowledged and counted in the next round, its own commits without it",
        "S1",
        ("A7",),
        SYNC,
        steps=2,
    ),
    "ack-before-apply": Defect(
        "one worker's gradients are sometimes acknowledged before the ps has them, and applied after its next read",
        "A7",
        (),
        ASYNC,
        steps=5,
    ),
    "stale-cache": Defect("a worker sometimes reads what it read before", "A7", ("S1", "S4"), steps=5),
    "torn-read": Defect(
        "a worker reads the last shard from the round before", "A6", ("S1", "S4", "A7"), SYNC, ps=2, steps=5
    ),
    "unlocked-updates": Defect(
        "a ps reads the parameters, computes, and writes them back without a lock",
        "A5",
        ("A1", "A6", "A7", "R1"),
        ASYNC,
        workers=3,
        steps=50,
    ),
    "reinit-on-join": Defect(
        "a worker that joins initialises the parameters again",
        "I1",
        ("I2", "R1", "S1", "S3", "S4", "A1", "A5", "A6", "A7"),
        workers=2,
    ),
    "reuse-sample": Defect(
        "one worker uses a sample twice, in place of another", "R5", ("C1",), workload="digits", steps=5
    ),
    "skip-sample": Defect("one worker leaves out a sample", "R5", ("C1",), workload="digits", steps=30),
    "stale-gradients": Defect(
        "gradients are computed at what was read 50 steps ago", "C2", ("C3",), ("async",), workload="digits", steps=60
    ),
    # What is kept back is missing from the next read of the worker whose it is (A7).
    "out-of-order": Defect(
        "a gradient of one worker is acknowledged, and applied after its next one",
        "A8",
        ("A7",),
        ASYNC,
        steps=2,
        workload="decayed-ledger",
    ),
    "swap-updates": Defect(
        "two workers' updates change places at one shard, against the versions they were told",
        "A8",
        ("A7",),
        ASYNC,
        workers=2,
        steps=2,
        workload="decayed-ledger",
    ),
    "apply-before-init": Defect(
        "a worker does not wait for the chief: it reads and pushes before the parameters are initialised",
        "I2",
        ("R1", "S1", "S3", "A1", "A5", "A7"),
        workers=2,
    ),
    "lose-shard-update": Defect("one shard loses one update that the others apply", "R1", (*LOST, "S3"), ps=2),
    "late-applied": Defect(
        "a late gradient is pushed again, and taken into a later round",
        "S2",
        (),
        SYNC,
        workers=3,
        steps=5,
        mode={"quorum": 2},
    ),
    "quorum-minus-one": Defect(
        "a round commits one gradient too early, divided by the full quorum",
        "S2",
        (),
        SYNC,
        workers=3,
        steps=5,
        mode={"quorum": 2},
    ),
    "ssp-off": Defect(
        "one worker does not wait for a slow one, as if staleness were unbounded",
        "A3",
        (),
        ("async",),
        workers=2,
        steps=20,
        mode={"staleness": 2},
    ),
    "tau-ignored": Defect(
        "stale gradients, one worker is slow, are applied at the full learning rate",
        "A4",
        (),
        ("async",),
        workers=3,
        steps=10,
        mode={"rate": "staleness-aware"},
    ),
    "retry-twice": Defect(
        "a gradient whose answer is lost is sent again, and the ps does not know it already", "R2", ("R1", "S1", "A1")
    ),
    "bfloat16": Defect("the ps rounds the parameters that an update touches to bfloat16", "C4", workload=DENSE),
    "clip": Defect("workers silently clip their gradients by norm", "C4", workload=DENSE, steps=4),
    "forget-residual": Defect(
        "a worker that sends only the largest entries forgets the others",
        "C4",
        workload=DENSE,
        compression="topk",
    ),
    "skip-exchange": Defect(
        "one replica applies its own gradient in one round, in place of the reduced one",
        "S7",
        ("S1", "R1"),
        SYNC,
        workers=2,
        ps=0,
        all_reduce=True,
    ),
    "own-init": Defect(
        "every replica keeps the parameters that it initialised itself",
        "S7",
        ("I1",),
        SYNC,
        workers=2,
        ps=0,
        all_reduce=True,
    ),
    "skip-average": Defect(
        "one replica goes on with its own parameters after one exchange, in place of the average",
        "C5",
        ("S7",),
        SYNC,
        workers=2,
        steps=10,
        mode={"local_steps": 5},
        ps=0,
        all_reduce=True,
    ),
    "sum-of-steps": Defect(
        "an exchange adds up what the replicas have changed, in place of their average",
        "C5",
        (),
        SYNC,
        workers=2,
        steps=10,
        mode={"local_steps": 5},
        ps=0,
        all_reduce=True,
    ),
    "tower-left-out": Defect(
        "the gradient of a worker's last GPU is left out of the mean of its towers",
        "R1",
        ("R2", "S1", "A1"),  # what is left of the mean is too much
        gpus=2,
    ),
    "tower-repeats-batch": Defect(
        "in-graph, the last tower is fed the samples of the first",
        "C6",
        ("C1", "R5"),
        SYNC,
        workers=2,
        workload="digits",
        mode={"replication": "in-graph"},
    ),
    "detached-slice": Defect(
        "model-parallel, the last worker's gradient comes from its own activations alone",
        "C6",
        ("C1",),
        SYNC,
        workers=2,
        workload="digits",
        mode={"replication": "model-parallel"},
    ),
}
