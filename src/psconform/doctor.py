"""What this machine has for psconform, and what to do about what it lacks."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from .errors import PsconformError, Unavailable
from .faults import disk_faults, faketime
from .faults.kinds import check_available, kinds
from .faults.toxiproxy_install import find, missing, need
from .launchers.engine import GLANCE_S, engine, told
from .launchers.gpus import gpus
from .parts import (
    COMPOSE,
    DOCKER,
    DOCKER_SDK,
    FAKETIME,
    FUSE,
    GPUS,
    MATPLOTLIB,
    PYROUTE2,
    PYTHON,
    SCIKIT_LEARN,
    TENSORFLOW,
    TOXIPROXY,
    TOXIPROXY_PYTHON,
    Missing,
    Part,
)
from .targets.compose import compose

Look = Callable[[], str]
"""Returns a version, or raises `Missing`."""


@dataclass(frozen=True)
class Finding:
    """One part: whether it was found and its version; of one that was not why, and the command that mends it.

    Attributes:
        advice: the line that a run which needs it would end with.
        faults: kinds of faults that take it.
    """

    name: str
    found: bool
    version: str
    needed_for: str
    advice: str = ""
    why: str = ""
    command: str = ""
    faults: tuple[str, ...] = ()


def examine() -> list[Finding]:
    """Look for all that psconform can use; starts nothing, imports nothing heavy."""
    return [_find(part, look) for part, look in LOOKS.items()]


def _find(part: Part, look: Look) -> Finding:
    faults = tuple(
        name for name, kind in kinds().items() if part.name == (kind.part or kind.in_containers * DOCKER.name)
    )
    try:
        return Finding(part.name, True, look(), part.needed_for, faults=faults)
    except Missing as lack:
        return Finding(part.name, False, "", part.needed_for, str(lack), lack.why, lack.command, faults)


@cache
def lacking(name: str) -> str:
    """What this machine lacks for one of `PARTS`, and how to get it; empty if nothing. Sets up Toxiproxy if need be.

    Raises PsconformError if ``TOXIPROXY_URL`` names a server that cannot be used.
    """
    try:
        PARTS[name]()
    except PsconformError as error:
        if name == TOXIPROXY.name and os.environ.get("TOXIPROXY_URL"):
            raise  # it was to be there
        return str(error)
    return ""


def _tensorflow() -> str:
    for name in ("tensorflow", "tensorflow-cpu"):
        with suppress(metadata.PackageNotFoundError):
            return f"{metadata.version(name)} ({name})"
    raise Missing(TENSORFLOW, "not installed")


def _package(part: Part) -> Look:
    """Looks for a part that is a Python package."""

    def look() -> str:
        try:
            return metadata.version(part.pip[0])
        except metadata.PackageNotFoundError:
            raise Missing(part, "not installed") from None

    return look


def _fuse() -> str:
    if lack := disk_faults.lacks():
        raise lack
    return f"mfusepy {metadata.version('mfusepy')}, {disk_faults.library()}"


def _docker() -> str:
    try:
        with told("the engine does not say its version"):
            return str(engine(answers_s=GLANCE_S).version()["Version"])
    except Missing:
        raise
    except Unavailable as error:
        raise Missing(DOCKER, str(error)) from None


def _compose() -> str:
    words, version = compose()
    if not words:
        raise Missing(COMPOSE, "not installed")
    return f"{version} ({' '.join(words)})"


def _toxiproxy() -> str:
    search = find()
    if search.found is None:
        raise missing(search)
    return f"{search.found.version} ({search.found.how}: {search.found.url or search.found.path})"


def _proxies() -> str:
    """Toxiproxy, set up if need be, and what psconform talks to it with."""
    check_available((), proxies=True)
    return need().version


def _faketime() -> str:
    if lack := faketime.lacking():
        raise lack
    return str(faketime.find())


def _gpus() -> str:
    if names := gpus():
        return ", ".join(names)
    devices = sorted(str(path) for path in Path("/dev").glob("nvidia[0-9]*"))
    silent = f"{', '.join(devices)} are there, but nvidia-smi does not answer"
    raise Missing(GPUS, silent if devices else "none on this machine, or its driver is not installed")


LOOKS: dict[Part, Look] = {
    PYTHON: platform.python_version,
    TENSORFLOW: _tensorflow,
    SCIKIT_LEARN: _package(SCIKIT_LEARN),
    MATPLOTLIB: _package(MATPLOTLIB),
    TOXIPROXY_PYTHON: _package(TOXIPROXY_PYTHON),
    PYROUTE2: _package(PYROUTE2),
    FUSE: _fuse,
    DOCKER: _docker,
    DOCKER_SDK: _package(DOCKER_SDK),
    COMPOSE: _compose,
    TOXIPROXY: _toxiproxy,
    FAKETIME: _faketime,
    GPUS: _gpus,
}
"""What looks for each part."""
PARTS: dict[str, Look] = {part.name: look for part, look in LOOKS.items() if part in (DOCKER, FAKETIME, FUSE)}
PARTS[TOXIPROXY.name] = _proxies
"""What pip does not bring everywhere, by the names that tests use: ``@pytest.mark.psconform_needs("fuse")``."""
