"""The file system of a run whose disk is to be broken, over the folder for checkpoints: a process beside the tasks."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import PsconformError
from ..faults.disk_faults import Disk
from ..launchers.cleanup import SOURCE, mounts
from ..launchers.keeper import MOUNT, unmount
from ..launchers.local import OWNER, LocalLauncher, owner_mark
from ..layout import Command, Task

SERVER = Task("disk", 0)
READY_S = 60.0


@contextmanager
def mounted(folder: Path, *, whose: Callable[[int], str], others: bool = False) -> Iterator[Disk]:
    """Mount it over ``folder`` (resolved), until the end; should psconform go away, the keeper unmounts it.

    It has a keeper of its own, so that it is there until all tasks have ended. ``others``: tasks are another user than
    psconform, which is root.

    Raises:
        PsconformError: it cannot be mounted, or not be unmounted; says what it said last.
    """
    below = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with LocalLauncher() as launcher:
            yield from _serve(launcher, folder, Path(f"/proc/self/fd/{below}"), whose, others=others)
    finally:
        os.close(below)


def _serve(
    launcher: LocalLauncher, folder: Path, below: Path, whose: Callable[[int], str], *, others: bool
) -> Iterator[Disk]:
    control, log = launcher.temporary / "control", launcher.temporary / "disk.log"
    control.mkdir()

    def check() -> None:
        launcher.poll(0.0)
        if SERVER not in launcher.running:
            raise PsconformError(f"the file system over {folder} has ended; {_last_words(log)}")

    disk = Disk(below, control, whose=whose, check=check)
    launcher.scratch(f"{MOUNT}{folder}")
    module = ("-m", "psconform.faults.fuse_server")
    names = (
        str(folder),
        str(control),
        f"{OWNER}={owner_mark()}",
        SOURCE + owner_mark().replace(":", "-"),
        *(["others"] if others else []),
    )
    try:
        launcher.start(SERVER, Command((sys.executable, *module, *names)), env={}, log=log)
        deadline = time.monotonic() + READY_S
        while folder not in mounts():
            check()
            if time.monotonic() > deadline:
                raise PsconformError(f"nothing was mounted over {folder} in {READY_S:.0f} s; {_last_words(log)}")
            launcher.poll(0.02)
        yield disk
    finally:
        unmount(str(folder))
        if folder in mounts():
            raise PsconformError(f"{folder} could not be unmounted; try umount -l {folder}")
        launcher.scratch(f"{MOUNT}{folder}", mine=False)
        deadline = time.monotonic() + READY_S
        while SERVER in launcher.running and time.monotonic() < deadline:  # it ends by itself, then
            launcher.poll(0.02)


def _last_words(log: Path) -> str:
    said = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    return f"it said last: {said[-1] if said else 'nothing'}"
