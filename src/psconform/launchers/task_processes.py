"""Which processes are a task's, from /proc: all that it has started, in any session, and the one that records.

Standard library only, and what loads in a moment, for the keeper loads it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..files import open_regular

LAST = 1000
"""Bytes in which the first event of a record fits."""

MARKS = ("PSCONFORM_RUN", "PSCONFORM_TASK", "PSCONFORM_INCARNATION")
"""Environment variables that name the incarnation; what a task starts inherits them."""
STOPPED_S, GONE_S = 1.0, 5.0
"""Time for processes to stop, and to be gone once killed; one that waits for a disk may take longer, and is left."""


class TaskProcesses(NamedTuple):
    """The processes of one incarnation of a task.

    Attributes:
        keeper: the process that has started it, and inherits what it has orphaned.
        pid: its first process.
        marks: lines that its environment has.
        record: its event file; empty: it has none.
    """

    keeper: int
    pid: int
    marks: frozenset[bytes] = frozenset()
    record: str = ""

    @classmethod
    def started(cls, keeper: int, pid: int, env: Mapping[str, str], record: str) -> TaskProcesses:
        """Of a task that was started with this environment."""
        return cls(keeper, pid, frozenset(f"{name}={env[name]}".encode() for name in MARKS if name in env), record)

    def states(self) -> dict[int, str]:
        """State letters by process id, of those that have not ended.

        A process whose parent has ended is known by its session, its process group or its environment. One that
        another process has started on the task's behalf is known by the process id in the record, if it has the
        record open: whatever else has that number now is none of the task's.
        """
        table = {pid: stat for pid in _pids() if (stat := _stat(pid))}
        children: dict[int, list[int]] = {}
        for pid, (_, parent, *_) in table.items():
            children.setdefault(parent, []).append(pid)
        orphans = children.get(self.keeper, [])
        new = [pid for pid in orphans if self.pid in (pid, *table[pid][2:]) or self._marked(pid)]
        recorder = self._recorder()
        if recorder in table and recorder not in _above(self.keeper, table):
            new.append(recorder)
        found = set(new)
        while new:
            new = [child for pid in new for child in children.get(pid, []) if child not in found]
            found.update(new)
        return {pid: table[pid][0] for pid in found if table[pid][0] not in "ZX"}

    def _marked(self, pid: int) -> bool:
        return bool(self.marks) and self.marks <= _environment(pid)

    def _recorder(self) -> int:
        """The process that the record names, if it has the record open; else 0."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            with open_regular(self.record) as file:
                pid, place = int(json.loads(file.read(LAST).partition(b"\n")[0])["pid"]), os.fstat(file.fileno())
            for name in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    if os.path.samestat(os.stat(f"/proc/{pid}/fd/{name}"), place):
                        return pid
        return 0


def signal_all(tasks: Sequence[TaskProcesses], number: int) -> None:
    """Signal every process of these tasks; returns, of SIGKILL, when they are gone.

    What is to die is stopped first: what runs might start another meanwhile.
    """
    if not _pids():  # no /proc
        for task in tasks:
            with contextlib.suppress(OSError):
                os.killpg(task.pid, number)
        return
    last = time.monotonic() + GONE_S
    found = _signal(tasks, signal.SIGSTOP if number == signal.SIGKILL else number)
    while number == signal.SIGKILL and found:
        for pid in found:
            _send(pid, number)
        while any((stat := _stat(pid)) and stat[0] not in "ZX" for pid in found) and time.monotonic() < last:
            time.sleep(0.001)
        found = _signal(tasks, signal.SIGSTOP) if time.monotonic() < last else set()


def _signal(tasks: Sequence[TaskProcesses], number: int) -> set[int]:
    """Signal all of them, returns which; of SIGSTOP, when no look finds another that runs."""
    found: set[int] = set()
    last = time.monotonic() + STOPPED_S
    while True:
        states = {pid: state for task in tasks for pid, state in task.states().items()}
        new = states.keys() - found
        for pid in new:
            _send(pid, number)
        found |= new
        stopped = not new and all(state in "Tt" for state in states.values())
        if number != signal.SIGSTOP or stopped or time.monotonic() > last:
            return found
        time.sleep(0.001)


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, number)


def _pids() -> list[int]:
    with contextlib.suppress(OSError):
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    return []


def _stat(pid: int) -> tuple[str, int, int, int] | None:
    """State letter, parent, process group and session; None if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, *numbers = file.read().rpartition(b")")[2].split()[:4]
    except (OSError, ValueError):
        return None
    parent, group, session = map(int, numbers)
    return state.decode(), parent, group, session


def _above(pid: int, table: Mapping[int, tuple[str, int, int, int]]) -> set[int]:
    """This process, and what has started it: psconform, a shell, ..."""
    above = {1}
    while pid in table and pid not in above:
        above.add(pid)
        pid = table[pid][1]
    return above


def _environment(pid: int) -> set[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return set(file.read().split(b"\0"))
    except OSError:
        return set()
