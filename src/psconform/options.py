"""The options of a run. Each is declared once, as a field of ``Options``; everything else follows from that:

the command line of ``psconform run`` (cli.py) and the one that runs a plan again, the arguments of ``psconform.judge``
(api.py), checks of types and choices, what a layout and a workload have by default, the placeholders of a target's
commands (targets/target.py), and docs/options.md.
"""

# ruff: noqa: RUF009  (the calls in defaults declare fields)
from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

from .errors import BadInput
from .optimizers import CLIP_WHEN, COSINE_PERIOD, HALVE_EVERY, OPTIMIZERS, SCHEDULES, WARM_UP


@dataclass(frozen=True)
class Group:
    """Options that belong together, with one command that shows some of them."""

    name: str
    example: str

    @property
    def title(self) -> str:
        """The panel of ``psconform run --help``."""
        return f"{self.name}: {self.example}"


CLUSTER = Group("Cluster", "psconform run --layout ps=2,worker=3 --update async --staleness 4")
TRAINING = Group("Training", "psconform run --steps 100 --seed 7 --slow worker:1=20ms")
WORKLOAD = Group("Workload", "psconform run --workload quadratic --condition 20")
FAULTS = Group("Faults", "psconform run --kill worker:1@20 --restart-after 500ms")
OUTPUT = Group("Output", "psconform run --dry-run --json")
SERIES = Group("Series", "psconform run --repeat 3 --random-layouts")
GROUPS = (CLUSTER, TRAINING, WORKLOAD, FAULTS, OUTPUT, SERIES)
"""In the order in which ``psconform run --help`` shows them."""

UPDATES = ("sync", "async")
REDUCTIONS = ("mean", "sum", "weighted")
RATES = ("constant", "staleness-aware")
MODELS = ("softmax", "mlp")
REPLICATIONS = ("between-graph", "in-graph", "model-parallel")
KINDS: dict[Any, str] = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
"""What a value of these types must be, in words; options of other types are checked by whoever reads them."""

Several = str | Iterable[str]
"""One text, or several."""
Spelled = Several | Mapping[str, float | str]
"""``worker:1=50ms``, several of them, or ``{"worker:1": 0.05}`` (seconds, or ``"50ms"``)."""
Counted = Several | Mapping[str, int]
"""``worker:1=50``, several of them, or ``{"worker:1": 50}``."""
T = TypeVar("T")


@dataclass(frozen=True)
class Option:
    """What is declared of an option, with the name, type and default of its field.

    Attributes:
        typed: its type on the command line, if that is another one.
        noun: what it is called where its value is none of ``choices``, if not by its name.
        placeholder: its name in a target's commands; empty: they cannot be told.
        always: the command that runs a plan again says it even if it has its default.
    """

    group: Group
    help: str
    metavar: str | None = None
    _: KW_ONLY
    flag: str = ""
    typed: Any = None
    choices: tuple[str, ...] = ()
    noun: str = ""
    placeholder: str = ""
    always: bool = False
    name: str = ""
    kind: Any = None
    default: Any = None

    def check_type(self, value: Any) -> None:
        """Raises BadInput for a value of another type."""
        types = get_args(self.kind) or (self.kind,)
        kind, *others = (each for each in types if each is not NoneType)
        if others or kind not in KINDS or (value is None and NoneType in types):
            return
        fits = isinstance(value, (int, float) if kind is float else kind)
        if not fits or isinstance(value, bool) != (kind is bool):
            raise BadInput(self.flag, f"must be {KINDS[kind]}", value=value)


def option(default: T, group: Group, help: str, metavar: str | None = None, **more: Any) -> T:
    """Declares a field of ``Options``; ``more`` are attributes of ``Option``."""
    made: T = field(default=default, metadata={"option": Option(group, help, metavar, **more)})
    return made


