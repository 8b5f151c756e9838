"""Faults of the disk: what becomes of a checkpoint behind the trainer's back."""

from __future__ import annotations

import random
from pathlib import Path

from .fault import Fault
from .injectors import Injector

LEAST_BYTES = 64
"""Smaller files are marks and locks, no checkpoints."""


def newest_checkpoint(folder: Path) -> Path | None:
    """The largest file of the newest checkpoint in a folder; None: there is none.

    Files are of one checkpoint if their names agree up to the first dot, as TensorFlow names them
    (``step-20.index``, ``step-20.data-00000-of-00001``).
    """
    groups: dict[tuple[Path, str], list[tuple[int, int, Path]]] = {}
    for path in folder.rglob("*"):
        try:
            status = path.stat()
        except OSError:  # it has been renamed or deleted meanwhile
            continue
        if path.is_file() and not path.is_symlink():
            group = groups.setdefault((path.parent, path.name.partition(".")[0]), [])
            group.append((status.st_mtime_ns, status.st_size, path))
    whole = [group for group in groups.values() if max(size for _, size, _ in group) >= LEAST_BYTES]
    newest = max(whole, key=lambda group: max(written for written, _, _ in group), default=[])
    return max(newest, key=lambda file: file[1])[2] if newest else None


class Damages(Injector):
    """truncate, flip: the newest checkpoint is cut in half, or one of its bits is turned over."""

    def __init__(self, fault: Fault, folder: Path, *, seed: int) -> None:
        self._kind, self._folder = fault.kind, folder
        self._random = random.Random(f"{seed}:{fault}")
        self._seen = ""
        self.file = ""

    def refused(self) -> str:
        return "" if newest_checkpoint(self._folder) is not None else "there was no checkpoint yet"

    def inject(self) -> None:
        path = newest_checkpoint(self._folder)
        if path is None:
            return
        try:
            data = path.read_bytes()
            if self._kind == "truncate":
                with path.open("r+b") as file:
                    file.truncate(len(data) // 2)
                what = f"cut from {len(data)} to {len(data) // 2} bytes"
            else:
                bit = self._random.randrange(8 * len(data))
                with path.open("r+b") as file:
                    file.seek(bit // 8)
                    file.write(bytes([data[bit // 8] ^ (1 << bit % 8)]))
                what = f"bit {bit} of {8 * len(data)} turned over"
            if path.read_bytes() != data:
                self.file, self._seen = path.name, f"{path.name}: {what}"
        except OSError:  # it was deleted meanwhile: another one is the newest
            return

    def evidence(self) -> str:
        return self._seen

    def heal(self) -> None:
        """What is damaged stays so."""

    def healed(self) -> str:
        return ""
