"""What to run, checked before anything starts."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from ..compatibility import check_option, check_options, unmet
from ..errors import BadInput
from ..faults.cli_syntax import parse_faults
from ..faults.data_faults import OUT_OF_DATA, POISON
from ..faults.fault import PHASES, SENT, Fault, refuse_twice
from ..faults.fault_generator import RANDOM, drawn_plan
from ..faults.kinds import PACKETS, check_available, kinds
from ..faults.partitions import SHARED, Dialled, of_listener
from ..faults.plan_file import given_plan, load_plan
from ..faults.process_faults import KILL
from ..files import is_file
from ..history.manifest import Bounds, Required, Workload
from ..history.records import Harm
from ..launchers.blueprint import Containers
from ..launchers.launcher import DOCKER, PROCESS
from ..layout import Layout, Task
from ..options import CLUSTER, OPTIONS, TRAINING, WORKLOAD, Options, fields_of
from ..sizes import parse_size, spell_size
from ..targets.compose import PREFIX, load_compose
from ..targets.lookup import find_target
from ..targets.reference import DEFECTS, MODULE, REFERENCE
from ..targets.target import NOTHING, RESTART_ALL, RESTART_TASK, Target
from ..times import parse_seconds, spell
from ..workloads import find_workload
from .container_setup import containers_of, hides
from .defect_rules import check_leaving, check_recovery
from .layout_file import FILE, read_layout
from .stragglers import MAX_DIGITS, parse_batches, parse_slow, with_faults, without_faults

MAX_SEED = 2**31 - 1
CHECKPOINT_EVERY = 50
"""Steps of the chief between two checkpoints, in a run with faults."""
FAULTS = "faults.toml"
"""In the run folder: its fault plan."""
_TEXT = re.compile(r"(\s*#[^\n]*\n)*\s*(\[\[fault\]\]|fault\s*=)")
"""How the text of a plan begins, after comments, and no path."""

MAX_PADDING = 50_000_000
"""Parameters of all ps together; every worker reads them in each step."""
LEAST_BOUND, MOST_BOUND = 64 << 10, 1 << 40
"""What may be asked for with ``--max-record``, ``--max-log`` and ``--max-run``, bytes."""
MAX_BATCH = 1347
"""Training samples of digits."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One execution: which target, in which layout, on which workload.

    ``faults`` are to strike meanwhile; every ``checkpoint_every`` steps of its chief the target is asked to make a
    checkpoint (0: never). ``patience_s`` is how long no task may record anything before the run is stopped as stalled.
    ``launcher``: what starts its tasks; ``containers``: in which, if that is what they run in. ``environment``:
    variables that the target names, with their values. ``drawn``: what of ``--faults`` the faults were drawn by.
    ``learns``: it has proxies, whether or not there are faults, to see which tasks dial which.
    """

    target: Target
    layout: Layout
    workload: Workload
    out: Path
    defect: str = ""
    faults: tuple[Fault, ...] = ()
    checkpoint_every: int = 0
    checkpoint_seconds: float = 0.0
    patience_s: float = Options.patience_s
    bounds: Bounds = field(default_factory=Bounds)
    require_faults: Required = "all"
    spelled: str = "reference"
    launcher: str = PROCESS
    containers: Containers | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    drawn: str = ""
    learns: bool = False

    @property
    def proxied(self) -> bool:
        """It needs proxies between the tasks."""
        return self.learns or any(fault.proxied for fault in self.faults)

    @property
    def updates(self) -> int:
        """How many gradients its workers have in all."""
        steps = self.workload.steps
        return self.layout.workers * steps - sum(steps - number for _, number in self.workload.batches)

    @property
    def limited(self) -> bool:
        """Its tasks may not use as much as there is."""
        return self.containers is not None and bool(self.containers.limits)

    @property
    def clocks(self) -> frozenset[Task]:
        """Tasks whose clock may jump."""
        return frozenset(f.task for f in self.faults if kinds()[f.kind].asked and f.task is not None)

    @property
    def outage_s(self) -> float:
        """The longest that somebody may be waited for because it was declared so: one may be away after the other."""
        return self.layout.drop_after + sum(fault.outage_s for fault in self.faults)

    @property
    def options(self) -> Options:
        """What ``make_plan`` makes this plan of."""
        containers, layout, workload = self.containers, self.layout, self.workload
        given = layout.options
        given |= fields_of(workload, Workload, TRAINING, WORKLOAD)
        given |= self._faults
        given["layout"] = str(self.out / FILE) if self.limited else layout.text
        given["drop_after"] = spell(layout.drop_after)
        given |= {f"max_{name}": spell_size(size) for name, size in vars(self.bounds).items()}
        given["slow"] = [f"{task}={spell(seconds)}" for task, seconds in workload.slow]
        given["batches"] = [f"{task}={n}" for task, n in without_faults(workload.batches, self.faults)]
        if workload.is_ledger:
            given["learning_rate"] = None
        if self.checkpoint_seconds:
            given["checkpoint_every"] = spell(self.checkpoint_seconds)
        elif self.checkpoint_every != _usual_interval(self.faults, layout, defect=self.defect):
            given["checkpoint_every"] = str(self.checkpoint_every)
        if containers is not None:
            given["image"] = containers.image
        if containers is None or not containers.boxes:  # of a Compose file tasks are containers anyway
            given["launcher"] = self.launcher
        options = Options(
            self.spelled,
            workload=workload.name,
            emulate_gpus=layout.emulated,
            defect=self.defect,
            patience_s=self.patience_s,
            require_faults="" if self.require_faults == "all" else self.require_faults,
            out=self.out,
            **given,
        )
        usual = layout.reduction == self.target.reduction(layout.update)
        return replace(options, reduction=None) if usual else options

    @property
    def repeat(self) -> str:
        """The command line that runs the same again, into another folder."""
        named = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join((*named, shlex.join(_words(replace(self.options, out=None)))))

    @property
    def _faults(self) -> dict[str, Any]:
        """The options that give the faults: short forms where those can say it, else the plan in the run folder."""
        ends = {fault.restart_after_s for fault in self.faults if fault.kind == KILL.name}
        if any(fault.option == "--faults" for fault in self.faults) or len(ends) > 1:
            return {"faults": str(self.out / FAULTS)}
        given: dict[str, Any] = {fault.option.removeprefix("--"): [] for fault in self.faults}
        for fault in self.faults:
            given[fault.option.removeprefix("--")].append(str(fault))
        for again in ends:
            given["restart_after"] = "never" if again is None else spell(again)
        return given


def make_plan(options: Options) -> Plan:
    """Check what was asked for, and put it together; raises BadInput, naming the option."""
    target, out = str(options.target), Path(options.out or ".")
    workload, steps, patience_s = options.workload, options.steps, options.patience_s
    compression, defect = options.compression, options.defect
    services = load_compose(Path(target.removeprefix(PREFIX))) if target.startswith(PREFIX) else None
    layout = services.layout if services is not None and options.layout == Options.layout else options.layout
    file = read_layout(Path(layout)) if layout.endswith(".toml") else None
    mode = fields_of(replace(options, reduction=options.reduction or Layout.reduction), Layout, CLUSTER, TRAINING)
    shape = Layout.parse(layout if file is None else file.text, emulated=options.emulate_gpus, **mode)
    kind = find_workload(workload, place="--workload")
    speed = options.learning_rate
    if speed is None:
        speed = kind.learning_rates.get(shape.optimizer, 0.0)
    limits: dict[str, tuple[float, float]] = {
        "steps": (1, kind.most // shape.workers),
        "batch": (1, MAX_BATCH // shape.workers),
        "learning_rate": (1e-6, 100.0),
        "delay": (0, 1000),
        "condition": (1.0, 1e6),
        "padding": (0, MAX_PADDING // shape.holders),
        "seed": (0, MAX_SEED),
        "reads": (1, 100),
        "read_every": (1, steps),
        "patience_s": (1, 86400),
    }
    values = {**vars(options), **shape.facts, "faults": "", "poison": (), "batches": (), "checkpoint_every": None}
    check_options(values)
    drawn = _is_drawn(options.faults)
    if drawn:
        check_option("faults", {**values, "faults": str(options.faults)})
    for name, (least, most) in limits.items():
        value = getattr(options, name)
        if value is not None and not least <= value <= most:
            raise BadInput(OPTIONS[name].flag, f"must be between {least} and {most}", value=value)
    stragglers = parse_slow(options.slow, layout=shape, patience_s=patience_s)
    found = find_target(target, defect=defect, layout=shape, steps=steps, workload=workload, compression=compression)
    shape = replace(_reduced(shape, options, found, values), others=found.others)
    found.fits(shape)
    found.claimed(shape)
    containers = containers_of(
        options.launcher,
        options.image,
        limits=() if file is None else file.limits,
        layout=shape,
        target=found,
        out=out,
    )
    by_plan = _planned(options.faults, shape, steps=steps, seed=options.seed, target=found, containers=containers)
    counted = with_faults(parse_batches(options.batches, layout=shape, steps=steps), by_plan, layout=shape)
    check_leaving(defect, counted)
    if workload not in found.workloads:
        raise BadInput(
            "--workload", f"target {found.name} has no such workload", value=workload, choices=found.workloads
        )
    if compression not in found.compressions:
        problem = f"target {found.name} has no such compression"
        raise BadInput("--compression", problem, value=compression, choices=found.compressions)
    short = parse_faults(
        kill=options.kill,
        stop=options.stop,
        poison=options.poison,
        restart_after=options.restart_after,
        layout=shape,
        steps=steps,
    )
    planned = (*short, *by_plan)
    check_faults(planned, containers=containers)
    check_links(planned, found)
    check_phases(planned, found)
    planned = _as_it_restarts(planned, options, target=found, layout=shape)
    check_batches(counted, target=found, faults=planned)
    every, seconds = _interval(options.checkpoint_every)
    _check_uses(values, planned, counted, every or (spell(seconds) if seconds else None), drawn=drawn)
    interval = _checked_interval(every, seconds, planned, shape, defect=defect)
    if defect:
        drawn = drawn or _of_a_run(options.faults)
        check_recovery(defect, planned, interval, layout=shape, steps=steps, drawn=drawn)
    made = {"name": workload, "slow": stragglers, "batches": counted, "learning_rate": speed}
    return Plan(
        target=found,
        layout=shape,
        workload=Workload(**{**fields_of(options, Workload, TRAINING, WORKLOAD), **made}),
        out=out,
        defect=defect,
        faults=planned,
        checkpoint_every=interval,
        checkpoint_seconds=seconds,
        patience_s=patience_s,
        bounds=_bounds(options),
        require_faults=cast(Required, options.require_faults or ("half" if drawn else "all")),
        spelled=REFERENCE if found.source == MODULE else found.source,
        launcher=options.launcher if containers is None else DOCKER,
        containers=containers,
        environment=found.given(os.environ),
        drawn=str(options.faults) if _is_drawn(options.faults) else "",
    )


def _reduced(shape: Layout, options: Options, target: Target, values: Mapping[str, Any]) -> Layout:
    """The layout with the reduction of the target, if none was asked for; raises BadInput if the workload has none."""
    shape = shape if options.reduction else replace(shape, reduction=target.reduction(shape.update))
    check_option("workload", {**values, **shape.facts})
    return shape


def _as_it_restarts(
    faults: tuple[Fault, ...], options: Options, *, target: Target, layout: Layout
) -> tuple[Fault, ...]:
    """The same faults, of a target that starts nothing again; raises BadInput where it does not do what they need."""
    _check_replicas(faults, options, target=target, layout=layout)
    if target.on_failure != NOTHING:
        return faults
    ending = [fault for fault in faults if kinds()[fault.kind].harm is Harm.ENDS and not kinds()[fault.kind].first]
    hint = "on_failure in its target.toml says so"
    if options.restart_after not in (Options.restart_after, "never"):
        problem = f"target {target.name} starts no task again"
        raise BadInput("--restart-after", problem, value=options.restart_after, hint=hint)
    if loops := [fault for fault in ending if kinds()[fault.kind].repeats]:
        raise BadInput(f"fault {loops[0]}", f"target {target.name} starts no task again", hint=hint)
    return tuple(replace(fault, restart_after_s=None) if fault in ending else fault for fault in faults)


def _check_replicas(faults: tuple[Fault, ...], options: Options, *, target: Target, layout: Layout) -> None:
    """Raises BadInput where a task has ended, there is no ps that kept its state, and the target does not say where
    a task that is started again alone gets it from."""
    if not layout.all_reduce or target.on_failure:
        return
    ending = (fault for fault in faults if kinds()[fault.kind].harm is Harm.ENDS and not kinds()[fault.kind].first)
    hint = (
        f'write on_failure = "{RESTART_TASK}" in its target.toml if a replica that is started again alone gets its '
        f'state from a peer, or "{RESTART_ALL}" if all are started again, and go on from a checkpoint'
    )
    problem = f"replicas of target {target.name} keep no state for each other"
    for fault in ending:
        because = f"{problem}, so none can be started again ({fault.words})"
        raise BadInput("--layout", because, value=layout.text, hint=hint)
    if options.checkpoint_every:
        raise BadInput("--checkpoint-every", f"{problem}, nor checkpoints", value=options.checkpoint_every, hint=hint)


def _bounds(options: Options) -> Bounds:
    """The sizes of ``--max-record``, ``--max-log`` and ``--max-run``."""
    given = {}
    for name in vars(Bounds()):
        each = OPTIONS[f"max_{name}"]
        given[name] = parse_size(text := getattr(options, each.name), place=each.flag)
        if not LEAST_BOUND <= given[name] <= MOST_BOUND:
            between = f"{spell_size(LEAST_BOUND)} and {spell_size(MOST_BOUND)}"
            raise BadInput(each.flag, f"must be between {between}", value=text)
    return Bounds(**given)


def fitting(plan: Plan, dialled: Dialled) -> Plan:
    """The same plan, with faults of links that tasks use in the place of drawn ones that would strike others.

    Raises:
        BadInput: all kinds that may be drawn are of links, and none is used.
    """
    if not plan.drawn:
        return plan
    given: dict[str, Any] = {"steps": plan.workload.steps, "seed": plan.workload.seed}
    given |= {"target": plan.target, "containers": plan.containers}
    before = _drawn(plan.drawn, plan.layout, **given)
    others = tuple(fault for fault in plan.faults if fault not in before)
    faults = others
    for fault in _drawn(plan.drawn, plan.layout, **given, dialled=dialled):
        with suppress(BadInput):  # it would clash with one that was given: fewer, then
            check_faults((*faults, fault), containers=plan.containers)
            check_links((*faults, fault), plan.target)
            faults = (*faults, fault)
    return replace(plan, faults=faults)


def unused(plan: Plan, dialled: Dialled) -> list[Fault]:
    """The faults of a plan that strike links which no task uses."""
    of_links = [(fault, kinds()[fault.kind]) for fault in plan.faults if fault.region and fault.links]
    if plan.layout.all_reduce:  # faults of packets need no proxy
        of_links = [(fault, kind) for fault, kind in of_links if kind.of != PACKETS]
    return [fault for fault, kind in of_links if not dialled.carries(fault.region, fault.links, one_way=kind.one_way)]


def _words(options: Options) -> list[str]:
    """``psconform run`` with these options; those that have their default are left out, but for a few."""
    words, values = ["psconform", "run"], vars(options)
    for name, each in OPTIONS.items():
        value = values[name]
        if value == each.default and (not each.always or unmet(name, values)):
            continue
        if value is True:
            words.append(each.flag)
        elif not each.flag.startswith("--"):
            words.append(str(value))
        else:
            for one in value if isinstance(value, list | tuple) else [value]:
                words += [each.flag, str(one)]
    return words


def _check_uses(
    values: Mapping[str, Any],
    faults: Sequence[Fault],
    batches: Sequence[tuple[str, int]],
    every: int | str | None,
    *,
    drawn: bool,
) -> None:
    """What a plan may say as well as an option, in the table of compatibility.py; raises BadInput."""
    for fault in faults:
        if fault.kind == POISON.name:
            check_option("poison", {**values, "poison": str(fault)}, place=fault.place)
        if fault.outside:
            check_option("faults", {**values, "faults": "random" if drawn else str(fault)}, place=fault.place)
    check_option("batches", {**values, "batches": tuple(f"{task}={number}" for task, number in batches)})
    check_option("checkpoint_every", {**values, "checkpoint_every": every})


def _planned(
    given: str | Path, layout: Layout, *, steps: int, seed: int, target: Target, containers: Containers | None
) -> tuple[Fault, ...]:
    """The faults of ``--faults``: a file, a plan's text itself, or ``random[:KINDS]``; raises BadInput."""
    if not isinstance(given, str | Path):
        raise BadInput("--faults", "must be the path of a plan, or random", value=given)
    if not str(given):
        return ()
    if _is_drawn(given):
        return _drawn(str(given), layout, steps=steps, seed=seed, target=target, containers=containers)
    if isinstance(given, str) and _TEXT.match(given):
        return given_plan(given, place="--faults", layout=layout, steps=steps)
    if isinstance(given, str) and "=" in given and not is_file(given):
        problem = "is no file, and no plan: one begins with [[fault]], or fault = [{...}]"
        raise BadInput("--faults", problem, value=given.strip().partition("\n")[0])
    return load_plan(Path(given), layout=layout, steps=steps)


