"""Options of a run that exclude each other, or that something else has to go with."""

from __future__ import annotations

from ..errors import BadInput
from ..faults.data_faults import OUT_OF_DATA, POISON
from ..faults.fault import Fault, refuse_twice
from ..faults.kinds import PACKETS, check_available, kinds
from ..faults.partitions import SHARED, of_listener
from ..faults.when import PHASES, SENT
from ..launchers.launcher import DOCKER
from ..layout import Layout
from ..targets.target import Target
from ..times import spell
from .containers import Containers

LEARNING_RATES = {
    "digits": {"sgd": 0.1, "momentum": 0.01, "adam": 0.001},
    "quadratic": {"sgd": 0.02, "momentum": 0.002, "adam": 0.01},
}
"""By workload and optimizer; one of momentum acts tenfold in the end."""


def check_together(layout: Layout, *, workload: str, read_every: int, padding: int) -> None:
    """Options that exclude each other; raises BadInput."""
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


def check_batches(
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
    for fault in (fault for fault in faults if fault.kind != OUT_OF_DATA.name):
        due = min((number for task, number in batches if task in (str(fault.task), fault.where)), default=None)
        if due is not None and fault.when.step is not None and fault.when.step >= due:
            raise BadInput(fault.place, f"{fault.task} has data for {due} steps (--batches)", value=str(fault))


def check_faults(faults: tuple[Fault, ...], *, containers: Containers | None = None) -> None:
    """Raises BadInput where two faults would strike the same at the same time, PsconformError where one cannot."""
    refuse_twice(faults)
    for fault in faults:
        if kinds()[fault.kind].in_containers and containers is None:
            raise BadInput(fault.place, f"is of containers: give --launcher {DOCKER}", value=f"{fault.kind} {fault}")
        if containers is not None and containers.hides(fault):
            problem = "must be less than what its layout leaves it"
            raise BadInput(f"{fault.place}: percent", problem, value=dict(fault.amounts)["percent"])
    _refuse_undoing(faults)
    check_available((fault.kind for fault in faults), proxies=any(fault.proxied for fault in faults))


def _refuse_undoing(faults: tuple[Fault, ...]) -> None:
    for number, fault in enumerate(faults):
        for other in (other for other in faults[:number] if other.task is not None and other.task == fault.task):
            one, two = kinds()[fault.kind], kinds()[other.kind]
            if two.name in one.undoes or one.name in two.undoes:
                problem = f"would end {other.kind} {other}, or the other way round: one of them for each task"
                raise BadInput(fault.place, problem, value=f"{fault.kind} {fault}")


def check_links(faults: tuple[Fault, ...], target: Target) -> None:
    """Raises BadInput where a fault needs to tell who has dialled, and all tasks share one cluster spec."""
    proxied = any(fault.proxied for fault in faults)
    for fault in faults if target.shared else ():
        if kinds()[fault.kind].of == PACKETS:
            if proxied:
                problem = f"is not to be had beside faults that take proxies: {SHARED}"
                raise BadInput(fault.place, problem, value=f"{fault.kind} {fault}")
        elif fault.links:
            of_listener(fault.region, kind=fault.kind, place=fault.place)
        elif fault.proxied:
            raise BadInput(fault.place, f"phase {SENT} is not to be had: {SHARED}", value=str(fault))


def check_phases(faults: tuple[Fault, ...], target: Target) -> None:
    """Raises BadInput where a fault would wait for a phase that nobody is going to say."""
    for fault in faults:
        for when, where in ((fault.when, fault.where), (fault.until, fault.ends_where)):
            if target.phases is None or when is None or when.phase in ("", *PHASES):
                continue
            place, who = fault.place, target.phases.get(when.phase)
            if who is None:
                raise BadInput(place, "unknown phase", value=when.phase, choices=(*PHASES, *target.phases))
            if where not in ("worker", who) and where.partition(":")[0] != who:
                raise BadInput(place, f"{when.phase} is said by {who}", value=str(fault))


def check_poison(faults: tuple[Fault, ...], layout: Layout, *, compression: str) -> None:
    """Raises BadInput where no ps is given the gradient of one worker as its probe made it."""
    for fault in (fault for fault in faults if fault.kind == POISON.name):
        if layout.all_reduce:
            raise BadInput(fault.place, "needs a ps: it is what refuses a gradient", value=str(fault))
        if layout.replication == "model-parallel":
            raise BadInput(fault.place, "is not for model-parallel: no gradient is one worker's own", value=str(fault))
        if compression != "none":
            problem = "is for --compression none: what is not sent of a NaN is sent later"
            raise BadInput(fault.place, problem, value=str(fault))


def check_compression(compression: str, target: Target, workload: str) -> None:
    if compression not in target.compressions:
        problem = f"target {target.name} has no such compression"
        raise BadInput("--compression", problem, value=compression, choices=target.compressions)
    if compression != "none" and workload != "dense-ledger":
        problem = "needs --workload dense-ledger: no other shows what became of each entry"
        raise BadInput("--compression", problem, value=compression)
