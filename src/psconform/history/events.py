"""The event format, field by field; docs/events.md is generated from these classes.

One JSON object per line, one file per task incarnation. The first event of a file is ``start`` and carries what holds
for the whole file (schema, run, task, incarnation, boot); every event has ``seq`` (0, 1, 2 ...), ``mono_ns``
(``CLOCK_MONOTONIC``, comparable under one boot id only), ``epoch`` if not 0, and ends in ``crc``: the CRC-32 of the
line up to the comma before it, continued from the CRC of the line before (0 at the start of a file).
"""

from __future__ import annotations

from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta

from ..probe import LARGEST
from ..probe import Slip as SlipKind
from .records import Harm

SCHEMA = 1
MAX_LINE = 64 * 2**20
"""Bytes in one line beyond which a file is called malformed instead of being read."""

SAME = (
    "it is the gradient of the attempt before, though parameters were read since: no gradient is computed at those "
    "reads; else a read between two attempts says that it was computed anew"
)

PIECES = "how many pieces of work there are in all, numbered from 0; null: it did not say"
WORK = "the piece of work that the gradient is of, where a queue deals out work; null: it did not say"
WEIGHT = "what the gradient counts in a round that is a weighted mean: its number of samples, say; null: it did not say"

Count = Annotated[int, Meta(ge=0, le=2**53)]
Weight = Annotated[float, Meta(ge=0, le=LARGEST)]
Version = Annotated[int, Meta(ge=-(2**53), le=2**53)]
# A number, or the words nan, inf, -inf, for which JSON has no numbers.
Number = float | Literal["nan", "inf", "-inf"]


class Event(msgspec.Struct, tag_field="kind", forbid_unknown_fields=True, frozen=True, kw_only=True, gc=False):
    """Fields that every event has."""

    seq: Annotated[Count, Meta(description="position in the file, from 0, without gaps")]
    mono_ns: Annotated[Count, Meta(description="CLOCK_MONOTONIC in nanoseconds")]
    epoch: Annotated[Count, Meta(description="cluster epoch; left out when 0")] = 0
    crc: Annotated[str, Meta(description="chained CRC-32, 8 hex digits; always the last field")]


class Start(Event, tag="start", frozen=True):
    """First event of a file: a task has started."""

    schema: Annotated[int, Meta(description="version of this format, 1")]
    run: Annotated[str, Meta(description="id of the run, as in the manifest")]
    task: Annotated[str, Meta(description="job:index; must match the file's name")]
    incarnation: Annotated[Count, Meta(description="0, then 1 after the first restart, ...")]
    boot: Annotated[str, Meta(description="boot id of the machine, or empty")]
    pid: Annotated[int, Meta(description="process id")]
    stacks: Annotated[bool, Meta(description="SIGUSR2 makes this process write its stacks to its log")] = False


class Init(Event, tag="init", frozen=True):
    """This task wrote initial values into the servers."""

    nonce: Annotated[list[Number], Meta(description="the nonce of each variable")]


class Read(Event, tag="read", frozen=True):
    """Parameters as a worker saw them. Compact (clock, odd, nonce) or raw; never both."""

    step: Annotated[Count, Meta(description="the step whose gradient is computed next; in the final read, the steps")]
    clock: Annotated[
        list[list[Count]] | None,
        Meta(description="per variable and worker: one more than the last step that left a trace"),
    ] = None
    odd: Annotated[
        list[tuple[Count, Count, Count, Number | None, Number | None]],
        Meta(
            description="slots below the clock that do not hold -unit at head and tail, only those that changed since "
            "the read before: [variable, worker, step, head, tail]; head and tail null if the slot fits again"
        ),
    ] = []
    nonce: Annotated[list[Number] | None, Meta(description="nonce slot per variable, when it changed")] = None
    shared: Annotated[
        list[tuple[Number, Number] | None] | None,
        Meta(
            description="if the slot that all gradients share is not the sum of all that show: per variable, what it "
            "holds and what it should, in gradients, each times its share; null where it is the sum"
        ),
    ] = None
    raw: Annotated[list[str] | None, Meta(description="base64 of float32 little-endian, per variable")] = None
    vector: Annotated[
        tuple[Count, Count, Count] | None,
        Meta(description="[offset, bytes, CRC-32] of the full values in vectors/, all variables in order, float32"),
    ] = None
    versions: Annotated[list[Version] | None, Meta(description="version of each ps, if the target has one")] = None
    shards: Annotated[list[Count] | None, Meta(description="ps of each variable, in the first read")] = None
    final: Annotated[bool, Meta(description="read after every worker was done")] = False
    absent: Annotated[
        list[str] | None,
        Meta(description="final read only: workers that were not done; null if nobody waited for them"),
    ] = None


