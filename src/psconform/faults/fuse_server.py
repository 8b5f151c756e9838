"""A file system that passes all on to the folder that it is mounted over, and refuses or delays what it is told to.

Run as ``python -m psconform.faults.fuse_server FOLDER CONTROL MARK SOURCE [others]``. It opens FOLDER before it mounts
itself over it, and works below the mount through that: what is written is there, as ordinary files, when it is
unmounted. In the folder CONTROL, which must lie elsewhere, are

* ``faults.json``, written by psconform: what is broken now, ``[{"name": .., "concerns": ["grows"], "errno": 28,
  "ms": 0}]``: operations of these groups are refused with an error, or (errno 0) delayed. It is read at each
  operation, so that what psconform has written holds from the next one on;
* ``operations.jsonl``, written here: one line for each operation of the target that a fault may concern.

Operations of the target are those of processes with MARK in their environment (``NAME=VALUE``; empty: of all): what
others do here is neither disturbed nor recorded. SOURCE is what the mount is called in /proc/mounts. With ``others``
the target may be another user than this process, which must be root then.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import mfusepy

from .disk_faults import CHANGES, FAULTS, GROWS, OPERATIONS, READS, TRANSFERS

SLICE_S = 0.01
"""A delay looks this often whether it is still wanted: the end of the fault ends it, too."""
NOW, KEEP = 2**30 - 1, 2**30 - 2
"""UTIME_NOW and UTIME_OMIT, in the place of nanoseconds."""
_Done = TypeVar("_Done")


class PassThrough:
    """The operations that libfuse asks for, by their names there; a path begins with a slash."""

    use_ns = True  # times are whole nanoseconds

    def __init__(self, folder: int, control: Path, mark: str, *, others: bool = False) -> None:
        self._root = f"/proc/self/fd/{folder}"
        self._faults = control / FAULTS
        self._log = os.open(control / OPERATIONS, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._mark, self._others = mark.encode(), others

    def _do(self, operation: str, path: str, groups: tuple[str, ...], act: Callable[[], _Done]) -> _Done:
        """Do it, unless a fault of these groups refuses it, late if one delays it. The target's are recorded."""
        pid: int = mfusepy.fuse_get_context()[2]
        if not self._is_target(pid):
            return act()
        struck = [fault for fault in self._told() if not {*fault["concerns"]}.isdisjoint(groups)]
        refusal = next((fault["errno"] for fault in struck if fault["errno"]), 0)
        # it is evidence of what refused it, and of nothing else that would have
        struck = [fault for fault in struck if not refusal or fault["errno"] == refusal]
        began, number = time.monotonic(), 0
        self._delay(max((fault["ms"] for fault in struck), default=0) / 1000)
        delayed_ms = round(1000 * (time.monotonic() - began))
        try:
            if refusal:
                raise OSError(refusal, os.strerror(refusal))
            return act()
        except OSError as error:
            number = error.errno or errno.EIO
            raise
        finally:
            said = {"operation": operation, "name": path.lstrip("/"), "group": _group(pid), "groups": groups}
            said |= {"errno": number, "ms": delayed_ms, "struck": [fault["name"] for fault in struck]}
            os.write(self._log, json.dumps(said).encode() + b"\n")

    def _make(self, operation: str, path: str, make: Callable[[], _Done]) -> _Done:
        """What is made belongs to who has asked for it, if that can be another user."""

        def act() -> _Done:
            made = make()
            if self._others:
                uid, gid, _ = mfusepy.fuse_get_context()
                os.lchown(self._root + path, uid, gid)
            return made

        return self._do(operation, path, (GROWS,), act)

    def _is_target(self, pid: int) -> bool:
        if not self._mark or not pid:  # without one it is the kernel, which writes back what a process has mapped
            return True
        try:
            return self._mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return False

    def _told(self) -> list[dict[str, Any]]:
        faults: list[dict[str, Any]] = json.loads(self._faults.read_bytes())
        return faults

    def _delay(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, SLICE_S))
            if not any(fault["ms"] for fault in self._told()):
                return

    # What only looks: never disturbed.

    def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
        found = os.lstat(self._root + path) if fh is None else os.fstat(fh)
        names = ("st_mode", "st_ino", "st_nlink", "st_uid", "st_gid", "st_size", "st_blocks", "st_blksize")
        times = {name: getattr(found, f"{name}_ns") for name in ("st_atime", "st_mtime", "st_ctime")}
        return {name: getattr(found, name) for name in names} | times

    def readlink(self, path: str) -> str:
        return os.readlink(self._root + path)

    def opendir(self, path: str) -> int:
        return os.open(self._root + path, os.O_RDONLY | os.O_DIRECTORY)

    def readdir(self, path: str, fh: int) -> list[tuple[str, dict[str, int], int]]:
        del path
        here = {"st_ino": os.fstat(fh).st_ino, "st_mode": stat.S_IFDIR}  # of the folder above nobody asks the number
        with os.scandir(fh) as entries:  # without a look at each: it may be gone by then
            found = [(entry.name, {"st_ino": entry.inode(), "st_mode": _type(entry)}, 0) for entry in entries]
        return [(".", here, 0), ("..", here, 0), *found]

    def releasedir(self, path: str, fh: int) -> None:
        del path
        os.close(fh)

    def release(self, path: str, fh: int) -> None:
        del path
        os.close(fh)

    def statfs(self, path: str) -> dict[str, int]:
        found = os.statvfs(self._root + path)
        return {name: getattr(found, name) for name in dir(found) if name.startswith("f_")}

    # What takes room.

    def create(self, path: str, mode: int, flags: int) -> int:
        opened = _flags(flags) | os.O_CREAT
        return self._make("create", path, lambda: os.open(self._root + path, opened, mode))

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        return self._do("write", path, (GROWS, TRANSFERS), lambda: os.pwrite(fh, data, offset))

    def mkdir(self, path: str, mode: int) -> None:
        self._make("mkdir", path, lambda: os.mkdir(self._root + path, mode))

    def mknod(self, path: str, mode: int, device: int) -> None:
        self._make("mknod", path, lambda: os.mknod(self._root + path, mode, device))

    def symlink(self, target: str, source: str) -> None:
        self._make("symlink", target, lambda: os.symlink(source, self._root + target))

    def link(self, target: str, source: str) -> None:
        self._do("link", target, (GROWS,), lambda: os.link(self._root + source, self._root + target))

    def truncate(self, path: str, length: int, fh: int | None = None) -> None:
        grows = length > os.stat(self._root + path).st_size
        self._do(
            "truncate",
            path,
            (GROWS if grows else CHANGES,),
            lambda: os.truncate(self._root + path if fh is None else fh, length),
        )

    # What changes something otherwise.

    def rename(self, old: str, new: str) -> None:
        self._do("rename", old, (CHANGES,), lambda: os.rename(self._root + old, self._root + new))

    def unlink(self, path: str) -> None:
        self._do("unlink", path, (CHANGES,), lambda: os.unlink(self._root + path))

    def rmdir(self, path: str) -> None:
        self._do("rmdir", path, (CHANGES,), lambda: os.rmdir(self._root + path))

    def chmod(self, path: str, mode: int) -> None:
        self._do("chmod", path, (CHANGES,), lambda: os.chmod(self._root + path, mode))

    def chown(self, path: str, uid: int, gid: int) -> None:
        self._do("chown", path, (CHANGES,), lambda: os.lchown(self._root + path, uid, gid))

    def utimens(self, path: str, times: tuple[int, int] | None = None) -> None:
        before, now = os.lstat(self._root + path), time.time_ns()
        special = {NOW: (now, now), KEEP: (before.st_atime_ns, before.st_mtime_ns)}
        atime, mtime = (special.get(ns, (ns, ns))[i] for i, ns in enumerate(times or (NOW, NOW)))
        self._do(
            "utimens",
            path,
            (CHANGES,),
            lambda: os.utime(self._root + path, ns=(atime, mtime), follow_symlinks=False),
        )

    # What reads, and what reaches the disk.

    def open(self, path: str, flags: int) -> int:
        mode = flags & os.O_ACCMODE
        groups: tuple[str, ...] = (READS,) if mode != os.O_WRONLY else ()
        groups += (CHANGES,) if mode != os.O_RDONLY or flags & os.O_TRUNC else ()
        return self._do("open", path, groups, lambda: os.open(self._root + path, _flags(flags)))

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return self._do("read", path, (READS, TRANSFERS), lambda: os.pread(fh, size, offset))

    def fsync(self, path: str, datasync: int, fh: int) -> None:
        self._do("fsync", path, (TRANSFERS,), lambda: os.fdatasync(fh) if datasync else os.fsync(fh))

    fsyncdir = fsync


