"""Kinds of faults that only containers have: of a task's container, and of the packets of links."""

from __future__ import annotations

from typing import Any

from .words import CONTAINER, PACKETS, Amount

PERCENT = Amount("of the packets", 20, 1, 100)
COUNTED = "packets of the target that it was done to, counted where they left"
ROWS: dict[str, dict[str, Any]] = {
    "drop": {"of": PACKETS, "about": "all packets are dropped, without a word (iptables)", "evidence": COUNTED},
    "loss": {
        "of": PACKETS,
        "about": "some packets are lost, drawn from the seed",
        "evidence": COUNTED,
        "amounts": {"percent": PERCENT},
    },
    "delay": {
        "of": PACKETS,
        "about": "packets arrive later",
        "evidence": COUNTED,
        "amounts": {
            "ms": Amount("milliseconds", 20, 1, 60_000),
            "jitter_ms": Amount("up to so much more or less, of each packet, drawn from the seed", 0, 0, 60_000),
        },
    },
    "duplicate": {
        "of": PACKETS,
        "about": "some packets arrive twice, drawn from the seed",
        "evidence": COUNTED,
        "amounts": {"percent": PERCENT},
    },
    "reorder": {
        "of": PACKETS,
        "about": "some packets are held back, drawn from the seed, and later ones pass them",
        "evidence": "packets of the target that others have passed",
        "amounts": {"percent": PERCENT, "ms": Amount("milliseconds that they are held", 5, 1, 10_000)},
    },
    "corrupt": {
        "of": PACKETS,
        "about": "in some packets one bit of what they carry is turned over, drawn from the seed",
        "evidence": COUNTED,
        "amounts": {"percent": PERCENT},
    },
    "rate": {
        "of": CONTAINER,
        "about": "all that the task sends leaves at no more than this rate (tbf)",
        "evidence": "packets that had to wait, counted by the token bucket",
        "amounts": {"kbit_per_s": Amount("kilobits a second", 1000, 8, 10_000_000)},
    },
    "cpu-quota": {
        "of": CONTAINER,
        "about": "it has only some of a CPU's time",
        "evidence": "periods in which its time was over, counted by its cgroup",
        "amounts": {"percent": Amount("of one CPU's time", 20, 1, 6400)},
    },
    "pause": {
        "of": CONTAINER,
        "about": "its container is frozen (docker pause), which no process notices",
        "evidence": "the engine says that it is paused",
    },
    "disconnect": {
        "of": CONTAINER,
        "about": "its container is taken from the network, and put back with the same address",
        "evidence": "its network has no interface but loopback",
    },
    "dns": {
        "of": CONTAINER,
        "about": "it finds nobody by name",
        "evidence": "lookups of the target that were refused",
    },
    "tmpfs-full": {
        "of": CONTAINER,
        "about": "no room in its /tmp",
        "evidence": "one byte more is refused",
    },
    "oom": {
        "of": CONTAINER,
        "about": "it is out of memory, so the kernel ends it",
        "evidence": "the engine says that it was ended for want of memory",
        "lasts": False,
        "restarts": True,
    },
    "new-address": {
        "of": CONTAINER,
        "about": "SIGKILL, and it is started again at another address",
        "evidence": "the process ended by signal 9",
        "lasts": False,
        "restarts": True,
    },
}
for row in ROWS.values():
    row.setdefault("lasts", True)
