"""Whether a task that was started is ready for others to dial."""

from __future__ import annotations

import re
import socket
from pathlib import Path

from ..targets.target import Ready


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
