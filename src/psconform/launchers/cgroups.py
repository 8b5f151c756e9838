"""What a control group says of its processes (cgroups(7)), of either version."""

from __future__ import annotations

from pathlib import Path

from ..errors import PsconformError

PROC = Path("/proc")
USED = ("memory", ("memory.usage_in_bytes", "memory.current"))
TIME = ("cpu", ("cpu.stat",))


def memory(pid: int) -> int:
    """Bytes that the control group of a process has; raises PsconformError if that cannot be told."""
    return int(_read(pid, *USED))


def throttled(pid: int) -> int:
    """In how many periods its CPU time was over before they were; raises PsconformError if that cannot be told."""
    said = dict(line.split() for line in _read(pid, *TIME).splitlines())
    return int(said.get("nr_throttled", 0))


def _read(pid: int, controller: str, names: tuple[str, ...]) -> str:
    for folder in _folders(pid, controller):
        for name in names:
            try:
                return (folder / name).read_text(encoding="ascii")
            except OSError:
                continue
    raise PsconformError(f"the control group of process {pid} does not tell its {' or '.join(names)}")


def _folders(pid: int, controller: str) -> list[Path]:
    """Where the controller's files of a process are: its own hierarchy (version 1), or the one of all (version 2)."""
    try:
        lines = (PROC / str(pid) / "cgroup").read_text(encoding="utf-8").splitlines()
        mounts = (PROC / "self" / "mountinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    paths = {}
    for line in lines:
        _, controllers, path = line.split(":", 2)
        paths.update(dict.fromkeys(controllers.split(","), path))  # of version 2 its name is empty
    found = []
    for line in mounts:
        before, _, after = line.partition(" - ")
        place, (kind, _, options) = before.split()[4], after.split()
        if kind == "cgroup" and controller in options.split(",") and controller in paths:
            found.append(Path(place) / paths[controller].lstrip("/"))
        elif kind == "cgroup2" and "" in paths:
            found.append(Path(place) / paths[""].lstrip("/"))
    return found
