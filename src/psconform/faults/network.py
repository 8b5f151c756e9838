"""Faults of the network: what Toxiproxy is told, and how their effect shows on the target's own connections."""

from __future__ import annotations

import random
import time

from ..layout import Link
from .fault import Fault
from .injectors import Injector, Life
from .kinds import ENDING
from .links import HOUR_MS, Links
from .traffic import Flows, Meter, flows

JITTER_LOOKS = 5
"""A latency with jitter is drawn anew every so many looks."""
SILENT_S = 0.2
"""Shorter pauses are no sign of a stall."""


class Disturbs(Injector):
    """All kinds whose evidence is bytes or connections of the target, on the links that they strike.

    The bytes from a to b travel on connections that either has dialled, so there are two to look at: what a has sent
    into its proxy to b, and what has come out of b's proxy to a.
    """

    holds = False

    def __init__(self, fault: Fault, links: Links, *, seed: int, life: Life) -> None:
        self._fault, self._links, self._life = fault, links, life
        self._amounts = dict(fault.amounts)
        self._name = f"{fault.kind}-{id(fault):x}"
        self._out: dict[Link, Meter] = {}  # on what the source has dialled
        self._back: dict[Link, Meter] = {}  # on what the destination has dialled
        self._lives: dict[Link, tuple[int | None, int | None]] = {}
        self._struck: dict[Link, tuple[int | None, int | None]] = {}
        self._looks = 0
        self._began = 0.0
        self._seen = self._silence = self._doubt = ""
        self._jitter = random.Random(f"{seed}:{fault}")

    def inject(self) -> None:
        links, fault = self._links, self._fault
        self._count_from_now()  # what ends now has ended by it
        if fault.kind == "stall":
            links.delay(self._name, fault.links, HOUR_MS)
        elif fault.kind == "latency":
            links.delay(self._name, fault.links, self._latency())
        elif fault.kind == "refuse":
            links.refuse(self._name, fault.links)
        else:
            kind, attributes = toxic_of(fault.kind, self._amounts)
            links.add(self._name, kind, fault.links, **attributes)
        if fault.kind not in ENDING:
            self._count_from_now()  # what passed before is none of it
        self._began = time.monotonic()

    def evidence(self) -> str:
        self._looks += 1
        if self._amounts.get("jitter_ms") and self._looks % JITTER_LOOKS == 0:
            self._links.delay(self._name, self._fault.links, self._latency())
        self._seen = self._seen or self._effect()
        return self._seen

    def _effect(self) -> str:
        self._look()
        sent = sum(meter.sent for meter in self._out.values())
        arrived = sum(meter.received for meter in self._back.values())
        if self._fault.kind == "stall":
            return f"{sent} bytes held back" if sent else ""
        if self._fault.kind in ENDING:
            return self._ended()
        return f"{sent + arrived} bytes passed through it" if sent + arrived else ""

    def _ended(self) -> str:
        """Connections that neither end has closed. Who dies closes its own before anybody knows: ask a second time."""
        links = self._fault.links
        meters = list(self._out.values()) + ([] if self._fault.kind == "refuse" else list(self._back.values()))
        lives = {link: self._both(link) for link in links}
        if any(None in both for both in lives.values()) or lives != self._lives:
            self._count_from_now()
            self._doubt = ""
            return ""
        ended = sum(meter.ended for meter in meters)
        told, self._doubt = self._doubt, f"{ended} connection(s) ended" if ended else ""
        return self._doubt if told else ""

    def heal(self) -> None:
        self._silence = self._nothing_came()
        self._struck = dict(self._lives)
        links, fault = self._links, self._fault
        self._count_from_now()  # what was held back may have come, and its connection be over, before the next look
        if fault.kind in ("stall", "latency"):
            links.undelay(self._name, fault.links)
        elif fault.kind == "refuse":
            links.refuse(self._name, fault.links, on=False)
        else:
            links.remove(self._name, fault.links)

    def healed(self) -> str:
        """Bytes come through again: out of the proxies, to the destination, or as an answer to the source."""
        self._look()
        if self._doubt and {link: self._both(link) for link in self._fault.links} == self._struck:
            self._seen, self._doubt = self._seen or self._doubt, ""
        back = sum(meter.received for meter in (*self._out.values(), *self._back.values()))
        ended = any(meter.over for meter in self._back.values())  # it may be over before anybody looks
        if self._silence and (ended or any(meter.received for meter in self._back.values())):
            self._seen = self._seen or self._silence
        over = self._silence and ended and not back
        if not (back or over) or not self._links.as_told(self._fault.links):  # answers may come the other way
            return ""
        return "what was held back came through, and the connection is over" if over else f"{back} bytes came through"

    def _nothing_came(self) -> str:
        """Of a stall whose source has dialled nothing: the destination has asked, and nothing has come since.

        What is held back is then in the proxy, or has not been sent; that it comes once the stall is over tells.
        """
        lasted = time.monotonic() - self._began
        if self._fault.kind != "stall" or self._seen or lasted < SILENT_S:
            return ""
        self._look()
        asked = [meter for meter in self._back.values() if meter.sent]
        if not asked or any(meter.received for meter in asked):
            return ""
        return f"nothing came for {lasted:.1f} s though {sum(meter.sent for meter in asked)} bytes had asked for it"

    def gone(self) -> str:
        return "Toxiproxy has let go of it, no byte came since" if self._links.as_told(self._fault.links) else ""

    def _latency(self) -> int:
        spread = self._amounts.get("jitter_ms", 0)
        return max(0, self._amounts["ms"] + (self._jitter.randint(-spread, spread) if spread else 0))

    def _dialled(self, link: Link) -> tuple[str, str]:
        """What the source dials, and what the destination dials."""
        return self._links.dialled(link.source, link.destination), self._links.dialled(link.destination, link.source)

    def _flows(self) -> dict[str, Flows]:
        return flows(address for link in self._fault.links for address in self._dialled(link))

    def _count_from_now(self) -> None:
        now = self._flows()
        for link in self._fault.links:
            there, back = self._dialled(link)
            self._out[link], self._back[link] = Meter.since(now[there]), Meter.since(now[back])
            self._lives[link] = self._both(link)

    def _look(self) -> None:
        now = self._flows()
        for link in self._fault.links:
            for meter, address in zip((self._out[link], self._back[link]), self._dialled(link), strict=True):
                meter.look(now[address])

    def _both(self, link: Link) -> tuple[int | None, int | None]:
        return self._life(link.source), self._life(link.destination)


def toxic_of(kind: str, amounts: dict[str, int]) -> tuple[str, dict[str, int]]:
    """Toxiproxy's name of what brings a fault about, and its attributes (github.com/Shopify/toxiproxy, README)."""
    if kind == "bandwidth":
        return "bandwidth", {"rate": amounts["kB_per_s"]}
    if kind == "slice":
        size = amounts["bytes"]
        return "slicer", {"average_size": size, "size_variation": 0, "delay": amounts["delay_us"]}
    if kind == "reset":
        return "reset_peer", {"timeout": amounts["after_ms"]}
    if kind == "cut":
        return "limit_data", {"bytes": amounts["bytes"]}
    raise ValueError(kind)
