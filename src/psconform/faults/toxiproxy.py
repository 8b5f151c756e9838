"""A Toxiproxy server, driven through toxiproxy-python, with a typed layer over what that leaves out.

toxiproxy-python keeps the server's address in its class, so that a process has one; passes no time-outs; takes any
status but 400, 404 and 409 for success (a port that is taken then shows as a KeyError); and cannot change a toxic. So
its proxies and toxics are not used here: only what it calls the server with.

Toxics have toxicity 1, and none has jitter: what is drawn is drawn by psconform, from a seed.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

import requests
from toxiproxy.api import APIConsumer, validate_response
from toxiproxy.exceptions import InvalidToxic, NotFound, ProxyExists

from ..errors import PsconformError

CALL_S = 10.0
NO_PROXY = {"http": ""}
"""The server is on this machine; what a user has for HTTP leads elsewhere."""
Stream = Literal["upstream", "downstream"]
"""upstream: from who dials to who listens; downstream: back."""
_address = threading.Lock()  # the server's address is class state


@dataclass(frozen=True)
class Proxy:
    """Where a proxy listens, and what it dials, ``host:port`` both."""

    name: str
    listen: str
    upstream: str
    enabled: bool


class Toxiproxy:
    """One server. Every call has a time-out, and what it refuses is a PsconformError with its words."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        parts = urlsplit(self.url)
        host = parts.hostname or "127.0.0.1"
        self._host, self._port = f"[{host}]" if ":" in host else host, parts.port or 8474

    def version(self) -> str:
        """What the server says of its version."""
        return str(self._call("get", "/version").json()["version"])

    def proxies(self) -> dict[str, Proxy]:
        """All proxies of the server, also those of others."""
        return {name: _proxy(said) for name, said in self._call("get", "/proxies").json().items()}

    def create(self, name: str, *, upstream: str, listen: str = "127.0.0.1:0") -> Proxy:
        """Make a proxy that is enabled; raises PsconformError if its port is taken."""
        said = {"name": name, "upstream": upstream, "listen": listen, "enabled": True}
        return _proxy(self._call("post", "/proxies", said).json())

    def enable(self, name: str, *, on: bool) -> None:
        """Refuse connections, and end those that are open; or listen again."""
        self._call("post", f"/proxies/{name}", {"enabled": on})

    def delete(self, name: str) -> None:
        """Delete a proxy and end its connections; nothing, if there is none."""
        try:
            self._call("delete", f"/proxies/{name}")
        except _Missing:
            return

    def toxics(self, proxy: str) -> dict[str, dict[str, Any]]:
        """The toxics of a proxy, by name."""
        return {said["name"]: said for said in self._call("get", f"/proxies/{proxy}/toxics").json()}

    def add(self, proxy: str, name: str, kind: str, stream: Stream, **attributes: int) -> None:
        """Add a toxic that strikes every connection."""
        said = {"name": name, "type": kind, "stream": stream, "toxicity": 1.0, "attributes": attributes}
        self._call("post", f"/proxies/{proxy}/toxics", said)

    def change(self, proxy: str, name: str, **attributes: int) -> None:
        """Change the attributes of a toxic, on open connections, too."""
        self._call("patch", f"/proxies/{proxy}/toxics/{name}", {"attributes": attributes})

    def remove(self, proxy: str, name: str) -> None:
        """Remove a toxic."""
        self._call("delete", f"/proxies/{proxy}/toxics/{name}")

    def _call(self, method: str, path: str, said: Mapping[str, Any] | None = None) -> requests.Response:
        words = f"Toxiproxy at {self.url}: {method.upper()} {path}"
        try:
            with _address:
                APIConsumer.host, APIConsumer.port = self._host, self._port
                call = getattr(APIConsumer, method, None) or _patch
                options: dict[str, Any] = {"timeout": CALL_S, "proxies": NO_PROXY}
                options |= {} if said is None else {"json": said}
                answer: requests.Response = call(path, **options)
        except NotFound as error:
            raise _Missing(f"{words}: {_text(error)}") from None
        except (ProxyExists, InvalidToxic) as error:
            raise PsconformError(f"{words}: {_text(error)}") from None
        except requests.RequestException as error:
            why = f"within {CALL_S:.0f} s" if isinstance(error, requests.Timeout) else f"({type(error).__name__})"
            raise PsconformError(f"{words}: no answer {why}") from None
        if not answer.ok:
            raise PsconformError(f"{words}: status {answer.status_code}, {answer.text.strip()}")
        return answer


class _Missing(PsconformError):
    """There is no such proxy or toxic."""


def _patch(path: str, **options: Any) -> requests.Response:
    answer = requests.patch(f"http://{APIConsumer.host}:{APIConsumer.port}{path}", **options)
    checked: requests.Response = validate_response(answer)
    return checked


def _proxy(said: Mapping[str, Any]) -> Proxy:
    return Proxy(said["name"], said["listen"], said["upstream"], said["enabled"])


def _text(error: Exception) -> str:
    what = error.args[0] if error.args else ""
    return what.decode(errors="replace").strip() if isinstance(what, bytes) else str(what)
