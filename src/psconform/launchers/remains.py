"""What containers leave behind: found by their labels and removed, with the standard library alone, for the keeper."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import time
from typing import Any
from urllib.parse import quote

LABEL = "psconform.owner"
CALL_S = 30.0
AGAIN_S, QUIET, PATIENCE_S = 0.5, 4, 30.0
"""Between two looks for what an owner has left; how many find nothing before that is believed; after which it stays."""


def namespace() -> str:
    """Where our process ids are counted (pid_namespaces(7)); empty where there is no /proc."""
    with contextlib.suppress(OSError):
        return str(os.stat("/proc/self/ns/pid").st_ino)
    return ""


class _Engine(http.client.HTTPConnection):
    """HTTP over the Unix socket of a Docker engine."""

    def __init__(self, path: str) -> None:
        super().__init__("docker", timeout=CALL_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(CALL_S)
        self.sock.connect(self._path)


def call(path: str, method: str, what: str) -> Any:
    """What the engine at a socket answers; raises OSError, ValueError if that is nothing of use."""
    line = _Engine(path)
    try:
        line.request(method, what)
        answer = line.getresponse()
        said = answer.read()
        gone = method == "DELETE" and answer.status == 404
        if answer.status >= 400 and not gone:
            raise OSError(f"status {answer.status}: {said[:200].decode(errors='replace')}")
        return json.loads(said) if said else None
    except http.client.HTTPException as error:
        raise OSError(str(error)) from None
    finally:
        line.close()


def owned(path: str) -> dict[str, list[tuple[str, str]]]:
    """Containers and networks of any psconform, by owner: [(what the engine is asked to delete, its name)].

    Raises:
        OSError, ValueError: no engine answers.
    """
    filters = quote(json.dumps({"label": [LABEL]}))
    found: dict[str, list[tuple[str, str]]] = {}
    try:
        for said in call(path, "GET", f"/containers/json?all=1&filters={filters}"):
            place = f"/containers/{said['Id']}?force=1&v=1"
            found.setdefault(said["Labels"][LABEL], []).append((place, f"container {said['Names'][0].lstrip('/')}"))
        for said in call(path, "GET", f"/networks?filters={filters}"):
            found.setdefault(said["Labels"][LABEL], []).append((f"/networks/{said['Id']}", f"network {said['Name']}"))
    except (LookupError, TypeError, AttributeError):
        raise ValueError("what it says is not what an engine says") from None
    return found


def remove_containers(path: str, owner: str, *, quiet: int = QUIET, patience_s: float = PATIENCE_S) -> list[str]:
    """Delete the containers of an owner, then its networks; returns the names of what was there and now is not.

    They are looked for until ``quiet`` looks find nothing: the engine may still have been at it when the owner died.

    Raises:
        OSError, ValueError: the engine does not say what is there, or something cannot be deleted; names it.
    """
    seen: dict[str, str] = {}
    frozen = quote(json.dumps({"label": [f"{LABEL}={owner}"], "status": ["paused"]}))
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        for said in call(path, "GET", f"/containers/json?filters={frozen}"):  # who is frozen does not die either
            with contextlib.suppress(OSError, ValueError):
                call(path, "POST", f"/containers/{said['Id']}/unpause")
    silent, deadline = 0, time.monotonic() + patience_s
    while True:
        found = owned(path).get(owner, [])
        for place, name in found:
            seen[name] = ""
            try:
                call(path, "DELETE", place)
            except (OSError, ValueError) as error:
                seen[name] = str(error)
        silent = 0 if found else silent + 1
        if silent >= quiet:
            return list(seen)
        if found and time.monotonic() > deadline:
            raise OSError("; ".join(f"{name}: {seen[name] or 'it is there again'}" for _, name in found))
        time.sleep(AGAIN_S)
