"""The fallback when even the keeper was killed: find and end processes whose psconform is gone."""

from __future__ import annotations

import os
from dataclasses import dataclass

import psutil

from .local import OWNER, process_start


@dataclass(frozen=True)
class Orphan:
    """A process that some psconform started and that psconform is no more."""

    pid: int
    command: str


def find_orphans() -> list[Orphan]:
    """Processes marked by a psconform that no longer runs. The mark holds pid and start time, so that a recycled pid
    is never taken for it; processes of a living psconform are left alone."""
    orphans = []
    for process in psutil.process_iter():
        try:
            mark = process.environ().get(OWNER, "")
            pid, _, started = mark.partition(":")
            if mark and process.pid != os.getpid() and process_start(int(pid)) != started:
                orphans.append(Orphan(process.pid, " ".join(process.cmdline())[:100]))
        except (psutil.Error, ValueError, OSError):
            continue  # gone meanwhile, or not ours to look at
    return orphans


def end_orphans() -> list[Orphan]:
    """Kill them; returns those that were there and now are not."""
    found = find_orphans()
    processes = []
    for orphan in found:
        try:
            process = psutil.Process(orphan.pid)
            process.kill()
            processes.append(process)
        except psutil.Error:
            continue
    _, alive = psutil.wait_procs(processes, timeout=5)
    return [orphan for orphan in found if orphan.pid not in {process.pid for process in alive}]