@dataclass(frozen=True)
class Options:
    """What a run is asked for; from Python, a time may be a number of seconds, too.

    Raises:
        BadInput: a value of a wrong type, or an option that others have no use for.
    """

    target: str | Path = option(
        "reference",
        CLUSTER,
        "reference, the path of a target.toml, or compose:FILE.",
        typed=str,
        flag="TARGET",
        always=True,
    )
    _: KW_ONLY
    layout: str = option(
        "default",
        CLUSTER,
        "ps=2,worker=3,gpus=1 (ps=0: all-reduce), a name (psconform list layouts), or a .toml file.",
        placeholder="layout",
        always=True,
    )
    update: str = option(
        "sync", CLUSTER, "sync or async.", choices=UPDATES, noun="update mode", placeholder="update", always=True
    )
    reduction: str | None = option(
        None,
        CLUSTER,
        "mean, sum, or mean weighted as each worker says, of a sync round. Default: the one that the target claims.",
        choices=REDUCTIONS,
        placeholder="reduction",
    )
    quorum: int = option(
        0,
        CLUSTER,
        "Sync only: gradients that complete a round; later ones are dropped. 0: all.",
        "R",
        placeholder="quorum",
    )
    staleness: int | None = option(
        None,
        CLUSTER,
        "Async only: the most steps that a worker may be ahead of another.",
        "S",
        placeholder="staleness",
    )
    rate: str = option(
        "constant",
        CLUSTER,
        "Async only: constant, or staleness-aware: divided by the staleness of a gradient.",
        choices=RATES,
        placeholder="rate",
    )
    local_steps: int = option(
        1,
        CLUSTER,
        "Layouts with ps=0: steps of a replica between two averages.",
        "H",
        placeholder="local_steps",
    )
    accumulate: int = option(
        1,
        CLUSTER,
        "Sync only: gradients that each worker adds up for a round. A step makes one.",
        "A",
        placeholder="accumulate",
    )
    replication: str = option(
        "between-graph",
        CLUSTER,
        "between-graph; in-graph: one process for all workers; model-parallel: sync, digits, quadratic.",
        choices=REPLICATIONS,
        placeholder="replication",
    )
    drop_after: str | float = option(
        "0s",
        CLUSTER,
        "Evict a worker after waiting this long for it: 2s. 0s: wait.",
        "TIME",
        typed=str,
        placeholder="drop_after",
    )
    emulate_gpus: bool = option(
        False, CLUSTER, "Use logical CPUs in place of GPUs, on machines without any.", placeholder="emulated"
    )
    launcher: str = option(
        "process", CLUSTER, "process, or docker: each task in a container of its own. psconform list launchers."
    )
    image: str = option(
        "", CLUSTER, "With docker: image of the tasks. Default: the trainer's own (psconform images build)."
    )
    # By default 200 steps: three workers then push 600 gradients, and a bug that strikes every 500th shows.
    steps: int = option(200, TRAINING, "Steps of each worker.", placeholder="steps", always=True)
    seed: int = option(0, TRAINING, "Seed of all random draws.", placeholder="seed", always=True)
    reads: int = option(1, TRAINING, "Reads before each gradient.")
    read_every: int = option(1, TRAINING, "Async only: read every so many steps.")
    optimizer: str = option(
        "sgd", TRAINING, "Digits, quadratic: sgd, momentum or adam.", choices=OPTIMIZERS, placeholder="optimizer"
    )
    schedule: str = option(
        "constant",
        TRAINING,
        f"Digits, quadratic: the learning rate is constant, halved every {HALVE_EVERY} updates (halving), grows for "
        f"{WARM_UP} (warm-up), or falls along a cosine and begins anew every {COSINE_PERIOD} (cosine).",
        choices=tuple(SCHEDULES),
        placeholder="schedule",
    )
    clip_norm: float = option(
        0.0,
        TRAINING,
        "Digits, quadratic: scale gradients down to this global norm, if theirs is larger.",
        "NORM",
        placeholder="clip_norm",
    )
    clip_when: str = option(
        CLIP_WHEN[0],
        TRAINING,
        "With --clip-norm: before the average, each worker's gradient; after it, that of a round.",
        choices=CLIP_WHEN,
        noun="moment",
        placeholder="clip_when",
    )
    learning_rate: float | None = option(
        None,
        TRAINING,
        "Digits, quadratic: of a round or an update. Default 0.1, 0.02 (momentum 0.01, 0.002; adam 0.001, 0.01).",
        placeholder="learning_rate",
        always=True,
    )
    slow: Spelled = option(
        (), TRAINING, "A worker that sleeps before each gradient: worker:1=50ms.", "TASK=TIME", typed=list[str]
    )
    patience_s: float = option(
        60.0, TRAINING, "Seconds without progress that end a run; 60 at least until a step is done.", flag="--patience"
    )
    workload: str = option(
        "ledger", WORKLOAD, "What is trained: psconform list workloads.", placeholder="workload", always=True
    )
    model: str = option("softmax", WORKLOAD, "Workload digits: softmax or mlp.", choices=MODELS, always=True)
    batch: int = option(16, WORKLOAD, "Workload digits: samples of each worker in a step.", always=True)
    delay: int = option(0, WORKLOAD, "Digits, quadratic: age in steps of the parameters of a gradient.", always=True)
    condition: float = option(10.0, WORKLOAD, "Workload quadratic: the condition number.", always=True)
    compression: str = option(
        "none", WORKLOAD, "Workload dense-ledger: none or topk, for targets that declare it.", placeholder="compression"
    )
    padding: int = option(0, WORKLOAD, "Workload ledger: extra parameters of each variable, to make it large.", "N")
    batches: Counted = option(
        (), WORKLOAD, "Workload ledger: a worker with data for N steps only: worker:1=50.", "TASK=N", typed=list[str]
    )
    defect: str = option("", FAULTS, "A seeded defect of the reference trainer: psconform list defects.")
    kill: Several = option(
        (), FAULTS, "SIGKILL: ps:0@20, worker:1@after-push:35 or ps:0@2s. Repeatable.", "TASK@WHEN", typed=list[str]
    )
    stop: Several = option(
        (), FAULTS, "SIGSTOP, then SIGCONT: worker:0@10..15 or ps:0@1s..3s.", "TASK@FROM..TO", typed=list[str]
    )
    poison: Several = option(
        (), FAULTS, "A gradient full of NaN, or of Inf: worker:1@20, worker:1@20=inf.", "TASK@STEP", typed=list[str]
    )
    faults: str | Path = option(
        "", FAULTS, "A fault plan: a file, or random, or random:KIND,KIND.", "FILE", typed=list[str]
    )
    restart_after: str | float | None = option(
        "1s", FAULTS, "With --kill: 500ms, or never.", "TIME", typed=str, always=True
    )
    require_faults: str = option(
        "",
        FAULTS,
        "Exit with 2 if fewer faults are observed: all, half or none. Default: all; half of drawn ones.",
        "SHARE",
        choices=("", "all", "half", "none"),
    )
    checkpoint_every: int | str | None = option(
        None, FAULTS, "Steps of the chief, or 500ms; default 50 with faults, else 0: never.", "N|TIME", typed=str
    )
    out: str | Path | None = option(None, OUTPUT, "Run folder, new or empty. Default: psconform-runs/TIME.", typed=Path)
    max_record: str = option(
        "256MiB", OUTPUT, "How large the event file of a task may be: about 400,000 steps.", "SIZE"
    )
    max_log: str = option("64MiB", OUTPUT, "Of a larger log the beginning and the end are kept.", "SIZE")
    max_run: str = option(
        "4GiB", OUTPUT, "A run whose event files, vectors and logs are larger together is ended.", "SIZE"
    )

    def __post_init__(self) -> None:
        for name, each in OPTIONS.items():
            each.check_type(getattr(self, name))
        check_choices(vars(self))


