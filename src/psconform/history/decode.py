"""The events of one worker -> Worker: clocks, odd cells, pushes and what became of them."""

from __future__ import annotations

import base64
import binascii
import zlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

import numpy as np

from ..errors import Malformed
from ..layout import Task
from ..probe import LedgerDecoder
from .events import Ack, Done, Number, Read
from .events import Push as PushEvent
from .manifest import Manifest
from .model import COUNT_TOLERANCE, Cell, Odd, Push, Reads, Worker
from .reader import EventFile

Change = tuple[int, int, int, Number | None, Number | None]


def decode_worker(
    file: EventFile, *, task: Task, folder: Path, manifest: Manifest
) -> tuple[Worker, tuple[int, ...] | None]:
    """Index one worker's events; also returns the ps of each variable where the target told it.

    Raises:
        Malformed: an event does not fit the layout or the workload; names file and line.
    """
    decoder = _ReadDecoder(file, folder=folder, manifest=manifest)
    pushes: dict[int, list[PushEvent]] = {}
    acks: dict[int, list[Ack]] = {}
    latest: dict[int, int] = {}
    acked: list[int] = []
    steps, done = manifest.workload.steps, False
    for event in file.events:
        if isinstance(event, Read):
            decoder.add(event, acknowledged=len(acked))
        elif isinstance(event, Done):
            done = True
        elif isinstance(event, PushEvent | Ack):
            if done:  # then the others' final reads prove nothing
                hint = "wait_for_all comes after the last acknowledgement"
                raise Malformed(file.path, f"step {event.step} goes on after done", line=event.seq + 1, hint=hint)
            if event.step >= steps:
                raise Malformed(file.path, f"step {event.step} of {steps}", line=event.seq + 1)
            if isinstance(event, PushEvent):
                latest.setdefault(event.step, decoder.count - 1)
                if event.attempt != len(pushes.setdefault(event.step, [])):
                    problem = f"attempt {event.attempt} of step {event.step} is out of order"
                    raise Malformed(file.path, problem, line=event.seq + 1)
                pushes[event.step].append(event)
            else:
                if all(push.attempt != event.attempt for push in pushes.get(event.step, ())):
                    raise Malformed(file.path, f"acknowledges step {event.step}, never pushed", line=event.seq + 1)
                if any(ack.attempt == event.attempt for ack in acks.get(event.step, ())):
                    raise Malformed(file.path, f"acknowledges step {event.step} twice", line=event.seq + 1)
                acks.setdefault(event.step, []).append(event)
                if event.outcome == "ok":
                    acked.append(event.step)
    merged = tuple(
        _push(attempts, acks.get(step, []), latest[step], ended=file.ended) for step, attempts in pushes.items()
    )
    return Worker(task.index, decoder.reads(), merged, tuple(acked), file.ended), decoder.shards


def _push(attempts: list[PushEvent], acks: list[Ack], read: int, *, ended: bool) -> Push:
    outcomes = Counter(ack.outcome for ack in acks)
    if outcomes["ok"]:
        outcome = "ok"
    else:  # of a record cut short, the attempt that was accepted may be missing
        outcome = "failed" if ended and outcomes["failed"] == len(attempts) else "unknown"
    versions = next((ack.versions for ack in acks if ack.outcome == "ok" and ack.versions), None)
    found = None if versions is None else tuple(versions)
    return Push(
        step=attempts[0].step,
        attempts=len(attempts),
        outcome=outcome,
        accepted=outcomes["ok"],
        versions=found,
        read=read,
        first=attempts[0].seq,
        last=attempts[-1].seq,
    )


