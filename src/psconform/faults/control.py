"""The control channel: where probes say that they are at a phase at which a fault is to strike, and wait.

One connection for each arrival: the probe sends a line ``{"task", "phase", "step", "wall_ns", "mono_ns"}`` (what its
clocks show; an older probe says nothing of them), and goes on when the connection is answered or closed (so also if
psconform goes away). A task whose clock is to jump also says what it shows where nothing strikes, and hangs up. No
thread: the runner looks at it between two looks at the tasks.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

MAX_LINE = 1024


@dataclass(frozen=True)
class Arrival:
    """A task that waits at a phase of a step until it is released.

    ``ahead_s``: how many seconds its wall clock is ahead of ours; None: its probe does not tell.
    """

    task: str
    phase: str
    step: int | None
    line: socket.socket
    ahead_s: float | None = None

    def release(self) -> None:
        """Let it go on."""
        with contextlib.suppress(OSError):
            self.line.sendall(b"go\n")
        self.line.close()


class Control:
    """Psconform's end: on loopback, or a Unix socket at ``path``. Nothing but this machine can reach it."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        if path is None:
            self._listener = socket.create_server(("127.0.0.1", 0))
            host, port = self._listener.getsockname()
            self.address = f"{host}:{port}"
        else:
            path.unlink(missing_ok=True)
            self._listener = socket.socket(socket.AF_UNIX)
            folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
            try:  # by way of the open folder, for an address takes 107 bytes (unix(7)), and a path may be longer
                self._listener.bind(f"/proc/self/fd/{folder}/{path.name}")
            finally:
                os.close(folder)
            path.chmod(0o666)  # who may see the folder may connect
            self._listener.listen()
            self.address = str(path)
        self._listener.setblocking(False)
        self._open: dict[socket.socket, bytes] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def told(self, seen: Callable[[Path], str]) -> str:
        """What tasks are told of it; ``seen``: a path as they see it."""
        return self.address if self._path is None else f"unix:{seen(self._path)}"

    def arrivals(self) -> list[Arrival]:
        """Tasks that have arrived somewhere since the last call; each must be released. Does not block."""
        with contextlib.suppress(BlockingIOError):
            while True:
                line, _ = self._listener.accept()
                line.setblocking(False)
                self._open[line] = b""
        found = []
        for line, before in list(self._open.items()):
            text = self._more(line, before)
            if text is None:
                continue
            del self._open[line]
            arrival = _arrival(text, line)
            if arrival is None:
                line.close()  # not a probe, or one that died while it spoke
            else:
                found.append(arrival)
        return found

    def _more(self, line: socket.socket, before: bytes) -> bytes | None:
        """All that was said, once it is a line or nothing more will come; None: not yet."""
        try:
            data = line.recv(MAX_LINE)
        except BlockingIOError:
            return None
        except OSError:
            return b""
        text = before + data
        if data and b"\n" not in text and len(text) < MAX_LINE:
            self._open[line] = text
            return None
        return text

    def close(self) -> None:
        """Let everybody go on."""
        for line in self._open:
            line.close()
        self._open.clear()
        self._listener.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def _arrival(text: bytes, line: socket.socket) -> Arrival | None:
    try:
        said = json.loads(text.partition(b"\n")[0])
        task, phase, step = said["task"], said["phase"], said["step"]
    except (ValueError, TypeError, KeyError):
        return None
    if not isinstance(task, str) or not isinstance(phase, str) or not isinstance(step, int | None):
        return None
    return Arrival(task, phase, step, line, _ahead_s(said.get("wall_ns"), said.get("mono_ns")))


def _ahead_s(wall_ns: object, mono_ns: object) -> float | None:
    """By the monotonic clock, which all processes here share, so that it does not count when the line was read."""
    if not isinstance(wall_ns, int) or not isinstance(mono_ns, int):
        return None
    return (wall_ns - mono_ns - (time.time_ns() - time.monotonic_ns())) / 1e9