def _declared() -> dict[str, Option]:
    found, kinds = {}, get_type_hints(Options)
    for each in fields(Options):
        made: Option = each.metadata["option"]
        flag, noun = made.flag or f"--{each.name.replace('_', '-')}", made.noun or each.name
        kind = kinds[each.name]
        found[each.name] = replace(made, name=each.name, kind=kind, default=each.default, flag=flag, noun=noun)
    return found


OPTIONS = _declared()
"""All options, by the names of their fields, in the order in which they are shown."""


def fields_of(values: object, kind: type, *groups: Group) -> dict[str, Any]:
    """What ``values`` has of the options of these groups that are fields of ``kind``: of a layout, or of a workload."""
    found = (name for name, each in OPTIONS.items() if each.group in groups and name in kind.__annotations__)
    return {name: getattr(values, name) for name in found}


OF_TRAINERS = tuple(
    each for each in OPTIONS.values() if each.placeholder and each.name not in ("layout", "workload", "steps", "seed")
)
"""Those that a trainer takes on its command line; it knows the others from its cluster and its probe."""


def check_choices(values: Mapping[str, Any]) -> None:
    """Raises BadInput for a value that is none of an option's choices."""
    for name, value in values.items():
        each = OPTIONS.get(name)
        if each is not None and each.choices and value not in (None, *each.choices):
            raise BadInput(each.flag, f"unknown {each.noun}", value=value, choices=each.choices)
