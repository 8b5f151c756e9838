"""Files that a task can write, or a user name: opened only if they are regular, read in pieces, up to a limit.

A task may put anything where psconform expects a file of its own: a link to /dev/zero, a FIFO, a gigabyte without a
newline. Everything that reads a run folder, or writes into one whose tasks have started, goes through this module.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from .sizes import spell_size

PIECE = 8 << 20
"""Bytes that are read at a time."""
INPUT = 1 << 20
"""Bytes that a file of a user's own may have: a target, a plan, a layout."""
_NAMES = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFLNK: "a symbolic link",
}
_Path = str | Path


def open_regular(path: _Path, *, flags: int = os.O_RDONLY, follow: bool = False) -> IO[bytes]:
    """Open a regular file; ``follow``: its last component may be a symbolic link.

    Raises:
        OSError: it cannot be opened, or is something else: ``strerror`` says what.
    """
    more = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        handle = os.open(path, flags | more, 0o644)
    except OSError as error:
        raise _clearer(path, error, follow=follow) from None
    try:
        if not stat.S_ISREG(mode := os.fstat(handle).st_mode):
            raise _irregular(path, mode)
        os.set_blocking(handle, True)
        writes = flags & (os.O_WRONLY | os.O_RDWR)
        return os.fdopen(handle, "rb" if not writes else "wb" if writes == os.O_WRONLY else "r+b", buffering=0)
    except BaseException:
        os.close(handle)
        raise


def is_file(path: _Path) -> bool:
    """A file is there, or a link to one; a name that no file can have names none."""
    try:
        return Path(path).is_file()
    except (OSError, ValueError):
        return False


def _irregular(path: _Path, mode: int) -> OSError:
    return OSError(errno.EINVAL, f"it is {_NAMES.get(stat.S_IFMT(mode), 'no file')}, not a regular file", str(path))


def _clearer(path: _Path, error: OSError, *, follow: bool) -> OSError:
    """The system's word for a link that was not followed, or a FIFO that was not opened, says neither."""
    with contextlib.suppress(OSError, ValueError):
        mode = (os.stat if follow else os.lstat)(path).st_mode
        if not stat.S_ISREG(mode):
            return _irregular(path, mode)
    return error


def read(path: _Path, limit: int, *, follow: bool = False) -> bytes:
    """A whole file. Raises OSError: it cannot be opened, is not regular, or is larger than ``limit`` bytes."""
    with open_regular(path, follow=follow) as file:
        data = b""
        while piece := file.read(min(PIECE, limit + 1 - len(data))):
            data += piece
            if len(data) > limit:
                raise too_large(path, limit)
        return data


def too_large(path: _Path, limit: int, *, option: str = "") -> OSError:
    """A file is larger than it may be; ``option``: what raises the limit."""
    more = f"; {option} raises this limit" if option else ""
    return OSError(errno.EFBIG, f"it is larger than {spell_size(limit)}{more}", str(path))


def read_text(path: _Path, limit: int = INPUT, *, follow: bool = True) -> str:
    """A text of a user's own, in UTF-8 with or without a byte order mark. Raises as `read`; UnicodeDecodeError."""
    return read(path, limit, follow=follow).decode("utf-8-sig")


def head(path: _Path, limit: int) -> str:
    """The first bytes of a log; empty if there is none, or it is no regular file."""
    return _part(path, 0, limit)


def tail(path: _Path, limit: int) -> str:
    """The last bytes of a log; empty if there is none, or it is no regular file."""
    return _part(path, limit, limit)


def _part(path: _Path, before_end: int, limit: int) -> str:
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - before_end) if before_end else 0)
            return (file.read(limit) or b"").decode("utf-8", errors="replace")
    except (OSError, ValueError):
        return ""


def pieces(file: IO[bytes], longest: int, *, size: int = PIECE) -> Iterator[tuple[bytes, bytes]]:
    """Whole lines of an open file from its beginning, about ``size`` bytes at a time, and what comes after.

    Each pair is lines, with the newline of the last one, and the beginning of the next line. Of a line that is longer
    than ``longest`` its beginning is the last pair: there are no lines in that.
    """
    file.seek(0)
    rest = bytearray()
    while piece := file.read(size):
        lines, newline, after = piece.rpartition(b"\n")
        if newline:
            yield bytes(rest) + lines + newline, after
            rest = bytearray(after)
        else:
            rest += piece
        if len(rest) > longest:
            break
    if rest:
        yield b"", bytes(rest)


def create(path: _Path, text: str = "") -> None:
    """Write a new file into a folder that is no link. Raises OSError: something is there, or the folder is not."""
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(os.path.basename(path), flags, 0o644, dir_fd=folder), "w", encoding="utf-8") as file:
            file.write(text)
    finally:
        os.close(folder)


def write(path: _Path, content: str | bytes) -> None:
    """Replace a file in one step, so that a crash leaves the old one or the new one. What is there is not followed."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(temporary, flags, 0o644), "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
