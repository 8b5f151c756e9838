"""The Docker engine, through the docker SDK: a connection, and its errors in psconform's words."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import Unavailable

HINT = (
    "Debian: apt-get install docker.io, then start dockerd, or let an administrator add you to the group docker; "
    "elsewhere https://docs.docker.com/engine/install"
)
NO_SDK = "containers need the docker SDK: pip install 'psconform[docker]'"
LABEL = "psconform"
"""What the labels of all that psconform makes begin with."""
OWNER_LABEL, RUN_LABEL, TASK_LABEL = f"{LABEL}.owner", f"{LABEL}.run", f"{LABEL}.task"
CALL_S = 60
GLANCE_S = 2
"""As long as lists wait for an engine, which may be stopped."""
POOL = 512
"""Connections to the engine that may be open at once: each container has one that waits for its end, and its output."""


def socket_path() -> str:
    """The Unix socket of the engine; raises PsconformError if DOCKER_HOST names another machine."""
    host = os.environ.get("DOCKER_HOST", "") or "unix:///var/run/docker.sock"
    if not host.startswith("unix://"):
        raise Unavailable(f"DOCKER_HOST is {host}: containers are started on this machine, through a Unix socket")
    return host.removeprefix("unix://")


@cache
def engine(*, answers_s: int = CALL_S) -> Any:
    """A connection to the engine (docker.APIClient), which has so long to answer for the first time.

    Raises:
        Unavailable: there is none, or it does not answer; says how to get one.
    """
    try:
        import docker
    except ImportError:
        raise Unavailable(NO_SDK) from None
    path = socket_path()
    if not Path(path).exists():
        raise Unavailable(f"no Docker engine: there is no {path}. {HINT}")
    try:
        client = docker.APIClient(f"unix://{path}", version="auto", timeout=answers_s, max_pool_size=POOL)
        client.timeout = CALL_S
        return client
    except docker.errors.DockerException as error:
        raise Unavailable(f"no Docker engine answers at {path} ({_words(error)}). {HINT}") from None


@contextmanager
def told(what: str) -> Iterator[None]:
    """What the engine refuses becomes a PsconformError: ``what`` failed, and the engine's words."""
    try:
        import docker
        import requests
    except ImportError:
        raise Unavailable(NO_SDK) from None
    try:
        yield
    except (docker.errors.DockerException, requests.RequestException, OSError) as error:
        raise Unavailable(f"{what}: {_words(error)}") from None


def _words(error: BaseException) -> str:
    said = getattr(error, "explanation", None) or error
    text = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
    return " ".join(text.split())[:400]
