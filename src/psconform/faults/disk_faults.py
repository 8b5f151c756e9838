"""Faults of the disk that last: full, read-only, unreadable, slow. What the file system is told, and what it has done.

It is fuse_server.py, mounted over the folder for checkpoints in runs with such a fault; here is psconform's side of it.
"""

from __future__ import annotations

import ctypes.util
import errno
import importlib.util
import json
import os
import shutil
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ..parts import FUSE, Missing, as_root, pip_install
from .fault import Fault
from .injectors import Injector, Scene
from .kinds import DISK, Amount, Kind, register

FAULTS, OPERATIONS = "faults.json", "operations.jsonl"
"""The names of the two files in the control folder."""
GROWS, CHANGES, READS, TRANSFERS = "grows", "changes", "reads", "transfers"
"""Groups of operations: what takes room on the disk, changes it otherwise, reads a file, or moves data."""
DEVICE, STATUS = Path("/dev/fuse"), Path("/proc/self/status")
SYS_ADMIN = 1 << 21
IN_A_CONTAINER = f"docker run --device {DEVICE} --cap-add SYS_ADMIN"


def lacks() -> Missing | None:
    """What this machine lacks to mount it; None: nothing."""
    if sys.platform != "linux":
        return Missing(FUSE, "this is not Linux", IN_A_CONTAINER)
    if importlib.util.find_spec("mfusepy") is None:
        return Missing(FUSE, "there is no Python module mfusepy", pip_install("mfusepy"))
    if not library():
        return Missing(FUSE, "there is no libfuse")
    if not DEVICE.exists():
        why = f"there is no {DEVICE} (a container needs --device {DEVICE} --cap-add SYS_ADMIN)"
        return Missing(FUSE, why, as_root("modprobe fuse"))
    if not os.access(DEVICE, os.R_OK | os.W_OK):
        return Missing(FUSE, f"this user may not open {DEVICE}", as_root(f"chmod 666 {DEVICE}"))
    return leave()


def leave() -> Missing | None:
    """What lacks for the kernel to let this user mount; None: nothing. Others than root have a program mount."""
    status = dict(line.split(":\t", 1) for line in STATUS.read_text().splitlines() if ":\t" in line)
    if os.geteuid() == 0:
        may = int(status["CapEff"], 16) & SYS_ADMIN
        return None if may else Missing(FUSE, "this container has no capability SYS_ADMIN", IN_A_CONTAINER)
    program = shutil.which("fusermount3") or shutil.which("fusermount")
    if program is None:
        return Missing(FUSE, "there is no fusermount3")
    if status.get("NoNewPrivs") == "1":
        why = f"no_new_privs keeps root's rights from {program}"
        return Missing(FUSE, why, f"{IN_A_CONTAINER} --security-opt no-new-privileges=false")
    if not os.stat(program).st_mode & stat.S_ISUID:
        return Missing(FUSE, f"{program} has not root's rights", as_root(f"chmod u+s {program}"))
    return None


def library() -> str:
    """The libfuse that is there; empty if none is."""
    return ctypes.util.find_library("fuse") or ctypes.util.find_library("fuse3") or ""  # in mfusepy's order


@dataclass(frozen=True)
class Operation:
    """One operation of the target that some kinds of faults concern.

    Attributes:
        operation: its name, as libfuse has it: create, write, fsync.
        name: the file.
        group: process group of who asked; 0: not known.
        groups: what it does: see ``GROWS``.
        errno: 0: it succeeded.
        ms: milliseconds that it was delayed.
        struck: the faults that refused or delayed it.
    """

    operation: str
    name: str
    group: int
    groups: tuple[str, ...]
    errno: int
    ms: int
    struck: tuple[str, ...]

    @classmethod
    def parse(cls, line: bytes) -> Operation:
        """Of a line of the file system's."""
        said = json.loads(line)
        return cls(**said | {"groups": tuple(said["groups"]), "struck": tuple(said["struck"])})


