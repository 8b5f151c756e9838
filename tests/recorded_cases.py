"""Which runs are recorded: every seeded defect in every mode that it has, and healthy ones of everything there is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from psconform.faults.kinds import CONTAINER, PACKETS, kinds
from psconform.options import UPDATES
from psconform.targets.reference import DEFECTS

STEPS = 30
"""Of each worker: enough for most, and few enough for a small archive."""


@dataclass(frozen=True)
class Case:
    """One run to record: its name, and the arguments of ``psconform.judge``."""

    name: str
    options: Mapping[str, Any]
    defect: str = ""
    kinds: tuple[str, ...] = field(default=())
    """Kinds of faults that its plan has."""

    @property
    def launcher(self) -> str:
        """What it takes to record it."""
        return str(self.options.get("launcher", "process"))


FAINT = {"learning_rate": 5e-6}
ALONE = {**FAINT, "layout": "ps=1,worker=1", "batch": 1}
SELDOM = {"update": "async", "read_every": 10}
SMALL: dict[str, dict[str, Any]] = {
    "reuse-sample": {"steps": 5},
    "skip-sample": FAINT,
    "samples-repeated": {**FAINT, "layout": "ps=1,worker=2"},
    "samples-skipped": FAINT,
    "stale-gradients": {"layout": "ps=1,worker=2"},
    "tower-repeats-batch": {"steps": 5},
    "detached-slice": {"steps": 5},
    "adam-slots-lost": ALONE,
    "momentum-lost": ALONE,
    "schedule-restarts": ALONE,
}
"""How runs of defects that train a model stay small: nearly all of an archive is parameters then, of each read those
that have changed, and of those the bits that have. So there are few steps, or few samples and a learning rate that
changes few bits, and still more than rounding does."""


def defects() -> Iterator[Case]:
    """Each seeded defect in each update mode, as `test_defects` has it."""
    for name, defect in DEFECTS.items():
        steps = max(STEPS, defect.steps, -(-defect.gradients // 3))
        for update in defect.updates:
            options = {"layout": defect.layout, "update": update, "steps": steps, "patience_s": 20, **defect.options}
            options |= SMALL.get(name, {})
            options |= SELDOM if (defect.workload, update) == ("digits", "async") and options["steps"] >= STEPS else {}
            yield Case(f"{name}-{update}", {**options, "defect": name}, defect=name)


THEIRS = Path(__file__).parent / "cases"
SMALLEST, PAIR = "ps=1,worker=1", "ps=1,worker=2"
DIGITS = {"workload": "digits", "steps": 8}
QUADRATIC = {"workload": "quadratic", "steps": 20}
MODES: dict[str, dict[str, Any]] = {
    # what is trained, in both modes
    "ledger-sync": {},
    "ledger-async": {"update": "async"},
    "decayed-ledger-sync": {"workload": "decayed-ledger", "steps": 20},
    "decayed-ledger-async": {"workload": "decayed-ledger", "update": "async", "steps": 20},
    "dense-ledger-sync": {"workload": "dense-ledger", "steps": 20},
    "dense-ledger-async": {"workload": "dense-ledger", "update": "async", "steps": 20},
    "quadratic-sync": QUADRATIC,
    "quadratic-async": {**QUADRATIC, "update": "async"},
    "digits-sync": DIGITS,
    "digits-async": {**DIGITS, "update": "async", "layout": PAIR},
    # sync
    "sum": {"reduction": "sum"},
    "one-worker": {"layout": SMALLEST},
    "wide": {"layout": "wide", "steps": 20},
    "reads": {"reads": 3, "steps": 20},
    "padding": {"padding": 1000, "steps": 12},
    "straggler": {"slow": {"worker:1": 0.05}},
    "quorum": {"quorum": 2},
    "quorum-straggler": {"quorum": 2, "slow": {"worker:1": 0.05}, "steps": 20},
    "quorum-1": {"quorum": 1, "layout": "ps=3,worker=2", "reads": 2, "steps": 20},
    # async
    "read-every": {"update": "async", "read_every": 3},
    "staleness": {"update": "async", "staleness": 1, "layout": "ps=1,worker=4", "slow": {"worker:2": 0.02}},
    "staleness-0": {"update": "async", "staleness": 0},
    "rate": {"update": "async", "rate": "staleness-aware"},
    "rate-staleness": {"update": "async", "rate": "staleness-aware", "staleness": 4, "layout": PAIR},
    # replicas, and one client
    "all-reduce": {"layout": "all-reduce"},
    "all-reduce-dense": {"layout": "ps=0,worker=2", "reduction": "sum", "workload": "dense-ledger", "steps": 20},
    "all-reduce-digits": {"layout": "ps=0,worker=2", **DIGITS},
    "local-steps": {"layout": "all-reduce", "local_steps": 5},
    "accumulate": {"accumulate": 3},
    "in-graph": {"replication": "in-graph", "steps": 20},
    "in-graph-digits": {"replication": "in-graph", **DIGITS, "steps": 5},
    "model-parallel": {"replication": "model-parallel", **QUADRATIC},
    # what is beside the gradient
    "topk-sync": {"workload": "dense-ledger", "compression": "topk", "steps": 20},
    "topk-async": {"workload": "dense-ledger", "compression": "topk", "update": "async", "steps": 20},
    "gpus": {"layout": "ps=1,worker=2,gpus=3", "emulate_gpus": True, "steps": 10},
    "mlp": {**DIGITS, "model": "mlp", "layout": PAIR, "steps": 1, "batch": 8},
    "delay": {**QUADRATIC, "delay": 2},
    "condition": {**QUADRATIC, "condition": 100.0, "update": "async", "layout": PAIR},
    "momentum": {**QUADRATIC, "optimizer": "momentum"},
    "adam": {**QUADRATIC, "optimizer": "adam"},
    "adam-halving-async": {**QUADRATIC, "optimizer": "adam", "schedule": "halving", "update": "async", "layout": PAIR},
    "adam-killed": {**QUADRATIC, "optimizer": "adam", "kill": "ps:0@12", "checkpoint_every": 5},
    "diverging": {**QUADRATIC, "learning_rate": 3.0, "layout": PAIR},
    "warm-up": {**QUADRATIC, "schedule": "warm-up", "layout": PAIR},
    "cosine": {**QUADRATIC, "schedule": "cosine", "layout": PAIR, "update": "async"},
    "clip-norm": {**QUADRATIC, "clip_norm": 0.5, "layout": PAIR, "update": "async"},
    "clip-after": {**QUADRATIC, "clip_norm": 0.5, "clip_when": "after", "optimizer": "momentum", "layout": PAIR},
    "halving": {"workload": "quadratic", "schedule": "halving", "layout": PAIR, "steps": 60},
    # trainers of others
    "weighted": {"target": str(THEIRS / "fedavg-weights" / "target.toml"), "layout": "ps=1,worker=3", "steps": 12},
    "distinct": {"target": str(THEIRS / "order-mismatch" / "target.toml"), "layout": "ps=2,worker=2", "steps": 12},
    "other-jobs": {"target": str(THEIRS / "scheduler" / "target.toml"), "layout": "ps=2,worker=2", "steps": 12},
    # who leaves, and who comes back
    "batches-sync": {"batches": {"worker:1": 12, "worker:2": 1}},
    "batches-async": {"batches": {"worker:1": 12, "worker:2": 1}, "update": "async"},
    "drop-after": {"drop_after": "2s", "kill": "worker:1@10", "restart_after": "never", "steps": 25},
    "drop-after-async": {
        "drop_after": "2s",
        "kill": "worker:1@10",
        "restart_after": "never",
        "steps": 25,
        "update": "async",
    },
    "taken-back": {
        "drop_after": "500ms",
        "kill": "worker:1@10",
        "restart_after": "2s",
        "steps": 120,
        "slow": {"worker:0": 0.05},
        "layout": PAIR,
    },
    "checkpoint-seconds": {"checkpoint_every": "50ms", "kill": "worker:1@20", "slow": {"worker:0": 0.02}},
    "throughput-back": {"kill": "worker:1@25", "steps": 180, "slow": {"worker:0": 0.05}, "layout": PAIR},
    "kill-three-times": {"kill": ["ps:0@worker:0@20", "ps:0@worker:0@50", "ps:0@worker:0@80"], "steps": 100},
}


def modes() -> Iterator[Case]:
    """Healthy runs of each workload and mode."""
    for name, options in MODES.items():
        kinds = ("kill",) if "kill" in options else ("out-of-data",) if "batches" in options else ()
        yield Case(f"healthy-{name}", {"steps": STEPS, **options}, kinds=kinds)


LINK = ("worker:1->ps:0", "ps:0->worker:1")
"""Of kinds in sync and in async: whose bytes are held up."""
CHIEF = 'at = 12, until = "worker:0@24"'
"""Of a disk: while the chief makes two checkpoints."""
LOST = '{kind = "kill", task = "ps:0", at = "worker:0@20"}'
PLANS: dict[str, str] = {
    "kill": 'task = "worker:1", at = "after-push:15"',
    "term": 'task = "worker:1", at = "after-push:12", restart_after = "0s"',
    "crash-loop": 'task = "ps:0", at = 10, restart_after = "0s", lives_ms = 0',
    "late": 'task = "worker:1", at = "0s", for = "1s"',
    "stop": 'task = "worker:1", at = 10, for = "1s"',
    "throttle": 'task = "worker:1", at = 10, for = "1s", percent = 30',
    "twice": 'task = "worker:1", at = 8',
    "clock": 'task = "worker:0", at = 10, until = 30',
    "slow-close": 'links = "worker:1->ps:0", at = 10, for = "3s", ms = 500',
    "truncate": "at = 30",
    "flip": "at = 30",
    "full": CHIEF,
    "read-only": CHIEF,
    "unreadable": CHIEF,
    "slow-disk": f"{CHIEF}, ms = 50",
    "dns": 'task = "worker:1", at = "worker:1@30", for = "2s"',
    "out-of-data": 'task = "worker:1", at = 20',
    "poison": 'task = "worker:1", at = 20',
}
"""Of each kind of fault, what there is to say beside its kind; the others strike links for half a second."""
BESIDE: dict[str, tuple[str, ...]] = {
    "slow-close": ('{kind = "kill", task = "worker:1", at = 12, restart_after = "200ms"}',),
    "truncate": (LOST.replace("20", "30"),),
    "flip": (LOST.replace("20", "30"),),
    "dns": ('{kind = "kill", task = "ps:0", at = "worker:1@30", restart_after = "200ms"}',),
}
"""Other faults that it takes for one to show."""
MORE: dict[str, dict[str, Any]] = {
    **{kind: {"slow": {"worker:0": 0.05}} for kind in ("full", "read-only", "slow-disk", "unreadable")},
    "truncate": {"layout": "ps=2,worker=2"},
    "flip": {"layout": "ps=2,worker=2"},
    "twice": {"slow": {"worker:0": 0.05, "worker:1": 0.05}},
    "out-of-data": {"checkpoint_every": None},
    "poison": {"checkpoint_every": None},
    **{kind: {"slow": {"worker:1": 0.02}} for kind in ("tmpfs-full", "new-address")},  # it is to be there afterwards
}
RESTARTED: dict[str, tuple[str, dict[str, Any]]] = {
    "restarted": (
        """fault = [
          {kind = "kill", task = "worker:1", at = 8, restart_after = "200ms"},
          {kind = "kill", task = "ps:0", at = "worker:0@16", restart_after = "200ms"},
          {kind = "kill", task = "worker:0", at = 22, restart_after = "200ms"},
        ]""",
        {"layout": "ps=2,worker=2"},
    ),
    "restarted-left": (
        """fault = [
          {kind = "kill", task = "worker:1", at = 4, restart_after = "200ms"},
          {kind = "kill", task = "worker:0", at = 8, restart_after = "200ms"},
          {kind = "kill", task = "worker:2", at = 14, restart_after = "never"},
          {kind = "kill", task = "worker:1", at = 25, restart_after = "200ms"},
        ]""",
        {"layout": "ps=1,worker=3", "drop_after": "500ms"},
    ),
}
"""Records of several incarnations, which `test_cut_records` cuts. In the second the chief, in its second incarnation,
records that the job goes on without worker:2."""
IN_CONTAINERS = (CONTAINER, PACKETS)
"""Kinds of faults of these only containers can have: recorded with ``--launcher docker``, which takes an engine."""


ASYNC = (
    "term",
    "late",
    "throttle",
    "clock",
    "latency",
    "slice",
    "reset",
    "slow-close",
    "flip",
    "read-only",
    "slow-disk",
    "poison",
    "loss",
    "duplicate",
    "corrupt",
    "cpu-quota",
    "disconnect",
    "tmpfs-full",
    "new-address",
)
"""Kinds that are recorded in async; the others in sync, or in both."""
BOTH = ("kill", "twice", "stall", "stop")


def broken() -> Iterator[Case]:
    """A healthy run with each kind of fault."""
    for kind in kinds():
        usual = "async" if kind in ASYNC else "sync"
        for update in UPDATES if kind in BOTH else (usual,):
            options: dict[str, Any] = {"layout": PAIR, "update": update, "steps": 40, "checkpoint_every": 5}
            options |= {"faults": plan(kind), **MORE.get(kind, {})}
            if kinds()[kind].of in IN_CONTAINERS:  # where nothing is waited for, forty steps take half a second
                options |= {"launcher": "docker", "steps": 120, "checkpoint_every": 20}
            yield Case(f"fault-{kind}-{update}", options, kinds=(kind,))
    lost = {"layout": "ps=2,worker=2", "steps": 40, "checkpoint_every": 5, "kill": "ps:0@30"}
    yield Case("fault-lost-ps-sync", lost, kinds=("kill",))
    yield Case("fault-lost-ps-async", {**lost, "update": "async"}, kinds=("kill",))
    for update in UPDATES:
        for name, (faults, layout) in RESTARTED.items():
            options = {**layout, "update": update, "steps": 30, "checkpoint_every": 5, "faults": faults}
            yield Case(f"{name}-{update}", options, kinds=("kill",))


def plan(kind: str) -> str:
    """A fault plan with a fault of this kind."""
    of, about = kinds()[kind].of, PLANS.get(kind)
    if about is None and of == CONTAINER:
        about = 'task = "worker:1", at = "worker:0@30"'
        about += ', for = "500ms"' if kinds()[kind].lasts else ', restart_after = "200ms"'
    if about is None:
        amounts = {**dict(kinds()[kind].usual), **({"bytes": 2000} if kind == "cut" else {})}
        about = f'links = "{LINK[kind in ASYNC]}", at = {"30" if of == PACKETS else "10"}, for = "500ms"'
        about += "".join(f", {name} = {value}" for name, value in amounts.items())
    faults = (f'{{kind = "{kind}", {about}}}', *BESIDE.get(kind, ()))
    return f"fault = [{', '.join(faults)}]"


CASES: dict[str, Case] = {case.name: case for case in (*defects(), *modes(), *broken())}
"""Every run that is recorded, by name."""
