"""manifest.json: what was run, on what, with what; written when a run starts and again when it ends."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..claims import Claims
from ..errors import BadInput, Malformed
from ..files import open_regular, read, write
from ..layout import Layout
from ..options import Options
from ..probe import SIZES, UNIT, Ledger, workload_of, workloads
from ..sizes import parse_size
from .reasons import FailedAfterEnd, FaultMissed, Reason

SCHEMA = 2
MAX_BYTES = 64 << 20
MAX_CELLS = 4_000_000
"""Bound on workers x steps: the ledger's variables have twice as many float32 slots."""
PLAIN = "plain"
"""Folder in a decayed ledger's run folder: the run of a plain ledger in the same set-up."""
TWIN = "twin"
"""Folder in the run folder of a model trained in-graph or model-parallel: the same training, between-graph."""
Status = Literal["running", "finished", "stalled", "decided", "failed", "interrupted"]
Required = Literal["all", "half", "none"]


@dataclass(frozen=True)
class Bounds:
    """How many bytes what a target writes may have: an event file, a log, and all of them and the vectors together."""

    record: int = parse_size(Options.max_record, place="max_record")
    log: int = parse_size(Options.max_log, place="max_log")
    run: int = parse_size(Options.max_run, place="max_run")


class Workload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is trained. ``unit`` is the magnitude that one gradient, applied once, leaves in a slot.

    ``slow`` names stragglers: seconds by worker that its probe sleeps before each gradient; ``batches`` workers that
    have data for so many steps only. The rest is for workloads
    that train: ``model`` and ``batch`` of digits, the ``condition`` number of quadratic, ``learning_rate`` of an update
    as it arrives in the parameters, ``rate`` that and the trainer's own make it, ``delay`` the age in steps of the
    parameters at which a gradient is taken. ``compression`` is what a worker does to gradients before it sends them.
    ``padding`` is how many parameters a variable of a ledger has besides, between head and tail; nothing changes them.
    ``distinct``: the gradients of each variable of a ledger have a magnitude of their own, which what is recorded is
    divided by.
    """

    name: str = Options.workload
    steps: int = Options.steps
    seed: int = Options.seed
    unit: float | None = None
    scales: tuple[float, ...] = ()
    reads: int = Options.reads
    read_every: int = Options.read_every
    slow: tuple[tuple[str, float], ...] = ()
    batches: tuple[tuple[str, int], ...] = ()
    model: str = Options.model
    batch: int = Options.batch
    learning_rate: float = 0.0
    rate: float = 1.0
    delay: int = Options.delay
    condition: float = Options.condition
    compression: str = Options.compression
    padding: int = Options.padding
    distinct: bool = False

    @property
    def is_ledger(self) -> bool:
        """Its parameters tell which gradients were applied."""
        return issubclass(workload_of(self.name), Ledger)

    @property
    def shows(self) -> frozenset[str]:
        """What its parameters tell a check, see ``probe.SHOWS``."""
        return workload_of(self.name).shows

    def sizes(self, variables: int) -> NDArray[np.float64]:
        """The magnitude of each variable's gradients, in ``UNIT``, float64[V]."""
        return np.resize(np.array(SIZES) * 4 / UNIT, variables) if self.distinct else np.ones(variables)


