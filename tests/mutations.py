"""Ways to spoil an event file, with and without checksums that fit."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any


def rechained(lines: Sequence[bytes], *, smooth: bool = True) -> list[bytes]:
    """The events with checksums that fit; ``smooth``: numbered anew, times in order."""
    crc, now, written = 0, 0, []
    for number, line in enumerate(lines):
        event = json.loads(line)
        event.pop("crc", None)
        if smooth:
            told = event.get("mono_ns")
            now = max(now, told) if isinstance(told, int) and told < 2**53 else now
            event |= {"seq": number, "mono_ns": now}
        body = json.dumps(event, separators=(",", ":"))[:-1].encode()
        crc = zlib.crc32(body, crc)
        written.append(b'%s,"crc":"%08x"}\n' % (body, crc))
    return written


def edit(path: Path, number: int, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Change one event, and make every checksum fit."""
    lines = path.read_bytes().splitlines(keepends=True)
    lines[number] = json.dumps(change(json.loads(lines[number]))).encode() + b"\n"
    path.write_bytes(b"".join(rechained(lines, smooth=False)))


def measured(folder: Path) -> None:
    """Make psconform's own record tell the lengths of the event files as they are now."""
    path = folder / "events" / "psconform-0.jsonl"
    events = [json.loads(line) for line in path.read_bytes().splitlines()]
    for event in events:
        if event.get("recorded_bytes"):
            name, life = event["of"].replace(":", "-"), event.get("incarnation")
            file = folder / "events" / (f"{name}.{life}.jsonl" if life else f"{name}.jsonl")
            event["recorded_bytes"] = file.stat().st_size
    path.write_bytes(b"".join(rechained([json.dumps(event).encode() for event in events], smooth=False)))


NONSENSE = (
    *(-1, 0, 1, 3, 2**31, 2**53, 2**53 + 1, 2**63, 2**64, 10**30, -(10**30), 1.5, 1e308, -1e308, 5e-324),
    *("", "nan", "inf", "-inf", "x" * 300, "\u0000", "AAAA", "worker:1", None, True, False),
    *([], [0], [-1], [[]], [[[]]], [0] * 50, {}, {"kind": "read"}, [[0, 0, 0, -840.0, -840.0]], [[0, 1, 3, None, 1]]),
)
KEYS = ("step", "clock", "odd", "nonce", "versions", "outcome", "attempt", "vector", "final", "absent", "raw", "of")


def bytewise(data: bytes, other: bytes, random: Random) -> bytes:
    """Bytes or lines lost, moved, flipped or mixed up, as disks and editors do it."""
    lines = data.splitlines(keepends=True)
    at, line = random.randrange(len(data)), random.randrange(len(lines))
    strange = random.choice(other.splitlines(keepends=True))
    match random.randrange(10):
        case 0 | 1:
            return data[:at]
        case 2 | 3:
            return data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :]
        case 4:
            lines[line], lines[0] = lines[0], lines[line]
        case 5:
            lines.insert(line, lines[random.randrange(len(lines))])
        case 6:
            del lines[line]
        case 7:
            lines[line] = strange
        case 8:
            return data[:at] + random.randbytes(random.randrange(1, 40)) + data[at:]
        case 9:
            return random.choice([b"", b"\n", b"\x00" * 50, random.randbytes(200), data + data, data[at:]])
    return b"".join(lines)


def sensewise(data: bytes, other: bytes, random: Random) -> bytes:
    """Events that say something else, or nonsense, with every checksum right."""
    events = [json.loads(line) for line in data.splitlines()]
    at = random.randrange(len(events))
    event = events[at]
    match random.randrange(8):
        case 0:
            del events[at]
        case 1:
            events.insert(random.randrange(len(events)), event)
        case 2:
            events[at] = json.loads(random.choice(other.splitlines()))
        case 3:
            events[at]["mono_ns"] = random.choice([-1, 0, 2**53, 2**60])
        case 4:
            events[at]["kind"] = random.choice(["start", "init", "read", "push", "ack", "done", "end", "exit", "", 3])
        case 5:
            key = random.choice(sorted(event))
            del event[key]
        case 6:
            event[random.choice([*event, *KEYS])] = random.choice(NONSENSE)
        case 7:
            _inside(event, random)
    smooth = random.random() < 0.7
    return b"".join(rechained([json.dumps(event).encode() for event in events], smooth=smooth))


def _inside(event: dict[str, Any], random: Random) -> None:
    """Change one element somewhere in a list of the event."""
    lists = [value for value in event.values() if isinstance(value, list) and value]
    if not lists:
        event["versions"] = [random.choice(NONSENSE)]
        return
    inner = random.choice(lists)
    while isinstance(inner[0], list) and inner[0] and random.random() < 0.7:
        inner = random.choice(inner)
    place = random.randrange(len(inner))
    match random.randrange(3):
        case 0:
            inner[place] = random.choice(NONSENSE)
        case 1:
            del inner[place]
        case 2:
            inner.insert(place, inner[place])
