"""The fallback when even the keeper was killed: what a psconform has left that is gone, of processes to containers."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from ..errors import PsconformError
from .engine import socket_path
from .keeper import unmount
from .local import OWNER, TEMPORARY, process_start, remove_remains
from .remains import namespace, owned, remove_containers

CLEARS_UP_S = 10.0
"""Time for a keeper whose psconform has just gone to delete what only it knows of: proxies on a server of others."""
KEEPER = unmount.__module__
"""What its command names."""
SOURCE = "psconform-"
"""What the name of a mount begins with in /proc/mounts; after it comes the mark of its psconform, with dashes."""


@dataclass(frozen=True)
class Orphan:
    """A process that some psconform started and that psconform is no more."""

    pid: int
    command: str
    keeper: bool = False


def find_orphans() -> list[Orphan]:
    """Processes marked by a psconform that no longer runs. The mark holds pid and start time, so that a recycled pid
    is never taken for it, and in which namespace that pid is; processes of a living psconform are left alone."""
    orphans = []
    for process in psutil.process_iter():
        try:
            mark = process.environ().get(OWNER, "")
            if process.pid != os.getpid() and _is_gone(mark):
                command = process.cmdline()
                orphans.append(Orphan(process.pid, " ".join(" ".join(command).split())[:100], KEEPER in command))
        except (psutil.Error, ValueError, OSError):
            continue  # gone meanwhile, or not ours to look at
    return orphans


def end_orphans() -> list[Orphan]:
    """Kill them; returns those that were there and now are not.

    A keeper is one of them as long as it clears up after its psconform, so it is let end by itself first.
    """
    found = find_orphans()
    keepers, deadline = [orphan for orphan in found if orphan.keeper], time.monotonic() + CLEARS_UP_S
    while any(process_start(keeper.pid) for keeper in keepers) and time.monotonic() < deadline:
        time.sleep(0.01)
    for orphan in found:
        with contextlib.suppress(psutil.Error):
            psutil.Process(orphan.pid).kill()
    deadline = time.monotonic() + 5.0
    # a zombie has ended: to collect it is for its parent, and in a container nobody may do so
    while (alive := [orphan for orphan in found if process_start(orphan.pid)]) and time.monotonic() < deadline:
        time.sleep(0.01)
    return [orphan for orphan in found if orphan not in alive]


def remove_folders() -> list[Path]:
    """Delete temporary folders whose psconform no longer runs, and what else its tasks have left behind.

    Returns what was there and now is not.

    Where TMPDIR points to now: psconform may have run with another one.
    """
    removed = []
    for folder in Path(tempfile.gettempdir()).glob(f"{TEMPORARY}*-*-*"):
        *mark, _ = folder.name.removeprefix(TEMPORARY).split("-")
        ours = not folder.is_symlink() and folder.lstat().st_uid == os.getuid()
        if ours and _is_gone(":".join(mark)):
            removed += remove_remains(folder)
            shutil.rmtree(folder, ignore_errors=True)
            removed += [] if folder.exists() else [folder]
    return removed


def remove_pods() -> Iterator[str]:
    """Delete containers and networks of psconforms that no longer run; yields the names of what was and now is not.

    Raises:
        PsconformError: there is an engine, and it does not say what there is, or something cannot be deleted.
    """
    try:
        path = socket_path()
        found = owned(path)
    except (FileNotFoundError, ConnectionRefusedError, PermissionError, PsconformError):
        return  # there is no engine, or none that we may have asked for anything
    except (OSError, ValueError) as error:
        raise PsconformError(f"nobody knows whether containers are left: {path} does not say ({error})") from None
    left = []
    for owner in filter(_is_gone, found):
        try:
            yield from remove_containers(path, owner, quiet=2, patience_s=5.0)
        except (OSError, ValueError) as error:
            left.append(str(error))
    if left:
        raise PsconformError(f"containers or networks are left: {'; '.join(left)}")


def _is_gone(mark: str) -> bool:
    """Nobody runs whose mark it is, as far as can be told from here; with other process ids than ours, it cannot."""
    pid, started, where, *_ = (*mark.split(":"), "", "")
    return pid.isdecimal() and where in ("", namespace()) and process_start(int(pid)) != started


def mounts() -> dict[Path, str]:
    """Where file systems of any psconform are mounted, and the mark of that psconform, with dashes."""
    found = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/mounts").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
            source, place, kind, *_ = line.split(" ")
            if kind == "fuse.psconform" and source.startswith(SOURCE):
                path = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), place)  # a blank is \040
                found[Path(path)] = source.removeprefix(SOURCE)
    return found


def remove_mounts() -> list[Path]:
    """Unmount what the file systems of a psconform that no longer runs have left; returns what was and now is not."""
    left = []
    for place, owner in mounts().items():
        if _is_gone(owner.replace("-", ":")):
            unmount(str(place))
            left.append(place)
    now = mounts()
    return [place for place in left if place not in now]
