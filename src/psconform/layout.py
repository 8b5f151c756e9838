"""The shape of a cluster, in TensorFlow's words: jobs, tasks, update mode, reduction."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .compatibility import ALL_REDUCE, EXCHANGE, GPUS, PS, check_options
from .errors import BadInput
from .options import CLUSTER, REDUCTIONS, TRAINING, Options, check_choices, fields_of
from .times import parse_seconds, spell

MAX_TASKS = 64
"""Upper bound on the tasks of one job: more is almost surely a typing error on one machine."""
MAX_LOCAL_STEPS = 1000
MAX_ACCUMULATED = 1000
MAX_DROP_AFTER_S = 3600
MAX_GPUS = 16
MAX_CLIP_NORM = 1e9
JOBS = ("ps", "worker")
"""Jobs that train."""
TAKEN = ("psconform", "toxiproxy", "disk")
"""Names of tasks that are psconform's own."""
_JOB = re.compile("[a-z][a-z_]{0,30}")

NAMED = {
    "small": "ps=1,worker=2",
    "default": "ps=2,worker=3",
    "wide": "ps=3,worker=4",
    "single": "ps=1,worker=1",
    "all-reduce": "ps=0,worker=3",
}


@dataclass(frozen=True, order=True)
class Task:
    """One member of the cluster, ``job:index``."""

    job: str
    index: int

    def __str__(self) -> str:
        return f"{self.job}:{self.index}"

    @property
    def slug(self) -> str:
        """The task's name in file names, ``job-index``."""
        return f"{self.job}-{self.index}"

    @classmethod
    def parse(cls, text: str, *, place: str = "task") -> Task:
        """Read ``job:index``; raises BadInput."""
        match = re.fullmatch(r"([a-z][a-z_]*):([0-9]{1,4})", text)
        if match is None:
            raise BadInput(place, "must be job:index, such as worker:0", value=text)
        return cls(match[1], int(match[2]))


@dataclass(frozen=True, order=True)
class Link:
    """The bytes from one task to another, whoever dialled, ``job:index->job:index``."""

    source: Task
    destination: Task

    def __str__(self) -> str:
        return f"{self.source}->{self.destination}"

    @property
    def back(self) -> Link:
        """The other direction."""
        return Link(self.destination, self.source)

    @classmethod
    def parse(cls, text: str, *, place: str = "link") -> Link:
        """Read ``job:index->job:index``; raises BadInput."""
        source, arrow, destination = (part.strip() for part in text.partition("->"))
        if not arrow or not source or not destination:
            raise BadInput(place, "must be TASK->TASK, such as worker:1->ps:0", value=text)
        found = cls(Task.parse(source, place=place), Task.parse(destination, place=place))
        if found.source == found.destination:
            raise BadInput(place, "must be between two tasks", value=text)
        return found


