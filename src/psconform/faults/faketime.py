"""libfaketime: a wall clock of its own for one process, which reads how far it is ahead from a file.

It is preloaded, so the process must be started for it. ``CLOCK_MONOTONIC`` is left alone: with that faked, too,
TensorFlow hangs. The file is read at each look at the clock (5 us), so a jump is there at once.

Up to 0.9.10, which is what Debian 12 has, the library then takes the deadline of a sleep on the monotonic clock for one
of the wall clock, and each ``time.sleep`` of Python 3.11 and later fails with EINVAL
(https://github.com/wolfcw/libfaketime/issues/426). A target must not be accused of that, so what is preloaded is a copy
in which that one function has another name, and nobody finds it.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Mapping
from pathlib import Path

NAME = "libfaketimeMT.so.1"
"""That for programs with several threads: the other one may read its file in two of them at once."""
FOLDERS = ("/usr/lib/{triple}/faketime", "/usr/lib64/faketime", "/usr/lib/faketime", "/usr/local/lib/faketime")
_SLEEP = b"\0clock_nanosleep\0"
REMAINS = ("/dev/shm/faketime_shm_{pid}", "/dev/shm/sem.faketime_sem_{pid}")
"""What a process with it leaves behind, however it ends (0.9.10)."""


def find() -> Path | None:
    """The library; None if this machine has none."""
    triple = sysconfig.get_config_var("MULTIARCH") or "*"
    for folder in FOLDERS:
        path = Path(folder.format(triple=triple), NAME)
        if path.is_file():
            return path
    return None


def lacking() -> str:
    """What this machine lacks for it, and what to do about it; empty if nothing."""
    return "" if find() is not None else "libfaketime: apt-get install faketime"


def copy(library: Path, folder: Path) -> Path:
    """A copy of the library in this folder that leaves ``clock_nanosleep`` to the C library."""
    found = folder / NAME
    if not found.exists():
        # Its first occurrence is the name in the table of dynamic symbols; of it only the first letter is changed, for
        # other names (nanosleep) may be its ends. Later ones are data.
        found.write_bytes(library.read_bytes().replace(_SLEEP, b"\0-" + _SLEEP[2:], 1))
    return found


def environment(library: str, offsets: str, env: Mapping[str, str]) -> dict[str, str]:
    """What a process must be given besides ``env`` to take its clock from ``offsets``, where `write` has written.

    ``library`` and ``offsets`` are paths as the process sees them.
    """
    return {
        "LD_PRELOAD": ":".join(filter(None, (library, env.get("LD_PRELOAD", "")))),
        "FAKETIME_TIMESTAMP_FILE": offsets,
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


def write(offsets: Path, seconds: int) -> None:
    """Set the clock of whoever reads this file so many seconds ahead; never half of a line is read."""
    new = offsets.with_name(f"{offsets.name}.new")
    new.write_text(f"{seconds:+d}\n", encoding="ascii")
    new.replace(offsets)
