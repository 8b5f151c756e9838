"""One event file -> its events. A torn last line is taken; anything else malformed is one clear error."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ..errors import Malformed
from .events import MAX_LINE, SCHEMA, AnyEvent, End, Start

_DECODER = msgspec.json.Decoder(AnyEvent)
_CRC = re.compile(rb',"crc":"([0-9a-f]{8})"\}$')


@dataclass(frozen=True)
class EventFile:
    """The events of one task incarnation, in order. ``torn`` is the number of bytes of an unfinished last line."""

    path: Path
    start: Start
    events: tuple[AnyEvent, ...]
    torn: int = 0

    @property
    def ended(self) -> bool:
        """The task closed its record; False after SIGKILL."""
        return bool(self.events) and isinstance(self.events[-1], End)


def read_events(path: Path, *, run: str, name: str) -> EventFile | None:
    """Read one event file of run ``run``; ``name`` is the task it must belong to, ``job:index``.

    Returns None for a file that holds nothing but a torn first line (a task killed while it started).

    Raises:
        Malformed: the file is not what a probe of this run and task writes, naming the line.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise Malformed(path, f"cannot be read ({error.strerror})") from None
    lines = data.split(b"\n")
    torn = len(lines.pop())
    events: list[AnyEvent] = []
    crc = 0
    for number, line in enumerate(lines, start=1):
        event, crc = _line(path, number, line, crc)
        _sequence(path, number, event, events, run=run, name=name)
        events.append(event)
    if not events:
        return None
    start = events[0]
    assert isinstance(start, Start)
    if torn and isinstance(events[-1], End):
        raise Malformed(path, f"{torn} bytes after the end event", line=len(lines) + 1)
    return EventFile(path, start, tuple(events), torn)


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


def _sequence(path: Path, number: int, event: AnyEvent, before: Sequence[AnyEvent], *, run: str, name: str) -> None:
    if event.seq != number - 1:
        raise Malformed(path, f"seq is {event.seq}, expected {number - 1}", line=number)
    if before and event.mono_ns < before[-1].mono_ns:
        raise Malformed(path, "mono_ns runs backwards", line=number)
    if isinstance(event, Start) != (number == 1):
        raise Malformed(path, "the first event, and only the first, must be start", line=number)
    if isinstance(event, Start):
        if event.schema != SCHEMA:
            raise Malformed(path, f"schema {event.schema}, this psconform reads {SCHEMA}", line=1)
        if event.run != run:
            raise Malformed(path, f"belongs to run {event.run!r}, not to {run!r}", line=1)
        if event.task != name:
            raise Malformed(path, f"belongs to task {event.task!r}, not to {name!r}", line=1)
    elif before and isinstance(before[-1], End):
        raise Malformed(path, "an event after the end event", line=number)
