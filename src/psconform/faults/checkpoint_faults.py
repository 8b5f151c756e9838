"""Faults of checkpoints: truncate, flip. What becomes of one behind the trainer's back."""

from __future__ import annotations

import os
import random
import re
from functools import partial
from pathlib import Path

from ..files import open_regular
from .fault import Fault
from .injectors import Injector, Scene
from .kinds import DISK, Kind, register

LEAST_BYTES = 64
"""Smaller files are marks and locks, no checkpoints."""


_NUMBERED = re.compile(r"\d")
_SUFFIX = re.compile(r"\.(?:[^\W\d]+|h5|hdf5|bz2|data-\d+-of-\d+|tempstate\d+)$")
"""What may follow the name of a checkpoint: one with a digit counts it (``model.0004``), unless it is known."""
_INDEX = "checkpoint"
"""TensorFlow's text file that says which is the newest."""


def newest_checkpoint(folder: Path) -> Path | None:
    """The largest file of the newest checkpoint in a folder; None: there is none.

    That is the one of the file that was written last, marks and locks left out, and of those beside it that are named
    alike but for what follows the name (``step-20.index``, ``step-20.data-00000-of-00001``), or that are below the same
    folder with a number (``step-20/model.bin``, ``step-20/meta.json``).
    """
    found: list[tuple[int, int, Path]] = []
    for path in folder.rglob("*"):
        try:
            status = path.stat()
        except OSError:  # it has been renamed or deleted meanwhile
            continue
        if path.is_file() and not path.is_symlink() and status.st_size >= LEAST_BYTES:
            found.append((status.st_mtime_ns, status.st_size, path))
    files = [file for file in found if file[2].name != _INDEX] or found
    if not files:
        return None
    newest = _checkpoint_of(max(files, key=lambda file: (file[0], file[2]))[2], folder)
    its = (file for file in files if _checkpoint_of(file[2], folder) == newest)
    return max(its, key=lambda file: (file[1], file[0]))[2]


def _checkpoint_of(file: Path, folder: Path) -> Path:
    """What the files of one checkpoint have in common."""
    name = file.name
    while (shorter := _SUFFIX.sub("", name)) not in ("", name):
        name = shorter
    if not _NUMBERED.search(name):
        for above in file.relative_to(folder).parents:
            if _NUMBERED.search(above.name):
                return folder / above
    return file.with_name(name)


class Damages(Injector):
    """truncate, flip: the newest checkpoint is cut in half, or one of its bits is turned over."""

    def __init__(self, fault: Fault, scene: Scene, *, cut: bool) -> None:
        super().__init__(fault, scene)
        self._cut, self._folder = cut, scene.checkpoints if scene.disk is None else scene.disk.below
        self._random = random.Random(f"{scene.seed}:{fault}")

    def refused(self) -> str:
        return "" if newest_checkpoint(self._folder) is not None else "there was no checkpoint yet"

    def inject(self) -> None:
        path = newest_checkpoint(self._folder)
        if path is None:
            return
        try:
            with open_regular(path, flags=os.O_RDWR) as file:
                handle, size = file.fileno(), os.fstat(file.fileno()).st_size
                if self._cut:
                    file.truncate(size // 2)
                    what, changed = f"cut from {size} to {size // 2} bytes", os.fstat(handle).st_size != size
                else:
                    bit = self._random.randrange(8 * size)
                    before = os.pread(handle, 1, bit // 8)
                    os.pwrite(handle, bytes([before[0] ^ (1 << bit % 8)]), bit // 8)
                    what = f"bit {bit} of {8 * size} turned over"
                    changed = os.pread(handle, 1, bit // 8) != before
            if changed:
                self.file = path.relative_to(self._folder).as_posix()  # a folder may be the checkpoint
                self._seen = f"{self.file}: {what}"
        except (OSError, IndexError):  # it was deleted or cut meanwhile: another one is the newest
            return

    def healed(self) -> str:
        return ""


DAMAGED = "the file of the checkpoint has changed"
TRUNCATE = register(
    Kind(
        name="truncate",
        of=DISK,
        about="the newest checkpoint loses its second half",
        evidence=DAMAGED,
        injector=partial(Damages, cut=True),
        drawn=False,
    )
)
FLIP = register(
    Kind(
        name="flip",
        of=DISK,
        about="one bit of the newest checkpoint is turned over, drawn from the seed",
        evidence=DAMAGED,
        injector=partial(Damages, cut=False),
        drawn=False,
    )
)
