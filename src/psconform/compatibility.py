"""Which options of a run go together: one table, which ``psconform list compatibility`` prints and errors quote."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from .errors import BadInput
from .options import OPTIONS
from .probe import MODEL, DecayedLedger, workloads

EXCHANGE, GPUS = "exchange", "gpus"
"""What a layout says besides its options: ``ps`` or ``all-reduce``, and the GPUs of each worker."""
PS, ALL_REDUCE = "ps", "all-reduce"


@dataclass(frozen=True)
class Row:
    """An option that is given needs another one to have one of these values.

    Attributes:
        option: the one that is given: it has not its default, but any value, or one of ``values``.
        needs: the other one.
        among: what the other one may be.
    """

    option: str
    needs: str
    among: tuple[Any, ...]
    why: str = ""
    values: tuple[Any, ...] = ()

    def concerns(self, value: Any) -> bool:
        """Whether an option with this value needs the other one."""
        return value in self.values if self.values else value is not None and value != USUAL[self.option]

    @property
    def given(self) -> str:
        """The option as users write it."""
        return f"{flag(self.option)} {' or '.join(map(str, self.values))}".rstrip()

    @property
    def needed(self) -> str:
        """What the other one must be, in words."""
        if self.needs == EXCHANGE:
            return "needs a ps" if self.among == (PS,) else "needs replicas (--layout ps=0,worker=N)"
        if self.among in ((0,), (None,), ("",), ((),)):
            return f"excludes {flag(self.needs)}"
        if self.among == GIVEN:
            return f"needs {flag(self.needs)}"
        return f"needs {flag(self.needs)} {' or '.join(map(str, self.among))}"


USUAL = {name: option.default for name, option in OPTIONS.items()} | {EXCHANGE: PS, GPUS: 0}
FLAGS = {EXCHANGE: "--layout ps=0", GPUS: "--layout gpus=N"}
GIVEN = ("given",)
"""Any value but the default."""


def flag(name: str) -> str:
    """How an option is spelled on the command line."""
    return FLAGS.get(name) or OPTIONS[name].flag


def _rows(names: str, needs: str, *among: Any, why: str = "", of: tuple[Any, ...] = ()) -> Iterator[Row]:
    for name in names.split():
        yield Row(name, needs, among, why, of)


ROWS: tuple[Row, ...] = (
    *_rows("reduction", "update", "sync", why="async applies each gradient by itself", of=("sum", "weighted")),
    *_rows("quorum accumulate", "update", "sync"),
    *_rows("replication", "update", "sync", why="its parts train in step", of=("model-parallel",)),
    *_rows("exchange", "update", "sync", why="replicas exchange gradients in rounds"),
    *_rows("staleness rate", "update", "async"),
    *_rows("read_every", "update", "async", why="a sync worker reads each round"),
    *_rows("staleness", "read_every", 1, why="the bound is kept by reading"),
    *_rows("quorum replication optimizer schedule drop_after gpus", EXCHANGE, PS),
    *_rows("local_steps", EXCHANGE, ALL_REDUCE),
    *_rows("local_steps", "reduction", "mean", why="replicas are averaged"),
    *_rows("quorum drop_after", "reduction", "mean", "sum", why="a weighted mean is of all workers"),
    *_rows("workload", "reduction", "mean", "sum", why="an order needs equal weights", of=(DecayedLedger.name,)),
    *_rows("workload", "accumulate", 1, why="gradients of one round have no order", of=(DecayedLedger.name,)),
    *_rows("accumulate", "reduction", "mean", "sum", why="weights are of rounds with one gradient of each"),
    *_rows("accumulate", "quorum", 0),
    *_rows("accumulate", "local_steps", 1),
    *_rows("accumulate", "replication", "between-graph"),
    *_rows("accumulate", "compression", "none"),
    *_rows("accumulate", "delay", 0),
    *_rows("clip_norm", "accumulate", 1, why="it takes the gradient of a step"),
    *_rows("clip_norm", "local_steps", 1, why="it takes the gradient of a round"),
    *_rows("clip_norm", "reduction", "mean", why="a sum has another norm"),
    *_rows("clip_when", "clip_norm", *GIVEN),
    *_rows("clip_when", "update", "sync", why="async has no average", of=("after",)),
    *_rows("batches poison drop_after", "accumulate", 1, why="a round needs the gradients of all"),
    *_rows("emulate_gpus", GPUS, *GIVEN),
    *_rows("replication", "quorum", 0, why="one client has no late workers"),
    *_rows("optimizer schedule clip_norm drop_after batches", "quorum", 0),
    *_rows("optimizer schedule clip_norm drop_after", "rate", "constant"),
    *_rows("optimizer schedule clip_norm drop_after batches gpus", "replication", "between-graph"),
    *_rows("optimizer schedule clip_norm", "compression", "none"),
    *_rows("drop_after batches", "staleness", None),
    *_rows("compression", EXCHANGE, PS),
    *_rows("workload", EXCHANGE, PS, why="a replica has no order of its own", of=(DecayedLedger.name,)),
    *_rows("padding", EXCHANGE, PS, why="it makes what a ps holds large"),
    *_rows("batches", EXCHANGE, PS),
    *_rows("restart_after", "kill", *GIVEN),
    *_rows("poison", EXCHANGE, PS, why="it is what refuses a gradient"),
    *_rows("poison", "replication", "between-graph", "in-graph", why="no gradient is one worker's own"),
    *_rows("poison", "compression", "none", why="what is not sent of a NaN is sent later"),
    *_rows("faults checkpoint_every", "replication", "between-graph"),
    *_rows("faults checkpoint_every", "quorum", 0),
    *_rows("faults checkpoint_every", "accumulate", 1, why="what a worker has added up dies with it"),
    *_rows("faults checkpoint_every", "compression", "none", why="a residual dies with its worker"),
)


WHY = {
    "optimizer": "a ledger is what plain SGD makes",
    "schedule": "a ledger is what plain SGD makes",
    "clip_norm": "a ledger is what plain SGD makes",
    "clip_when": "a ledger is what plain SGD makes",
    "drop_after": "what a model learns depends on which workers took part",
    "compression": "no other shows what became of each entry",
}
"""Why an option is for the workloads that name it."""


@cache
def rows() -> tuple[Row, ...]:
    """The whole table: with the options that only some workloads have a use for, as those say themselves."""
    kinds = workloads()
    names = dict.fromkeys(name for kind in kinds.values() for name in kind.options)
    of = {name: tuple(kind.name for kind in kinds.values() if name in kind.options) for name in names}
    models = tuple(kind.name for kind in kinds.values() if MODEL in kind.shows)
    return (
        *ROWS,
        *(Row(name, "workload", among, WHY.get(name, "")) for name, among in of.items()),
        Row("replication", "workload", models, "a ledger has no model to cut", ("model-parallel",)),
    )


def unmet(name: str, values: Mapping[str, Any]) -> Row | None:
    """The first row by which an option, if it is given, does not go with the others; those not known are let pass."""
    found = (row for row in rows() if row.option == name and row.needs in values)
    return next((row for row in found if not _met(row, values[row.needs])), None)


def _met(row: Row, value: Any) -> bool:
    return bool(value) and value != USUAL[row.needs] if row.among == GIVEN else value in row.among


def check_option(name: str, values: Mapping[str, Any], *, place: str = "", value: Any = None) -> None:
    """Raises BadInput, which quotes the row, where an option is given that does not go with the others."""
    for row in (row for row in rows() if row.option == name and row.needs in values and row.concerns(values[name])):
        if not _met(row, values[row.needs]):
            shown = None if name == EXCHANGE else values[name] if value is None else value
            problem = f"{row.needed}: {row.why}" if row.why else row.needed
            raise BadInput(place or flag(name), problem, value=shown, hint="psconform list compatibility has all")


def check_options(values: Mapping[str, Any]) -> None:
    """``check_option`` of each; raises BadInput."""
    for name in values:
        check_option(name, values)