def _drawn(
    text: str,
    layout: Layout,
    *,
    steps: int,
    seed: int,
    target: Target,
    containers: Containers | None,
    dialled: Dialled | None = None,
) -> tuple[Fault, ...]:
    drawn = drawn_plan(
        text,
        layout=layout,
        steps=steps,
        seed=seed,
        phases=target.phases,
        shared=target.shared,
        sent=target.push_alone,
        containers=containers is not None,
        dialled=dialled,
    )
    return tuple(fault for fault in drawn if not hides(containers, fault))


def _is_drawn(given: str | Path) -> bool:
    return str(given).partition(":")[0] == RANDOM


def _of_a_run(given: str | Path) -> bool:
    """The plan in a run folder: what ran once may run again, even if it was drawn."""
    path = Path(given)
    return path.name == FAULTS and is_file(path.with_name("manifest.json"))


def _interval(every: int | str | None) -> tuple[int | None, float]:
    """(steps, seconds) between checkpoints, of which one is 0; None: not said. Raises BadInput."""
    place, given = "--checkpoint-every", every
    if isinstance(every, str) and every.isascii() and every.isdecimal() and len(every) <= MAX_DIGITS:
        every = int(every)
    if isinstance(every, str):
        seconds = parse_seconds(every, place=place)
        if not 0 < seconds <= MAX_SEED:
            raise BadInput(place, f"the time must be more than 0 and at most {MAX_SEED} s", value=given)
        return 0, seconds
    if every is not None and (isinstance(every, bool) or not isinstance(every, int) or not 0 <= every <= MAX_SEED):
        raise BadInput(place, f"must be between 0 and {MAX_SEED}, or a time such as 500ms", value=given)
    return every, 0.0


