"""What this machine has for psconform, and what to do about what it lacks."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib import metadata
from pathlib import Path

from .errors import PsconformError
from .faults import disk_faults, faketime
from .faults.kinds import check_available
from .faults.toxiproxy_install import find, need, ways
from .launchers.engine import GLANCE_S, engine, told
from .launchers.gpus import gpus
from .targets.compose import HINT, compose

Look = Callable[[], str]
"""Returns a version, or raises `Lacking`."""


class Lacking(Exception):
    """A part is not there; says how to get it."""


@dataclass(frozen=True)
class Finding:
    """One part: whether it was found, its version, what it is for, and what to do if it is missing."""

    name: str
    found: bool
    version: str
    needed_for: str
    advice: str = ""


def examine() -> list[Finding]:
    """Look for all that psconform can use; starts nothing, imports nothing heavy."""
    return [_find(name, needed_for, look) for name, needed_for, look in LOOKS]


@cache
def lacking(name: str) -> str:
    """What this machine lacks for one of `PARTS`, and how to get it; empty if nothing. Sets up Toxiproxy if need be.

    Raises PsconformError if ``TOXIPROXY_URL`` names a server that cannot be used.
    """
    return _find(name, "", PARTS[name]).advice


def _find(name: str, needed_for: str, look: Look) -> Finding:
    try:
        return Finding(name, True, look(), needed_for)
    except Lacking as error:
        return Finding(name, False, "", needed_for, str(error))


def _tensorflow() -> str:
    for name in ("tensorflow", "tensorflow-cpu"):
        with suppress(metadata.PackageNotFoundError):
            return f"{metadata.version(name)} ({name})"
    raise Lacking("python3 -m pip install 'psconform[tensorflow]'")


def _package(name: str, extra: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        raise Lacking(f"python3 -m pip install 'psconform[{extra}]'") from None


def _fuse() -> str:
    if lacks := disk_faults.lacks():
        raise Lacking(f"needs {lacks}")
    return f"mfusepy {metadata.version('mfusepy')}, {disk_faults.library()}"


def _docker() -> str:
    try:
        with told("the engine does not say its version"):
            return str(engine(answers_s=GLANCE_S).version()["Version"])
    except PsconformError as error:
        raise Lacking(str(error)) from None


def _compose() -> str:
    words, version = compose()
    if not words:
        raise Lacking(f"install {HINT}")
    return f"{version} ({' '.join(words)})"


def _toxiproxy() -> str:
    search = find()
    if search.found is None:
        later = "" if os.environ.get("TOXIPROXY_URL") else f". When it needs one, psconform {ways()}"
        raise Lacking(search.why_not + later)
    return f"{search.found.version} ({search.found.how}: {search.found.url or search.found.path})"


def _proxies() -> str:
    """Toxiproxy, set up if need be, and what psconform talks to it with."""
    try:
        check_available((), proxies=True)
        return need().version
    except PsconformError as error:
        if os.environ.get("TOXIPROXY_URL"):
            raise  # it was to be there
        raise Lacking(str(error)) from None


def _faketime() -> str:
    if lacks := faketime.lacking():
        raise Lacking(lacks)
    return str(faketime.find())


def _gpus() -> str:
    if names := gpus():
        return ", ".join(names)
    devices = sorted(str(path) for path in Path("/dev").glob("nvidia[0-9]*"))
    silent = f"{', '.join(devices)} are there, but nvidia-smi does not answer"
    raise Lacking(silent if devices else "none on this machine, or its driver is not installed")


LOOKS: tuple[tuple[str, str, Look], ...] = (
    ("python", "everything", platform.python_version),
    ("tensorflow", "the reference trainer", _tensorflow),
    ("scikit-learn", "workload digits", partial(_package, "scikit-learn", "data")),
    ("matplotlib", "psconform plot", partial(_package, "matplotlib", "plot")),
    ("toxiproxy-python", "network faults", partial(_package, "toxiproxy-python", "chaos")),
    ("pyroute2", "evidence of network faults", partial(_package, "pyroute2", "chaos")),
    ("fuse", "faults of the disk that last (full, read-only, unreadable, slow-disk)", _fuse),
    ("docker", "clusters in containers (not needed for local processes)", _docker),
    ("docker SDK", "clusters in containers", partial(_package, "docker", "docker")),
    ("compose", "targets that are Compose files (psconform run compose:FILE)", _compose),
    ("toxiproxy", "network faults (not needed for the conformance suite)", _toxiproxy),
    ("faketime", "clocks that jump (fault clock)", _faketime),
    ("gpus", "GPU layouts", _gpus),
)
"""Of each part: its name, what it is for, and what looks for it."""
PARTS: dict[str, Look] = {"docker": _docker, "faketime": _faketime, "fuse": _fuse, "toxiproxy": _proxies}
"""What pip does not bring everywhere, by the names that tests use: ``@pytest.mark.psconform_needs("fuse")``."""
