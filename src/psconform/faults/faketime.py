"""libfaketime: a wall clock of its own for one process, which reads how far it is ahead from a file.

It is preloaded, so the process must be started for it. ``CLOCK_MONOTONIC`` is left alone: with that faked, too,
TensorFlow hangs. The file is read at each look at the clock (5 us), so a jump is there at once.

Up to 0.9.10, which is what Debian 12 has, the library then takes the deadline of a sleep on the monotonic clock for one
of the wall clock, and each ``time.sleep`` of Python 3.11 and later fails with EINVAL
(https://github.com/wolfcw/libfaketime/issues/426). A target must not be accused of that, so what is preloaded is a copy
in which that one function has another name, and nobody finds it.

Where the system has none, that in the package ``libfaketime`` of PyPI is taken (x86-64; it fakes no sleeps). It is the
variant for programs with one thread: threads read the file into the same memory. In a C program whose 8 threads did
nothing but look at the clock (2 cores, 50 changes of the file), one change was missed until the file was written again,
for the library took it for read already, and 1 of 1.4 million looks saw a time that was neither the old nor the new.
With the system's library neither happened. Therefore `write` never writes the same text twice in a row, and the fault
writes again when its worker tells of the wrong time. If it is not seen even then, the run is undecided.
"""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from ..parts import FAKETIME, Missing

NAME = "libfaketimeMT.so.1"
"""That for programs with several threads. A copy has this name, too, whatever it is a copy of."""
FOLDERS = ("/usr/lib/{triple}/faketime", "/usr/lib64/faketime", "/usr/lib/faketime", "/usr/local/lib/faketime")
PACKAGE, IN_PACKAGE = "libfaketime", "vendor/libfaketime/src/libfaketime.so.1"
_SLEEP = b"\0clock_nanosleep\0"
REMAINS = ("/dev/shm/faketime_shm_{pid}", "/dev/shm/sem.faketime_sem_{pid}")
"""What a process with it leaves behind, however it ends (0.9.10, the package's, too)."""


def find() -> Path | None:
    """The library: the system's, else that of the package; None if this machine has none."""
    return of_system() or of_package()


def of_system() -> Path | None:
    """What a distribution's package has installed."""
    triple = sysconfig.get_config_var("MULTIARCH") or "*"
    for folder in FOLDERS:
        path = Path(folder.format(triple=triple), NAME)
        if path.is_file():
            return path
    return None


def of_package() -> Path | None:
    """What PyPI's package has, if this machine can load it: its wheel is for all machines, its library for one."""
    package = importlib.util.find_spec(PACKAGE)
    for folder in (package.submodule_search_locations or ()) if package is not None else ():
        path = Path(folder, IN_PACKAGE)
        if path.is_file() and _machine(path) == _machine(Path(sys.executable)):
            return path
    return None


def lacking() -> Missing | None:
    """What this machine lacks for it; None: nothing."""
    return None if find() is not None else Missing(FAKETIME, "there is no libfaketime")


def _machine(file: Path) -> bytes:
    """What an ELF file is for: the words of its header about class, order of bytes and machine."""
    with file.open("rb") as opened:
        header = opened.read(20)
    return header[4:6] + header[18:20]


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
    line = f"{seconds:+d}\n"
    if offsets.exists() and offsets.read_text(encoding="ascii") == line:
        line = f"{seconds:+d}.0\n"  # the same for who reads it, but read again
    new = offsets.with_name(f"{offsets.name}.new")
    new.write_text(line, encoding="ascii")
    new.replace(offsets)
