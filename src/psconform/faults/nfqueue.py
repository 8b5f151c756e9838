"""Packets that are lost, late, twice, out of order or damaged: in the helper of a pod, by NFQUEUE.

netem would do the same in the kernel, but many kernels lack it, and what it draws it draws from no seed of ours.
iptables hands the packets of a link to a queue, and here is decided what becomes of each, in the order in which they
come, by numbers drawn from one seed.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import random
import socket
import threading
import time
from collections.abc import Mapping
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
        kind: loss, delay, duplicate, reorder or corrupt.
        amounts: ``percent`` of the packets; ``ms`` that they are late, ``jitter_ms`` more or less.
        seed: what is drawn from.
    """

    def __init__(self, queue: int, kind: str, amounts: Mapping[str, int], *, seed: str) -> None:
        self._kind, self._amounts, self._random = kind, amounts, random.Random(seed)
        self.seen = self.struck = self._behind = 0
        self._waiting: list[tuple[float, int, Any]] = []
        self._numbers, self._change, self._over = itertools.count(), threading.Condition(), False
        self._raw: socket.socket | None = None
        if kind == "duplicate":
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
            elif self._kind == "loss":
                self.struck += 1
                packet.drop()
            elif self._kind in ("delay", "reorder"):
                self._wait(packet)
            elif self._kind == "duplicate":
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
        if self._kind == "delay":
            self.struck += 1
        with self._change:
            heapq.heappush(self._waiting, (time.monotonic() + late_s, next(self._numbers), packet))
            self._behind += 1
            self._change.notify()

    def _overtaken(self) -> None:
        """A packet has passed those that wait: those are out of order now."""
        if self._kind == "reorder":
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
