"""Rules for packets, in the network of a pod, set by its helper: iptables, a token bucket, queues of `mangler`.

Each rule has a name, which is its comment in iptables, so that whose it is can be read there, and what it has counted.
"""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .nfqueue import MARK, Mangler

COMMENT = "psconform:"
INTERFACES = Path("/sys/class/net")
BUCKET, AT_ROOT = 0x10000, 0xFFFFFFFF
"""Handle of the token bucket, and TC_H_ROOT, where it is."""
_COUNTED = re.compile(rf'^\[(\d+):\d+\] -A .*--comment "?{COMMENT}([^" ]+)"?', re.MULTILINE)
Answer = dict[str, Any]


class Rules:
    """Those that were set here."""

    def __init__(self) -> None:
        self._set: dict[str, list[str]] = {}
        self._queues: dict[str, Mangler] = {}
        self._numbers = 0
        self.does: Mapping[str, Callable[[dict[str, Any]], Answer]] = {
            "rule": self._add,
            "unrule": self._remove,
            "divert": _divert,
            "counted": self._counted,
            "rate": self._rate,
            "unrate": self._unrate,
            "waited": self._waited,
            "interface": _passed,
            "found": _found,
        }

    def _add(self, request: dict[str, Any]) -> Answer:
        """``target``: DROP, REJECT, or empty to count alone; or ``mangle``: what becomes of the packets."""
        name, target = request["name"], request.get("target", "")
        rule = [*_words(request["match"]), "-m", "comment", "--comment", f"{COMMENT}{name}"]
        if mangle := request.get("mangle"):
            self._numbers += 1
            self._queues[name] = Mangler(self._numbers, mangle["kind"], mangle["amounts"], seed=mangle["seed"])
            rule += ["-m", "mark", "!", "--mark", str(MARK), "-j", "NFQUEUE", "--queue-num", str(self._numbers)]
        elif target:
            rule += ["-j", target]
        _iptables("-I", "OUTPUT", *rule)
        self._set[name] = rule
        return {"done": True}

    def _remove(self, request: dict[str, Any]) -> Answer:
        if rule := self._set.pop(request["name"], None):
            _iptables("-D", "OUTPUT", *rule)
        if queue := self._queues.pop(request["name"], None):
            queue.close()
        return {"done": True}

    def _counted(self, request: dict[str, Any]) -> Answer:
        """Packets by name of the rule, of all rules that iptables has; of a queue those that something was done to."""
        del request
        said = subprocess.run(["iptables-save", "-c", "-t", "filter"], capture_output=True, text=True, check=True)
        counts = {name: int(packets) for packets, name in _COUNTED.findall(said.stdout)}
        return {"packets": counts | {name: queue.struck for name, queue in self._queues.items()}}

    def _rate(self, request: dict[str, Any]) -> Answer:
        """A token bucket for all that leaves the pod; a second one takes the place of the first."""
        from pyroute2 import IPRoute

        if not _interface():
            return {"done": False}
        with IPRoute() as kernel:
            index = kernel.link_lookup(ifname=_interface())[0]
            rate = f"{int(request['kbit'])}kbit"
            kernel.tc("replace", "tbf", index, BUCKET, rate=rate, latency="400ms", burst=4096)
        return {"done": True}

    def _unrate(self, request: dict[str, Any]) -> Answer:
        from pyroute2 import IPRoute

        there = self._waited(request)["times"] >= 0
        with IPRoute() as kernel:
            if there:
                kernel.tc("del", index=kernel.link_lookup(ifname=_interface())[0], parent=AT_ROOT)
        return {"done": True}

    def _waited(self, request: dict[str, Any]) -> Answer:
        """How often a packet had to wait for a token; -1: there is no bucket, or no interface."""
        from pyroute2 import IPRoute

        del request
        with IPRoute() as kernel:
            found = kernel.link_lookup(ifname=_interface()) if _interface() else ()
            for queue in (queue for index in found for queue in kernel.get_qdiscs(index)):
                if queue.get_attr("TCA_KIND") == "tbf":
                    return {"times": queue.get_attr("TCA_STATS")["overlimits"]}
        return {"times": -1}


def _divert(request: dict[str, Any]) -> Answer:
    """What is sent ``of`` one ``host:port`` goes ``to`` another from now on, whatever the sender sees."""
    (host, _, port), to = request["of"].rpartition(":"), request["to"]
    match = _words(("-p", "tcp", "-d", host, "--dport", port))
    if not re.fullmatch(r"[0-9.]+:[0-9]+", to):
        raise ValueError(f"no address: {to}")
    _iptables("-t", "nat", "-A", "OUTPUT", *match, "-j", "DNAT", "--to-destination", to)
    return {"done": True}


def _interface() -> str:
    """The name of the pod's interface beside loopback (the engine counts them on, eth0, eth1); empty: it has none."""
    return next((path.name for path in sorted(INTERFACES.iterdir()) if path.name != "lo"), "")


def _passed(request: dict[str, Any]) -> Answer:
    """Whether the pod has its interface, and packets that have come in and gone out since it has."""
    del request
    name = _interface()
    if not name:
        return {"there": False, "received": 0, "sent": 0}
    counts = INTERFACES / name / "statistics"
    received, sent = (int((counts / name).read_text(encoding="ascii")) for name in ("rx_packets", "tx_packets"))
    return {"there": True, "received": received, "sent": sent}


def _found(request: dict[str, Any]) -> Answer:
    """Whether a name is found."""
    try:
        socket.getaddrinfo(request["name"], None, family=socket.AF_INET)
    except OSError:
        return {"found": False}
    return {"found": True}


def _words(match: Sequence[str]) -> list[str]:
    """Only what psconform asks for: addresses and ports."""
    if any(not re.fullmatch(r"-[ds]|-p|tcp|udp|--[ds]port|[0-9.]+", word) for word in match):
        raise ValueError(f"no match: {match}")
    return list(match)


def _iptables(*arguments: str) -> None:
    done = subprocess.run(["iptables", "-w", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"iptables {arguments[0]}: {done.stderr.strip().splitlines()[-1:] or done.returncode}")