class Samples(Event, tag="samples", frozen=True):
    """The samples whose gradient this worker is about to push (workload digits)."""

    step: Annotated[Count, Meta(description="the worker's step")]
    ids: Annotated[list[Count], Meta(description="positions in the training set")]


class Poison(Event, tag="poison", frozen=True):
    """The gradient that this worker is given for a step is not finite.

    Seeded by ``--poison``, or because training a model has diverged. Before the push of that step.
    """

    step: Annotated[Count, Meta(description="the worker's step")]
    value: Annotated[Literal["nan", "inf"], Meta(description="what is in the gradient")]
    seeded: Annotated[bool, Meta(description="psconform made it so")] = False


class Devices(Event, tag="devices", frozen=True):
    """Where this worker computes (layouts with GPUs)."""

    names: Annotated[list[str], Meta(description="device of each tower, GPU:0, or CPU:0 where they are emulated")]


class State(Event, tag="state", frozen=True):
    """What training needs beside the parameters, as it is before the gradient of a step."""

    name: Annotated[str, Meta(description="what it is")]
    step: Annotated[Count, Meta(description="the step whose gradient is computed next")]
    digest: Annotated[Count, Meta(description="CRC-32 of its type, its shape and its bytes")]
    total: Annotated[Number | None, Meta(description="the sum of its numbers; null: it has none")] = None


class Residual(Event, tag="residual", frozen=True):
    """What this worker has not sent in the end: the residual of a compression with error feedback."""

    vector: Annotated[
        tuple[Count, Count, Count],
        Meta(description="[offset, bytes, CRC-32] of the residual in vectors/, all variables in order, float32"),
    ]


class Push(Event, tag="push", frozen=True):
    """A gradient is about to be sent."""

    step: Annotated[Count, Meta(description="the worker's step")]
    attempt: Annotated[Count, Meta(description="0, then 1 when the same gradient is sent again")] = 0
    same: Annotated[bool, Meta(description=SAME)] = False
    weight: Annotated[Weight | None, Meta(description=WEIGHT)] = None
    work: Annotated[Count | None, Meta(description=WORK)] = None
    pieces: Annotated[Count | None, Meta(description=PIECES)] = None


class Ack(Event, tag="ack", frozen=True):
    """What the worker learnt of its push. A push without an ack is unknown, not failed."""

    step: Annotated[Count, Meta(description="the worker's step")]
    outcome: Annotated[
        Literal["ok", "failed", "unknown"],
        Meta(description="ok: accepted; failed: surely not applied; unknown: neither is known"),
    ]
    attempt: Annotated[Count, Meta(description="the attempt it answers")] = 0
    versions: Annotated[list[Version] | None, Meta(description="version of each ps right after it applied this")] = None


class Update(Event, tag="update", frozen=True):
    """A push and what became of it, in one event: for a trainer whose push is one call that returns its answer."""

    step: Annotated[Count, Meta(description="the worker's step")]
    outcome: Annotated[Literal["ok", "failed", "unknown"], Meta(description="as in ack")]
    attempt: Annotated[Count, Meta(description="0, then 1 when the same gradient is sent again")] = 0
    versions: Annotated[list[Version] | None, Meta(description="as in ack")] = None
    same: Annotated[bool, Meta(description="as in push")] = False
    weight: Annotated[Weight | None, Meta(description="as in push")] = None
    work: Annotated[Count | None, Meta(description="as in push")] = None
    pieces: Annotated[Count | None, Meta(description="as in push")] = None


class Done(Event, tag="done", frozen=True):
    """This worker has its last acknowledgement; it waits for the others."""


