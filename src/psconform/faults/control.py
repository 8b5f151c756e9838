"""The control channel: where probes say that they are at a phase at which a fault is to strike, and wait.

One connection for each arrival: the probe sends a line ``{"task", "phase", "step"}``, and goes on when the connection
is answered or closed (so also if psconform goes away). No thread: the runner looks at it between two looks at the
tasks.
"""

from __future__ import annotations

import contextlib
import json
import socket
from dataclasses import dataclass
from typing import Self

MAX_LINE = 1024


@dataclass(frozen=True)
class Arrival:
    """A task that waits at a phase of a step until it is released."""

    task: str
    phase: str
    step: int | None
    line: socket.socket

    def release(self) -> None:
        """Let it go on."""
        with contextlib.suppress(OSError):
            self.line.sendall(b"go\n")
        self.line.close()


class Control:
    """Psconform's end. Nothing but this machine can reach it."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self._open: dict[socket.socket, bytes] = {}
        host, port = self._listener.getsockname()
        self.address = f"{host}:{port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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


def _arrival(text: bytes, line: socket.socket) -> Arrival | None:
    try:
        said = json.loads(text.partition(b"\n")[0])
        task, phase, step = said["task"], said["phase"], said["step"]
    except (ValueError, TypeError, KeyError):
        return None
    if not isinstance(task, str) or not isinstance(phase, str) or not isinstance(step, int | None):
        return None
    return Arrival(task, phase, step, line)
