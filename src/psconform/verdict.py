"""The outcome of one check."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Status = Literal["valid", "violated", "unknown", "not judged"]
WITNESS_LINES = 10
"""A witness is what a person reads first: no more than this many lines."""


@dataclass(frozen=True)
class Verdict:
    """What a check says of one guarantee.

    ``valid`` and ``violated`` are statements about the History; ``unknown`` means that a claimed guarantee could not
    be decided, for the given reason; ``not judged`` means that nothing was claimed or that the workload cannot show
    it, and counts neither way. ``claim`` is what a target file would have to say for it to be judged.
    """

    guarantee: str
    status: Status
    title: str = ""
    claimed: str = ""
    reason: str = ""
    witness: tuple[str, ...] = ()
    stats: dict[str, Any] = field(default_factory=dict)
    claim: str = ""

    def named(self, guarantee: str, title: str, claimed: str) -> Verdict:
        """The same verdict, filed under its guarantee."""
        return replace(self, guarantee=guarantee, title=title, claimed=claimed)


def counted(number: int, noun: str) -> str:
    """``1 gradient``, ``2 gradients``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def valid(reason: str = "", **stats: Any) -> Verdict:
    """The guarantee held in all that the History shows."""
    return Verdict("", "valid", reason=reason, stats=stats)


def violated(witness: Iterable[str], **stats: Any) -> Verdict:
    """The guarantee did not hold; ``witness`` are lines that show it, cut to ``WITNESS_LINES``."""
    lines = list(witness)
    if len(lines) > WITNESS_LINES:
        kept = lines[: WITNESS_LINES - 1]
        lines = [*kept, f"... and {len(lines) - len(kept)} more"]
    return Verdict("", "violated", witness=tuple(lines), stats=stats)


def unknown(reason: str, **stats: Any) -> Verdict:
    """An assumption of the check does not hold, so it says nothing."""
    return Verdict("", "unknown", reason=reason, stats=stats)


def not_judged(reason: str, *, claim: str = "") -> Verdict:
    """Nothing was claimed, or this workload cannot show it."""
    return Verdict("", "not judged", reason=reason, claim=claim)


@dataclass(frozen=True)
class Coverage:
    """Of the faults of a plan, how many were observed, and which share must be.

    What was to come after training had ended because of an earlier fault is not required.
    """

    planned: int
    observed: int
    required: Literal["all", "half", "none"]
    unreached: int = 0  # after the end of training

    @property
    def enough(self) -> bool:
        """At least the required share was observed."""
        share = {"all": 1.0, "half": 0.5, "none": 0.0}[self.required]
        return self.observed >= share * (self.planned - self.unreached)

    def __str__(self) -> str:
        short = "" if self.enough else f", too few for --require-faults {self.required}"
        ended = f" ({self.unreached} were to come after training had ended)" if self.unreached else ""
        return f"{self.observed} of {self.planned} faults observed{ended}{short}"


def exit_code(verdicts: Iterable[Verdict]) -> int:
    """0 all claimed guarantees valid, 1 one violated, 2 none violated but one unknown (or nothing judged at all)."""
    found = {verdict.status for verdict in verdicts}
    if "violated" in found:
        return 1
    return 2 if "unknown" in found or "valid" not in found else 0
