"""``python -m psconform.faults.pod_agent``: the helper container of a task; it holds what its containers share.

A *pod* is what Kubernetes calls so: containers that share a network and process ids. This one is there first and is
told apart from the task's: it alone may signal and change the network (CAP_KILL, CAP_NET_ADMIN, CAP_NET_RAW), and it
runs nothing of the task's. The task's container joins its network and its process ids, so that address, rules and
connections outlive a restart, and all is asked and done where the task is, whatever machine that may be.

It answers requests, JSON lines on standard input, on standard output, each with the ``id`` that it was asked with:

    {"do": "fresh"}                            -> {"pid": n}     of a container's first process that was not told before
    {"do": "signal", "pid", "number", "all"}   -> {"done": bool}   "all": to every process of its container
    {"do": "state", "pid"}                     -> {"state": letter of ps(1), empty if it is gone; T: all are stopped}
    {"do": "flows", "addresses"}               -> {"flows": {address: {"open": [[port, sent, received], ...],
                                                                       "left": [port, ...]}}}
    {"do": "accepted", "address"}              -> {"open": [[port, sent, received], ...]}
    {"do": "closed", "address"}                -> {"ports": [...]}
    {"do": "listens", "address"}               -> {"listens": bool}

and what iptables.py does: ``rule``, ``unrule``, ``divert``, ``counted``, ``rate``, ``unrate``, ``waited``,
``interface``, ``found``.

Standard input is the lifeline, as the keeper's: when it closes the helper ends, and with the first of its process ids
the kernel ends every process of the pod.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .traffic import Flow, accepted, closed, flows, listens

if TYPE_CHECKING:
    from .iptables import Rules

Answer = dict[str, Any]


class Pod:
    """What the helper knows: which first processes it has told of."""

    def __init__(self) -> None:
        self._told = {os.getpid()}
        self._rules: Rules | None = None
        self._does: dict[str, Callable[[dict[str, Any]], Answer]] = {
            "fresh": self._fresh,
            "signal": _signal,
            "state": lambda request: {"state": state(int(request["pid"]))},
            "flows": _flows,
            "accepted": lambda request: {"open": _listed(accepted(request["address"]))},
            "closed": lambda request: {"ports": sorted(closed(request["address"]))},
            "listens": lambda request: {"listens": listens(request["address"])},
        }

    def answer(self, line: bytes) -> Answer:
        """Carry out one request; what goes wrong is the answer, too."""
        request = json.loads(line)
        try:
            said = (self._does.get(request["do"]) or self._network[request["do"]])(request)
        except Exception as error:
            said = {"failed": f"{type(error).__name__}: {error}"}
        return {"id": request.get("id"), **said}

    @property
    def _network(self) -> Mapping[str, Callable[[dict[str, Any]], Answer]]:
        """What takes rules for packets; what it imports hardly any run needs."""
        if self._rules is None:
            from .iptables import Rules

            self._rules = Rules()
        return self._rules.does

    def _fresh(self, request: dict[str, Any]) -> Answer:
        """First processes of containers have no parent here."""
        del request
        found = [pid for pid in _pids() if pid not in self._told and _stat(pid)[1:2] == ["0"]]
        self._told.update(found)
        return {"pid": max(found, default=0)}


def state(pid: int) -> str:
    """State letter of a process, empty if it is gone or a zombie; T only if all of its container are stopped."""
    letter = _letter(pid)
    if letter != "T":
        return letter
    return next((other for one in _beside(pid) if (other := _letter(one)) not in ("T", "")), "T")


def _letter(pid: int) -> str:
    letter = _stat(pid)[0]
    return "" if letter in "ZX" else letter


def _signal(request: dict[str, Any]) -> Answer:
    """To all, until a look finds no other: one may have been started meanwhile."""
    pid, number = int(request["pid"]), int(request["number"])
    if pid <= 1 or not _letter(pid):
        return {"done": False}
    sent: set[int] = set()
    while new := (_beside(pid) if request["all"] else {pid}) - sent:
        for one in new:
            with contextlib.suppress(OSError):
                os.kill(one, number)
        sent |= new
    return {"done": True}


def _beside(pid: int) -> set[int]:
    """The processes of its container, whatever their session; of its process group, where no cgroup tells that."""
    group, own = _cgroup(pid), _cgroup(os.getpid())
    if not group or group == own:
        return {pid, *(one for one in _pids() if _stat(one)[2:3] == [str(pid)])}
    return {pid, *(one for one in _pids() if one > 1 and _cgroup(one) == group)}


def _cgroup(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _flows(request: dict[str, Any]) -> Answer:
    said = flows(request["addresses"])
    return {"flows": {address: {"open": _listed(now.open), "left": sorted(now.left)} for address, now in said.items()}}


def _listed(flows: Mapping[int, Flow]) -> list[list[int]]:
    return [[port, flow.sent, flow.received] for port, flow in flows.items()]


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on; as of a dead process if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].decode().split()
    except OSError:
        return ["X"]


def main() -> int:
    """Serve until the lifeline closes."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # nobody but psconform ends it
    pod, buffer = Pod(), b""
    os.write(1, b'{"ready": true}\n')
    while True:
        select.select([0], [], [], 1.0)
        with contextlib.suppress(ChildProcessError):  # orphans come to the first process
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not select.select([0], [], [], 0)[0]:
            continue
        data = os.read(0, 65536)
        if not data:
            return 0
        *lines, buffer = (buffer + data).split(b"\n")
        for line in lines:
            os.write(1, json.dumps(pod.answer(line)).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
