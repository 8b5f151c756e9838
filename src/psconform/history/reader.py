"""One event file -> its events. A torn last line is taken; anything else malformed is one clear error.

A file is taken in large pieces: their lines are found, their checksums compared and their JSON decoded in bulk. Only
when something does not fit is it read again line by line, to say which line and why.
"""

from __future__ import annotations

import io
import os
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import attrgetter, or_
from pathlib import Path
from typing import IO, TypeVar, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..errors import Malformed
from ..files import open_regular, pieces, too_large
from ..options import OPTIONS
from ..sizes import spell_size
from .columns import Ints
from .events import EVENTS, MAX_LINE, SCHEMA, AnyEvent, End, Event, Read, Start
from .manifest import Bounds

MOST = 2**53  # as events.Count


class LeanRead(Read, tag="read", frozen=True):
    """A read whose clock is still text."""

    clock: msgspec.Raw = None  # type: ignore[assignment]  # msgspec knows no "Raw or None"


_KINDS = [LeanRead if kind is Read else kind for kind in EVENTS]
DECODER: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(reduce(or_, _KINDS))
"""Decodes any event, a read as LeanRead."""


def clocks_of(events: Sequence[AnyEvent]) -> Ints | None:
    """The clocks of those reads among the events that have one, in order, int64[R, V, W].

    None: they are not all lists of as many lists of as many whole numbers from 0 to MOST, without spaces between.
    """
    texts = [bytes(event.clock) for event in events if isinstance(event, LeanRead) and event.clock is not None]
    if not texts:
        return np.zeros((0, 0, 0), np.int64)
    shape = texts[0].translate(None, b"0123456789")
    variables, workers = shape.count(b"[") - 1, shape.partition(b"]")[0].count(b",") + 1
    regular = b"[%b]" % b",".join([b"[%b]" % (b"," * (workers - 1))] * variables)
    if shape != regular or any(text.translate(None, b"0123456789") != shape for text in texts):
        return None
    text = b"".join(texts)
    if b"[]" in text:
        return None
    # The decoder has seen that this is JSON, so between the separators there is a number each time.
    found = np.fromstring(text.translate(bytes.maketrans(b"[],", b"   ")), np.int64, sep=" ")
    if found.size != len(texts) * variables * workers or found.max() > MOST:
        return None
    return found.reshape(len(texts), variables, workers)


_DECODER = msgspec.json.Decoder(AnyEvent)
_CRC = re.compile(rb',"crc":"([0-9a-f]{8})"\}$')
_FIELD, _WIDTH = b',"crc":"........"}', 18
_HEX = np.full(256, 255, np.uint32)
_HEX[list(b"0123456789abcdef")] = range(16)


Kind = TypeVar("Kind", bound=Event)


@dataclass(frozen=True)
class EventFile:
    """The events of one task incarnation, in order. ``torn`` is the number of bytes of an unfinished last line.

    ``clocks``, int64[R, V, W], are those of the reads that have one, in order; None: as lists in the reads themselves.
    """

    path: Path
    start: Start
    events: Sequence[AnyEvent]
    torn: int = 0
    clocks: Ints | None = None

    def of(self, kind: type[Kind]) -> list[Kind]:
        """All events of one kind."""
        return cast(list[Kind], self._by_kind.get(kind, []))

    @cached_property
    def _by_kind(self) -> dict[type, list[AnyEvent]]:
        by_kind: dict[type, list[AnyEvent]] = {}
        for event in self.events:
            by_kind.setdefault(Read if type(event) is LeanRead else type(event), []).append(event)
        return by_kind

    @property
    def ended(self) -> bool:
        """The task closed its record; False after SIGKILL."""
        return bool(self.events) and isinstance(self.events[-1], End)


def column(events: Sequence[Event], field: str) -> NDArray[np.int64]:
    """One whole-number field of many events."""
    return np.fromiter(map(attrgetter(field), events), np.int64, len(events))


def read_events(path: Path, *, run: str, name: str, limit: int = Bounds.record) -> EventFile | None:
    """Read one event file of run ``run``; ``name`` is the task it must belong to, ``job:index``.

    Returns None for a file that holds nothing but a torn first line (a task killed while it started).

    Raises:
        Malformed: the file is not what a probe of this run and task writes, naming the line; or it is larger than
            ``limit`` bytes.
    """
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size > limit:
                raise too_large(path, limit, option=OPTIONS["max_record"].flag)
            events, clocks, torn = _in_bulk(file)
            if events is None:
                events, torn = _by_line(path, file)
    except OSError as error:
        raise Malformed(path, f"cannot be read ({error.strerror})") from None
    if not events:
        return None
    _sequence(path, events, run=run, name=name)
    start = events[0]
    assert isinstance(start, Start)
    if torn and isinstance(events[-1], End):
        raise Malformed(path, f"{torn} bytes after the end event", line=len(events) + 1)
    return EventFile(path, start, events, torn, clocks)


