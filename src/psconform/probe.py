"""The probe: what a trainer of any kind adds to its loop so that psconform can judge it.

One file, standard library and numpy only, for Python 3.9 or later. A training loop of worker ``w``::

    probe = Probe.from_env()                              # PSCONFORM_SPEC and PSCONFORM_TASK, set by psconform
    values = probe.initial()                              # whoever initialises: one call per variable, then
    probe.initialised([values])                           # ... say that this task has initialised them
    for step in range(probe.steps):
        probe.read(pull(), versions=None)                 # one array per variable, as this worker sees them
        gradient = probe.gradient(step)                   # float32[slots], the same for every variable
        probe.push(step)
        send(gradient)
        probe.ack(step, "ok", versions=None)              # ok: it said yes. failed: it said no. unknown: neither
    probe.wait_for_all()                                  # every worker has got its last acknowledgement
    probe.read(pull(), final=True)
    probe.close()

The **ledger** workload: the loss is ``<theta, x>``, its gradient is ``x`` whatever ``theta`` is, and ``x`` is zero but
for one slot per (worker, step), at the head and again at the tail of each variable, and one that all share::

    theta = [ (0,0) (0,1) .. (W-1,K-1) | nonce | shared | (0,0) (0,1) .. (W-1,K-1) ]      float32[2*W*K + 2]

Plain SGD turns that into a ledger: slot (w, s) holds minus the number of times that gradient was applied, times
``UNIT`` x learning rate x weight. The shared slot holds the sum of all gradients, each times a share of its own
(`Ledger.in_shared`); it is recorded where it does not. docs/events.md describes the files field by field.

If the trainer takes each variable's gradient from ``probe.gradients``, they differ in magnitude from variable to
variable (``SIZES``), so that one that reaches another variable is seen there. What is recorded is in ``UNIT`` again.

No call of the loop raises: what makes no sense where it is called (a second acknowledgement, values of a wrong size,
an argument of a wrong type) is recorded as a `Slip` and logged, and nothing else of that call is recorded; where it
cost the record something, no verdict is ``valid``. If the record cannot be written, recording stops.

Other workloads need ``probe.gradients(step, values)``, a list with the gradient of each variable (for any workload),
in place of ``probe.gradient(step)``, and ``probe.initial(i)`` for variable i; those that train a model load trained.py
and models.py, too, from the same package or, where this file stands alone, from the same folder.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import errno
import faulthandler
import json
import logging
import operator
import os
import signal
import socket
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cache, wraps
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

SCHEMA = 1
UNIT = 840.0
"""Gradient magnitude: divisible by 1 to 8, so that the mean over up to 8 workers is exact in float32."""
SIZES = (
    *(210, 131, 134, 137, 139, 142, 146, 149, 151, 157, 163, 166, 173, 178, 181, 191, 194, 197, 202, 206, 214, 218),
    *(223, 227, 233, 239, 251, 254),
)
"""Of the gradients of one variable after another, in quarters: 210 is ``UNIT``. Of two, neither fits into the other a
whole number of times, nor a few times a few; float16 and bfloat16 hold each of them, and they are 1 % apart or more."""
SHARED_TOLERANCE = 0.02
"""Of a gradient: what the shared slot may be away from the sum of the others, for it is rounded once more with each."""
TOLERANCE = 1e-5
"""Relative deviation up to which a slot counts as applied exactly once (float32 rounding of lr x UNIT / N)."""
OUTCOMES = ("ok", "failed", "unknown")
CONTROL = "PSCONFORM_CONTROL"
"""Environment variable: host:port of the psconform that strikes at phases, or unix:PATH; see `Probe.at`."""
TELL_NS = 10_000_000
"""A task whose clock is to jump tells what it shows not more often than that."""
DECAY = 2.0**-10
"""Share of a parameter that each update of the decayed ledger takes away: exact in float32, and 20,000 updates fit."""
LARGEST = 2**53
"""Of the whole numbers in a record: what JSON readers of all languages can hold."""
LIGHTEST = 1e-9
"""Of the weights in a record that are not zero."""
MOST_SLIPS = 100
"""Slips of one kind that a task records: a loop of them must not fill the disk."""
_INTEGERS = ("clock", "versions", "ids")
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode

Vector = NDArray[np.float32]


class Slip(str, Enum):
    """What a trainer got wrong in a call of the probe; ``history/slips.py`` says what each costs the record."""

    ACK_AGAIN = "ack again"
    ACK_CHANGED = "ack changed"
    ACK_WITHOUT_PUSH = "ack without push"
    ACK_AFTER_DONE = "ack after done"
    NO_ACK = "no ack"
    NO_OUTCOME = "no outcome"
    NO_WEIGHT = "no weight"
    NO_WORK = "no work"
    PUSH_AFTER_DONE = "push after done"
    PUSH_AFTER_RESIDUAL = "push after residual"
    PUSH_OUT_OF_ORDER = "push out of order"
    READ_AFTER_DONE = "read after done"
    FINAL_BEFORE_DONE = "final before done"
    NO_VALUES = "no values"
    SIZE = "size"
    RANGE = "range"
    RESIDUAL_AGAIN = "residual again"
    WORKLOAD = "workload"
    ARGUMENT = "argument"


class _Slipped(Exception):
    """Ends a call of the probe; never leaves it."""

    def __init__(self, what: Slip) -> None:
        super().__init__(what)
        self.what = what


class _Unwritable(Exception):
    """The record cannot be written; an OSError of what the trainer has handed in is none of that."""


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _Unwritable from error


Call = TypeVar("Call", bound=Callable[..., Any])


def _guarded(call: Call) -> Call:
    """A method of the probe that raises nothing into the trainer: it returns None where it would have.

    KeyboardInterrupt and SystemExit, which are no Exceptions, pass.
    """
    names = call.__code__.co_varnames[: call.__code__.co_argcount + call.__code__.co_kwonlyargcount]
    place = names.index("step") - 1 if "step" in names else None

    @wraps(call)
    def guarded(self: Probe, *args: Any, **named: Any) -> Any:
        try:
            return call(self, *args, **named)
        except _Slipped as slip:
            what = slip.what
        except _Unwritable:
            self._stop()
            return None
        except Exception:
            what = Slip.ARGUMENT
            _log("probe.%s: an argument that it cannot use", call.__name__, exc_info=True)
        step = named.get("step", args[place] if place is not None and place < len(args) else None)
        self._slip(call.__name__, what, step)
        return None

    return cast("Call", guarded)


class LedgerDecoder:
    """Turns successive reads of one variable into a clock per worker and the slots that do not fit it.

    ``clock[w]`` is one more than the last step of worker w of which the variable shows a trace. Below the clock a slot
    should hold ``-unit`` at head and tail; a slot that does not is *odd*: ``odd[(w, s)] = (head, tail)``. Only what
    changed since the last read is looked at.
    """

    def __init__(self, *, workers: int, steps: int, unit: float) -> None:
        self.workers, self.steps, self.unit = workers, steps, unit
        self.cells = workers * steps
        self.clock = [0] * workers
        self.odd: dict[tuple[int, int], tuple[float, float]] = {}
        self.nonce = 0.0
        self._bits: NDArray[np.int32] = np.zeros(2 * self.cells + 1, np.int32)

    def update(self, values: Vector) -> list[tuple[int, int]]:
        """Take float32[2*W*K + 1]; returns the (worker, step) whose oddness changed."""
        bits = values.view(np.int32)  # bitwise, so that NaN equals itself
        changed: list[int] = (bits != self._bits).nonzero()[0].tolist()
        if not changed:
            return []
        self._bits[:] = bits
        rows: dict[int, list[int]] = {}
        for index in changed:
            if index == self.cells:
                self.nonce = float(values[index])
                continue
            worker, step = divmod(index if index < self.cells else index - self.cells - 1, self.steps)
            rows.setdefault(worker, []).append(step)
        touched: list[tuple[int, int]] = []
        for worker, steps in rows.items():
            touched += self._row(values, worker, steps)
        return touched

    def _row(self, values: Vector, worker: int, steps: list[int]) -> list[tuple[int, int]]:
        start = self.clock[worker]
        first, tail = worker * self.steps, self.cells + 1 + worker * self.steps
        if len(steps) == 2 and steps[0] == steps[1] == start:  # the healthy case: the next gradient, head and tail
            limit = self.unit * TOLERANCE
            head_off, tail_off = values.item(first + start) + self.unit, values.item(tail + start) + self.unit
            if abs(head_off) <= limit and abs(tail_off) <= limit:
                self.clock[worker] = start + 1
                return []
        heads, tails = values[first : first + self.steps], values[tail : tail + self.steps]
        nonzero = np.flatnonzero((heads != 0) | (tails != 0))
        clock = int(nonzero[-1]) + 1 if nonzero.size else 0
        # what is as it was, and was below the clock before, is judged as it was
        looked = sorted({*steps, *range(min(start, clock), max(start, clock))})
        limit, touched = self.unit * TOLERANCE, []
        for step in looked:
            cell, pair = (worker, step), (heads.item(step), tails.item(step))
            fits = step >= clock or all(abs(end + self.unit) <= limit for end in pair)
            before = self.odd.pop(cell, None)
            if not fits:
                self.odd[cell] = pair
            if repr(before) != repr(None if fits else pair):  # repr, because NaN differs from itself
                touched.append(cell)
        self.clock[worker] = clock
        return touched


WEIGHTS, COUNTS, GRADIENTS, ORDER, ENTRIES = "weights", "counts", "gradients", "order", "entries"
MODEL, SAMPLES = "model", "samples"
SHOWS = {
    GRADIENTS: "which gradients were applied",
    COUNTS: "and how often each",
    WEIGHTS: "and with which weight",
    ORDER: "in which order",
    ENTRIES: "which entries of each arrived, and with which value",
    MODEL: "what serial training makes of the same gradients",
    SAMPLES: "which samples a gradient was of",
}
"""What the parameters that a worker reads tell a check, by workload."""


class Workload:
    """What is trained: initial values and gradients. Declared by a subclass, with the decorator `workload`.

    Attributes:
        name: as ``--workload`` takes it.
        about: one line, for ``psconform list workloads``.
        shows: which of ``SHOWS`` hold; checks say which of them they need.
        options: those of a run that no workload has a use for, unless it names them here.
        most: bound on workers x steps.
        learning_rates: the usual one of an update, by optimizer; empty: the trainer's own.
    """

    name = ""
    about = ""
    shows: frozenset[str] = frozenset()
    options: tuple[str, ...] = ()
    most = 4_000_000
    learning_rates: Mapping[str, float] = {}
    slots: int

    @classmethod
    def of(cls, spec: Mapping[str, Any], folder: Path | None) -> Workload:
        """The workload of a run: ``spec`` is its spec.json, ``folder`` the run folder, if there is one."""
        raise NotImplementedError


Kind = TypeVar("Kind", bound=type[Workload])
_workloads: dict[str, type[Workload]] = {}


def workload(kind: Kind) -> Kind:
    """Declare a workload: decorates its class. Raises ValueError if there is one of that name already."""
    if kind.name in _workloads:
        raise ValueError(f"workload {kind.name} is declared already, by {_workloads[kind.name].__module__}")
    _workloads[kind.name] = kind
    return kind


@cache
def workloads() -> Mapping[str, type[Workload]]:
    """All workloads by name: of this file, of trained.py, and of packages that name them in entry points."""
    from importlib.metadata import entry_points

    import_module(f"{__package__}.trained" if __package__ else "trained")
    group, found = "psconform.workloads", entry_points()
    for point in found.select(group=group) if hasattr(found, "select") else found.get(group, ()):  # Python 3.9: a dict
        point.load()
    return _workloads


def workload_of(name: str) -> type[Workload]:
    """The class of a workload; ValueError if there is none of that name."""
    kind = _workloads.get(name) or workloads().get(name)
    if kind is None:
        raise ValueError(f"unknown workload {name!r}; valid: {', '.join(_workloads)}")
    return kind


@workload
class Ledger(Workload):
    """The one-hot gradients: where they are in a variable, and how a read of it becomes cells for the decoder."""

    name = "ledger"
    about = "one-hot gradients that turn the parameters into a count of what was applied"
    shows = frozenset((GRADIENTS, COUNTS, WEIGHTS))
    options: tuple[str, ...] = ("quorum", "rate", "local_steps", "padding", "batches", "drop_after")

    entries = 1
    """Slots of one gradient at each end of a variable."""
    shared = True
    """The trainer's variables have a slot between, in which all gradients are."""

    @classmethod
    def of(cls, spec: Mapping[str, Any], folder: Path | None) -> Ledger:
        """See `Workload`."""
        del folder
        return cls(workers=int(spec["workers"]), steps=int(spec["steps"]), scales=list(spec.get("scales", ())))

    def __init__(self, *, workers: int, steps: int, scales: Sequence[float] = ()) -> None:
        self.workers, self.steps, self.scales = workers, steps, scales
        self.half = workers * steps * self.entries
        self.slots = 2 * self.half + 1
        self._in_shared = np.array([[self.in_shared(w, s) for s in range(8)] for w in range(workers)])

    def initial(self) -> Vector:
        """Zero but for a random nonce that marks who initialised, float32[slots]."""
        values = np.zeros(self.slots, np.float32)
        values[self.half] = 1 + int.from_bytes(os.urandom(4), "little") % (1 << 20)
        return values

    def gradient(self, worker: int, step: int) -> Vector:
        """The same for every variable, float32[slots]."""
        gradient = np.zeros(self.slots, np.float32)
        first = (worker * self.steps + step) * self.entries
        magnitudes = self.magnitudes(step)
        gradient[first : first + self.entries] = magnitudes[: self.entries]
        gradient[self.half + 1 + first : self.half + 1 + first + self.entries] = magnitudes[-self.entries :]
        return gradient

    def magnitudes(self, step: int) -> NDArray[np.float64]:
        """What a gradient of this step holds in its slots, head then tail, float64[2 x entries] (one-hot: [1])."""
        return np.array([UNIT * (self.scales[step] if step < len(self.scales) else 1.0)])

    def cells(self, values: Vector, unit: float) -> Vector:
        """Values of a variable as `LedgerDecoder` takes them, float32[2 x workers x steps + 1]."""
        del unit
        return values

    def in_shared(self, worker: int, step: int) -> float:
        """What the slot that all share gets of a gradient, in units of what its own slot gets.

        From 1/2 to 15/16, others for each worker and each of eight steps, so that what is lost can be told; nearly as
        much is taken back in each odd step, so that the sum stays small. In the end it is not zero.
        """
        return (8 + (worker + 3 * step) % 8) / 16 * (-7 / 8 if step % 2 else 1)

    def sums(self, values: Vector) -> Iterator[float]:
        """What the shared slot should hold, by the heads and by the tails of a variable."""
        whole = self.steps - self.steps % 8
        for end in (values[: self.half], values[self.half + 1 :]):
            slots = end.reshape(self.workers, self.steps)
            sums = slots[:, :whole].reshape(self.workers, -1, 8).sum(axis=1, dtype=float)
            sums[:, : self.steps - whole] += slots[:, whole:]
            yield float((sums * self._in_shared).sum())


