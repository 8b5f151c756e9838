"""What to run, checked before anything starts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import BadInput
from ..faults.fault import Fault
from ..faults.plan import given_plan, load_plan
from ..faults.process_faults import KILL
from ..faults.random_plan import RANDOM, drawn_plan
from ..faults.short import RESTART_AFTER, parse_faults
from ..history.manifest import MAX_CELLS, STEPS, Workload
from ..launchers.launcher import DOCKER, PROCESS
from ..layout import Layout
from ..targets.compose import PREFIX, load_compose
from ..targets.defects import DEFECTS
from ..targets.reference import find_target
from ..targets.target import Target
from ..times import parse_seconds, spell
from ..trained import MODELS
from ..workloads import WORKLOADS
from .containers import Containers, containers_of
from .layout_file import FILE, read_layout
from .options import (
    LEARNING_RATES,
    USED_BY,
    check_batches,
    check_compression,
    check_faults,
    check_links,
    check_phases,
    check_poison,
    check_together,
    check_types,
    check_used,
)
from .seeded import check_leaving, check_recovery
from .slow import MAX_DIGITS, Counted, Spelled, parse_batches, parse_slow, with_faults, without_faults

MAX_SEED = 2**31 - 1
CHECKPOINT_EVERY = 50
"""Steps of the chief between two checkpoints, in a run with faults."""
PATIENCE_S = 60.0
FAULTS = "faults.toml"
"""In the run folder: its fault plan."""
_TEXT = re.compile(r"(\s*#[^\n]*\n)*\s*(\[\[fault\]\]|fault\s*=)")
"""How the text of a plan begins, after comments, and no path."""

MAX_STEPS = {"decayed-ledger": 50_000, "dense-ledger": 100_000, "digits": 100_000, "quadratic": 100_000}
"""Bounds on workers x steps: in a ledger with more updates than this the oldest has decayed to nothing; full vectors of
the others would fill the disk."""
MAX_PADDING = 50_000_000
"""Parameters of all ps together; every worker reads them in each step."""
MAX_BATCH = 1347
"""Training samples of digits."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One execution: which target, in which layout, on which workload.

    ``faults`` are to strike meanwhile; every ``checkpoint_every`` steps of its chief the target is asked to make a
    checkpoint (0: never). ``patience_s`` is how long no task may record anything before the run is stopped as stalled.
    ``containers``: not as processes of this machine.
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
    containers: Containers | None = None

    @property
    def limited(self) -> bool:
        """Its tasks may not use as much as there is."""
        return self.containers is not None and bool(self.containers.limits)

    @property
    def outage_s(self) -> float:
        """The longest that somebody may be waited for because it was declared so: one may be away after the other."""
        return self.layout.drop_after + sum(fault.outage_s for fault in self.faults)

    @property
    def repeat(self) -> str:
        """The command line that runs the same again."""
        shape = str(self.out / FILE) if self.limited else self.layout.text
        parts = ["psconform", "run", self.spelled, "--layout", shape, "--update", self.layout.update]
        parts += ["--emulate-gpus"] if self.layout.emulated else []
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
        for task, number in without_faults(self.workload.batches, self.faults):
            parts += ["--batches", f"{task}={number}"]
        parts += ["--padding", str(self.workload.padding)] if self.workload.padding else []
        parts += ["--compression", self.workload.compression] if self.workload.compression != "none" else []
        parts += ["--defect", self.defect] if self.defect else []
        parts += self._faults
        often = spell(self.checkpoint_seconds) if self.checkpoint_seconds else str(self.checkpoint_every)
        never = any(fault.outside for fault in self.faults)
        parts += ["--checkpoint-every", often] if often != "0" or never else []
        parts += ["--patience", str(self.patience_s)] if self.patience_s != PATIENCE_S else []
        parts += ["--launcher", DOCKER] if self.containers is not None and not self.containers.boxes else []
        parts += ["--image", self.containers.image] if self.containers is not None and self.containers.image else []
        return shlex.join(parts)

    @property
    def _faults(self) -> list[str]:
        """The options that give the faults: short forms where those can say it, else the plan in the run folder."""
        ends = {fault.restart_after_s for fault in self.faults if fault.kind == KILL.name}
        if any(fault.option == "--faults" for fault in self.faults) or len(ends) > 1:
            return ["--faults", str(self.out / FAULTS)]
        parts = [part for fault in self.faults for part in (fault.option, str(fault))]
        for again in ends:
            parts += ["--restart-after", "never" if again is None else spell(again)]
        return parts


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
    faults: str | Path = "",
    restart_after: str | float | None = RESTART_AFTER,
    checkpoint_every: int | str | None = None,
    patience_s: float = PATIENCE_S,
    launcher: str = PROCESS,
    image: str = "",
    emulate_gpus: bool = False,
) -> Plan:
    """Check every option and put them together; raises BadInput, naming the option."""
    texts = {"--update": update, "--reduction": reduction, "--rate": rate, "--replication": replication}
    texts |= {"--optimizer": optimizer, "--schedule": schedule, "--defect": defect, "TARGET": target}
    texts |= {"--workload": workload, "--model": model, "--compression": compression}
    texts |= {"--launcher": launcher, "--image": image}
    whole = {"--steps": steps, "--reads": reads, "--read-every": read_every, "--seed": seed, "--quorum": quorum}
    whole |= {"--local-steps": local_steps, "--padding": padding, "--batch": batch, "--delay": delay}
    whole |= {} if staleness is None else {"--staleness": staleness}
    numbers = {"--learning-rate": learning_rate, "--condition": condition, "--patience": patience_s}
    check_types(texts=texts, whole=whole, numbers=numbers)
    if not isinstance(layout, str | Layout):
        raise BadInput("--layout", "must be text such as ps=2,worker=3", value=layout)
    services = load_compose(Path(target.removeprefix(PREFIX))) if target.startswith(PREFIX) else None
    layout = services.layout if services is not None and layout == "default" else layout
    file = read_layout(Path(layout)) if isinstance(layout, str) and layout.endswith(".toml") else None
    shape = (
        layout
        if isinstance(layout, Layout)
        else Layout.parse(
            layout if file is None else file.text,
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
            emulated=emulate_gpus,
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
    check_together(shape, workload=workload, read_every=read_every, padding=padding)
    check_used(
        workload,
        {"model": model, "batch": batch, "learning_rate": learning_rate, "delay": delay, "condition": condition},
    )
    for option, (value, least, most) in limits.items():
        if not least <= value <= most:
            raise BadInput(option, f"must be between {least} and {most}", value=value)
    stragglers = parse_slow(slow, layout=shape, patience_s=patience_s)
    found = find_target(target, defect=defect, layout=shape, steps=steps, workload=workload, compression=compression)
    found.fits(shape)
    found.claimed(shape)
    containers = containers_of(
        launcher, image, limits=() if file is None else file.limits, layout=shape, target=found, out=out
    )
    by_plan = _planned(faults, shape, steps=steps, seed=seed, target=found, containers=containers)
    counted = with_faults(parse_batches(batches, layout=shape, steps=steps), by_plan, layout=shape)
    check_leaving(defect, counted)
    if workload not in found.workloads:
        raise BadInput(
            "--workload", f"target {found.name} has no such workload", value=workload, choices=found.workloads
        )
    check_compression(compression, found, workload)
    if compression != "none" and shape.all_reduce:
        raise BadInput("--compression", "needs a ps", value=compression)
    short = parse_faults(kill=kill, stop=stop, poison=poison, restart_after=restart_after, layout=shape, steps=steps)
    planned = (*short, *by_plan)
    check_faults(planned, containers=containers)
    check_links(planned, found)
    check_phases(planned, found)
    check_poison(planned, shape, compression=compression)
    check_batches(counted, shape, workload=workload, target=found, faults=planned)
    every, seconds = _interval(checkpoint_every)
    interval = _checked_interval(
        every, seconds, planned, shape, compression=compression, defect=defect, drawn=_is_drawn(faults)
    )
    if defect:
        check_recovery(
            defect, planned, interval, layout=shape, steps=steps, drawn=_is_drawn(faults) or _of_a_run(faults)
        )
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
        faults=planned,
        checkpoint_every=interval,
        checkpoint_seconds=seconds,
        patience_s=patience_s,
        spelled=target if target == "reference" else found.source,
        containers=containers,
    )


def _planned(
    given: str | Path, layout: Layout, *, steps: int, seed: int, target: Target, containers: Containers | None
) -> tuple[Fault, ...]:
    """The faults of ``--faults``: a file, a plan's text itself, or ``random[:KINDS]``; raises BadInput."""
    if not isinstance(given, str | Path):
        raise BadInput("--faults", "must be the path of a plan, or random", value=given)
    if not str(given):
        return ()
    if _is_drawn(given) and layout.all_reduce:
        raise BadInput("--faults", "needs a ps: replicas keep no state for each other", value=str(given))
    if _is_drawn(given):
        phases, shared, sent = target.phases, target.shared, target.push_alone
        drawn = drawn_plan(
            str(given),
            layout=layout,
            steps=steps,
            seed=seed,
            phases=phases,
            shared=shared,
            sent=sent,
            containers=containers is not None,
        )
        return tuple(fault for fault in drawn if containers is None or not containers.hides(fault))
    if isinstance(given, str) and _TEXT.match(given):
        return given_plan(given, place="--faults", layout=layout, steps=steps)
    if isinstance(given, str) and "=" in given and not Path(given).is_file():
        problem = "is no file, and no plan: one begins with [[fault]], or fault = [{...}]"
        raise BadInput("--faults", problem, value=given.strip().partition("\n")[0])
    return load_plan(Path(given), layout=layout, steps=steps)


def _is_drawn(given: str | Path) -> bool:
    return str(given).partition(":")[0] == RANDOM


def _of_a_run(given: str | Path) -> bool:
    """The plan in a run folder: what ran once may run again, even if it was drawn."""
    path = Path(given)
    return path.name == FAULTS and path.with_name("manifest.json").is_file()


def _interval(every: int | str | None) -> tuple[int | None, float]:
    """(steps, seconds) between checkpoints, of which one is 0; None: not said. Raises BadInput."""
    place, given = "--checkpoint-every", every
    if isinstance(every, str) and every.isdecimal() and len(every) <= MAX_DIGITS:
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
    drawn: bool,
) -> int:
    """Steps between checkpoints: by default only where something is to be recovered; raises BadInput."""
    faults = tuple(fault for fault in given if fault.outside)
    first = "random" if drawn else str(faults[0]) if faults else ""
    for present, value in ((faults, first), (every or seconds, every or spell(seconds))):
        option = faults[0].place if present is faults and faults else "--checkpoint-every"
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
    return interval
