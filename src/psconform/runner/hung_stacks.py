"""Where the tasks of a run that hangs are stuck: each that can is asked to write its stacks to its log."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from ..history.stacks import MARK, UNTIL
from ..launchers.launcher import Launcher
from ..layout import Task
from .folder import log_of

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
        with log.open("ab") as file:
            file.write(f"\n{MARK}\n".encode())
        if launcher.ask(task, pid, signal.SIGUSR2):
            asked[task] = log
    deadline = time.monotonic() + WAIT_S
    while asked and time.monotonic() < deadline:
        asked = {task: log for task, log in asked.items() if UNTIL not in log.read_bytes().rpartition(MARK.encode())[2]}
        time.sleep(POLL_S)


def _offers(folder: Path, task: Task, life: int) -> int:
    """The process of this task that writes its stacks when it is asked; 0: none does."""
    path = folder / "events" / f"{task.slug}{f'.{life}' if life > 0 else ''}.jsonl"
    try:
        with path.open("rb") as file:
            start = json.loads(file.readline())
        return int(start["pid"]) if start["stacks"] is True else 0
    except (OSError, ValueError, KeyError, TypeError):
        return 0  # no probe, an older one, or its first line is not whole yet