def _in_bulk(file: IO[bytes]) -> tuple[list[AnyEvent] | None, Ints | None, int]:
    """All events and clocks, and how many bytes follow them; without events if any line is none, or does not fit."""
    events: list[AnyEvent] = []
    clocks: list[Ints] = []
    crc = rest = 0
    for data, after in pieces(file, MAX_LINE):
        found, rest = _piece(data, crc), len(after)
        if found is None:
            return None, None, 0
        more, of_these, crc = found
        events += more
        clocks += [of_these] if of_these.size else []
    if rest > MAX_LINE or len({each.shape[1:] for each in clocks}) > 1:
        return None, None, 0
    return events, np.concatenate(clocks) if clocks else np.zeros((0, 0, 0), np.int64), rest


def _piece(data: bytes, crc: int) -> tuple[list[AnyEvent], Ints, int] | None:
    """The events of these lines, their clocks, and the checksum so far; None if any line is not such an event."""
    text = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(text == ord("\n"))
    if not ends.size:
        return [], np.zeros((0, 0, 0), np.int64), crc
    starts = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends - starts
    if lengths.min() < _WIDTH or lengths.max() > MAX_LINE:
        return None
    said = _checksums(text[(ends - _WIDTH)[:, None] + np.arange(_WIDTH)])
    if said is None:
        return None
    view = memoryview(data)
    for start, end, expected in zip(starts.tolist(), (ends - _WIDTH).tolist(), said.tolist(), strict=True):
        crc = zlib.crc32(view[start:end], crc)
        if crc != expected:
            return None
    try:
        events = DECODER.decode_lines(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    clocks = clocks_of(events) if len(events) == ends.size else None
    # Of a key that is there twice the last value counts, and a clock before it would not have been looked at.
    once = clocks is not None and data.count(b'"clock":') == len(clocks) + data.count(b'"kind":"checkpoint"')
    return (events, clocks, crc) if clocks is not None and once else None


def _checksums(fields: NDArray[np.uint8]) -> NDArray[np.uint32] | None:
    """The checksum in each crc field, uint32[n] from bytes[n, 18]; None if one is not written so."""
    shape = np.frombuffer(_FIELD, np.uint8)
    fixed = np.flatnonzero(shape != ord("."))
    digits = _HEX[fields[:, 8:16]]
    if (fields[:, fixed] != shape[fixed]).any() or digits.max() > 15:
        return None
    return np.asarray(np.bitwise_or.reduce(digits << np.arange(28, -1, -4, dtype=np.uint32), axis=1))


def _by_line(path: Path, file: IO[bytes]) -> tuple[list[AnyEvent], int]:
    """The same, or Malformed for the first line that is no event."""
    events: list[AnyEvent] = []
    crc = rest = 0
    for data, after in pieces(file, MAX_LINE):
        rest = len(after)
        for line in io.BytesIO(data):
            event, crc = _line(path, len(events) + 1, line[:-1], crc)
            events.append(event)
    if rest > MAX_LINE:
        raise Malformed(path, f"is longer than {spell_size(MAX_LINE)}", line=len(events) + 1)
    return events, rest


def _line(path: Path, number: int, line: bytes, crc: int) -> tuple[AnyEvent, int]:
    match = _CRC.search(line[-24:])
    if match is None or len(line) > MAX_LINE:
        raise Malformed(path, "not an event: it must end in a crc field", line=number)
    crc = zlib.crc32(line[: len(line) - len(match[0])], crc)
    if crc != int(match[1], 16):
        hint = "The line was changed, or one before it is missing or moved"
        raise Malformed(path, "does not fit its checksum", line=number, hint=hint)
    try:
        return _DECODER.decode(line), crc
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(path, f"not an event of schema {SCHEMA}: {error}", line=number) from None


def _sequence(path: Path, events: Sequence[AnyEvent], *, run: str, name: str) -> None:
    """What must hold between events; names the first line that breaks it."""
    seq, mono = column(events, "seq"), column(events, "mono_ns")
    kinds = [type(event) for event in events]
    starts = np.array([kind is Start for kind in kinds])
    starts[0] = not starts[0]
    over = np.zeros(len(events), np.bool_)
    if End in kinds:
        over[kinds.index(End) + 1 :] = True
    wrong = (seq != np.arange(len(events))) | starts | over
    wrong[1:] |= np.diff(mono) < 0
    first = events[0]
    if not wrong[0] and isinstance(first, Start):
        if first.schema != SCHEMA:
            raise Malformed(path, f"schema {first.schema}, this psconform reads {SCHEMA}", line=1)
        if first.run != run:
            raise Malformed(path, f"belongs to run {first.run!r}, not to {run!r}", line=1)
        if first.task != name:
            raise Malformed(path, f"belongs to task {first.task!r}, not to {name!r}", line=1)
    if not wrong.any():
        return
    at = int(np.argmax(wrong))
    if seq[at] != at:
        raise Malformed(path, f"seq is {seq[at]}, expected {at}", line=at + 1)
    if at and mono[at] < mono[at - 1]:
        raise Malformed(path, "mono_ns runs backwards", line=at + 1)
    if starts[at]:
        raise Malformed(path, "the first event, and only the first, must be start", line=at + 1)
    raise Malformed(path, "an event after the end event", line=at + 1)
