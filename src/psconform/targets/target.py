"""What psconform knows of a system under test."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from string import Formatter

from ..claims import Claims
from ..errors import BadInput
from ..layout import JOBS, MAX_TASKS, Command, Layout, Task
from ..options import OPTIONS as RUN_OPTIONS
from ..options import UPDATES
from ..parts import Part

Addresses = Mapping[Task, str]


def hosts_of(job: str) -> str:
    """The placeholder for the addresses of a job's tasks."""
    return f"{job}_hosts"


PLACEHOLDERS = (
    *("job", "index", "task", "chief", *map(hosts_of, JOBS), "hosts", "host", "port"),
    *(option.placeholder for option in RUN_OPTIONS.values() if option.placeholder),
    *("gpus", "python", "here"),
)
"""What a command or environment value in a target.toml may contain, in braces."""

MODES = {"quorum": ("barrier", "r-of-n"), "staleness": ("staleness", "bounded"), "rate": ("rate", "staleness-aware")}
"""Options that change what is promised: the field of the layout, and the claim that a target makes with it."""
NOTHING, RESTART_TASK, RESTART_ALL = ON_FAILURE = ("nothing", "restart-task", "restart-all")
"""After a fault has ended a task: nothing; it is started again; or all tasks are ended and started again."""
IMAGE = "[A-Za-z0-9][A-Za-z0-9._:@/-]{0,254}"
"""Names of images: never a path."""
OPTIONS = (
    *(*MODES, "local_steps", "accumulate", "replication", "optimizer", "schedule", "clip_norm", "clip_when"),
    *("drop_after", "gpus"),
)
"""Fields of the layout that a target takes if its commands contain the placeholder; only ``MODES`` change a claim."""


@dataclass(frozen=True)
class Ready:
    """When a task counts as started: at once, when its port listens, or when its log shows a text."""

    port: bool = False
    log: str = ""
    timeout_s: float = 30.0


@dataclass(frozen=True)
class Job:
    """How the tasks of one job are started and whether they end by themselves; ``count``: of jobs that do not train."""

    command: tuple[str, ...]
    entry: str = ""
    env: tuple[tuple[str, str], ...] = ()
    ready: Ready = Ready()
    exits: bool = True
    count: int = 1

    def uses(self, placeholder: str) -> bool:
        """A command or an environment value contains it."""
        texts = [*self.command, *(text for _, text in self.env)]
        return any(name == placeholder for text in texts for _, name, _, _ in Formatter().parse(text))


