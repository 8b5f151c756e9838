"""Whether a task that was started is ready for others to dial."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable
from pathlib import Path

from ..errors import PsconformError
from ..layout import Task
from ..targets.target import Ready
from .folder import log_of, log_tail


def await_ready(
    task: Task, ready: Ready, address: str, *, folder: Path, there: Callable[[], bool], poll: Callable[[], object]
) -> None:
    """Wait for a task's sign; ``poll`` lets it run for a moment, and ``there`` says whether it still does.

    Raises:
        PsconformError: it ended, or gave no sign in its time; says what its log says last.
    """
    deadline = time.monotonic() + ready.timeout_s
    while not is_ready(ready, address, log_of(folder, task)):
        poll()
        if not there() or time.monotonic() > deadline:
            what = f"was not ready in {ready.timeout_s:g} s" if there() else "ended"
            sign = f"port {address}" if ready.port else f"the text {ready.log!r} in its log"
            tail = "; ".join(log_tail(folder, task)) or "empty"
            raise PsconformError(f"{task} {what} (waited for {sign}); its log ends: {tail}")


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
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        return re.search(ready.log, text) is not None
    return True
