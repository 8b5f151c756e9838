"""A memory cgroup: the kernel's OOM killer ends a process that takes more than the cgroup may have."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from psconform.plugin import REQUIRE_ALL

from .waits import until

LIMITS = {"memory.limit_in_bytes": 1, "memory.memsw.limit_in_bytes": 1, "memory.max": 1, "memory.swap.max": 0}
"""Files of versions 1 and 2, and how much of the limit each allows: nothing is swapped."""


@contextlib.contextmanager
def memory_cgroup(limit):
    """Of so many bytes; gives the file into which a process writes its id. Skips where a test cannot make one."""
    with contextlib.ExitStack() as made:
        try:
            cgroup = _made(limit, made)
        except OSError as error:
            lacks = f"this machine has no memory cgroups, or only for root: {error}"
            if os.environ.get(REQUIRE_ALL) == "1" and os.geteuid() == 0:
                pytest.fail(f"{REQUIRE_ALL}=1, and {lacks}", pytrace=False)
            pytest.skip(lacks)
        yield cgroup / "cgroup.procs"


def _made(limit, made):
    top = _top() or _mounted(made)
    if (top / "cgroup.subtree_control").exists():
        (top / "cgroup.subtree_control").write_text("+memory", encoding="ascii")
    cgroup = top / f"psconform-test-{os.getpid()}"
    cgroup.mkdir()
    made.callback(until, lambda: _deleted(cgroup))
    for name, share in LIMITS.items():
        if (cgroup / name).exists():
            (cgroup / name).write_text(str(limit * share), encoding="ascii")
    return cgroup


def _top():
    """Where version 1 is mounted, or version 2 if it has the controller."""
    for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines():
        _, place, kind, options, *_ = line.split()
        controllers = Path(place) / "cgroup.controllers"
        has = options.split(",") if kind == "cgroup" else controllers.read_text().split() if kind == "cgroup2" else ()
        if "memory" in has:
            return Path(place)
    return None


def _mounted(made):
    folder = made.enter_context(tempfile.TemporaryDirectory())
    command = ["mount", "-t", "cgroup", "-o", "memory", "none", folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(done.stderr.strip())
    made.callback(subprocess.run, ["umount", folder], check=True)
    return Path(folder)


def _deleted(cgroup):
    """A process that was killed in it may be there for a moment."""
    with contextlib.suppress(OSError):
        cgroup.rmdir()
        return True
