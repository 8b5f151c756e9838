"""What can be done to a running container from outside, by the engine: for faults that only containers have."""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..errors import PsconformError
from ..layout import Task
from .blueprint import PERIOD_US, TMP, Resources
from .container_process import Helper
from .engine import sdk, told

PROC = Path("/proc")
USED = ("memory", ("memory.usage_in_bytes", "memory.current"))
TIME = ("cpu", ("cpu.stat",))
"""Controller and files of a control group (cgroups(7)), of version 1 or 2."""
ROOM = 32 << 20
"""Bytes that a container may take beyond what it has, before it is out of memory."""
EATS = (
    "for task in /proc/[0-9]*; do [ $task = /proc/$$ ] || echo 1000 > $task/oom_score_adj; done 2>/dev/null; "
    "exec tail /dev/zero"
)
"""Takes memory until there is none, and asks the kernel to end the task then, even if that is smaller."""
FULL, BYTE = "/tmp/.psconform-full", "/tmp/.psconform-byte"
FILLS = f"cat /dev/zero > {FULL}; echo x > {BYTE}"
EMPTIES = f"rm -f {FULL}; echo x > {BYTE} && rm -f {BYTE}"
EXEC_S = 30.0
"""Seconds that a command in a container may take; to fill /tmp takes about one."""
FREEZES = 10
"""How often a container is tried to be paused."""
CANNOT = (126, 127)
"""Exit statuses of a shell, and of the engine, for a command that cannot be run."""


class Boxes:
    """The containers of one run.

    Args:
        api: a docker.APIClient.
        of: the container of a task that runs; empty: it does not.
        helpers: the helpers of the tasks' pods.
        network: name of the run's network.
        allowed: what a task may use, as its layout says.
    """

    def __init__(
        self,
        api: Any,
        *,
        of: Callable[[Task], str],
        helpers: Mapping[Task, Helper],
        network: Callable[[], str],
        allowed: Callable[[Task], Resources],
    ) -> None:
        self._api, self._of, self._helpers, self._network, self._allowed = api, of, helpers, network, allowed

    def container(self, task: Task) -> str:
        """Which it runs in; a task that is started again has another. Empty: none."""
        return self._of(task)

    def peers(self, task: Task) -> tuple[str, ...]:
        """By what names the others are found."""
        return tuple(name for other, helper in self._helpers.items() if other != task for name in helper.names)

    def pause(self, task: Task, *, on: bool = True) -> None:
        """Freeze all its processes, or let them go on."""
        refused = sdk().errors.APIError
        with told(f"{task} cannot be {'paused' if on else 'unpaused'}"):
            for left in reversed(range(FREEZES if on else 1)):
                try:
                    (self._api.pause if on else self._api.unpause)(self._of(task))
                    return
                except refused:  # on a busy machine runc gives up before all processes are frozen, and lets them go on
                    if not left:
                        raise

    def paused(self, task: Task) -> bool:
        """The engine says that it is frozen; False if it is not there."""
        return bool(self._of(task)) and bool(self._state(task)["Paused"])

    def quota(self, task: Task, percent: int) -> None:
        """It has so many percent of one CPU's time, and never more than its layout says; 0: what that says."""
        most = round(self._allowed(task).cpus * PERIOD_US) or -1
        limits = [limit for limit in (PERIOD_US * percent // 100, most) if limit > 0]
        limit = min(limits, default=-1)
        with told(f"the CPU time of {task} cannot be limited"):
            self._api.update_container(self._of(task), cpu_period=PERIOD_US, cpu_quota=limit)

    def throttled(self, task: Task) -> int:
        """In how many periods its time was over before they were."""
        return throttled(self._pid(task))

    def exhaust(self, task: Task) -> int:
        """Leave it hardly more memory than it has, and have somebody in it ask for more; returns the limit in bytes."""
        if self._run(task, "command -v tail")[0]:
            raise PsconformError(f"the container of {task} has no sh, or no tail, to take memory with")
        limit = memory(self._pid(task)) + ROOM
        with told(f"the memory of {task} cannot be limited"):
            self._api.update_container(self._of(task), mem_limit=limit, memswap_limit=limit)
            made = self._api.exec_create(self._of(task), ["sh", "-c", EATS])
            self._api.exec_start(made["Id"], detach=True)
        return limit

    def fill(self, task: Task, *, on: bool = True) -> str:
        """Fill its /tmp, or empty it of that; returns what its shell says of one byte more, empty if it was written."""
        what = f"/tmp of {task} cannot be {'filled' if on else 'emptied'}"
        most = self._allowed(task).memory
        if on and most and memory(self._pid(task)) + TMP > most:  # /tmp is memory: the kernel would end it
            raise PsconformError(
                f"{what}: of the {most >> 20} MiB of memory that it may have, {TMP >> 20} are not left"
            )
        failed, said = self._run(task, FILLS if on else EMPTIES)
        if failed in CANNOT:
            raise PsconformError(f"{what}: {said}")
        return said if failed else ""

    def _run(self, task: Task, command: str) -> tuple[int, str]:
        """Exit status of a shell in its container, and the last that it says."""
        with told(f"nothing can be run in the container of {task}"):
            # of a terminal the engine passes on what it says as it is, without frames
            made = self._api.exec_create(self._of(task), ["sh", "-c", command], tty=True)
            answer = self._api.exec_start(made["Id"], tty=True, socket=True)
            line = getattr(answer, "_sock", answer)
            with contextlib.closing(getattr(answer, "_response", answer)), contextlib.closing(line):
                line.settimeout(EXEC_S)  # the SDK waits for ever if the container ends meanwhile
                said = b"".join(iter(lambda: line.recv(4096), b""))
            status = int(self._api.exec_inspect(made["Id"])["ExitCode"])
        lines = said.decode(errors="replace").strip().splitlines()
        return status, lines[-1] if lines else f"exit status {status}"

    def disconnect(self, task: Task) -> None:
        """Take the interface away from its pod."""
        with told(f"{task} cannot be disconnected"):
            self._api.disconnect_container_from_network(self._helpers[task].id, self._network())

    def connect(self, task: Task, *, anew: bool = False) -> str:
        """Give its pod an interface again, with the address that it had, or another one; returns the address."""
        helper = self._helpers[task]
        with told(f"{task} cannot be connected"):
            address = self._another(helper.ip) if anew else helper.ip
            self._api.connect_container_to_network(
                helper.id, self._network(), ipv4_address=address, aliases=list(helper.names)
            )
        helper.ip = address
        return address

    def _another(self, address: str) -> str:
        """One of the run's network that nobody has."""
        said = self._api.inspect_network(self._network())
        subnet = ipaddress.ip_network(said["IPAM"]["Config"][0]["Subnet"])
        taken = {part["IPv4Address"].partition("/")[0] for part in said["Containers"].values()} | {address}
        taken.add(said["IPAM"]["Config"][0].get("Gateway", ""))
        found = next((str(host) for host in reversed(list(subnet.hosts())[-4096:]) if str(host) not in taken), "")
        if not found:
            raise PsconformError(f"network {subnet} has no other address")
        return found

    def _state(self, task: Task) -> Any:
        with told(f"{task} cannot be looked at"):
            return self._api.inspect_container(self._of(task))["State"]

    def _pid(self, task: Task) -> int:
        """As this machine counts; the engine's own figures take it a second."""
        return int(self._state(task)["Pid"])


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