@workload
class DecayedLedger(Ledger):
    """The same gradients for servers that do theta <- (1 - DECAY) theta - gradient: a slot tells how old it is.

    Its cells only say what shows; the order is read from the full values at the end (check A8).
    """

    name = "decayed-ledger"
    about = "the same with decay at the servers: a slot tells how old it is, so one read gives the order"
    shows = frozenset((GRADIENTS, ORDER))
    shared = False
    options = ("drop_after",)
    most = 50_000  # in a ledger with more updates than this the oldest has decayed to nothing

    def cells(self, values: Vector, unit: float) -> Vector:
        """-unit where anything shows (NaN stays), the nonce as 1: it decays like the rest."""
        cells = np.where(np.isfinite(values), np.where(values != 0, -unit, 0.0), values).astype(np.float32)
        nonce = values[self.half]
        cells[self.half] = np.sign(np.abs(nonce)) if np.isfinite(nonce) else nonce
        return cells


@workload
class DenseLedger(Ledger):
    """Gradients with ``2 x entries`` distinct magnitudes each, of a norm that changes from step to step.

    What compresses, clips or rounds gradients or parameters leaves a one-hot whole; here it changes some entries and
    not others, or some steps and not others. Magnitudes have more digits than a bfloat16, and means over up to 8
    workers are exact in float32.
    """

    name = "dense-ledger"
    about = "gradients of many magnitudes: shows which was compressed, clipped or rounded, and how"
    shows = frozenset((GRADIENTS, COUNTS, ENTRIES))
    shared = False
    options = ("compression", "drop_after")
    most = 100_000  # full vectors would fill the disk
    entries = 4

    def magnitudes(self, step: int) -> NDArray[np.float64]:
        """UNIT x 2^(step % 4) x (1.002, -2.006, 3.010 ... -8.029), float64[8]."""
        rank = np.arange(2 * self.entries)
        sizes = ((rank + 1) * 512 + 2 * rank + 1) / 512
        return np.asarray(UNIT * 2.0 ** (step % 4) * sizes * (-1.0) ** rank)

    def cells(self, values: Vector, unit: float) -> Vector:
        """-unit where any entry of a gradient shows, at the head and at the tail; NaN stays."""
        ends = np.stack([values[: self.half], values[self.half + 1 :]]).reshape(2, -1, self.entries)
        shown = np.where((ends != 0).any(axis=2), -unit, 0.0)
        shown = np.where(np.isfinite(ends).all(axis=2), shown, np.nan)
        return np.concatenate([shown[0], values[self.half : self.half + 1], shown[1]]).astype(np.float32)