@dataclass(frozen=True)
class Target:
    """A system under test.

    Attributes:
        name: as ``psconform run`` takes it, if another package has it in its entry points.
        jobs: how tasks of ``ps`` and ``worker`` are started, and of jobs that do not train.
        claims: by update mode; a mode without claims is not supported.
        source: where it is described.
        about: one line, for ``psconform list targets``.
        reductions: what it can do with the gradients of a sync round, the usual one first.
        unit: the magnitude that one gradient, applied once, leaves in a slot, by layout; None: calibrate first.
        preload: modules that a warm process imports before it forks tasks; None: tasks are started cold.
        exchanges: through parameter servers (``ps``), by ``all-reduce`` of replicas, or both.
        dynamic_work: each worker takes as many steps as it comes to, and may end before others.
        min_ps, max_ps, min_workers, max_workers: how many tasks of a job its clusters have, replicas none of ``ps``.
        batches: its workers look up in ``probe.due`` how many steps they have data for.
        learning_rate: of the gradient of one worker alone, with plain SGD; None: what calibration finds is right.
        on_failure: one of ``ON_FAILURE``; empty: it does not say, so a task is started again, but for a replica.
        distinct: each variable gets the gradient that ``probe.gradients`` made for it; calibration finds out itself.
        phases: those that its tasks say with ``probe.at``, each with who does, a task or a job; None: not known.
        shared: all tasks have one cluster spec.
        push_alone: a push asks for nothing, so it is sent though no answer comes (the phase ``sent``).
        image: in which its tasks run, if they are containers; empty: the reference trainer's.
        environment: names of environment variables that its tasks read.
        modules: Python modules of optional parts of the machine that its tasks import, by the part.
    """

    name: str
    jobs: Mapping[str, Job]
    claims: Mapping[str, Claims]
    source: str = ""
    about: str = ""
    reductions: tuple[str, ...] = ("mean", "sum")
    unit: Callable[[Layout], float] | None = None
    preload: tuple[str, ...] | None = None
    tf_config: bool = True
    here: Path = field(default_factory=Path.cwd)
    defects: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ("ledger",)
    exchanges: tuple[str, ...] = ("ps",)
    compressions: tuple[str, ...] = ("none",)
    dynamic_work: bool = False
    min_ps: int = 1
    max_ps: int = MAX_TASKS
    min_workers: int = 1
    max_workers: int = MAX_TASKS
    batches: bool = False
    learning_rate: float | None = None
    on_failure: str = ""
    distinct: bool = False
    phases: Mapping[str, str] | None = None
    shared: bool = False
    push_alone: bool = False
    image: str = ""
    environment: tuple[str, ...] = ()
    modules: Mapping[Part, str] = field(default_factory=dict)

    @property
    def others(self) -> tuple[tuple[str, int], ...]:
        """Jobs that do not train, in the order of the file, and how many tasks they have."""
        return tuple((name, job.count) for name, job in self.jobs.items() if name not in JOBS)

    @property
    def fixed(self) -> bool:
        """Nobody tells its tasks where the others are: they know each other by name."""
        return False

    @property
    def modes(self) -> tuple[str, ...]:
        """Those of ``OPTIONS`` that it takes."""
        return tuple(mode for mode in OPTIONS if self.uses(mode))

    def reduction(self, update: str) -> str:
        """What a sync round does with its gradients, if nothing else is asked for; of async it means nothing."""
        return self.reductions[0] if update == "sync" else Layout.reduction

    def uses(self, placeholder: str) -> bool:
        """A command or an environment value of a job contains it."""
        return any(job.uses(placeholder) for job in self.jobs.values())

    def given(self, environ: Mapping[str, str]) -> dict[str, str]:
        """What its tasks read of this environment."""
        return {name: environ[name] for name in self.environment if name in environ}

    def fits(self, layout: Layout) -> None:
        """Raises BadInput if this target is of another cluster; most are of any."""
        if layout.others != self.others:
            here, there = (", ".join(f"{job} ({count})" for job, count in of) for of in (self.others, layout.others))
            problem = f"its jobs that train nothing are {here or 'none'}, and the run's are {there or 'none'}"
            raise BadInput(f"target {self.name}", problem, hint="Its target.toml has changed since: run it anew")
        counts = {"workers": layout.workers} | ({"ps": layout.ps} if layout.ps else {})
        for job, count in counts.items():
            least, most = self.span(job)
            if not least <= count <= most:
                number = f"at least {least}" if count < least else f"at most {most}"
                hint = f"min_{job} and max_{job} in its target.toml say so"
                raise BadInput("--layout", f"target {self.name} takes {number} {job}", value=layout.text, hint=hint)

    def span(self, job: str) -> tuple[int, int]:
        """The least and the most tasks of ``ps`` or ``workers`` in its clusters; of replicas there is no ps."""
        return (self.min_ps, self.max_ps) if job == "ps" else (self.min_workers, self.max_workers)

    def nearest(self, layout: Layout) -> Layout:
        """The layout that it takes with the least difference in its number of tasks."""
        ps, workers = (
            min(max(getattr(layout, job), self.span(job)[0]), self.span(job)[1]) for job in ("ps", "workers")
        )
        return replace(layout, ps=ps if layout.ps else 0, workers=workers)

    def claimed(self, layout: Layout, compression: str = "none") -> Claims:
        """The claims that hold for a layout; raises BadInput if the target does not support it.

        A worker that compresses gradients promises error feedback, not that they arrive whole.
        """
        claims = self._claimed(layout)
        if compression == "none" or claims.compression == "any":
            return claims
        return Claims.from_dict({**claims.as_dict(), "compression": "error-feedback"})

    def _claimed(self, layout: Layout) -> Claims:
        if layout.update not in self.claims:
            valid = [update for update in UPDATES if update in self.claims]
            hint = (
                f"Give --update {valid[0]}, or write [claims.{layout.update}] into the target file if it has that mode"
            )
            raise BadInput(
                "--update", f"target {self.name} has no such mode", value=layout.update, choices=valid, hint=hint
            )
        exchange = "all-reduce" if layout.all_reduce else "ps"
        if exchange not in self.exchanges:
            hint = "All-reduce is ps=0" if layout.all_reduce else "It has no job ps: write ps=0"
            raise BadInput("--layout", f"target {self.name} has no such layout", value=layout.text, hint=hint)
        claims = self._with_modes(self.claims[layout.update], layout)
        if layout.update == "async" or claims.reduction == "none":
            return claims
        if layout.reduction not in self.reductions:
            problem = f"target {self.name} has no such reduction"
            raise BadInput("--reduction", problem, value=layout.reduction, choices=self.reductions)
        return Claims.from_dict({**claims.as_dict(), "reduction": layout.reduction})

    def _with_modes(self, claims: Claims, layout: Layout) -> Claims:
        """What is claimed with the options of ``MODES`` that are given; a dimension that is not claimed stays so."""
        for name in OPTIONS:
            value = getattr(layout, name)
            if value != getattr(Layout(), name) and name not in self.modes:
                hint = f"A command in the target file that contains {{{name}}} takes it"
                option = "--layout" if name == "gpus" else f"--{name.replace('_', '-')}"
                said = "GPUs" if name == "gpus" else "such option"
                raise BadInput(option, f"target {self.name} has no {said}", value=value, hint=hint)
        for name, (dimension, level) in MODES.items():
            option, value, usual = f"--{name}", getattr(layout, name), getattr(Layout(), name)
            if value != usual and claims.level(dimension) != "none":
                claims = Claims.from_dict({**claims.as_dict(), dimension: level})
            elif value == usual and claims.level(dimension) == level:
                hint = f"Give {option}"
                raise BadInput(option, f"target {self.name} claims {dimension} {level}", value=value, hint=hint)
        return claims

    def command(
        self,
        task: Task,
        addresses: Addresses,
        *,
        layout: Layout,
        workload: Mapping[str, str | int | float],
        listens: str = "",
    ) -> Command:
        """The command that starts ``task`` in a cluster with these addresses.

        ``listens`` is where it listens, ``host:port``, if that is not the address that it has in the cluster.
        """
        job = self.jobs[task.job]
        values = self._values(task, addresses, layout=layout, workload=workload, listens=listens or addresses[task])
        env = [(name, fill(text, values, place=f"env.{name}")) for name, text in job.env]
        if self.tf_config:
            env.append(("TF_CONFIG", tf_config(task, addresses)))
        argv = tuple(fill(part, values, place=f"jobs.{task.job}.command") for part in job.command)
        return Command(argv, dict(env), job.entry, "" if job.entry else str(self.here))

    def _values(
        self,
        task: Task,
        addresses: Addresses,
        *,
        layout: Layout,
        workload: Mapping[str, str | int | float],
        listens: str,
    ) -> dict[str, str]:
        names = dict.fromkeys((*JOBS, *self.jobs))
        hosts = {job: [a for t, a in sorted(addresses.items()) if t.job == job] for job in names}
        host, _, port = listens.rpartition(":")
        values = {
            "job": task.job,
            "index": task.index,
            "task": task,
            "chief": int(task == Task("worker", 0)),
            **{hosts_of(job): ",".join(of_job) for job, of_job in hosts.items()},
            "hosts": ",".join(hosts["ps"] + hosts["worker"]),
            "host": host,
            "port": port,
            "layout": layout.text,
            **{name: getattr(layout, name) for name in PLACEHOLDERS if name in Layout.__annotations__},
            "staleness": -1 if layout.staleness is None else layout.staleness,
            "drop_after": f"{layout.drop_after:g}",
            "emulated": int(layout.emulated),
            "compression": "none",
            "learning_rate": 1.0,
            "python": sys.executable,
            "here": self.here,
            **workload,
        }
        return {name: str(value) for name, value in values.items()}


