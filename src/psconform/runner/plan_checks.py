"""Options of a run that exclude each other, or that something else has to go with."""

from __future__ import annotations

from ..errors import BadInput
from ..faults.data_faults import OUT_OF_DATA
from ..faults.fault import Fault, refuse_twice
from ..faults.kinds import PACKETS, check_available, kinds
from ..faults.partitions import SHARED, of_listener
from ..faults.trigger import PHASES, SENT
from ..launchers.launcher import DOCKER
from ..targets.target import Target
from .container_setup import Containers


def check_batches(batches: tuple[tuple[str, int], ...], *, target: Target, faults: tuple[Fault, ...]) -> None:
    """Raises BadInput where the workers would not know that they have no data left, or a fault would never happen."""
    value = " ".join(f"{task}={number}" for task, number in batches)
    if batches and not target.batches:
        hint = "If they look at probe.due, say batches = true in its target.toml"
        raise BadInput("--batches", f"workers of target {target.name} do not heed it", value=value, hint=hint)
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
