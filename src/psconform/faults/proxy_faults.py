"""Faults of links through proxies: stall, latency, bandwidth, slice, refuse, reset, cut, slow-close."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ..history.records import Harm
from .fault import Fault
from .injectors import Injector, Scene
from .kinds import NETWORK, Amount, Kind, register

if TYPE_CHECKING:
    from .link_injector import Toxic

PASSED = "bytes of the target that passed through it"
ENDED = "connections of the target that ended, with both tasks alive"


def _disturbs(fault: Fault, scene: Scene, *, toxic: Toxic | None = None) -> Injector:
    from .link_injector import Disturbs  # what it imports is an extra

    return Disturbs(fault, scene, toxic=toxic)


def _closes_late(fault: Fault, scene: Scene) -> Injector:
    from .link_injector import ClosesLate

    return ClosesLate(fault, scene)


def _slicer(amounts: dict[str, int]) -> dict[str, int]:
    return {"average_size": amounts["bytes"], "size_variation": 0, "delay": amounts["delay_us"]}


STALL = register(
    Kind(
        name="stall",
        of=NETWORK,
        about="holds all bytes back, and delivers them when it is healed",
        evidence="bytes that the target sent into it, and that are held back",
        injector=_disturbs,
        lasts=True,
        effect="holds",
        outlasts=True,
    )
)
LATENCY = register(
    Kind(
        name="latency",
        of=NETWORK,
        about="each byte arrives later",
        evidence=PASSED,
        injector=_disturbs,
        lasts=True,
        amounts={
            "ms": Amount("milliseconds", 50, 1, 60_000, drawn=(5, 20, 100)),
            "jitter_ms": Amount("up to so much more or less, drawn from the seed", 0, 0, 60_000, drawn=(0, 5)),
        },
        effect="passes",
        harm=Harm.SLOWS,
    )
)
BANDWIDTH = register(
    Kind(
        name="bandwidth",
        of=NETWORK,
        about="so many bytes a second on each connection",
        evidence=PASSED,
        injector=partial(_disturbs, toxic=("bandwidth", lambda amounts: {"rate": amounts["kB_per_s"]})),
        lasts=True,
        amounts={"kB_per_s": Amount("kilobytes a second", 100, 1, 1_000_000, drawn=(20, 100, 1000))},
        effect="passes",
        harm=Harm.SLOWS,
    )
)
SLICE = register(
    Kind(
        name="slice",
        of=NETWORK,
        about="bytes arrive in small pieces, a pause after each",
        evidence=PASSED,
        injector=partial(_disturbs, toxic=("slicer", _slicer)),
        lasts=True,
        amounts={
            "bytes": Amount("in each piece", 64, 1, 10_000, drawn=(100, 1000)),
            "delay_us": Amount("microseconds between two", 100, 0, 1_000_000, drawn=(0, 100)),
        },
        effect="passes",
        harm=Harm.SLOWS,
    )
)
REFUSE = register(
    Kind(
        name="refuse",
        of=NETWORK,
        about="the source cannot connect, and what it has is ended",
        evidence=ENDED,
        injector=_disturbs,
        lasts=True,
        effect="ends",
        one_way=True,
        shared=("deaf",),
    )
)
RESET = register(
    Kind(
        name="reset",
        of=NETWORK,
        about="connections end when something is sent",
        evidence=ENDED,
        injector=partial(_disturbs, toxic=("reset_peer", lambda amounts: {"timeout": amounts["after_ms"]})),
        lasts=True,
        amounts={"after_ms": Amount("milliseconds until then", 0, 0, 60_000, drawn=(0, 50))},
        effect="ends",
        excludes=("passes",),  # Toxiproxy 2.12 hangs if a toxic is removed before one that is about to end (#558)
    )
)
CUT = register(
    Kind(
        name="cut",
        of=NETWORK,
        about="connections end after so many bytes, in the middle of a push or of its acknowledgement",
        evidence=ENDED,
        injector=partial(_disturbs, toxic=("limit_data", lambda amounts: {"bytes": amounts["bytes"]})),
        lasts=True,
        amounts={
            # one that is not reached shows nothing
            "bytes": Amount("that still pass on each connection", 1000, 0, 1_000_000_000, drawn=(0, 100, 1000)),
        },
        effect="ends",
    )
)
SLOW_CLOSE = register(
    Kind(
        name="slow-close",
        of=NETWORK,
        about="that the source has closed a connection reaches the destination later",
        evidence="a connection of the target that is open though its other end has gone",
        injector=_closes_late,
        lasts=True,
        amounts={"ms": Amount("milliseconds", 2000, 1, 60_000)},
        shared=(),
        drawn=False,
    )
)