@dataclass(frozen=True)
class Layout:
    """Number of tasks per job, and how their gradients are put together.

    Without a ps (``ps=0``) every worker holds a replica of all parameters, and they exchange gradients by all-reduce.
    ``update`` is ``sync`` (a round takes one gradient from each worker) or ``async`` (each gradient is applied on
    arrival); ``reduction`` is what a sync round does with its gradients and has no meaning in async.
    ``quorum`` is how many gradients complete a sync round, so that later ones are dropped; 0: those of all workers.
    ``staleness`` is how many steps a worker may be ahead of another in async; None: as many as it likes.
    ``rate`` is the learning rate of a gradient in async: ``staleness-aware`` divides it by max(1, staleness).
    ``local_steps`` is how many steps a replica takes by itself before all are averaged (1: gradients are, each step).
    ``accumulate`` is how many gradients, of so many steps, each worker brings to a sync round.
    ``replication`` says who owns the steps: each worker its own (``between-graph``), or one client that spreads the
    copies of one graph (``in-graph``) or, in sync, the parts of one model (``model-parallel``) over all workers.
    ``optimizer`` and ``schedule`` are what an update does with a gradient, and how its learning rate changes; see
    optimizers.py. ``clip_norm`` is the global norm that a gradient may have, of each worker before they are averaged or
    of a round after it (``clip_when``); 0: any.
    ``drop_after``: a job that recovers goes on without a worker that it has waited for so many seconds, and takes it
    back when it returns; 0: it waits.
    ``gpus`` is how many each worker has, with a tower on each (``emulated``: on as many logical CPUs); their gradients
    are averaged before the push. 0: it computes on the CPU.
    ``others`` are jobs that train nothing (a scheduler, an evaluator), as the target has them: each a name and how many
    tasks it has.
    """

    ps: int = 2
    workers: int = 3
    update: str = Options.update
    reduction: str = REDUCTIONS[0]
    quorum: int = Options.quorum
    staleness: int | None = Options.staleness
    rate: str = Options.rate
    local_steps: int = Options.local_steps
    accumulate: int = Options.accumulate
    replication: str = Options.replication
    optimizer: str = Options.optimizer
    schedule: str = Options.schedule
    clip_norm: float = Options.clip_norm
    clip_when: str = Options.clip_when
    drop_after: float = 0.0
    gpus: int = 0
    emulated: bool = False
    others: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        for job, count, least in (("ps", self.ps, 0), ("worker", self.workers, 1)):
            if not least <= count <= MAX_TASKS:
                raise BadInput("--layout", f"{job} must be between {least} and {MAX_TASKS}", value=count)
        check_choices(vars(self))
        check_options(self.facts)
        if self.quorum and not 1 <= self.quorum <= self.workers:
            problem = f"must be between 1 and the number of workers, {self.workers} (0: all of them)"
            raise BadInput("--quorum", problem, value=self.quorum)
        if self.staleness is not None and self.staleness < 0:
            raise BadInput("--staleness", "must be at least 0", value=self.staleness)
        if not 1 <= self.local_steps <= MAX_LOCAL_STEPS:
            problem = f"must be between 1 and {MAX_LOCAL_STEPS}"
            raise BadInput("--local-steps", problem, value=self.local_steps)
        if not 1 <= self.accumulate <= MAX_ACCUMULATED:
            problem = f"must be between 1 and {MAX_ACCUMULATED}"
            raise BadInput("--accumulate", problem, value=self.accumulate)
        if not 0 <= self.clip_norm <= MAX_CLIP_NORM:
            problem = f"must be between 0 and {MAX_CLIP_NORM:g} (0: gradients are not clipped)"
            raise BadInput("--clip-norm", problem, value=self.clip_norm)
        check_jobs(self.others, place="others")
        if self.drop_after and not 0.1 <= self.drop_after <= MAX_DROP_AFTER_S:
            problem = f"must be between 100ms and {MAX_DROP_AFTER_S} s (0: the job waits)"
            raise BadInput("--drop-after", problem, value=f"{self.drop_after:g} s")
        if self.drop_after and self.workers == 1:
            raise BadInput("--drop-after", "needs at least two workers", value=spell(self.drop_after))
        if not 0 <= self.gpus <= MAX_GPUS:
            raise BadInput("--layout", f"a worker has between 0 and {MAX_GPUS} GPUs", value=self.gpus)

    @classmethod
    def parse(cls, text: str, *, drop_after: str | float = Options.drop_after, **mode: Any) -> Layout:
        """Read ``ps=2,worker=3``, ``ps=2,worker=4,gpus=1`` or the name of a layout (``psconform list layouts``).

        ``mode`` are the other fields.

        Raises:
            BadInput: it cannot be read, or nothing can be built like that.
        """
        counts: dict[str, int] = {}
        spelled = NAMED.get(text.strip(), text)
        for part in spelled.split(","):
            match = re.fullmatch(r"\s*([a-z]+)\s*=\s*([0-9]{1,6})\s*", part)
            if match is None:
                hint = f"Write ps=2,worker=3 or one of: {', '.join(NAMED)}"
                raise BadInput("--layout", "cannot read", value=text, hint=hint)
            if match[1] not in ("ps", "worker", "gpus"):
                raise BadInput("--layout", "unknown job", value=match[1], choices=("ps", "worker", "gpus"))
            if match[1] in counts:
                raise BadInput("--layout", f"names {match[1]} twice", value=text)
            counts[match[1]] = int(match[2])
        for job in ("ps", "worker"):
            if job not in counts:
                raise BadInput("--layout", f"lacks the job {job}", value=text, hint="Write ps=2,worker=3")
        return cls(
            ps=counts["ps"],
            workers=counts["worker"],
            gpus=counts.get("gpus", 0),
            drop_after=parse_seconds(drop_after, place="--drop-after"),
            **mode,
        )

    @property
    def all_tasks(self) -> tuple[Task, ...]:
        """All tasks in the order in which they are started: those of other jobs, parameter servers, workers."""
        return tuple(Task(job, i) for job, count in self.others for i in range(count)) + self.tasks

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The tasks that train, parameter servers first."""
        return tuple(Task("ps", i) for i in range(self.ps)) + self.worker_tasks

    @property
    def worker_tasks(self) -> tuple[Task, ...]:
        """The workers; ``worker:0`` is the chief."""
        return tuple(Task("worker", i) for i in range(self.workers))

    @property
    def one_client(self) -> bool:
        """The process of worker:0 keeps the records of all workers."""
        return self.replication != "between-graph"

    @property
    def has_twin(self) -> bool:
        """It is compared with the same training between-graph: in sync, for async is never the same twice."""
        return self.one_client and self.update == "sync"

    @property
    def all_reduce(self) -> bool:
        """There is no ps: every worker holds a replica."""
        return self.ps == 0

    @property
    def holders(self) -> int:
        """How many pieces the parameters are cut into: one per ps, or one, the whole, in each replica."""
        return max(1, self.ps)

    @property
    def per_round(self) -> int:
        """Gradients in a sync round."""
        return (self.quorum or self.workers) * self.accumulate

    def rounds(self, steps: int) -> int:
        """How many sync rounds so many steps are; the last one may have fewer gradients."""
        return -(-steps // self.accumulate)

    def gpus_of(self, task: Task) -> tuple[int, ...]:
        """Which of the machine's GPUs are a task's: the first worker's are the first ones."""
        first = task.index * self.gpus
        return tuple(range(first, first + self.gpus)) if task.job == "worker" and not self.emulated else ()

    @property
    def plain(self) -> bool:
        """Updates are plain SGD at a constant learning rate, so that a gradient may carry that already."""
        return self.optimizer == "sgd" and self.schedule == "constant" and not self.clip_norm

    @property
    def mode(self) -> str:
        """Update mode and what belongs to it, for a report: ``sync mean``, ``sync mean 2 of 3``, ``async``, adam."""
        rule = f", {self.optimizer}" if self.optimizer != "sgd" else ""
        rule += f", {self.schedule} rate" if self.schedule != "constant" else ""
        rule += f", clipped to {self.clip_norm:g} {self.clip_when} the average" if self.clip_norm else ""
        rule += f", {self.gpus} {'emulated GPU' if self.emulated else 'GPU'}(s) each" if self.gpus else ""
        return self._exchange + rule + (f", drop after {spell(self.drop_after)}" if self.drop_after else "")

    @property
    def _exchange(self) -> str:
        if self.update != "sync":
            return (
                self.update
                + (f" staleness {self.staleness}" if self.staleness is not None else "")
                + (f", rate {self.rate}" if self.rate != "constant" else "")
            )
        more = f" {self.quorum} of {self.workers}" if self.quorum else ""
        more += f" of replicas every {self.local_steps} steps" if self.local_steps > 1 else ""
        more += f", {self.accumulate} gradients of each" if self.accumulate > 1 else ""
        more += f", {self.replication}" if self.replication != "between-graph" else ""
        return f"{self.update} {self.reduction}{more}"

    @property
    def options(self) -> dict[str, Any]:
        """The options of a run that are fields of a layout, by name."""
        return fields_of(self, Layout, CLUSTER, TRAINING)

    @property
    def facts(self) -> dict[str, Any]:
        """What the table of compatibility.py knows of a layout."""
        exchange = ALL_REDUCE if self.all_reduce else PS
        shown = {"drop_after": spell(self.drop_after), "emulate_gpus": self.emulated}
        return {**self.options, **shown, EXCHANGE: exchange, GPUS: self.gpus}

    @property
    def text(self) -> str:
        """The spelling that ``--layout`` takes."""
        return f"ps={self.ps},worker={self.workers}" + (f",gpus={self.gpus}" if self.gpus else "")


