"""Which lines of some files does each test run, in whatever process? Loaded by every Python of a sandbox, see there.

coverage.py keeps its lines in memory until a process ends, and the tasks of these tests are killed; and it knows the
test that runs in pytest's own process only. Here each process writes a line as soon as a test first runs it, under the
number of the test, which pytest's process keeps in a file that all of them have mapped. Standard library only.
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

TRACE = "PSCONFORM_MUTANTS_TRACE"
"""Names the folder of a pytest process: ``now`` (the number of the test, or 0), ``hits``, and ``../files``."""
SIZE = 8
FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT
open_, write, close = os.open, os.write, os.close  # a test may have those of ``os`` fail


class Recorder:
    """Writes the lines that this process runs, as ``number file line``, until the process ends."""

    def __init__(self, folder: Path) -> None:
        self._files = {path: number for number, path in enumerate((folder.parent / "files").read_text().splitlines())}
        self._hits = str(folder / "hits")
        with (folder / "now").open("rb") as file:
            self._memory = mmap.mmap(file.fileno(), SIZE, access=mmap.ACCESS_READ)
        self._now = b""
        self._left: dict[int, tuple[CodeType, set[int]]] = {}

    def start(self) -> None:
        """In this thread, and in those that it starts."""
        threading.settrace(self._enter)
        sys.settrace(self._enter)

    def _lines(self, code: CodeType) -> set[int]:
        """Of a function, those that this test has not run yet."""
        now = self._memory[:SIZE]
        if now != self._now:
            self._left.clear()
            self._now = now
        known = self._left.get(id(code))
        if known is None:
            known = self._left[id(code)] = code, {line for _, _, line in code.co_lines() if line}
        return known[1]

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        return self._line if code.co_filename in self._files and self._lines(code) else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        code, line = frame.f_code, frame.f_lineno
        left = self._lines(code)
        if line in left:
            left.discard(line)
            text = f"{int.from_bytes(self._now, 'little')} {self._files[code.co_filename]} {line}\n"
            # opened each time: a task closes what it has inherited
            file = open_(self._hits, FLAGS, 0o644)
            write(file, text.encode())
            close(file)
        return self._line


def prepare(folder: Path) -> mmap.mmap:
    """Make the folder of a pytest process; returns what to write the number of the test to."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "now").write_bytes(bytes(SIZE))
    with (folder / "now").open("rb+") as file:
        return mmap.mmap(file.fileno(), SIZE)


if os.environ.get(TRACE):
    Recorder(Path(os.environ[TRACE])).start()
