"""The seeded defects of the reference trainer: what each needs to show, and which checks it concerns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..layout import NAMED, Layout


@dataclass(frozen=True)
class Defect:
    """One deliberate bug.

    ``meant`` is the guarantee whose check must call it violated (``meant_async`` in async, if that is another one);
    ``also`` are the others whose own definition it breaks. No other check may call it violated.

    It shows with at least so many ``workers``, ``ps``, ``steps`` of each worker and ``gradients`` of all workers, on
    this ``workload`` and with this ``compression`` and, in ``mode``, these other options
    of ``psconform run``; ``all_reduce``: in a layout without ps.

    One of recovery needs tasks that are killed as in ``kill``, a checkpoint every ``checkpoint_every`` steps (0:
    whatever is usual), and shows a hang after ``patience_s`` seconds (0: the usual time).
    """

    title: str
    meant: str
    also: tuple[str, ...] = ()
    updates: tuple[str, ...] = ("sync", "async")
    workers: int = 1
    ps: int = 1
    steps: int = 1
    gradients: int = 1
    workload: str = "ledger"
    compression: str = "none"
    meant_async: str = ""
    mode: Mapping[str, Any] = field(default_factory=dict)
    all_reduce: bool = False
    kill: tuple[str, ...] = ()
    checkpoint_every: int = 0
    patience_s: float = 0.0

    def meant_in(self, update: str) -> str:
        """The guarantee that must be called violated in this update mode."""
        return self.meant_async if self.meant_async and update == "async" else self.meant

    @property
    def found_by(self) -> str:
        """The check that must find it, in words."""
        return self.meant + (f" ({self.meant_async} in async)" if self.meant_async else "")

    @property
    def needs(self) -> str:
        """What it takes to show it, in words."""
        text = f"{' or '.join(self.updates)}, ps{'=0' if self.all_reduce else f'>={self.ps}'}, worker>={self.workers}"
        text += f", worker x steps>={self.gradients}" if self.gradients > 1 else ""
        text += f", {self.workload}" if self.workload != "ledger" else ""
        text += f", {self.compression}" if self.compression != "none" else ""
        text += "".join(f", --{name.replace('_', '-')} {value}" for name, value in self.mode.items())
        text += "".join(f", --kill {fault}" for fault in self.kill)
        return text + (f", --checkpoint-every {self.checkpoint_every}" if self.checkpoint_every else "")

    @property
    def concerns(self) -> frozenset[str]:
        """All guarantees that may be called violated."""
        return frozenset(filter(None, (self.meant, self.meant_async, *self.also)))

    @property
    def options(self) -> dict[str, Any]:
        """What a run must be given for it to show, besides its size."""
        options = {"workload": self.workload, "compression": self.compression, **self.mode}
        options |= {"kill": list(self.kill)} if self.kill else {}
        options |= {"checkpoint_every": self.checkpoint_every} if self.checkpoint_every else {}
        return options | ({"patience_s": self.patience_s} if self.patience_s else {})

    @property
    def layout(self) -> str:
        """The default layout, or as much more than it as this takes."""
        usual = Layout.parse(NAMED["all-reduce" if self.all_reduce else "default"])
        return Layout(ps=max(usual.ps, self.ps), workers=max(usual.workers, self.workers)).text


BOTH, SYNC, ASYNC = ("sync", "async"), ("sync",), ("async",)
LOST = ("S1", "A1", "A5")  # a gradient that is missing breaks the barrier's "exactly one", A1's "once", A5
DENSE = "dense-ledger"
DEFECTS: dict[str, Defect] = {
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
    "second-newest": Defect(
        "after a ps is lost, the checkpoint before the newest is restored",
        "R3",
        steps=20,
        kill=("ps:0@checkpointing",),
        checkpoint_every=10,
    ),
    "failed-shard-only": Defect(
        "only the ps that was lost is restored, the others go on from where they are",
        "R4",
        ("R6",),
        ASYNC,
        ps=2,
        steps=40,
        kill=("ps:0@30",),
    ),
    "no-fence": Defect(
        "a push of before a rollback is applied after it: the ps looks neither at its epoch nor at its step",
        "R6",
        ("R1", "R2", "S1"),
        steps=40,
        kill=("ps:0@30",),
    ),
    "silent-rollback": Defect(
        "after a ps is lost the last checkpoint comes back, and nobody is told: no epoch, no record",
        "R3",
        steps=40,
        kill=("ps:0@30",),
    ),
    "silent-reinit": Defect(
        "after a ps is lost the chief draws initial values anew, and nobody is told",
        "R3",
        ("I1",),
        steps=40,
        kill=("ps:0@30",),
    ),
    "counter-ahead": Defect(
        "a restored ps counts one gradient of each worker more than its parameters hold",
        "R1",
        ("S1", "A5"),
        steps=40,
        kill=("ps:0@30",),
    ),
    "no-idempotence": Defect(
        "a ps applies what it has already, and a worker that comes back begins again at its first step",
        "R2",
        ("R1", "A5"),
        ASYNC,
        workers=2,
        steps=40,
        kill=("worker:1@30",),
    ),
    "ack-early": Defect(
        "a worker records success before it delivers; started again, it goes on after the last that it recorded",
        "R1",
        ("S1", "A5"),
        workers=2,
        steps=40,
        kill=("worker:1@delivering:30",),
    ),
    "restore-on-join": Defect(
        "a worker that comes back puts the last checkpoint on every ps, and nobody is told",
        "R3",
        workers=2,
        steps=40,
        kill=("worker:1@30",),
    ),
    "torn-restore": Defect(
        "a checkpoint whose last shard is cut short is restored, with zeros for what it lacks",
        "R7",
        ("R4", "R1", "S1", "S3", "I2", "A5"),
        steps=20,
        kill=("ps:0@checkpointing",),
        checkpoint_every=10,
    ),
    "cut-in-half": Defect(
        "a checkpoint is read shard after shard while pushes go on, and the counters of the first count for all",
        "R4",
        ("R1", "R2", "R6"),
        ASYNC,
        workers=2,
        ps=2,
        steps=50,
        kill=("ps:0@checkpointing",),
        checkpoint_every=10,
    ),
    "counts-twice": Defect(
        "the first gradient of a worker that comes back is in its round twice",
        "S1",
        ("R1", "R2"),
        SYNC,
        workers=2,
        steps=40,
        kill=("worker:1@30",),
    ),
    "place-lost": Defect(
        "the place of a worker that died is never given back: it waits for it for good",
        "L1",
        workers=2,
        steps=40,
        kill=("worker:1@30",),
        patience_s=8.0,
    ),
    "joins-blind": Defect(
        "a worker that comes back pushes its first gradient before it has read anything",
        "M1",
        ("S1",),
        workers=2,
        steps=40,
        kill=("worker:1@30",),
    ),
    "samples-repeated": Defect(
        "a worker that comes back begins at its first sample again",
        "R5",
        ("C1",),
        workload="digits",
        workers=2,
        steps=20,
        kill=("worker:1@10",),
    ),
    "samples-skipped": Defect(
        "a worker that comes back leaves out the samples that it would have used next",
        "R5",
        ("C1",),
        workload="digits",
        workers=2,
        steps=30,
        kill=("worker:1@10",),
    ),
    "adam-slots-lost": Defect(
        "a checkpoint brings back the parameters, and Adam's slots (its moments) begin at zero",
        "R4",
        ("C1",),
        SYNC,
        steps=40,
        workload="digits",
        mode={"optimizer": "adam"},
        kill=("ps:0@30",),
        checkpoint_every=10,
    ),
    "momentum-lost": Defect(
        "a checkpoint brings back the parameters, and momentum begins at zero",
        "R4",
        ("C1",),
        SYNC,
        steps=40,
        workload="digits",
        mode={"optimizer": "momentum"},
        kill=("ps:0@30",),
        checkpoint_every=10,
    ),
    "schedule-restarts": Defect(
        "a checkpoint brings back the parameters, and the updates of the learning-rate schedule are counted from zero",
        "R4",
        ("C1",),
        SYNC,
        steps=80,
        workload="digits",
        mode={"schedule": "halving"},
        kill=("ps:0@70",),
        checkpoint_every=10,
    ),
}
