"""What containers leave behind: found by their labels and removed, with the standard library alone, for the keeper."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import time
from typing import Any
from urllib.parse import quote

LABEL = "psconform.owner"
CALL_S = 30.0
AGAIN_S, LOOKS = 0.5, 10
"""Between two looks for what an owner has left, and how many at most."""


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
        if answer.status >= 400 and answer.status != 404:
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
    for said in call(path, "GET", f"/containers/json?all=1&filters={filters}"):
        place = f"/containers/{said['Id']}?force=1&v=1"
        found.setdefault(said["Labels"][LABEL], []).append((place, f"container {said['Names'][0].lstrip('/')}"))
    for said in call(path, "GET", f"/networks?filters={filters}"):
        found.setdefault(said["Labels"][LABEL], []).append((f"/networks/{said['Id']}", f"network {said['Name']}"))
    return found


def remove_containers(path: str, owner: str) -> list[str]:
    """Delete the containers of an owner, then its networks; returns the names of what was there and now is not.

    Where there was something it is looked for again: the engine may still have been at it when the owner died.
    """
    removed: list[str] = []
    frozen = quote(json.dumps({"label": [f"{LABEL}={owner}"], "status": ["paused"]}))
    with contextlib.suppress(OSError, ValueError):
        for said in call(path, "GET", f"/containers/json?filters={frozen}"):  # who is frozen does not die either
            with contextlib.suppress(OSError, ValueError):
                call(path, "POST", f"/containers/{said['Id']}/unpause")
        for _ in range(LOOKS):
            if not (found := owned(path).get(owner)):
                break
            for place, name in found:
                with contextlib.suppress(OSError, ValueError):
                    call(path, "DELETE", place)
                    removed.append(name)
            time.sleep(AGAIN_S)
    return list(dict.fromkeys(removed))
