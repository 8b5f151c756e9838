"""What the tasks of a run show while it runs: readiness, progress, and, of one that hangs, where they are stuck."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import NotStarted
from ..files import head, open_regular, tail
from ..history.events import MAX_LINE
from ..history.logs import LOOKED_AT, MARK, UNTIL
from ..launchers.launcher import Launcher
from ..layout import Task
from ..targets.target import Ready
from .folder import log_of, log_tail


@dataclass(frozen=True)
class Progress:
    """How a run is doing: each task's state, steps acknowledged so far and in all, steps per second of all workers.

    ``rate`` is None as long as it is not known. ``what`` it is, if not the run itself: calibration, or a comparison.
    ``unused`` and ``undialled`` are said once, before the run: faults of its plan that strike links which no task of
    the calibration used; and that none used any, so a drawn plan has no faults of the network.
    """

    tasks: dict[str, str]
    steps: int
    total: int
    rate: float | None
    what: str = ""
    unused: tuple[str, ...] = ()
    undialled: bool = False


Notify = Callable[[Progress], None]


class AwakeClock:
    """Seconds, without those in which psconform itself did not run: between two looks no more than LOOK_S pass.

    It may be stopped (Ctrl-Z), or the machine suspended: what tasks did meanwhile it sees only afterwards, so that time
    is no silence of theirs. Code that uses this clock looks at it many times a second.
    """

    def __init__(self) -> None:
        self._now, self._looked = 0.0, time.monotonic()

    def __call__(self) -> float:
        before, self._looked = self._looked, time.monotonic()
        self._now += min(self._looked - before, LOOK_S)
        return self._now


LOOK_S = 0.25
"""Several times as long as from one look to the next, which on a busy machine takes longer."""
_ACK = re.compile(rb'"kind" ?: ?"(?:ack|update)"')
_ROUND = re.compile(rb'"kind" ?: ?"(?:read|push|samples|resume|restore|slip)"')
_UNKNOWN = re.compile(rb'"outcome" ?: ?"unknown"')
LAST = 1000
"""Bytes in which the first event of a record fits, and the last one of a closed record."""
GAINED = 1 << 20
"""Bytes of a record that are looked at in one tick; a flood of them is not to keep the rest waiting."""
SIGN = 4 << 20
"""Bytes at the beginning and at the end of a log in which a sign of readiness is looked for."""


def events_of(folder: Path, task: Task, life: int) -> Path:
    """What one life of a task records into; of none yet (-1) the first."""
    return folder / "events" / f"{task.slug}{f'.{life}' if life > 0 else ''}.jsonl"


def closed(record: Path) -> bool:
    """Its trainer has closed this record: it had nothing left to do."""
    try:
        last = json.loads(tail(record, LAST).rstrip().rpartition("\n")[2])
        return bool((last["kind"], last["reason"]) == ("end", "closed"))
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


@dataclass
class Records:
    """Follows the event files of a run.

    ``acked``: acknowledgements in them, of calls that were cut off none. ``unknown``: the files that have gained one of
    a push of which the worker does not know what became, at the last look.
    """

    acked: int = 0
    unknown: list[Path] = field(default_factory=list)
    _sizes: dict[Path, int] = field(default_factory=dict)
    _begun: dict[Path, int] = field(default_factory=dict)

    def look(self, paths: Iterable[Path]) -> bool:
        """Whether what these have gained since the last look is progress; counts acknowledgements on the way.

        Not progress is what a task that goes round in circles records: reads, the same push again, its rollbacks.
        """
        grown, self.unknown = False, []
        for path in paths:
            lines = self._gained(path)
            moves = [line for line in lines.splitlines() if _moves(line)]
            self.unknown += [path] if _UNKNOWN.search(lines) else []
            grown = grown or bool(moves)
            self.acked += sum(_ACK.search(line) is not None for line in moves)
        return grown

    def _gained(self, path: Path) -> bytes:
        """The whole lines that a file has gained since the last look; of very many the first ones."""
        before, begun = self._sizes.get(path, 0), self._begun.get(path, 0)
        try:
            with open_regular(path) as file:
                file.seek(before + begun)  # what is there of an unfinished line has been looked at
                new = file.read(GAINED)
                whole = new.rfind(b"\n") + 1
                if not whole:
                    self._begun[path] = begun + len(new)
                    return b""
                file.seek(before)
                lines = file.read(begun + whole) if begun <= MAX_LINE else b""
                self._sizes[path], self._begun[path] = before + begun + whole, 0
                return lines
        except OSError:
            return b""  # it is not there yet, or is no file: when the run is judged that is said


def _moves(line: bytes) -> bool:
    return not _ROUND.search(line) and not _UNKNOWN.search(line)


def await_ready(
    task: Task,
    ready: Ready,
    address: str,
    *,
    folder: Path,
    there: Callable[[], bool],
    poll: Callable[[], object],
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Wait for a task's sign; ``poll`` lets it run for a moment, and ``there`` says whether it still does.

    Raises:
        NotStarted: it ended, or gave no sign in its time; says what its log says last.
    """
    deadline = clock() + ready.timeout_s
    while not is_ready(ready, address, log_of(folder, task)):
        poll()
        if not there() or clock() > deadline:
            what = f"was not ready in {ready.timeout_s:g} s" if there() else "ended"
            sign = f"port {address}" if ready.port else f"the text {ready.log!r} in its log"
            tail = "; ".join(log_tail(folder, task)) or "empty"
            problem = f"{what} (waited for {sign}); its log ends: {tail}"
            raise NotStarted(str(task), problem, hint=f"The whole log is {log_of(folder, task)}")


def is_ready(ready: Ready, address: str, log: Path) -> bool:
    """Its port takes connections, or its log has the text, or both; whatever its target file says."""
    if ready.port:
        host, _, port = address.rpartition(":")
        try:
            with socket.create_connection((host, int(port)), timeout=1.0):
                pass
        except OSError:
            return False
    if ready.log:
        return any(re.search(ready.log, part(log, SIGN)) for part in (head, tail))
    return True


WAIT_S = 2.0
"""For a task to write them; one that is stopped never does."""
POLL_S = 0.02


def ask_for_stacks(folder: Path, launcher: Launcher, lives: Mapping[Task, int]) -> None:
    """Have every task whose probe offers it write its stacks to its log, after a line that marks them."""
    asked = {}
    for task in launcher.running:
        pid = _offers(folder, task, lives.get(task, 0))
        if not pid or launcher.state(task) in ("T", ""):
            continue
        log = log_of(folder, task)
        with suppress(OSError), open_regular(log, flags=os.O_WRONLY | os.O_APPEND) as file:
            file.write(f"\n{MARK}\n".encode())
        if launcher.ask(task, pid, signal.SIGUSR2):
            asked[task] = log
    deadline = time.monotonic() + WAIT_S
    while asked and time.monotonic() < deadline:
        asked = {task: log for task, log in asked.items() if UNTIL not in tail(log, LOOKED_AT).rpartition(MARK)[2]}
        time.sleep(POLL_S)


def _offers(folder: Path, task: Task, life: int) -> int:
    """The process of this task that writes its stacks when it is asked; 0: none does."""
    try:
        start = json.loads(head(events_of(folder, task, life), LAST).partition("\n")[0])
        return int(start["pid"]) if start["stacks"] is True else 0
    except (ValueError, KeyError, TypeError, RecursionError):
        return 0  # no probe, an older one, or its first line is not whole yet
