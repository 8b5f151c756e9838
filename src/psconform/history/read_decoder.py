"""The reads of one worker, of either encoding, -> Reads."""

from __future__ import annotations

import base64
import binascii
import zlib
from itertools import chain
from pathlib import Path
from typing import NoReturn

import numpy as np

from ..errors import Malformed
from ..files import open_regular
from ..probe import WEIGHTS, Ledger, LedgerDecoder, Vector, workload_of
from ..trained import model_of
from .columns import Bools, Floats, Ints, Odd, Reads, Values
from .events import Number, Read, Residual
from .manifest import Manifest
from .reader import EventFile

Change = tuple[int, int, int, Number | None, Number | None]
"""Variable, worker, step; what head and tail hold now, None: it fits again."""


def decode_reads(
    file: EventFile, events: list[Read], *, after: Ints, folder: Path, manifest: Manifest
) -> tuple[Reads, tuple[int, ...] | None]:
    """Index one worker's reads; also returns the ps of each variable where the target told it.

    ``after[r]`` is the number of acceptances recorded before read r.

    Raises:
        Malformed: a read does not fit the layout or the workload; names file and line.
    """
    return _ReadDecoder(file, events, folder=folder, manifest=manifest).decode(after)


def read_vector(file: EventFile, event: Read | Residual, *, shape: tuple[int, int], folder: Path) -> Values:
    """The full values that an event refers to, float32[V, slots]; raises Malformed if they are not there."""
    offset, length, crc = event.vector or (0, 0, 0)
    path = folder / "vectors" / (file.path.stem + ".bin")
    size = 4 * shape[0] * shape[1]
    try:
        with open_regular(path) as side:
            side.seek(offset)
            data = side.read(min(length, size))
    except OSError as error:
        raise Malformed(path, f"cannot be read ({error.strerror})") from None
    if length != size or len(data) != length or zlib.crc32(data) != crc:
        what = "read" if isinstance(event, Read) else "residual"
        problem = f"bytes {offset} to {offset + length} do not fit the {what} in {file.path.name}"
        raise Malformed(path, problem, hint=f"See line {event.seq + 1} there")
    return np.frombuffer(data, "<f4").astype(np.float32).reshape(shape)