class Disk:
    """A folder under the file system.

    Args:
        below: the folder itself, as it is without the mount.
        control: where psconform and the file system write to each other.
        whose: the task that a process group is of; empty: of none.
        check: raises PsconformError if the file system is there no more.
    """

    def __init__(
        self, below: Path, control: Path, *, whose: Callable[[int], str], check: Callable[[], None] = lambda: None
    ) -> None:
        self.below, self._control, self._whose, self.check = below, control, whose, check
        self._told: dict[str, dict[str, Any]] = {}
        (control / OPERATIONS).touch()
        self._write()

    def tell(self, name: str, concerns: tuple[str, ...], *, errno: int = 0, ms: int = 0) -> None:
        """Break it, from the next operation on: those of these groups fail with ``errno``, or take ``ms`` longer."""
        self.check()
        self._told[name] = {"name": name, "concerns": concerns, "errno": errno, "ms": ms}
        self._write()

    def forget(self, name: str) -> None:
        """It is no longer broken so; who is being delayed is let go."""
        self._told.pop(name, None)
        self._write()

    @property
    def end(self) -> int:
        """Where the record of operations ends now."""
        return (self._control / OPERATIONS).stat().st_size

    def since(self, place: int) -> tuple[list[Operation], int]:
        """What the target has done since, and where the record ends; raises PsconformError if nobody records it."""
        self.check()
        with (self._control / OPERATIONS).open("rb") as file:
            file.seek(place)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        return [Operation.parse(line) for line in whole.splitlines()], place + len(whole)

    def said(self, operation: Operation) -> str:
        """Who did what, in words: ``worker:0: write of step-20.index``."""
        who = self._whose(operation.group) or (f"process group {operation.group}" if operation.group else "the kernel")
        return f"{who}: {operation.operation} of {operation.name or 'the folder'}"

    def _write(self) -> None:
        """All at once: it is read at any moment."""
        new = self._control / f"{FAULTS}.new"
        new.write_text(json.dumps(list(self._told.values())), encoding="ascii")
        new.replace(self._control / FAULTS)


class Breaks(Injector):
    """Operations of the target that are refused, or delayed."""

    holds = False

    def __init__(self, fault: Fault, scene: Scene, *, concerns: tuple[str, ...], refusal: int = 0) -> None:
        super().__init__(fault, scene)
        self._concerns, self._refusal = concerns, refusal
        self._disk, self._name = scene.mounted(fault), f"{fault.kind} {fault}"
        self._place, self._healing = 0, False
        self._after: list[Operation] = []  # of its kind, since it was taken away

    def inject(self) -> None:
        self._place = self._disk.end
        self._disk.tell(self._name, self._concerns, errno=self._refusal, ms=self._amounts.get("ms", 0))

    def evidence(self) -> str:
        self._look()
        return self._seen

    def heal(self) -> None:
        self._look()
        self._disk.forget(self._name)
        self._healing = True

    def healed(self) -> str:
        """An operation of the same kind has succeeded, and nothing has held it up."""
        self._look()
        passed = [done for done in self._after if not done.errno and not done.struck]
        return f"{self._disk.said(passed[0])} succeeded" if passed else ""

    def gone(self) -> str:
        self._look()
        asked = any(not done.struck for done in self._after)  # what another fault strikes tells nothing
        return "" if asked else "the file system has let go of it, and nothing has been asked for since"

    def _look(self) -> None:
        """Take in what the target has done; what was begun under the fault is under it, whenever it ends."""
        found, self._place = self._disk.since(self._place)
        struck = [operation for operation in found if self._name in operation.struck]
        if self._healing:
            alike = (done for done in found if not {*self._concerns}.isdisjoint(done.groups))
            self._after += [done for done in alike if self._name not in done.struck]
        if struck and not self._seen:
            first = struck[0]
            how = f"failed with {errno.errorcode[first.errno]}" if first.errno else f"was delayed by {first.ms} ms"
            more = f", and {len(struck) - 1} more" if len(struck) > 1 else ""
            self._seen = f"{self._disk.said(first)} {how}{more}"


REFUSED = "an operation of the target that failed with it"
FULL, READ_ONLY, UNREADABLE = (
    register(
        Kind(
            name=name,
            of=DISK,
            about=about,
            evidence=REFUSED,
            injector=partial(Breaks, concerns=concerns, refusal=refusal),
            lasts=True,
            drawn=False,
        )
    )
    for name, about, concerns, refusal in (
        ("full", "no room: what would take some fails with ENOSPC", (GROWS,), errno.ENOSPC),
        ("read-only", "whatever would change anything fails with EROFS", (GROWS, CHANGES), errno.EROFS),
        ("unreadable", "opening a file to read it, and reading, fail with EIO", (READS,), errno.EIO),
    )
)
SLOW_DISK = register(
    Kind(
        name="slow-disk",
        of=DISK,
        about="each read, write and fsync takes longer",
        evidence="an operation of the target that was delayed",
        injector=partial(Breaks, concerns=(TRANSFERS,)),
        lasts=True,
        amounts={"ms": Amount("milliseconds", 200, 1, 60_000)},
        drawn=False,
    )
)