def check_jobs(jobs: Iterable[tuple[str, int]], *, place: str) -> None:
    """Raises BadInput for a job that trains nothing, with its number of tasks, if there cannot be one like that."""
    for name, count in jobs:
        if not _JOB.fullmatch(name) or name in (*JOBS, *TAKEN):
            problem = f"the name of a job must be a lower-case word, and not {', '.join(TAKEN)}"
            raise BadInput(place, problem, value=name)
        if not 1 <= count <= MAX_TASKS:
            raise BadInput(place, f"{name} must be between 1 and {MAX_TASKS}", value=count)


@dataclass(frozen=True)
class Command:
    """How to start one task: an ordinary command line, or an entry point that a warm process can fork into.

    With an ``entry`` (``package.module:function``) ``argv`` has the form ``python -m MODULE ARGS``; the function is
    called with ARGS and returns the exit status. A launcher that cannot fork starts ``argv``, with the same effect.

    Attributes:
        env: is added to the environment that tasks have.
        cwd: the working directory, by default that of the log.
        remains: files to delete when it has ended, in which ``{pid}`` stands for its process id.
        gpus: which of the machine's it may use; None: nothing is said of them.
        record: its event file, which names the process that records.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    entry: str = ""
    cwd: str = ""
    remains: tuple[str, ...] = ()
    gpus: tuple[int, ...] | None = None
    record: str = ""

    @property
    def visible(self) -> dict[str, str]:
        """What a process of this machine is told of the GPUs that it may use."""
        return {} if self.gpus is None else {"CUDA_VISIBLE_DEVICES": ",".join(map(str, self.gpus)) or "-1"}