def _type(entry: os.DirEntry[str]) -> int:
    if entry.is_symlink():
        return stat.S_IFLNK
    return stat.S_IFDIR if entry.is_dir(follow_symlinks=False) else stat.S_IFREG


def _flags(flags: int) -> int:
    """As the file below is opened: the kernel has dealt with the rest (it says where an append goes)."""
    return flags & (os.O_ACCMODE | os.O_TRUNC) | os.O_CLOEXEC


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except OSError:  # the kernel, or it was killed
        return 0


def main(arguments: list[str]) -> int:
    """Mount, and serve until unmounted."""
    folder, control, mark, source, *others = arguments
    os.umask(0)  # the caller's has been applied
    below = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    # No answer is kept: psconform damages files below the mount.
    kept = {"attr_timeout": 0, "entry_timeout": 0, "negative_timeout": 0}
    # if tasks are other users, the kernel decides what each may do, by owner and mode, as on any disk
    shared = {"allow_other": True, "default_permissions": True} if others else {}
    operations = PassThrough(below, Path(control), mark, others=bool(others))
    try:
        mfusepy.FUSE(
            operations, folder, foreground=True, fsname=source, subtype="psconform", use_ino=True, **kept, **shared
        )
    except RuntimeError:  # the number of a step that failed; libfuse has said why
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
