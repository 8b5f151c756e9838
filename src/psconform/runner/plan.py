"""What to run, checked before anything starts."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import BadInput
from ..faults.fault import Fault, parse_faults
from ..history.manifest import MAX_CELLS, STEPS, Workload
from ..layout import Layout
from ..targets.defects import DEFECTS
from ..targets.reference import find_target
from ..targets.target import Target
from ..times import parse_seconds, spell
from ..trained import MODELS
from ..workloads import WORKLOADS
from .seeded import check_leaving, check_recovery
from .slow import Counted, Spelled, parse_batches, parse_slow

MAX_SEED = 2**31 - 1
CHECKPOINT_EVERY = 50
"""Steps of the chief between two checkpoints, in a run with faults."""
PATIENCE_S = 60.0


LEARNING_RATES = {
    "digits": {"sgd": 0.1, "momentum": 0.01, "adam": 0.001},
    "quadratic": {"sgd": 0.02, "momentum": 0.002, "adam": 0.01},
}
"""By workload and optimizer; one of momentum acts tenfold in the end."""
MAX_STEPS = {"decayed-ledger": 50_000, "dense-ledger": 100_000, "digits": 100_000, "quadratic": 100_000}
"""Bounds on workers x steps: in a ledger with more updates than this the oldest has decayed to nothing; full vectors of
the others would fill the disk."""
MAX_PADDING = 50_000_000
"""Parameters of all ps together; every worker reads them in each step."""
MAX_BATCH = 1347
"""Training samples of digits."""

USUAL: dict[str, Any] = {"model": "softmax", "batch": 16, "learning_rate": None, "delay": 0, "condition": 10.0}
USED_BY = {
    "model": ("digits",),
    "batch": ("digits",),
    "learning_rate": ("digits", "quadratic"),
    "delay": ("digits", "quadratic"),
    "condition": ("quadratic",),
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One execution: which target, in which layout, on which workload.

    ``faults`` are to strike meanwhile; every ``checkpoint_every`` steps of its chief the target is asked to make a
    checkpoint (0: never). ``patience_s`` is how long no task may record anything before the run is stopped as stalled.
    """

    target: Target
    layout: Layout
    workload: Workload
    out: Path
    defect: str = ""
    faults: tuple[Fault, ...] = ()
    checkpoint_every: int = 0
    checkpoint_seconds: float = 0.0
    patience_s: float = PATIENCE_S
    spelled: str = field(default="reference")

    @property
    def repeat(self) -> str:
        """The command line that runs the same again."""
        parts = ["psconform", "run", self.spelled, "--layout", self.layout.text, "--update", self.layout.update]
        if self.layout.update == "sync":
            parts += ["--reduction", self.layout.reduction]
            parts += ["--quorum", str(self.layout.quorum)] if self.layout.quorum else []
        parts += ["--staleness", str(self.layout.staleness)] if self.layout.staleness is not None else []
        parts += ["--rate", self.layout.rate] if self.layout.rate != "constant" else []
        parts += ["--local-steps", str(self.layout.local_steps)] if self.layout.local_steps > 1 else []
        parts += ["--replication", self.layout.replication] if self.layout.replication != "between-graph" else []
        parts += ["--optimizer", self.layout.optimizer] if self.layout.optimizer != "sgd" else []
        parts += ["--schedule", self.layout.schedule] if self.layout.schedule != "constant" else []
        parts += ["--drop-after", spell(self.layout.drop_after)] if self.layout.drop_after else []
        parts += ["--workload", self.workload.name, "--steps", str(self.workload.steps)]
        parts += ["--seed", str(self.workload.seed)]
        if not self.workload.is_ledger:
            used = {name for name, workloads in USED_BY.items() if self.workload.name in workloads}
            for name in (name for name in USED_BY if name in used):
                parts += [f"--{name.replace('_', '-')}", str(getattr(self.workload, name))]
        for option, value in (("--reads", self.workload.reads), ("--read-every", self.workload.read_every)):
            parts += [option, str(value)] if value != 1 else []
        for task, seconds in self.workload.slow:
            parts += ["--slow", f"{task}={spell(seconds)}"]
        for task, number in self.workload.batches:
            parts += ["--batches", f"{task}={number}"]
        parts += ["--padding", str(self.workload.padding)] if self.workload.padding else []
        parts += ["--compression", self.workload.compression] if self.workload.compression != "none" else []
        parts += ["--defect", self.defect] if self.defect else []
        for fault in self.faults:
            parts += [f"--{fault.kind}", str(fault)]
        if any(fault.kind == "kill" for fault in self.faults):
            again = next(fault.restart_after_s for fault in self.faults if fault.kind == "kill")
            parts += ["--restart-after", "never" if again is None else spell(again)]
        often = spell(self.checkpoint_seconds) if self.checkpoint_seconds else str(self.checkpoint_every or "")
        parts += ["--checkpoint-every", often] if often else []
        parts += ["--patience", str(self.patience_s)] if self.patience_s != PATIENCE_S else []
        return shlex.join(parts)


