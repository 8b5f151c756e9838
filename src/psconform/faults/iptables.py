"""Rules for packets, in the network of a pod, set by its helper: iptables, a token bucket, queues of `Mangler`.

Each rule has a name, which is its comment in iptables, so that whose it is can be read there, and what it has counted.

Packets that are to be lost, late, twice, out of order or damaged iptables hands to a queue (NFQUEUE), and here is
decided what becomes of each, in the order in which they come, by numbers drawn from one seed. netem would do the same
in the kernel, but many kernels lack it, and what it draws it draws from no seed of ours.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import random
import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import fnfqueue

MARK = 0x7073
"""Of packets that were made here: their rule must not take them again."""
MOST = 65_536
"""Packets that may wait in a queue; beyond that the kernel drops them."""
TCP, IHL_WORDS = 6, 0x0F


class Mangler:
    """What becomes of the packets of one queue, until it is closed.

    Args:
        queue: its number.
        action: what is done to a packet: it is ``lost``, ``sent twice`` or ``damaged``; ``delayed``; or held back
            until it is ``passed by others``, and only those count that were.
        amounts: ``percent`` of the packets; ``ms`` that they are late, ``jitter_ms`` more or less.
        seed: what is drawn from.
    """

    def __init__(self, queue: int, action: str, amounts: Mapping[str, int], *, seed: str) -> None:
        self._action, self._amounts, self._random = action, amounts, random.Random(seed)
        self.seen = self.struck = self._behind = 0
        self._waiting: list[tuple[float, int, Any]] = []
        self._numbers, self._change, self._over = itertools.count(), threading.Condition(), False
        self._raw: socket.socket | None = None
        if action == "sent twice":
            self._raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
            self._raw.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, MARK)
        self._connection = fnfqueue.Connection()
        bound = self._connection.bind(queue)
        bound.set_mode(fnfqueue.MAX_PAYLOAD, fnfqueue.COPY_PACKET)
        bound.set_maxlen(MOST)
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._read, self._let_go)]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        while not self._over:
            try:
                for packet in self._connection:
                    self._decide(packet)
                return
            except fnfqueue.BufferOverflowException:  # more came than could be read: those are lost
                self._connection.reset()
            except OSError:
                return
            except Exception as error:
                if type(error) is not Exception:
                    raise
                # fnfqueue has no other word for a verdict on a packet that is gone, say with its interface: go on

    def _decide(self, packet: Any) -> None:
        self.seen += 1
        drawn = self._random.random() * 100 < self._amounts.get("percent", 100)
        with contextlib.suppress(OSError):  # it may be gone: who has sent it has ended
            if not drawn:
                packet.accept()
                self._overtaken()
            elif self._action == "lost":
                self.struck += 1
                packet.drop()
            elif self._action in ("delayed", "passed by others"):
                self._wait(packet)
            elif self._action == "sent twice":
                copy = bytes(packet.payload)
                packet.accept()
                assert self._raw is not None
                self._raw.sendto(copy, (socket.inet_ntoa(copy[16:20]), 0))
                self.struck += 1
            else:
                self._damage(packet)

    def _wait(self, packet: Any) -> None:
        jitter = self._amounts.get("jitter_ms", 0)
        late_s = max(0.0, self._amounts["ms"] + self._random.uniform(-jitter, jitter)) / 1000
        if self._action == "delayed":
            self.struck += 1
        with self._change:
            heapq.heappush(self._waiting, (time.monotonic() + late_s, next(self._numbers), packet))
            self._behind += 1
            self._change.notify()

    def _overtaken(self) -> None:
        """A packet has passed those that wait: those are out of order now."""
        if self._action == "passed by others":
            with self._change:
                self.struck += min(self._behind, len(self._waiting))
                self._behind = 0

    def _damage(self, packet: Any) -> None:
        """Turn one bit of what TCP carries; the receiver's checksum notices, and it is sent again."""
        data = bytearray(packet.payload)
        begin = (data[0] & IHL_WORDS) * 4
        if data[9] == TCP:
            begin += (data[begin + 12] >> 4) * 4
        if begin >= len(data):  # an acknowledgement alone
            packet.accept()
            return
        bit = self._random.randrange((len(data) - begin) * 8)
        data[begin + bit // 8] ^= 1 << bit % 8
        packet.payload = bytes(data)
        packet.mangle()
        self.struck += 1

    def _let_go(self) -> None:
        while True:
            with self._change:
                if self._over and not self._waiting:
                    return
                now = time.monotonic()
                if not self._waiting:
                    self._change.wait()
                    continue
                due, _, packet = self._waiting[0]
                if due > now and not self._over:
                    self._change.wait(due - now)
                    continue
                heapq.heappop(self._waiting)
            with contextlib.suppress(OSError):
                packet.accept()

    def close(self) -> None:
        """Let go of what waits, in order, and of the queue; its rule must be gone already."""
        with self._change:
            self._over = True
            self._change.notify()
        self._threads[1].join()
        self._connection.close()
        self._threads[0].join(1.0)
        if self._raw is not None:
            self._raw.close()


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
            self._queues[name] = Mangler(self._numbers, mangle["action"], mangle["amounts"], seed=mangle["seed"])
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