def _usual_interval(faults: tuple[Fault, ...], layout: Layout, *, defect: str) -> int:
    """Steps between checkpoints where nothing is said: only if something is to be recovered."""
    usual = (DEFECTS[defect].checkpoint_every if defect else 0) or CHECKPOINT_EVERY
    return usual if layout.drop_after or any(fault.outside for fault in faults) else 0


def _checked_interval(
    every: int | None,
    seconds: float,
    given: tuple[Fault, ...],
    layout: Layout,
    *,
    defect: str,
) -> int:
    """Steps between checkpoints; raises BadInput."""
    interval = _usual_interval(given, layout, defect=defect) if every is None else every
    if layout.drop_after and not interval and not seconds:
        raise BadInput("--drop-after", "needs a job that recovers: --checkpoint-every", value=spell(layout.drop_after))
    return interval


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
        if hides(containers, fault):
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
    """Raises BadInput where a fault would wait for a phase that no task names."""
    for fault in faults:
        for when, where in ((fault.when, fault.where), (fault.until, fault.ends_where)):
            if target.phases is None or when is None or when.phase in ("", *PHASES):
                continue
            place, who = fault.place, target.phases.get(when.phase)
            if who is None:
                raise BadInput(place, "unknown phase", value=when.phase, choices=(*PHASES, *target.phases))
            if where not in ("worker", who) and where.partition(":")[0] != who:
                raise BadInput(place, f"{when.phase} is said by {who}", value=str(fault))