class _ReadDecoder:
    def __init__(self, file: EventFile, events: list[Read], *, folder: Path, manifest: Manifest) -> None:
        self.file, self.events, self.layout = file, events, manifest.layout
        workload = manifest.workload
        self.steps, self.unit = workload.steps, float(workload.unit or 0)
        self.ledger: Ledger | None = None
        kind = workload_of(workload.name)
        if issubclass(kind, Ledger):
            self.ledger = kind(workers=self.layout.workers, steps=self.steps)
            self.slots = self.ledger.slots
        else:
            self.slots = -(-model_of(manifest.spec).size // self.layout.holders)
        self.keeps_values = WEIGHTS not in kind.shows or self.layout.all_reduce
        self.values: dict[int, Values] = {}
        self.folder = folder
        self.raw: list[LedgerDecoder] = []
        self.raw_nonces: list[list[float]] = []
        self.changes: list[tuple[int, *Change]] = []

    def decode(self, after: Ints) -> tuple[Reads, tuple[int, ...] | None]:
        events = self.events
        for event in events:
            if self.ledger is not None and (event.clock is None) == (event.raw is None):
                self._fail(event, "must have exactly one of clock and raw")
            if self.ledger is None and (event.clock is not None or (event.vector is None) == (event.raw is None)):
                self._fail(event, "must have exactly one of vector and raw, and no clock")
            if event.step > self.steps:
                self._fail(event, f"step {event.step} of {self.steps}")
        clock = self._clocks()
        nonce = self._nonces(clock.shape[1]) if self.ledger is not None else np.ones(clock.shape[:2])
        odd = self._odd(clock)
        for index, event in enumerate(events):
            if event.vector is not None:
                self._check_vector(index, event, clock, nonce, odd)
        reads = Reads(
            step=np.array([event.step for event in events], np.int64),
            use=np.zeros(len(events), np.int64),
            final=np.array([event.final and event.absent == [] for event in events], np.bool_),
            after=after,
            at=np.array([event.mono_ns for event in events], np.int64),
            clock=clock,
            nonce=nonce,
            versions=self._versions(),
            odd=odd,
            epoch=np.array([event.epoch for event in events], np.int64),
            life=np.zeros(len(events), np.int64),
            values=self.values,
            shared=self._shared(clock.shape[1]),
        )
        return reads, self._shards(clock.shape[1])

    def _clocks(self) -> Ints:
        """int64[R, V, W]; collects on the way what changed in odd cells."""
        for index, event in enumerate(self.events):
            if event.odd and event.clock is not None:
                self.changes += [(index, *change) for change in event.odd]
        workers, known = self.layout.workers, self.file.clocks
        whole = known is not None and len(known) == len(self.events) > 0 and known.shape[2] == workers
        if known is not None and whole and known.max(initial=0) <= self.steps:
            return known
        clocks = self._lists()
        variables = len(clocks[0]) if clocks else 0
        found = None
        if all(len(clock) == variables and all(len(row) == workers for row in clock) for clock in clocks):
            # np.array would look at each list for its shape once more, and say of ragged ones only that they are
            numbers = chain.from_iterable(chain.from_iterable(clocks))
            count = len(clocks) * variables * workers
            found = np.fromiter(numbers, np.int64, count).reshape(len(clocks), variables, workers)
        if found is None or (clocks and (variables == 0 or found.max() > self.steps)):
            for event, clock in zip(self.events, clocks, strict=True):
                if len(clock) == 0 or len(clock) != variables:
                    self._fail(event, f"{len(clock)} variables, {variables or None} in the reads before")
                if event.nonce is not None and len(event.nonce) != len(clock):
                    self._fail(event, f"nonce must have {len(clock)} numbers")
                if any(len(row) != workers or max(row) > self.steps for row in clock):
                    self._fail(event, f"clock must have {workers} numbers up to {self.steps} per variable")
            raise AssertionError("unreachable: some read has a wrong clock")
        return found

    def _lists(self) -> list[list[list[int]]]:
        """The clock of each read."""
        known = self.file.clocks
        told = iter(known.tolist()) if known is not None else (e.clock for e in self.events if e.clock is not None)
        clocks: list[list[list[int]]] = []
        for index, event in enumerate(self.events):
            if self.ledger is None:
                if event.raw is not None:
                    self.values[index] = np.array([self._floats(event, text) for text in event.raw])
                clocks.append([[0] * self.layout.workers] * self.layout.holders)
            else:
                clocks.append(self._from_raw(index, event) if event.clock is None else next(told))
        return clocks

    def _from_raw(self, index: int, event: Read) -> list[list[int]]:
        arrays = [self._floats(event, text) for text in event.raw or ()]
        self.raw = self.raw or self._fresh(len(arrays))
        if len(arrays) != len(self.raw):
            self._fail(event, f"{len(arrays)} variables, {len(self.raw)} in the reads before")
        if self.keeps_values and event.final:
            self.values[index] = np.array(arrays)
        for variable, (decoder, values) in enumerate(zip(self.raw, map(self._cells, arrays), strict=True)):
            for cell in decoder.update(values):
                self.changes.append((index, variable, *cell, *decoder.odd.get(cell, (None, None))))
        self.raw_nonces.append([decoder.nonce for decoder in self.raw])
        return [list(decoder.clock) for decoder in self.raw]

    def _floats(self, event: Read, text: str) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        try:
            values = np.frombuffer(base64.b64decode(text, validate=True), "<f4").astype(np.float32)
        except (binascii.Error, ValueError) as error:
            self._fail(event, f"raw is not base64 of float32 ({error})")
        if values.size != self.slots:
            self._fail(event, f"a raw variable has {values.size} values")
        return values

    def _nonces(self, variables: int) -> Floats:
        """float64[R, V]: each as it was last told."""
        rows, which, raws = [[0.0] * variables], [], iter(self.raw_nonces)
        for event in self.events:
            told = next(raws) if event.clock is None else event.nonce
            if told is not None:
                if len(told) != variables:
                    self._fail(event, f"nonce must have {variables} numbers")
                rows.append([float(number) for number in told])
            elif len(rows) == 1:
                self._fail(event, "the first read must have a nonce")
            which.append(len(rows) - 1)
        return np.array(rows, np.float64)[which].reshape(len(which), variables)

    def _odd(self, clock: Ints) -> Odd:
        """Changes of cells -> the runs of reads between them."""
        variables = clock.shape[1]
        for read, *cell in (change[:4] for change in self.changes):
            if not (cell[0] < variables and cell[1] < self.layout.workers and cell[2] < self.steps):
                self._fail(self.events[read], f"odd names no cell of this workload: {cell}")
        cells = np.array([change[:4] for change in self.changes], np.int64).reshape(-1, 4)
        index, variable, worker, step = cells.T
        counts = [(None, None) if None in change[4:] else change[4:] for change in self.changes]
        open_ = np.array([head is not None for head, _ in counts], np.bool_)
        # how often a gradient was applied, from what its slots hold; 0 is 0, not -0
        head, tail = (
            np.array([0.0 - float(pair[end] or 0) / self.unit for pair in counts], np.float64) for end in (0, 1)
        )
        order = np.lexsort(
            (np.arange(len(index)), index, step, worker, variable)
        )  # a read's last word on a cell counts
        same = np.zeros(len(order), np.bool_)
        if len(order):
            same[:-1] = (np.diff(cells[order][:, 1:], axis=0) == 0).all(axis=1)
        end = np.full(len(order), len(self.events), np.int64)
        end[:-1][same[:-1]] = index[order][1:][same[:-1]]
        rows = Odd(variable[order], worker[order], step[order], index[order], end, head[order], tail[order])
        odd = rows.take(open_[order] & (rows.first < rows.end)).sorted()
        self._below_clock(odd, clock)
        return odd

    def _below_clock(self, odd: Odd, clock: Ints) -> None:
        if not len(odd):
            return
        falls: Bools = np.asarray((np.diff(clock, axis=0) < 0).any(axis=0))
        lowest = np.array(clock[odd.first, odd.variable, odd.peer])
        for row in np.flatnonzero(falls[odd.variable, odd.peer]):  # else the first read of a row has the least
            lowest[row] = clock[odd.first[row] : odd.end[row], odd.variable[row], odd.peer[row]].min()
        for row in np.flatnonzero(lowest <= odd.step)[:1]:
            column = clock[odd.first[row] : odd.end[row], odd.variable[row], odd.peer[row]]
            at = int(odd.first[row]) + int(np.argmax(column <= odd.step[row]))
            cell = [int(odd.variable[row]), int(odd.peer[row]), int(odd.step[row])]
            self._fail(self.events[at], f"odd cell {cell} is not below the clock")

    def _check_vector(self, index: int, event: Read, clock: Ints, nonce: Floats, odd: Odd) -> None:
        """The full values in the side file must say the same as the compact read: two records, one truth."""
        variables = clock.shape[1]
        values = read_vector(self.file, event, shape=(variables, self.slots), folder=self.folder)
        if self.keeps_values and (event.final or self.ledger is None):
            self.values[index] = values
        if self.ledger is None:
            return
        here = odd.at(index)
        said = zip(here.variable.tolist(), here.peer.tolist(), here.step.tolist(), here.head, here.tail, strict=True)
        by_variable: dict[int, list[str]] = {}
        for variable, *cell in said:
            by_variable.setdefault(variable, []).append(repr(list(map(float, cell))))  # repr: NaN differs from itself
        for variable, decoder in enumerate(self._fresh(variables)):
            decoder.update(self._cells(values[variable]))
            shown = [
                repr([float(worker), float(step), 0.0 - head / self.unit, 0.0 - tail / self.unit])
                for (worker, step), (head, tail) in decoder.odd.items()
            ]
            same = decoder.clock == clock[index, variable].tolist()
            same = same and repr(decoder.nonce) == repr(float(nonce[index, variable]))
            if not same or sorted(shown) != sorted(by_variable.get(variable, [])):
                problem = (
                    f"clock, odd or nonce of variable {variable} contradict the values in {self.file.path.stem}.bin"
                )
                self._fail(event, problem)

    def _shared(self, variables: int) -> dict[int, Floats]:
        told = {index: event.shared for index, event in enumerate(self.events) if event.shared is not None}
        for index, pairs in told.items():
            if self.ledger is None or len(pairs) != variables:
                self._fail(self.events[index], f"shared must have {variables} pairs, and only in a ledger")
        return {index: np.array([pair or (0, 0) for pair in pairs], np.float64) for index, pairs in told.items()}

    def _versions(self) -> Ints | None:
        found = [event.versions for event in self.events if event.versions is not None]
        for event in self.events:
            if event.versions is not None and len(event.versions) != len(found[0]):
                self._fail(event, "the number of versions changed")
        return np.array(found, np.int64) if found and len(found) == len(self.events) else None

    def _shards(self, variables: int) -> tuple[int, ...] | None:
        shards: tuple[int, ...] | None = None
        for event in self.events:
            if event.shards is None:
                continue
            if len(event.shards) != variables or any(shard >= self.layout.holders for shard in event.shards):
                self._fail(event, f"shards must name a ps of {self.layout.text} for each variable")
            if shards not in (None, tuple(event.shards)):
                self._fail(event, f"shards are {event.shards}, {list(shards or ())} in a read before")
            shards = tuple(event.shards)
        return shards

    def _cells(self, values: Vector) -> Vector:
        return values if self.ledger is None else self.ledger.cells(values, self.unit)

    def _fresh(self, count: int) -> list[LedgerDecoder]:
        return [LedgerDecoder(workers=self.layout.workers, steps=self.steps, unit=self.unit) for _ in range(count)]

    def _fail(self, event: Read, problem: str) -> NoReturn:
        raise Malformed(self.file.path, f"read: {problem}", line=event.seq + 1)