def fill(text: str, values: Mapping[str, str], *, place: str) -> str:
    """Replace ``{name}`` in a template; ``{{`` and ``}}`` stand for braces. Raises BadInput for any other."""
    filled = ""
    try:
        for literal, name, spec, conversion in Formatter().parse(text):
            filled += literal
            if name is None:
                continue
            if spec or conversion or not name.isidentifier():  # an attribute of a value, say
                raise ValueError("a placeholder is a name in braces, nothing more")
            if name not in values:
                raise BadInput(place, "unknown placeholder", value=name, choices=values)
            filled += values[name]
    except ValueError as error:
        raise BadInput(place, f"cannot be filled in ({error})", value=text, choices=values) from None
    return filled


def tf_config(task: Task, addresses: Addresses) -> str:
    """``TF_CONFIG`` as ``tf.distribute.cluster_resolver.TFConfigClusterResolver`` reads it.

    An ``evaluator`` is not in the cluster (https://www.tensorflow.org/guide/distributed_training#setting_up_tf_config).
    """
    cluster: dict[str, list[str]] = {}
    for member, address in sorted(addresses.items()):
        if member.job == "evaluator":
            continue
        cluster.setdefault(member.job, []).append(address)
    return json.dumps({"cluster": cluster, "task": {"type": task.job, "index": task.index}})