class Resume(Event, tag="resume", frozen=True):
    """This worker goes on at a step: it was started again, or what it had pushed was rolled back."""

    step: Annotated[Count, Meta(description="the step it takes next")]


class Without(Event, tag="without", frozen=True):
    """The job goes on without a worker: in sync the round of this step, in async from this step on."""

    worker: Annotated[Count, Meta(description="index of the worker")]
    step: Annotated[Count, Meta(description="its step")]


class Checkpoint(Event, tag="checkpoint", frozen=True):
    """This task has made a checkpoint durable."""

    name: Annotated[str, Meta(description="what a restore calls it; with another clock, another one of that name")]
    clock: Annotated[list[list[Count]], Meta(description="per ps and worker: gradients of that worker in it")]


class Restore(Event, tag="restore", frozen=True):
    """This task has restored all servers; the epoch is the one that began with it."""

    name: Annotated[str, Meta(description="of the checkpoint")]


class Slip(Event, tag="slip", frozen=True):
    """A call of the probe that made no sense, of which nothing else is recorded; at most 100 of each kind.

    A task that writes its file itself needs none: what it does not write did not happen.
    """

    call: Annotated[str, Meta(description="method of the probe")]
    what: Annotated[SlipKind, Meta(description="what was wrong; what each costs is in history/slips.py")]
    step: Annotated[Count | None, Meta(description="the step it was about, if it was about one")] = None


class End(Event, tag="end", frozen=True):
    """Orderly end of the file."""

    reason: Annotated[str, Meta(description="closed by the trainer, or atexit")]
    each: Annotated[bool, Meta(description="of a calibration: each variable got a gradient of its own")] = False


class Exit(Event, tag="exit", frozen=True):
    """Written by psconform: a task's process ended."""

    of: Annotated[str, Meta(description="the task, job:index")]
    status: Annotated[int, Meta(description="exit status; minus the signal number if a signal ended it")]
    stopped: Annotated[bool, Meta(description="psconform stopped it")] = False
    recorded: Annotated[bool, Meta(description="this life of it has left an event file")] = False
    recorded_bytes: Annotated[Count, Meta(description="bytes of that file: with fewer it was cut; 0: not told")] = 0
    incarnation: Annotated[
        Count | None, Meta(description="of its lives, which one; left out: they ended in the order of their starts")
    ] = None
    second: Annotated[bool, Meta(description="a second process, beside the task's own: the task has not ended")] = False


class FaultEvent(Event, tag="fault", frozen=True):
    """Written by psconform: a fault struck, or was healed."""

    fault: Annotated[str, Meta(description="its kind: psconform list faults")]
    of: Annotated[str, Meta(description="the task, job:index; or the links, or what of the disk, in words")]
    on: Annotated[bool, Meta(description="true: it struck; false: it was healed")]
    at: Annotated[str, Meta(description="where in training, as in the option")]
    evidence: Annotated[str, Meta(description="what psconform saw of it")]
    harm: Annotated[Harm, Meta(description="what it does to training")]
    file: Annotated[
        str,
        Meta(description="the checkpoint file that it damaged, below the folder for them; left out of other faults"),
    ] = ""
    tasks: Annotated[
        tuple[str, ...], Meta(description="that task, or those between which the links are; none of the disk")
    ] = ()
    did_ns: Annotated[Count, Meta(description="from then on it was there, or until then; at mono_ns that was seen")] = 0
    number: Annotated[Count | None, Meta(description="which of the faults that psconform strikes it is, from 0")] = None
    words: Annotated[str, Meta(description="the fault, and when it was to begin, for people")] = ""
    ends: Annotated[str, Meta(description="its parameters, and when it was to end, for people")] = ""
    observed: Annotated[
        bool, Meta(description="false: it was injected, and nothing showed that it took effect; left out otherwise")
    ] = True


AnyEvent = (
    Start
    | Init
    | Read
    | Samples
    | Poison
    | Devices
    | State
    | Residual
    | Push
    | Ack
    | Update
    | Done
    | Resume
    | Without
    | Checkpoint
    | Restore
    | Slip
    | End
    | Exit
    | FaultEvent
)
EVENTS: tuple[type[Event], ...] = get_args(AnyEvent)
