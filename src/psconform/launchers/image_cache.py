"""Archives of images that take minutes to make, kept in the user's cache folder by what they are made of.

An archive is what `docker save` writes, compressed. It may go at any time: what is not there, or is damaged, is made
anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ..caches import cache_folder
from ..errors import PsconformError

KEPT = 2
"""Archives of each kind: this one's, and that of another checkout or of the requirements before."""
_NAME = re.compile(r"(?P<kind>[a-z]+)-(?P<key>[0-9a-f]+)\.tar\.gz")
Say = Callable[[str], None]


def folder() -> Path:
    """Where archives are."""
    return cache_folder() / "images"


def key_of(*parts: str | bytes) -> str:
    """Changes with any part of what an image is made of."""
    stamp = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        stamp.update(len(data).to_bytes(8, "big") + data)
    return stamp.hexdigest()[:16]


def path_of(kind: str, key: str) -> Path:
    """The archive of an image of that kind which is made of that."""
    return folder() / f"{kind}-{key}.tar.gz"


@contextmanager
def alone(say: Say) -> Iterator[None]:
    """Two psconforms do not build images, and write archives of them, at the same time."""
    try:
        folder().mkdir(parents=True, exist_ok=True)
        lock = (folder() / "lock").open("w")
    except OSError as error:
        raise PsconformError(f"{folder()} cannot be written ({error.strerror})") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another psconform that builds images")
            fcntl.flock(lock, fcntl.LOCK_EX)
        for left in folder().glob("*.part"):  # by one that was killed
            left.unlink(missing_ok=True)
        yield


def keep(kind: str, key: str, chunks: Iterable[bytes], *, say: Say) -> None:
    """Write an archive, whole or not at all, and delete the oldest of its kind; what goes wrong is said.

    An error of whoever makes the chunks is raised; nothing is left of the archive then.
    """
    path = path_of(kind, key)
    temporary = path.with_name(f"{path.name}.part")
    try:
        # level 1: for these a quarter of the size in a third of the time of the default
        with temporary.open("wb") as file, gzip.GzipFile("", "wb", compresslevel=1, fileobj=file) as packed:
            for chunk in chunks:
                packed.write(chunk)
        temporary.replace(path)
        _prune(kind)
    except OSError as error:
        say(f"{path} is not kept ({error.strerror or error})")
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextmanager
def kept(kind: str, key: str) -> Iterator[BinaryIO | None]:
    """An archive, to be read, or None; it counts as used."""
    path = path_of(kind, key)
    try:
        file = path.open("rb")
    except OSError:
        yield None
        return
    with file:
        with contextlib.suppress(OSError):
            os.utime(path)
        yield file


def drop(kind: str, key: str) -> None:
    """Delete an archive that is not what it is called."""
    with contextlib.suppress(OSError):
        path_of(kind, key).unlink(missing_ok=True)


def _prune(kind: str) -> None:
    """Delete all of a kind but the `KEPT` that were used last."""
    found = [path for path in folder().iterdir() if (said := _NAME.fullmatch(path.name)) and said["kind"] == kind]
    for path in sorted(found, key=lambda path: -path.stat().st_mtime_ns)[KEPT:]:
        path.unlink(missing_ok=True)