class EventLog:
    """Append-only JSONL file of one task: one ``write`` per event, each line's CRC chained to the one before."""

    def __init__(self, path: Path, *, clock: Callable[[], int] | None = None, **start: Any) -> None:
        self._clock = clock
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(path, flags, 0o644)
        self._seq = self._crc = 0
        self._pid = os.getpid()
        boot = Path("/proc/sys/kernel/random/boot_id")
        boot_id = boot.read_text().strip() if boot.exists() else ""
        self.write("start", schema=SCHEMA, **start, boot=boot_id, pid=os.getpid())

    @property
    def closed(self) -> bool:
        """Nothing can be written any more."""
        return self._fd < 0

    def write(self, kind: str, **fields: Any) -> None:
        """Append one event; does nothing once closed, nor in a process that was forked off."""
        if self._fd < 0 or os.getpid() != self._pid:
            return
        # By hand, for it is most of the probe's cost: an integer, or lists of them, are JSON as Python spells them.
        parts = [f'{{"kind":"{kind}","seq":{self._seq},"mono_ns":{(self._clock or time.monotonic_ns)()}']
        for name, value in fields.items():
            if type(value) is int:
                parts.append(f',"{name}":{value}')
            elif name in _INTEGERS:
                parts.append(f',"{name}":{value}'.replace(" ", ""))
            else:
                parts.append(f',"{name}":{_encode(value)}')
        body = "".join(parts).encode()
        self._crc = zlib.crc32(body, self._crc)  # chained: a line lost, moved or changed breaks every later one
        _write(self._fd, b'%s,"crc":"%08x"}\n' % (body, self._crc))
        self._seq += 1

    def close(self, *, reason: str = "closed", **more: Any) -> None:
        """Write the end event; later calls do nothing."""
        self.write("end", reason=reason, **more)
        self.abandon()

    def abandon(self) -> None:
        """Write nothing more, no end event either: the record is not whole."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _write(fd: int, data: bytes) -> None:
    """All of it in one piece; raises OSError."""
    if os.write(fd, data) != len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Probe:
    """Gives a worker its gradients and records what it read, pushed and got acknowledged.

    Every event is one ``write`` of one line to ``events/JOB-INDEX.jsonl`` in the run folder, so that SIGKILL costs at
    most the last line. Not thread-safe: one probe per task, used by one thread at a time.
    """

    def __init__(
        self,
        spec: dict[str, Any],
        *,
        task: str,
        incarnation: int = 0,
        folder: str | None = None,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self.task, self._epoch, self.incarnation = task, 0, incarnation
        self.workers, self.steps = int(spec["workers"]), int(spec["steps"])
        self.unit: float | None = spec.get("unit")
        self.reads, self.read_every = int(spec.get("reads", 1)), int(spec.get("read_every", 1))
        self.seed = int(spec.get("seed", 0))
        job, _, index = task.partition(":")
        self.job, self.index = job, int(index or 0)
        self.workload = str(spec.get("workload", Ledger.name))
        made = workload_of(self.workload).of(spec, Path(folder) if folder else None)
        self._ledger = made if isinstance(made, Ledger) else None
        # slots behind the nonce that the record leaves out: the shared one, and parameters that nothing is added to
        self._between = int(spec.get("padding", 0)) + (self._ledger is not None and self._ledger.shared)
        self.slots = made.slots + self._between
        self._trained: Any = made
        self._distinct = bool(spec.get("distinct"))  # each variable's gradients have a magnitude of their own
        self._each: bool | None = None  # so far, every gradient was made for its variable
        self._weighted = bool(spec.get("weighted"))
        self._weights: dict[int, float] = {}  # what the gradient of a step counts
        self._works: dict[int, int] = {}  # and the piece of work that it is of
        # by step: what its gradient is to be full of
        self._poisons = {int(p["step"]): str(p["value"]) for p in spec.get("poison", ()) if p["task"] == task}
        self._poisoned: set[int] = set()  # steps of which that is recorded
        # steps that each worker has data for; one that has none left pushes nothing
        self.due = [int(spec.get("batches", {}).get(f"worker:{w}", self.steps)) for w in range(self.workers)]
        self._slow_s = float(spec.get("slow", {}).get(task, 0.0))
        self.checkpoints, self.checkpoint_every = str(spec.get("checkpoints", "")), int(spec.get("checkpoint_every", 0))
        self.checkpoint_seconds = float(spec.get("checkpoint_seconds", 0.0))
        # an entry without a task is for whichever worker comes first
        self._strikes = {(s["phase"], s["step"]) for s in spec.get("strikes", ()) if s["task"] in (task, job)}
        self._tells_clock = task in spec.get("clocks", ())
        self._told_ns = 0  # when it last told what its clocks show
        self._vector_every = int(spec.get("vector_every", 50))
        self.wait_s = float(spec.get("wait_s", 60.0))  # how long whoever waits for others is to wait for a sign of them
        self._decoders: list[LedgerDecoder] = []
        self._reads_done = self._vector_at = self._next_step = 0
        self._absent: list[str] | None = None
        self._attempts: dict[int, int] = {}
        self._acked: dict[tuple[int, int], dict[str, Any]] = {}
        self._open: set[tuple[int, int]] = set()  # pushes without an acknowledgement
        self._slips: dict[Slip, int] = {}
        self._variables = 0 if self._ledger is not None else int(spec["variables"])  # in each read; 0: not known yet
        # versions in each read; how many ps (or replicas) hold the variables, 0: not known
        self._counters, self._holders = -1, int(spec.get("variables", 0))
        self._shards: list[int] | None = None
        self._looked = False  # it has read since its last push
        self._computed: set[int] = set()  # steps whose gradient was computed since they were pushed
        self._done = self._residual = False
        self._nonces: list[float] | None = None
        self._folder = Path(folder) if folder else None
        self._name = f"{job}-{self.index}" + (f".{incarnation}" if incarnation else "")
        self._vectors = -1
        self._log: EventLog | None = None
        if self._folder is not None:
            self._start(self._folder, spec["run"], clock)

    def _start(self, folder: Path, run: str, clock: Callable[[], int] | None) -> None:
        """Begin the record; raises FileExistsError if another process is this task."""
        path = folder / "events" / f"{self._name}.jsonl"
        try:
            about = {"run": run, "task": self.task, "incarnation": self.incarnation, "stacks": _shows_stacks()}
            self._log = EventLog(path, clock=clock, **about)
        except FileExistsError:
            raise
        except OSError:
            self._stop()
        atexit.register(self.close, reason="atexit")

    @classmethod
    def from_env(cls, task: str | None = None) -> Probe:
        """The probe of this process, from ``PSCONFORM_SPEC`` and ``PSCONFORM_TASK``.

        Raises:
            RuntimeError: they are not set.
            FileExistsError: this task has a probe already.
        """
        path = os.environ.get("PSCONFORM_SPEC")
        task = task or os.environ.get("PSCONFORM_TASK")
        if not path or not task:
            raise RuntimeError("PSCONFORM_SPEC and PSCONFORM_TASK are not set: start this through `psconform run`")
        spec = json.loads(Path(path).read_text(encoding="utf-8"))
        incarnation = int(os.environ.get("PSCONFORM_INCARNATION", "0"))
        return cls(spec, task=task, incarnation=incarnation, folder=str(Path(path).parent))

    @classmethod
    def detached(cls, *, workers: int, steps: int, task: str = "worker:0") -> Probe:
        """A probe that gives gradients and records nothing, for a trainer started by hand."""
        return cls({"workers": workers, "steps": steps, "unit": None, "run": ""}, task=task)

    @property
    def epoch(self) -> int:
        """The cluster epoch of what is recorded from now on."""
        return self._epoch

    @epoch.setter
    def epoch(self, value: int) -> None:
        self._set_epoch(value)

    @_guarded
    def _set_epoch(self, value: int) -> None:
        self._epoch = _whole(value)

    def initial(self, variable: int = 0) -> Vector:
        """Initial values for one variable, float32[slots]; of a ledger zero but for a random nonce that marks who
        initialised. Zeros for a variable that this workload has not."""
        found: Vector | None = self._initial(variable)
        return self._zeros() if found is None else found

    @_guarded
    def _initial(self, variable: int) -> Vector:
        return self._spread(self._ledger.initial()) if self._ledger is not None else self._trained.initial(variable)

    @_guarded
    def initialised(self, variables: Sequence[Vector]) -> None:
        """Record that this task has written these initial values, one array per variable, into the servers."""
        arrays = self._arrays(variables, part=True)  # a ps writes its own
        nonces = [_number(float(v[self._ledger.half])) for v in arrays] if self._ledger is not None else []
        self._event("init", nonce=nonces)

    def gradient(self, step: int) -> Vector:
        """The gradient of this worker at ``step``, float32[slots], to be pushed to every variable of a ledger.

        A worker that is to be a straggler (``--slow``) sleeps here: to the others that is a slow computation. Zeros for
        a step that is not one of this workload, or if it trains a model, which needs ``gradients``: a slip.
        """
        found: Vector | None = self._gradient(step)
        return self._zeros() if found is None else found

    @_guarded
    def _gradient(self, step: int) -> Vector:
        step = self._computes(step)
        if self._ledger is None:
            raise _Slipped(Slip.WORKLOAD)
        self._each = False
        if self._distinct:  # it does not show which variable it is meant for
            self._slip("gradient", Slip.WORKLOAD, step)
        return self._poison(step, [self._one_hot(self._ledger, step)])[0]

    def gradients(
        self, step: int, values: Sequence[Any] | None = None, samples: Sequence[int] | None = None
    ) -> list[Vector]:
        """The gradient of this worker at ``step`` for each variable, float32[slots] each, for any workload.

        One that is not finite, by ``--poison`` or because training has diverged, is recorded as such. Zeros for a step
        that is not one of this workload, or if its values are missing: a slip.

        Args:
            step: from 0.
            values: the parameters it is computed at, one array per variable; a ledger takes only their number.
            samples: ids of the samples to use, by default those of ``samples(step)``. They are recorded.
        """
        found: list[Vector] | None = self._gradients(step, values, samples)
        if found is not None:
            return found
        try:
            number = self._variables or len(values or ())
        except Exception:  # whatever these are, they are no values
            number = 0
        return [self._zeros() for _ in range(number or 1)]

    @_guarded
    def _gradients(self, step: int, values: Sequence[Any] | None, samples: Sequence[int] | None) -> list[Vector]:
        step = self._computes(step)
        if self._ledger is not None:
            number = len(values) if values is not None else 1
            self._each = self._each is not False and number > 1 and number == self._variables
            if self._distinct and number != self._variables:
                self._slip("gradients", Slip.SIZE, step)
            gradient = self._one_hot(self._ledger, step)
            return self._poison(step, [gradient * self._size(variable) for variable in range(number)])
        if values is None:
            raise _Slipped(Slip.NO_VALUES)
        used = self.samples(step) if samples is None else [_whole(i) for i in samples]
        found = self._trained.gradients(self.index, step, self._arrays(values), used)
        if used is not None:
            self._event("samples", step=step, ids=used)
        return self._poison(step, found)

    @_guarded
    def used(self, step: int, samples: Sequence[int] | None) -> None:
        """Record the samples of ``step``, for a trainer that computes the gradient itself, in place of ``gradients``.

        Args:
            step: from 0.
            samples: ids of this worker's share of the samples; None for a workload without samples.
        """
        step, used = self._computes(step), None if samples is None else [_whole(i) for i in samples]
        if used is not None:
            self._event("samples", step=step, ids=used)

    @property
    def trained(self) -> Any:
        """What is trained, as a `trained.Trained`: its ``model``, ``data`` and ``rate``. None for a ledger."""
        return None if self._ledger is not None else self._trained

    @_guarded
    def samples(self, step: int) -> list[int] | None:
        """Ids of the samples that this worker should use at ``step``; None if this workload has no samples, or no such
        step: a slip."""
        used = None if self._ledger is not None else self._trained.samples(self.index, step)
        return None if used is None else used.tolist()

    def _poison(self, step: int, gradients: list[Vector]) -> list[Vector]:
        """These gradients, or what psconform puts in their place; records that, and what is not finite by itself."""
        if value := self._poisons.get(step, ""):
            gradients = [np.full_like(gradient, float(value)) for gradient in gradients]
        elif self._ledger is None:
            bad = [gradient[~np.isfinite(gradient)] for gradient in gradients]
            value = "nan" if any(np.isnan(found).any() for found in bad) else "inf" if any(map(len, bad)) else ""
        if value and step not in self._poisoned:
            self._poisoned.add(step)
            self._event("poison", step=step, value=value, **({"seeded": True} if step in self._poisons else {}))
        return gradients

    def _computes(self, step: int) -> int:
        """The step whose gradient is computed now."""
        step = _whole(step, most=self.steps - 1)
        self._computed.add(step)
        if self._slow_s:
            time.sleep(self._slow_s)
        return step

    @_guarded
    def read(
        self,
        values: Sequence[Any],
        versions: Sequence[int] | None = None,
        *,
        step: int | None = None,
        final: bool = False,
        shards: Sequence[int] | None = None,
    ) -> None:
        """Record the parameters as this worker sees them before it computes the gradient of ``step``.

        Args:
            values: one float32[slots] per variable, always in the same order.
            versions: the version of each ps, if the servers count their updates.
            step: defaults to the step after the last one pushed; if that one is pushed again, the read was of it.
            final: this is the read after ``wait_for_all``.
            shards: index of the ps that holds each variable; given once. Default: variable i is on ps i.
        """
        if self._log is None or self._log.closed:
            return
        usual = self.steps if final else self._next_step
        event: dict[str, Any] = {"step": usual if step is None else _whole(step, most=self.steps)}
        shown = self._shown(values, final=final)
        arrays = self._alike(shown)
        more = self._placed(len(arrays), versions, shards)
        self._variables, self._looked = len(arrays), True  # nothing of a bad read has left a trace until here
        if self.unit is None:
            event["raw"] = [base64.b64encode(v.tobytes()).decode() for v in arrays]
        else:
            if self._ledger is not None:
                self._decode(self._ledger, arrays, self.unit, event)
                if self._ledger.shared:
                    with np.errstate(all="ignore"):
                        self._compare(self._ledger, shown, arrays, self.unit, event)
            if self._vector_every and (final or self._reads_done % self._vector_every == 0):
                event["vector"] = self._write_vector(arrays)
        event.update(more)
        if final:
            event["final"] = True
            event["absent"] = self._absent
        self._reads_done += 1
        self._event("read", **event)
        if final and self._absent is None:
            self._slip("read", Slip.FINAL_BEFORE_DONE)

    def _shown(self, values: Sequence[Any], *, final: bool) -> list[Vector]:
        """What a read shows, one array per variable."""
        if self._done and not final:
            raise _Slipped(Slip.READ_AFTER_DONE)
        if not len(values):
            raise _Slipped(Slip.NO_VALUES)
        return self._arrays(values)

    def _placed(
        self, variables: int, versions: Sequence[int] | None, shards: Sequence[int] | None
    ) -> dict[str, list[int]]:
        """Versions and shards of a read; they must fit those of the reads before."""
        found: dict[str, list[int]] = {}
        if versions is not None:
            found["versions"] = _versions(versions)
            if self._counters not in (-1, len(found["versions"])):
                raise _Slipped(Slip.SIZE)
        if shards is not None:
            found["shards"] = [_whole(shard, most=(self._holders or LARGEST) - 1) for shard in shards]
            if len(found["shards"]) != variables or self._shards not in (None, found["shards"]):
                raise _Slipped(Slip.SIZE)
        self._counters = len(found.get("versions", ())) if versions is not None else self._counters
        self._shards = found.get("shards", self._shards)
        return found

    @_guarded
    def at(self, phase: str, step: int | None = None) -> None:
        """Say that this task is at a phase of a step: returns at once, unless psconform is to strike just there.

        ``push`` says ``before-push`` and ``ack`` says ``after-push`` (answered, not recorded yet); a trainer may name
        other phases, such as ``checkpointing``, of a step or (None) of no step. If psconform strikes another task here,
        this one waits until it has; if it strikes this one, the call does not return. A task whose wall clock is to
        jump tells what it shows, now and then, and does not wait.
        """
        strikes = not self._strikes.isdisjoint(((phase, step), (phase, None)))
        if not strikes and not (self._tells_clock and time.monotonic_ns() - self._told_ns > TELL_NS):
            return
        if not (address := os.environ.get(CONTROL)):
            return
        # a psconform that is gone, or hangs up, strikes nobody
        with contextlib.suppress(OSError), _dial(address) as line:
            self._told_ns = time.monotonic_ns()  # a clock of the whole machine, with which the other one is compared
            said = {"task": self.task, "phase": phase, "step": None if step is None else operator.index(step)}
            said |= {"wall_ns": time.time_ns(), "mono_ns": self._told_ns}
            line.sendall(_encode(said).encode() + b"\n")
            if strikes:
                line.recv(16)  # ends when it has struck, or is gone

    @_guarded
    def checkpoint(self, name: str, clock: Sequence[Sequence[int]]) -> None:
        """Record that this task has made a checkpoint durable.

        Args:
            name: what ``restored`` will call it.
            clock: per ps and worker, how many gradients of that worker it holds.
        """
        self._event("checkpoint", name=_text(name), clock=[[_whole(count) for count in row] for row in clock])

    @_guarded
    def restored(self, name: str) -> None:
        """Record that this task has restored all servers from a checkpoint, in the cluster epoch ``epoch``.

        Set ``epoch`` first: what comes after a rollback has a higher one than what came before.
        """
        self._event("restore", name=_text(name))

    @_guarded
    def goes_without(self, worker: int, step: int) -> None:
        """Record that the job goes on without a worker: in sync the round of ``step``, in async from ``step`` on.

        Whoever decides that records it, before it does it.
        """
        whose = _whole(worker, most=self.workers - 1)
        self._event("without", worker=whose, step=_whole(step, most=self.steps - 1))

    @_guarded
    def resume(self, step: int) -> None:
        """Record that this worker goes on at ``step``: it was started again, or what it had pushed was rolled back.

        Whatever it had pushed from there on is sent again, as a further attempt.
        """
        step = _whole(step, most=self.steps)
        self._next_step, self._done, self._absent = step, False, None
        self._open.clear()
        if self._folder is not None:
            with _writing():
                (self._folder / "done" / f"worker-{self.index}").unlink(missing_ok=True)
        self._event("resume", step=step)

    @_guarded
    def push(
        self,
        step: int,
        attempt: int | None = None,
        *,
        weight: float | None = None,
        work: int | None = None,
        of: int | None = None,
    ) -> None:
        """Record that the gradient of ``step`` is about to be sent.

        ``attempt`` is 0, then 1 when the same gradient is sent again, ...; by default it is counted here. One that is
        not the next is a slip, and recorded as the next. ``weight`` is what it counts in a round that is a weighted
        mean: a number of samples or of tokens, in any unit. ``work`` is the number of the piece of work that it is of,
        where a queue deals out work: the same if another worker does that piece again. ``of`` is how many pieces there
        are in all, numbered from 0, if that is known: then one that is never done is missed.
        """
        self.at("before-push", step)
        step = self._sends(step)
        number, more = self._sent(step)
        said, slip = self._says(step, weight, work, of)
        self._event("push", step=step, **more, **said)
        if attempt is not None and attempt != number:
            raise _Slipped(Slip.PUSH_OUT_OF_ORDER)
        if slip is not None:
            raise _Slipped(slip)

    @_guarded
    def ack(
        self,
        step: int,
        outcome: str = "ok",
        versions: Sequence[int] | None = None,
        *,
        attempt: int | None = None,
    ) -> None:
        """Record what became of a push: ``ok`` accepted, ``failed`` surely not applied, ``unknown`` neither is known.

        ``versions`` are the version of each ps right after it applied this gradient; ``attempt`` is the one that was
        answered, by default the last one.
        """
        self.at("after-push", step)
        step = _whole(step, most=self.steps - 1)
        latest = self._attempts.get(step, -1)
        attempt = latest if attempt is None else operator.index(attempt)
        answer = _answer(step, outcome, attempt, versions)
        if self._done:
            raise _Slipped(Slip.ACK_AFTER_DONE)
        if not 0 <= attempt <= latest:
            raise _Slipped(Slip.ACK_WITHOUT_PUSH)
        if (step, attempt) in self._acked:
            raise _Slipped(Slip.ACK_AGAIN if self._acked[step, attempt] == answer else Slip.ACK_CHANGED)
        self._answered(step, attempt, answer)
        self._event("ack", **answer)

    @_guarded
    def update(
        self,
        step: int,
        outcome: str = "ok",
        versions: Sequence[int] | None = None,
        *,
        weight: float | None = None,
        work: int | None = None,
        of: int | None = None,
    ) -> None:
        """Record ``push`` and ``ack`` in one event, for a trainer whose push is one call that returns its answer.

        Of a worker that dies in that call, the record then does not tell that it had sent something. Faults strike
        before a push only if the trainer calls ``at("before-push", step)`` before it.
        """
        self.at("after-push", step)
        step = self._sends(step)
        answer = _answer(step, outcome, self._attempts.get(step, -1) + 1, versions)
        attempt, more = self._sent(step)
        said, slip = self._says(step, weight, work, of)
        self._answered(step, attempt, answer)
        self._event("update", **{**answer, **more, **said})
        if slip is not None:
            raise _Slipped(slip)

    @_guarded
    def state(self, name: str, value: Any) -> None:
        """Record what training needs beside the parameters, as it is before the gradient of the next step.

        The moments of an optimizer, the statistics of a batch normalisation, a generator of random numbers: any array.
        Its checksum is recorded, and its sum.
        """
        array = np.ascontiguousarray(value)
        if array.dtype.hasobject:
            raise _Slipped(Slip.ARGUMENT)
        numbers = array.dtype.kind in "biuf"
        with np.errstate(all="ignore"):
            array = array + array.dtype.type(0) if array.dtype.kind == "f" else array  # -0 is 0
            total = float(array.sum(dtype=float)) if numbers else 0.0
        kind = f"{array.dtype.str}{list(array.shape)}".encode()
        said = {"step": self._next_step, "digest": zlib.crc32(array.tobytes(), zlib.crc32(kind))}
        self._event("state", name=_text(name), **said, **({"total": _number(total)} if numbers else {}))

    @_guarded
    def devices(self, names: Sequence[str]) -> None:
        """Record where this worker computes: of each tower its device, such as ``GPU:0``, as the framework says.

        For layouts with GPUs; once in each life, before the first push.
        """
        self._event("devices", names=[_text(name) for name in names])

    @_guarded
    def residual(self, values: Sequence[Any]) -> None:
        """Record what a compression with error feedback has not sent in the end, one float32[slots] per variable.

        In units of the gradient: what would have been added to the next one. Once, after the last push.
        """
        if self._ledger is None:
            raise _Slipped(Slip.WORKLOAD)  # only a ledger tells what was sent
        if self._residual:
            raise _Slipped(Slip.RESIDUAL_AGAIN)
        arrays = self._alike(self._arrays(values))
        if not arrays:
            raise _Slipped(Slip.NO_VALUES)
        self._residual = True
        if self._log is not None and not self._log.closed:
            self._event("residual", vector=self._write_vector(arrays))

    def wait_for_all(self, rolled_back: Callable[[], bool] | None = None) -> list[str] | None:
        """Say that this worker has pushed its last gradient and wait until all have; returns the workers that did not.

        Call it after the last acknowledgement and before the final read: a final read that others' updates could
        still follow proves nothing. ``rolled_back`` is asked again and again meanwhile; if it says True, this returns
        None, and training goes on with ``resume``. What it raises itself is the trainer's, and passes.
        """
        self.done()
        deadline = time.monotonic() + self.wait_s
        missing = [w for w in range(self.workers) if w != self.index and self._folder is not None]
        while missing:
            missing = [w for w in missing if self._marked(w) is None]
            if missing and time.monotonic() > deadline:
                break
            if missing and rolled_back is not None and rolled_back():
                return None
            if missing:
                time.sleep(0.002)
        # psconform marks a dead worker with a word in its file, so that nobody waits for it
        absent = [w for w in range(self.workers) if w in missing or self._marked(w)]
        self._absent = [f"worker:{w}" for w in absent]
        return list(self._absent)

    @_guarded
    def done(self) -> None:
        """Say that this worker has pushed its last gradient, and do not wait; `wait_for_all` does both."""
        if self._done:
            return
        for step, _ in sorted(self._open):
            self._slip("wait_for_all", Slip.NO_ACK, step)
        self._open.clear()
        self._event("done")
        self._done, self._absent = True, []
        if self._folder is not None:
            with _writing():
                (self._folder / "done" / f"worker-{self.index}").touch()

    def _marked(self, worker: int) -> int | None:
        """The size of a worker's file in done/, None if it is not there."""
        try:
            return (self._folder / "done" / f"worker-{worker}").stat().st_size if self._folder is not None else None
        except OSError:
            return None

    def close(self, *, reason: str = "closed") -> None:
        """Record the orderly end of this task; nothing is recorded after it."""
        self._ends(reason)

    @_guarded
    def _ends(self, reason: str) -> None:
        with _writing():
            if self._vectors >= 0:
                fd, self._vectors = self._vectors, -1
                os.close(fd)
            if self._log is not None:
                self._log.close(reason=reason, **({"each": True} if self._each and self.unit is None else {}))

    def _slip(self, call: str, what: Slip, step: Any = None) -> None:
        """Record and log what a trainer got wrong, but for the many that a loop may make."""
        self._slips[what] = self._slips.get(what, 0) + 1
        if self._slips[what] > MOST_SLIPS:
            return
        try:
            of = {} if step is None else {"step": _whole(step)}
        except Exception:  # whatever that is, it is no step
            of = {}
        _log("probe.%s: a slip, %s%s", call.lstrip("_"), what.value, f", step {of['step']}" if of else "")
        try:
            self._event("slip", call=call.lstrip("_"), what=what.value, **of)
        except _Unwritable:
            self._stop()

    def _stop(self) -> None:
        """Record nothing more: the disk is full, or something like it. Without an end the record is never valid."""
        _log("probe: the record cannot be written, recording stops", exc_info=True)
        if self._log is not None:
            with contextlib.suppress(OSError):
                self._log.abandon()
        if self._folder is not None:  # an empty file takes no room; without it the trainer would have ended too early
            with contextlib.suppress(OSError):
                (self._folder / "done" / f"{self._name}.unwritable").touch()

    def _sends(self, step: int) -> int:
        """The step of a push that may be made."""
        if self._done:
            raise _Slipped(Slip.PUSH_AFTER_DONE)
        if self._residual:
            raise _Slipped(Slip.PUSH_AFTER_RESIDUAL)
        return _whole(step, most=self.steps - 1)

    def _says(
        self, step: int, weight: float | None, work: int | None, of: int | None
    ) -> tuple[dict[str, Any], Slip | None]:
        """What the event of a push says of its weight and its work, and what is wrong with them."""
        weighs, slip = self._weighs(step, weight)
        try:
            if work is not None:
                self._works[step] = _whole(work, most=LARGEST if of is None else _whole(of) - 1)
        except Exception:  # whatever that is, it is no number of a piece of work
            self._works.pop(step, None)
            slip = Slip.NO_WORK
        known = {"work": self._works[step]} if step in self._works else {}
        return weighs | known | ({} if of is None or slip else {"pieces": _whole(of)}), slip

    def _weighs(self, step: int, weight: float | None) -> tuple[dict[str, Any], Slip | None]:
        """What the event of a push says of its weight, and what is wrong with it; by default that of the attempt
        before."""
        known = self._weights.get(step)
        if weight is None:
            lacks = self._weighted and known is None
            return ({} if known is None else {"weight": known}), (Slip.NO_WEIGHT if lacks else None)
        try:
            found = float(weight)
        except Exception:  # whatever that is, it is no number
            return {}, Slip.NO_WEIGHT
        if found != 0 and not LIGHTEST <= found <= LARGEST:
            return {}, Slip.NO_WEIGHT
        self._weights[step] = found
        return {"weight": found}, None

    def _sent(self, step: int) -> tuple[int, dict[str, Any]]:
        """Take note of a push; returns its attempt, and what its event says of it."""
        attempt = self._attempts[step] = self._attempts.get(step, -1) + 1
        more: dict[str, Any] = {"attempt": attempt} if attempt else {}
        if attempt and self._looked and step not in self._computed:
            more["same"] = True
        self._open.add((step, attempt))
        self._computed.discard(step)
        self._next_step, self._looked = step + 1, False
        return attempt, more

    def _answered(self, step: int, attempt: int, answer: dict[str, Any]) -> None:
        """Take note of an acknowledgement."""
        self._acked[step, attempt] = answer
        self._open.discard((step, attempt))

    def _arrays(self, values: Sequence[Any], *, part: bool = False) -> list[Vector]:
        """All variables, or with ``part`` some of them, each as float32[slots]."""
        with np.errstate(over="ignore", invalid="ignore"):  # what does not fit is inf
            arrays = [np.ascontiguousarray(v, dtype=np.float32).reshape(-1) for v in values]
        fewer = not part and len(arrays) > 0 and self._variables not in (0, len(arrays))
        if fewer or any(v.size != self.slots for v in arrays):
            raise _Slipped(Slip.SIZE)
        return arrays

    def _zeros(self) -> Vector:
        return np.zeros(self.slots, np.float32)

    def _one_hot(self, ledger: Ledger, step: int) -> Vector:
        """The gradient of a step, as the trainer has it."""
        shared = float(ledger.magnitudes(step)[0]) * ledger.in_shared(self.index, step) if ledger.shared else 0.0
        return self._spread(ledger.gradient(self.index, step), shared=shared)

    def _spread(self, values: Vector, *, shared: float = 0.0) -> Vector:
        """A variable of a ledger as the trainer has it, with more slots behind the nonce than the record."""
        if not self._between or self._ledger is None:
            return values
        found = np.zeros(self.slots, np.float32)
        middle = self._ledger.half + 1
        found[:middle], found[middle] = values[:middle], shared
        found[middle + self._between :] = values[middle:]
        return found

    def _bare(self, values: Vector) -> Vector:
        """The same as the record has it."""
        if not self._between or self._ledger is None:
            return values
        middle = self._ledger.half + 1
        return np.concatenate([values[:middle], values[middle + self._between :]])

    def _size(self, variable: int) -> np.float32:
        """The magnitude of a variable's gradients, in ``UNIT``."""
        return np.float32(4 * SIZES[variable % len(SIZES)] / UNIT if self._distinct else 1)

    def _alike(self, arrays: list[Vector]) -> list[Vector]:
        """Variables as the record has them: as they would be if the gradients of all had one magnitude, which a nonce
        has not, and without the slots that only trainers have."""
        arrays = [self._bare(values) for values in arrays]
        if not self._distinct or self._ledger is None:
            return arrays
        found = [values / self._size(variable) for variable, values in enumerate(arrays)]
        for values, given in zip(found, arrays):
            values[self._ledger.half] = given[self._ledger.half]
        return found

    def _decode(self, ledger: Ledger, arrays: list[Vector], unit: float, event: dict[str, Any]) -> None:
        if not self._decoders:
            self._decoders = [LedgerDecoder(workers=self.workers, steps=self.steps, unit=unit) for _ in arrays]
        odd: list[list[Any]] = []
        for index, (decoder, values) in enumerate(zip(self._decoders, arrays)):
            for cell in decoder.update(ledger.cells(values, unit)):
                pair = decoder.odd.get(cell)
                odd.append([index, *cell, *((None, None) if pair is None else map(_number, pair))])
        event["clock"] = [decoder.clock for decoder in self._decoders]
        if odd:
            event["odd"] = odd
        nonces = [decoder.nonce for decoder in self._decoders]
        if nonces != self._nonces:  # always, if one is NaN: rare, and no harm
            self._nonces = nonces
            event["nonce"] = [_number(n) for n in nonces]

    def _compare(
        self, ledger: Ledger, shown: list[Vector], arrays: list[Vector], unit: float, event: dict[str, Any]
    ) -> None:
        """Tell where the slot that all gradients share is not the sum of those that have a slot of their own."""
        told: list[list[float | str] | None] = []
        for variable, (given, values) in enumerate(zip(shown, arrays)):
            shared = float(given[ledger.half + 1]) / float(self._size(variable))
            due = head = next(sums := ledger.sums(values))
            allowed = SHARED_TOLERANCE * unit
            if not abs(shared - due) <= allowed:  # of a torn variable one of the ends says what is in it
                due = next(sums)
            off = bool(np.isfinite(due)) and not abs(shared - due) <= allowed
            told.append([_number(0.0 - number / unit) for number in (shared, head)] if off else None)
        if any(told):
            event["shared"] = told

    def _write_vector(self, arrays: list[Vector]) -> list[int]:
        assert self._folder is not None
        data = b"".join(v.astype("<f4", copy=False).tobytes() for v in arrays)
        at, self._vector_at = self._vector_at, self._vector_at + len(data)
        with _writing():
            if self._vectors < 0:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
                self._vectors = os.open(self._folder / "vectors" / f"{self._name}.bin", flags, 0o644)
            _write(self._vectors, data)
        return [at, len(data), zlib.crc32(data)]

    def _event(self, kind: str, **fields: Any) -> None:
        if self._log is not None:
            if self._epoch:
                fields["epoch"] = self._epoch
            try:
                self._log.write(kind, **fields)
            except OSError as error:
                raise _Unwritable from error


