"""The Docker engine, through the docker SDK: a connection, and its errors in psconform's words."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import Unavailable
from ..parts import DOCKER, DOCKER_SDK, Missing, as_root

LABEL = "psconform"
"""What the labels of all that psconform makes begin with."""
OWNER_LABEL, RUN_LABEL, TASK_LABEL = f"{LABEL}.owner", f"{LABEL}.run", f"{LABEL}.task"
START = as_root("service docker restart")
JOIN = as_root('usermod -aG docker "$(id -un)" && newgrp docker')
CALL_S = 60
GLANCE_S = 2
"""As long as lists wait for an engine, which may be stopped."""
POOL = 512
"""Connections to the engine that may be open at once: each container has one that waits for its end, and its output."""


def socket_path() -> str:
    """The Unix socket of the engine; raises Missing if DOCKER_HOST names another machine."""
    host = os.environ.get("DOCKER_HOST", "") or "unix:///var/run/docker.sock"
    if not host.startswith("unix://"):
        why = f"DOCKER_HOST is {host}, and containers are started on this machine, through a Unix socket"
        raise Missing(DOCKER, why, "unset DOCKER_HOST")
    return host.removeprefix("unix://")


@cache
def engine(*, answers_s: int = CALL_S) -> Any:
    """A connection to the engine (docker.APIClient), which has so long to answer for the first time.

    Raises:
        Missing: there is none, or it does not answer.
    """
    docker = sdk()
    path = socket_path()
    if not Path(path).exists():
        installed = shutil.which("dockerd") is not None
        command = "unset DOCKER_HOST" if os.environ.get("DOCKER_HOST") else START * installed
        raise Missing(DOCKER, f"there is no {path}", command)
    try:
        client = docker.APIClient(f"unix://{path}", version="auto", timeout=answers_s, max_pool_size=POOL)
        client.timeout = CALL_S
        return client
    except docker.errors.DockerException as error:
        command = START if os.access(path, os.W_OK) else JOIN
        raise Missing(DOCKER, f"no Docker engine answers at {path} ({_words(error)})", command) from None


def sdk() -> Any:
    """The docker SDK, which is an extra; raises Missing."""
    try:
        import docker
    except ImportError as error:
        raise Missing(DOCKER_SDK, f"there is no Python module {error.name}") from None
    return docker


@contextmanager
def told(what: str) -> Iterator[None]:
    """What the engine refuses becomes a PsconformError: ``what`` failed, and the engine's words."""
    docker = sdk()
    import requests  # which the SDK brings

    try:
        yield
    except (docker.errors.DockerException, requests.RequestException, OSError) as error:
        raise Unavailable(f"{what}: {_words(error)}") from None


def _words(error: BaseException) -> str:
    said = getattr(error, "explanation", None) or error
    text = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
    return " ".join(text.split())[:400]
