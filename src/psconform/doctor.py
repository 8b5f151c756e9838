"""What this machine has for psconform, and what to do about what it lacks."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from .errors import PsconformError
from .faults import disk_faults, faketime
from .faults.kinds import check_available
from .faults.toxiproxy_install import find, need, ways
from .launchers.engine import engine, told
from .launchers.gpus import gpus
from .targets.compose import HINT, compose


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
    return [
        _python(),
        _tensorflow(),
        _package("scikit-learn", "workload digits", extra="data"),
        _package("matplotlib", "psconform plot", extra="plot"),
        _package("toxiproxy-python", "network faults", extra="chaos"),
        _package("pyroute2", "evidence of network faults", extra="chaos"),
        _fuse(),
        _docker(),
        _package("docker", "clusters in containers", extra="docker", shown="docker SDK"),
        _compose(),
        _toxiproxy(),
        _faketime(),
        _gpus(),
    ]


@cache
def lacking(name: str) -> str:
    """What this machine lacks for one of `PARTS`, and how to get it; empty if nothing. Sets up Toxiproxy if need be.

    Raises PsconformError if ``TOXIPROXY_URL`` names a server that cannot be used.
    """
    finding = PARTS[name]()
    return "" if finding.found else finding.advice


def _python() -> Finding:
    return Finding("python", True, platform.python_version(), "everything")


def _tensorflow() -> Finding:
    purpose = "the reference trainer"
    for name in ("tensorflow", "tensorflow-cpu"):
        try:
            return Finding("tensorflow", True, f"{metadata.version(name)} ({name})", purpose)
        except metadata.PackageNotFoundError:
            continue
    return Finding("tensorflow", False, "", purpose, "python3 -m pip install 'psconform[tensorflow]'")


def _package(name: str, purpose: str, *, extra: str, shown: str = "") -> Finding:
    try:
        return Finding(shown or name, True, metadata.version(name), purpose)
    except metadata.PackageNotFoundError:
        return Finding(shown or name, False, "", purpose, f"python3 -m pip install 'psconform[{extra}]'")


def _fuse() -> Finding:
    purpose = "faults of the disk that last (full, read-only, unreadable, slow-disk)"
    lacks = disk_faults.lacks()
    version = "" if lacks else f"mfusepy {metadata.version('mfusepy')}, {disk_faults.library()}"
    return Finding("fuse", not lacks, version, purpose, f"needs {lacks}" if lacks else "")


def _docker() -> Finding:
    purpose = "clusters in containers (not needed for local processes)"
    try:
        with told("the engine does not say its version"):
            return Finding("docker", True, str(engine().version()["Version"]), purpose)
    except PsconformError as error:
        return Finding("docker", False, "", purpose, str(error))


def _compose() -> Finding:
    purpose = "targets that are Compose files (psconform run compose:FILE)"
    words, version = compose()
    if not words:
        return Finding("compose", False, "", purpose, f"install {HINT}")
    return Finding("compose", True, f"{version} ({' '.join(words)})", purpose)


def _toxiproxy() -> Finding:
    purpose = "network faults (not needed for the conformance suite)"
    search = find()
    if search.found is not None:
        where = search.found.url or search.found.path
        return Finding("toxiproxy", True, f"{search.found.version} ({search.found.how}: {where})", purpose)
    advice = search.why_not
    if not os.environ.get("TOXIPROXY_URL"):
        advice += f". When it needs one, psconform {ways()}"
    return Finding("toxiproxy", False, "", purpose, advice)


def _proxies() -> Finding:
    """Toxiproxy, set up if need be, and what psconform talks to it with."""
    purpose = "network faults"
    try:
        check_available((), proxies=True)
        found = need()
    except PsconformError as error:
        if os.environ.get("TOXIPROXY_URL"):
            raise  # it was to be there
        return Finding("toxiproxy", False, "", purpose, str(error))
    return Finding("toxiproxy", True, found.version, purpose)


def _faketime() -> Finding:
    purpose = "clocks that jump (fault clock)"
    library = faketime.find()
    if library is None:
        return Finding("faketime", False, "", purpose, faketime.lacking())
    return Finding("faketime", True, str(library), purpose)


def _gpus() -> Finding:
    purpose = "GPU layouts"
    names = gpus()
    if names:
        return Finding("gpus", True, ", ".join(names), purpose)
    devices = sorted(str(path) for path in Path("/dev").glob("nvidia[0-9]*"))
    if devices:
        return Finding("gpus", False, "", purpose, f"{', '.join(devices)} are there, but nvidia-smi does not answer")
    return Finding("gpus", False, "", purpose, "none on this machine, or its driver is not installed")


PARTS: dict[str, Callable[[], Finding]] = {
    "docker": _docker,
    "faketime": _faketime,
    "fuse": _fuse,
    "toxiproxy": _proxies,
}
"""What pip does not bring everywhere, by the names that tests use: ``@pytest.mark.psconform_needs("fuse")``."""