def _shows_stacks() -> bool:
    """Let SIGUSR2 write this process's stacks to its log, should it hang; not if the trainer has a use for the signal.

    That works in a process that is stuck inside TensorFlow, too, for it takes no Python to run.
    """
    if not hasattr(faulthandler, "register") or signal.getsignal(signal.SIGUSR2) != signal.SIG_DFL:
        return False
    try:
        faulthandler.register(signal.SIGUSR2, file=2)
    except (OSError, RuntimeError):  # no standard error
        return False
    return True


def _number(value: float) -> float | str:
    """JSON has no NaN or Infinity: those become strings."""
    return value if np.isfinite(value) else str(value)


def _whole(value: Any, *, most: int = LARGEST) -> int:
    """A whole number from 0 to ``most``, of whatever type, as an int."""
    number = int(operator.index(value))
    if not 0 <= number <= most:
        raise _Slipped(Slip.RANGE)
    return number


def _text(value: Any) -> str:
    """Text that a file can hold."""
    text = str(value)
    text.encode("utf-8")  # raises UnicodeEncodeError
    return text


def _versions(versions: Sequence[int]) -> list[int]:
    found = [int(version) for version in versions]
    if any(abs(version) > LARGEST for version in found):
        raise _Slipped(Slip.RANGE)
    return found


def _answer(step: int, outcome: str, attempt: int, versions: Sequence[int] | None) -> dict[str, Any]:
    if not isinstance(outcome, str) or outcome not in OUTCOMES:
        raise _Slipped(Slip.NO_OUTCOME)
    event: dict[str, Any] = {"step": step, "outcome": outcome}
    if attempt:
        event["attempt"] = attempt
    if versions is not None:
        event["versions"] = _versions(versions)
    return event


def _log(*said: Any, **how: Any) -> None:
    """Into the task's own log; whatever its logging does, training goes on."""
    with contextlib.suppress(Exception):
        logging.getLogger("psconform.probe").warning(*said, **how)


def _dial(address: str) -> socket.socket:
    """A connection to ``host:port`` or ``unix:PATH``; raises OSError."""
    if not address.startswith("unix:"):
        host, _, port = address.rpartition(":")
        return socket.create_connection((host, int(port)))
    line = socket.socket(socket.AF_UNIX)
    try:
        line.connect(address.removeprefix("unix:"))
    except OSError:
        line.close()
        raise
    return line