class Manifest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Everything that ``psconform check`` needs besides the event files."""

    run: str
    created: str
    target: str
    source: str
    layout: Layout
    claims: Claims
    workload: Workload
    schema: int = SCHEMA
    status: Status = "running"
    reasons: list[Reason] = []
    defect: str = Options.defect
    faults: list[str] = []
    checkpoint_every: int = 0  # steps of the chief; 0: never, or every
    checkpoint_seconds: float = 0.0
    patience_s: float = Options.patience_s
    bounds: Bounds = Bounds()
    require_faults: Required = "all"  # how many of its faults must be observed
    dynamic_work: bool = False  # each worker takes as many steps as it comes to
    calibration: bool = False  # one that did not come to its end, in place of the run
    shared_spec: bool = False  # of a run with proxies: one for each task, whoever dials it
    dialled: list[str] = []  # of a calibration with proxies: which tasks train by dialling which (worker:0->ps:0)
    unused: list[str] = []  # faults of links that no task of the calibration used
    undialled: bool = False  # nor did any use another link, so a drawn plan has no faults of the network
    launcher: str = Options.launcher
    image: str = Options.image  # of containers; empty: the trainer's own
    limited: bool = False  # what they may use is in layout.toml
    environment: dict[str, str] = {}  # what the target names
    repeat: str = ""
    versions: dict[str, str] = {}
    platform: dict[str, str] = {}
    times_s: dict[str, float] = {}

    @property
    def missed(self) -> tuple[FaultMissed, ...]:
        """Faults of which nothing came."""
        return tuple(reason for reason in self.reasons if isinstance(reason, FaultMissed))

    @property
    def harmless(self) -> tuple[FailedAfterEnd, ...]:
        """What is to be said, and leaves no gap."""
        return tuple(reason for reason in self.reasons if isinstance(reason, FailedAfterEnd))

    @property
    def spec(self) -> dict[str, Any]:
        """What a probe needs to know of the workload, for spec.json."""
        workload, layout = self.workload, self.layout
        fields = {name: value for name, value in msgspec.to_builtins(workload).items() if name != "name"}
        names = {
            "workload": workload.name,
            "workers": layout.workers,
            "update": layout.update,
            "weighted": self.claims.reduction == "weighted",
            "variables": layout.holders,
        }
        return {"run": self.run, **names, **fields, "slow": dict(workload.slow), "batches": dict(workload.batches)}

    def write(self, folder: Path, *, room: int = 0) -> None:
        """Replace the manifest in one step, so that a crash leaves the old one or the new one.

        ``room``: so many bytes are left free in it, for `write_in_place`.
        """
        write(folder / "manifest.json", self._text + " " * room)

    def write_in_place(self, folder: Path) -> None:
        """The same on a disk that is full: into the room that the file has, which must be enough.

        Raises:
            OSError: it is not, or there is no such file.
        """
        text = self._text.encode()
        with open_regular(folder / "manifest.json", flags=os.O_RDWR) as file:
            room = os.fstat(file.fileno()).st_size
            if len(text) > room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder / "manifest.json"))
            file.write(text.ljust(room))

    @property
    def _text(self) -> str:
        return json.dumps(msgspec.to_builtins(self), indent=2) + "\n"

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read it back.

        Raises:
            BadInput: ``folder`` is not a run folder.
            Malformed: its manifest cannot be read.
        """
        path = folder / "manifest.json"
        try:
            path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            raise BadInput(str(folder), "is not a run folder: it has no manifest.json") from None
        except (OSError, ValueError) as error:
            raise BadInput(str(folder), f"cannot be a run folder ({error})") from None
        try:
            manifest = msgspec.json.decode(read(path, MAX_BYTES), type=cls)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, BadInput, RecursionError) as error:
            raise Malformed(path, f"not a manifest of schema {SCHEMA}: {error}") from None
        if manifest.schema != SCHEMA:
            raise Malformed(path, f"schema {manifest.schema}, this psconform reads {SCHEMA}")
        if manifest.workload.name not in workloads():
            raise Malformed(path, f"unknown workload {manifest.workload.name!r}; valid: {', '.join(workloads())}")
        steps, most = manifest.workload.steps, MAX_CELLS // manifest.layout.workers
        if not 1 <= steps <= most:
            raise Malformed(path, f"workload.steps must be between 1 and {most}, got {steps}")
        workers = {str(task) for task in manifest.layout.worker_tasks}
        for name, pairs in (("slow", manifest.workload.slow), ("batches", manifest.workload.batches)):
            for task, _ in pairs:
                if task not in workers:
                    raise Malformed(path, f"workload.{name} must name workers of {manifest.layout.text}, got {task!r}")
        for task, number in manifest.workload.batches:
            if not 1 <= number < steps:
                raise Malformed(path, f"workload.batches of {task} must be between 1 and {steps - 1}, got {number}")
        return manifest


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file in one step."""
    write(path, json.dumps(content, indent=2) + "\n")