def make_plan(
    target: str = "reference",
    *,
    out: Path,
    layout: str | Layout = "default",
    update: str = "sync",
    reduction: str = "mean",
    quorum: int = 0,
    staleness: int | None = None,
    rate: str = "constant",
    local_steps: int = 1,
    replication: str = "between-graph",
    optimizer: str = "sgd",
    schedule: str = "constant",
    drop_after: str | float = 0.0,
    workload: str = "ledger",
    steps: int = STEPS,
    seed: int = 0,
    reads: int = 1,
    read_every: int = 1,
    slow: Spelled = (),
    batches: Counted = (),
    model: str = "softmax",
    batch: int = 16,
    learning_rate: float | None = None,
    delay: int = 0,
    condition: float = 10.0,
    compression: str = "none",
    padding: int = 0,
    defect: str = "",
    kill: str | Iterable[str] = (),
    stop: str | Iterable[str] = (),
    poison: str | Iterable[str] = (),
    restart_after: str | float | None = "1s",
    checkpoint_every: int | str | None = None,
    patience_s: float = PATIENCE_S,
) -> Plan:
    """Check every option and put them together; raises BadInput, naming the option."""
    for option, text in (
        ("--update", update),
        ("--reduction", reduction),
        ("--rate", rate),
        ("--replication", replication),
        ("--optimizer", optimizer),
        ("--schedule", schedule),
        ("--defect", defect),
        ("TARGET", target),
    ):
        if not isinstance(text, str):
            raise BadInput(option, "must be text", value=text)
    if not isinstance(layout, str | Layout):
        raise BadInput("--layout", "must be text such as ps=2,worker=3", value=layout)
    whole = {"--steps": steps, "--reads": reads, "--read-every": read_every, "--seed": seed, "--quorum": quorum}
    whole["--local-steps"], whole["--padding"] = local_steps, padding
    if staleness is not None:
        whole["--staleness"] = staleness
    for option, number in whole.items():
        if not isinstance(number, int):
            raise BadInput(option, "must be a whole number", value=number)
    shape = (
        layout
        if isinstance(layout, Layout)
        else Layout.parse(
            layout,
            update=update,
            reduction=reduction,
            quorum=quorum,
            staleness=staleness,
            rate=rate,
            local_steps=local_steps,
            replication=replication,
            optimizer=optimizer,
            schedule=schedule,
            drop_after=drop_after,
        )
    )
    if workload not in WORKLOADS:
        raise BadInput("--workload", "unknown workload", value=workload, choices=WORKLOADS)
    if model not in MODELS:
        raise BadInput("--model", "unknown model", value=model, choices=MODELS)
    speed = LEARNING_RATES.get(workload, {}).get(shape.optimizer, 0.0) if learning_rate is None else learning_rate
    limits: dict[str, tuple[float, float, float]] = {
        "--steps": (steps, 1, MAX_STEPS.get(workload, MAX_CELLS) // shape.workers),
        "--batch": (batch, 1, MAX_BATCH // shape.workers),
        "--learning-rate": (speed, 1e-6 if learning_rate is not None else 0.0, 100.0),
        "--delay": (delay, 0, 1000),
        "--condition": (condition, 1.0, 1e6),
        "--padding": (padding, 0, MAX_PADDING // shape.holders),
        "--seed": (seed, 0, MAX_SEED),
        "--reads": (reads, 1, 100),
        "--read-every": (read_every, 1, steps),
        "--patience": (patience_s, 1, 86400),
    }
    _check_together(shape, workload=workload, read_every=read_every, padding=padding)
    _check_used(
        workload,
        {"model": model, "batch": batch, "learning_rate": learning_rate, "delay": delay, "condition": condition},
    )
    for option, (value, least, most) in limits.items():
        if not least <= value <= most:
            raise BadInput(option, f"must be between {least} and {most}", value=value)
    stragglers = parse_slow(slow, layout=shape, patience_s=patience_s)
    counted = parse_batches(batches, layout=shape, steps=steps)
    check_leaving(defect, counted)
    found = find_target(target, defect=defect, layout=shape, steps=steps, workload=workload, compression=compression)
    found.claimed(shape)
    if workload not in found.workloads:
        raise BadInput(
            "--workload", f"target {found.name} has no such workload", value=workload, choices=found.workloads
        )
    _check_compression(compression, found, workload)
    if compression != "none" and shape.all_reduce:
        raise BadInput("--compression", "needs a ps", value=compression)
    faults = parse_faults(kill=kill, stop=stop, poison=poison, restart_after=restart_after, layout=shape, steps=steps)
    _check_poison(faults, shape, compression=compression)
    _check_batches(counted, shape, workload=workload, target=found, faults=faults)
    every, seconds = _interval(checkpoint_every)
    interval = _checked_interval(every, seconds, faults, shape, compression=compression, defect=defect)
    return Plan(
        target=found,
        layout=shape,
        workload=Workload(
            name=workload,
            steps=steps,
            seed=seed,
            reads=reads,
            read_every=read_every,
            slow=stragglers,
            batches=counted,
            model=model,
            batch=batch,
            learning_rate=speed,
            delay=delay,
            condition=condition,
            compression=compression,
            padding=padding,
        ),
        out=out,
        defect=defect,
        faults=faults,
        checkpoint_every=interval,
        checkpoint_seconds=seconds,
        patience_s=patience_s,
        spelled=target if target == "reference" else found.source,
    )


def _check_together(layout: Layout, *, workload: str, read_every: int, padding: int) -> None:
    """Options that exclude each other; raises BadInput."""
    if layout.update == "async" and layout.reduction != Layout().reduction:
        problem = "is for --update sync: async applies each gradient by itself"
        raise BadInput("--reduction", problem, value=layout.reduction)
    if layout.update == "sync" and read_every != 1:
        raise BadInput("--read-every", "is for --update async: a sync worker reads each round", value=read_every)
    if layout.quorum and workload != "ledger":
        raise BadInput("--workload", "must be ledger with --quorum", value=workload)
    if layout.local_steps > 1 and workload != "ledger":
        raise BadInput("--workload", "must be ledger with --local-steps", value=workload)
    if layout.all_reduce and workload == "decayed-ledger":
        raise BadInput("--workload", "needs a ps: a replica has no order of its own", value=workload)
    if layout.rate != "constant" and workload != "ledger":
        raise BadInput("--workload", "must be ledger with --rate", value=workload)
    if layout.replication == "model-parallel" and workload not in ("digits", "quadratic"):
        problem = "must be digits or quadratic with --replication model-parallel: a ledger has no model to cut"
        raise BadInput("--workload", problem, value=workload)
    if not layout.plain and workload not in LEARNING_RATES:
        option, value = ("optimizer", layout.optimizer) if layout.optimizer != "sgd" else ("schedule", layout.schedule)
        problem = f"must be digits or quadratic with --{option} {value}: a ledger is what plain SGD makes"
        raise BadInput("--workload", problem, value=workload, choices=LEARNING_RATES)
    if layout.drop_after and workload in LEARNING_RATES:  # what it trains depends on who was there, and when
        raise BadInput("--drop-after", f"is not for --workload {workload}", value=spell(layout.drop_after))
    if padding and workload != "ledger":
        raise BadInput("--workload", "must be ledger with --padding", value=workload)
    if padding and layout.all_reduce:
        raise BadInput("--padding", "needs a ps: it is what a ps holds", value=padding)
    if layout.staleness is not None and read_every != 1:
        raise BadInput("--read-every", "must be 1 with --staleness: the bound is kept by reading", value=read_every)


def _check_batches(
    batches: tuple[tuple[str, int], ...], layout: Layout, *, workload: str, target: Target, faults: tuple[Fault, ...]
) -> None:
    """Raises BadInput where nobody can tell what a worker without data means, or the workers would not know."""
    value = " ".join(f"{task}={number}" for task, number in batches)
    if batches and not target.batches:
        hint = "If they look at probe.due, say batches = true in its target.toml"
        raise BadInput("--batches", f"workers of target {target.name} do not heed it", value=value, hint=hint)
    for with_, excluded in (
        ("--quorum", bool(layout.quorum)),
        ("--staleness", layout.staleness is not None),
        (f"--replication {layout.replication}", layout.replication != "between-graph"),
        ("replicas, --layout ps=0", layout.all_reduce),
        (f"--workload {workload}", workload != "ledger"),
    ):
        if batches and excluded:
            raise BadInput("--batches", f"is not for {with_}", value=value)
    for fault in faults:
        due = dict(batches).get(str(fault.task))
        if due is not None and fault.when.step is not None and fault.when.step >= due:
            raise BadInput(f"--{fault.kind}", f"{fault.task} has data for {due} steps (--batches)", value=str(fault))


def _check_poison(faults: tuple[Fault, ...], layout: Layout, *, compression: str) -> None:
    """Raises BadInput where no ps is given the gradient of one worker as its probe made it."""
    for fault in (fault for fault in faults if not fault.of_process):
        if layout.all_reduce:
            raise BadInput("--poison", "needs a ps: it is what refuses a gradient", value=str(fault))
        if layout.replication == "model-parallel":
            raise BadInput("--poison", "is not for model-parallel: no gradient is one worker's own", value=str(fault))
        if compression != "none":
            problem = "is for --compression none: what is not sent of a NaN is sent later"
            raise BadInput("--poison", problem, value=str(fault))


def _interval(every: int | str | None) -> tuple[int | None, float]:
    """(steps, seconds) between checkpoints, of which one is 0; None: not said. Raises BadInput."""
    place, given = "--checkpoint-every", every
    if isinstance(every, str) and every.isdecimal():
        every = int(every)
    if isinstance(every, str):
        seconds = parse_seconds(every, place=place)
        if not 0 < seconds <= MAX_SEED:
            raise BadInput(place, f"the time must be more than 0 and at most {MAX_SEED} s", value=given)
        return 0, seconds
    if every is not None and (isinstance(every, bool) or not isinstance(every, int) or not 0 <= every <= MAX_SEED):
        raise BadInput(place, f"must be between 0 and {MAX_SEED}, or a time such as 500ms", value=given)
    return every, 0.0


def _checked_interval(
    every: int | None,
    seconds: float,
    given: tuple[Fault, ...],
    layout: Layout,
    *,
    compression: str,
    defect: str,
) -> int:
    """Steps between checkpoints: by default only where something is to be recovered; raises BadInput."""
    faults = tuple(fault for fault in given if fault.of_process)
    for present, value in ((faults, str(faults[0]) if faults else ""), (every or seconds, every or spell(seconds))):
        option = f"--{faults[0].kind}" if present is faults and faults else "--checkpoint-every"
        if not present:
            continue
        if layout.all_reduce:
            raise BadInput(option, "needs a ps: replicas keep no state for each other", value=value)
        if layout.quorum or layout.replication != "between-graph":
            problem = "is for between-graph replication without --quorum"
            raise BadInput(option, problem, value=value)
        if compression != "none":
            raise BadInput(option, "is for --compression none: a residual dies with its worker", value=value)
    usual = (DEFECTS[defect].checkpoint_every if defect else 0) or CHECKPOINT_EVERY
    interval = (usual if faults or layout.drop_after else 0) if every is None else every
    if layout.drop_after and not interval and not seconds:
        raise BadInput("--drop-after", "needs a job that recovers: --checkpoint-every", value=spell(layout.drop_after))
    if defect:
        check_recovery(defect, given, interval)
    return interval


def _check_used(workload: str, given: dict[str, Any]) -> None:
    """An option that this workload has no use for would be ignored; raises BadInput."""
    for name, value in given.items():
        if value != USUAL[name] and workload not in USED_BY[name]:
            problem = f"is for --workload {' or '.join(USED_BY[name])}"
            raise BadInput(f"--{name.replace('_', '-')}", problem, value=value)


def _check_compression(compression: str, target: Target, workload: str) -> None:
    if compression not in target.compressions:
        problem = f"target {target.name} has no such compression"
        raise BadInput("--compression", problem, value=compression, choices=target.compressions)
    if compression != "none" and workload != "dense-ledger":
        problem = "needs --workload dense-ledger: no other shows what became of each entry"
        raise BadInput("--compression", problem, value=compression)