class _ReadDecoder:
    """Collects the reads of one worker, of either encoding."""

    def __init__(self, file: EventFile, *, folder: Path, manifest: Manifest) -> None:
        self.file, self.layout = file, manifest.layout
        self.steps, self.unit = manifest.workload.steps, float(manifest.workload.unit or 0)
        self.shards: tuple[int, ...] | None = None
        self.count = 0
        self._vectors = folder / "vectors" / (file.path.stem + ".bin")
        self._variables: int | None = None
        self._raw: list[LedgerDecoder] = []
        self._odd: dict[Cell, tuple[float, float]] = {}
        self._shared: Odd = {}
        self._nonce: list[float] = []
        self._rows: list[tuple[int, bool, int]] = []
        self._clocks: list[list[list[int]]] = []
        self._nonces: list[list[float]] = []
        self._versions: list[list[int]] = []
        self._odds: list[Odd] = []

    def add(self, event: Read, *, acknowledged: int) -> None:
        """Take the next read."""
        if (event.clock is None) == (event.raw is None):
            self._fail(event, "must have exactly one of clock and raw")
        if event.step > self.steps:
            self._fail(event, f"step {event.step} of {self.steps}")
        clock = self._compact(event) if event.clock is not None else self._from_raw(event)
        if event.shards is not None:
            if len(event.shards) != len(clock) or any(s >= self.layout.ps for s in event.shards):
                self._fail(event, f"shards must name a ps of {self.layout.text} for each variable")
            if self.shards not in (None, tuple(event.shards)):
                self._fail(event, f"shards are {event.shards}, {list(self.shards or ())} in a read before")
            self.shards = tuple(event.shards)
        if event.versions is not None:
            if self._versions and len(event.versions) != len(self._versions[0]):
                self._fail(event, "the number of versions changed")
            self._versions.append(event.versions)
        if event.vector is not None:
            self._check_vector(event, clock)
        settled = event.final and event.absent == []
        self._rows.append((event.step, settled, acknowledged))
        self._clocks.append(clock)
        self._nonces.append(list(self._nonce))
        self._odds.append(self._shared)
        self.count += 1

    def reads(self) -> Reads:
        """All reads so far, as arrays."""
        shape = (self.count, self._variables or 0, self.layout.workers)
        versions = np.array(self._versions, np.int64) if self._versions else None
        return Reads(
            step=np.array([row[0] for row in self._rows], np.int64),
            final=np.array([row[1] for row in self._rows], np.bool_),
            after=np.array([row[2] for row in self._rows], np.int64),
            clock=np.array(self._clocks, np.int64).reshape(shape),
            nonce=np.array(self._nonces, np.float64).reshape(shape[:2]),
            versions=versions if versions is not None and len(versions) == self.count else None,
            odd=tuple(self._odds),
        )

    def _compact(self, event: Read) -> list[list[int]]:
        clock = event.clock or []
        self._same_variables(event, len(clock))
        if any(len(row) != self.layout.workers or max(row) > self.steps for row in clock):
            self._fail(event, f"clock must have {self.layout.workers} numbers up to {self.steps} per variable")
        if event.nonce is not None:
            if len(event.nonce) != len(clock):
                self._fail(event, f"nonce must have {len(clock)} numbers")
            self._nonce = [float(n) for n in event.nonce]
        elif not self._nonce:
            self._fail(event, "the first read must have a nonce")
        self._take_odd(event, event.odd)
        for variable, worker, step in self._odd:
            if step >= clock[variable][worker]:
                self._fail(event, f"odd cell {[variable, worker, step]} is not below the clock")
        return clock

    def _take_odd(self, event: Read, changes: Iterable[Change]) -> None:
        changed = False
        for variable, worker, step, head, tail in changes:
            if not (variable < (self._variables or 0) and worker < self.layout.workers and step < self.steps):
                self._fail(event, f"odd names no cell of this workload: {[variable, worker, step]}")
            cell = (variable, worker, step)
            if head is None or tail is None:
                self._odd.pop(cell, None)
            else:
                self._odd[cell] = self._times(float(head), float(tail))
            changed = True
        if changed:
            self._shared = dict(self._odd)

    def _from_raw(self, event: Read) -> list[list[int]]:
        arrays = [self._floats(event, text) for text in event.raw or ()]
        self._same_variables(event, len(arrays))
        self._raw = self._raw or self._fresh(len(arrays))
        changes: list[Change] = []
        for index, (decoder, values) in enumerate(zip(self._raw, arrays, strict=True)):
            for cell in decoder.update(values):
                changes.append((index, *cell, *decoder.odd.get(cell, (None, None))))
        self._nonce = [decoder.nonce for decoder in self._raw]
        self._take_odd(event, changes)
        return [list(decoder.clock) for decoder in self._raw]

    def _floats(self, event: Read, text: str) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        try:
            values = np.frombuffer(base64.b64decode(text, validate=True), "<f4").astype(np.float32)
        except (binascii.Error, ValueError) as error:
            self._fail(event, f"raw is not base64 of float32 ({error})")
        if values.size != 2 * self.layout.workers * self.steps + 1:
            self._fail(event, f"a raw variable has {values.size} values")
        return values

    def _check_vector(self, event: Read, clock: list[list[int]]) -> None:
        """The full values in the side file must say the same as the compact read: two records, one truth."""
        offset, length, crc = event.vector or (0, 0, 0)
        size = 4 * (2 * self.layout.workers * self.steps + 1)
        try:
            with self._vectors.open("rb") as file:
                file.seek(offset)
                data = file.read(min(length, size * len(clock)))
        except OSError as error:
            raise Malformed(self._vectors, f"cannot be read ({error.strerror})") from None
        if length != size * len(clock) or len(data) != length or zlib.crc32(data) != crc:
            problem = f"bytes {offset} to {offset + length} do not fit the read in {self.file.path.name}"
            raise Malformed(self._vectors, problem, hint=f"See line {event.seq + 1} there")
        decoders = self._fresh(len(clock))
        values = np.frombuffer(data, "<f4").astype(np.float32).reshape(len(clock), -1)
        for index, decoder in enumerate(decoders):
            decoder.update(values[index])
            odd = {(index, *cell): self._times(*pair) for cell, pair in decoder.odd.items()}
            said = {cell: pair for cell, pair in self._odd.items() if cell[0] == index}
            same = decoder.clock == clock[index] and repr(decoder.nonce) == repr(self._nonce[index])
            if odd != said:  # repr, because NaN differs from itself
                same = same and sorted(map(repr, odd.items())) == sorted(map(repr, said.items()))
            if not same:
                problem = f"clock, odd or nonce of variable {index} contradict the values in {self._vectors.name}"
                self._fail(event, problem)

    def _times(self, head: float, tail: float) -> tuple[float, float]:
        """How often a gradient was applied, from what its slots hold; 0 is 0, not -0."""
        return 0.0 - head / self.unit, 0.0 - tail / self.unit

    def _fresh(self, count: int) -> list[LedgerDecoder]:
        return [LedgerDecoder(workers=self.layout.workers, steps=self.steps, unit=self.unit) for _ in range(count)]

    def _same_variables(self, event: Read, count: int) -> None:
        if count == 0 or count != (self._variables or count):
            self._fail(event, f"{count} variables, {self._variables} in the reads before")
        self._variables = count

    def _fail(self, event: Read, problem: str) -> NoReturn:
        raise Malformed(self.file.path, f"read: {problem}", line=event.seq + 1)


def whole_scale(workers: list[Worker]) -> float:
    """The factor by which (nearly) every applied gradient is off, 1.0 if there is none.

    Two thirds of the cells that show in the workers' last reads must share it, and at least two.
    """
    total, alike = 0, dict[str, list[float]]()
    for worker in workers:
        if len(worker.reads):
            odd = worker.reads.odd[-1]
            total += int(worker.reads.clock[-1].sum()) - sum(pair == (0.0, 0.0) for pair in odd.values())
            for head, tail in odd.values():
                if head == tail and head != 0 and np.isfinite(head):
                    alike.setdefault(f"{head:.4g}", []).append(head)  # digits that count: a scale can be tiny
    most = max(alike.values(), key=len, default=[])
    scale = float(np.median(most)) if len(most) >= 2 and 3 * len(most) >= 2 * total else 1.0
    if scale > 1.5 and abs(scale - round(scale)) <= COUNT_TOLERANCE:
        pushes = [push for worker in workers for push in worker.pushes]
        if 2 * sum(push.attempts >= round(scale) for push in pushes) > len(pushes):
            return 1.0  # most were sent that often: they were applied that often, not with that weight
    return scale if abs(scale - 1.0) > COUNT_TOLERANCE else 1.0
