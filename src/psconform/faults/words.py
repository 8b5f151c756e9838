"""What faults can be of, and what they take."""

from __future__ import annotations

from dataclasses import dataclass

PROCESS, CONTAINER, NETWORK, PACKETS = "process", "container", "network", "packets"
DISK, DATA = "disk", "data"


@dataclass(frozen=True)
class Amount:
    """A whole number that a kind takes, its usual value (None: it must be said) and bounds."""

    about: str
    usual: int | None
    least: int
    most: int
