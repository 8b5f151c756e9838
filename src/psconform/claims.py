"""What a Target promises. A check judges the claimed level; a claim at its weakest level is judged by nobody."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

from .errors import BadInput

LEVELS: dict[str, tuple[str, ...]] = {
    "delivery": ("none", "at-most-once", "at-least-once", "exactly-once"),
    "barrier": ("none", "r-of-n", "full"),
    "rate": ("constant", "staleness-aware"),
    "staleness": ("unbounded", "bounded"),
    "read_atomicity": ("none", "per-variable", "per-shard", "snapshot"),
    "reduction": ("none", "sum", "mean", "weighted"),
    "init": ("repeated", "once", "by-chief"),
    "compression": ("any", "error-feedback", "lossless"),
    "sampling": ("with-replacement", "drop-last", "padded", "exactly-once"),
    "skips": ("any", "few"),
    "divisor": ("any", "initial", "live"),
    "state": ("own", "replicated"),
    "recovery": ("none", "partial", "checkpoint"),
    "liveness": ("may-hang", "attributed-error", "progress"),
}
"""Levels per dimension, weakest first."""


BY_OPTION = {
    ("barrier", "r-of-n"): "--quorum",
    ("rate", "staleness-aware"): "--rate staleness-aware",
    ("staleness", "bounded"): "--staleness",
}
"""Levels that are claimed by an option of the run, not in a target file."""


@dataclass(frozen=True, kw_only=True)
class Claims:
    """The claimed level in each dimension. ``str`` values from ``LEVELS``; raises BadInput for any other."""

    delivery: str = "exactly-once"
    barrier: str = "none"
    staleness: str = "unbounded"
    read_atomicity: str = "per-variable"
    reduction: str = "none"
    init: str = "once"
    rate: str = "constant"
    compression: str = "lossless"
    sampling: str = "exactly-once"
    skips: str = "few"
    divisor: str = "any"
    state: str = "own"
    recovery: str = "none"
    liveness: str = "attributed-error"

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value not in LEVELS[field.name]:
                raise BadInput(f"claims.{field.name}", "unknown level", value=value, choices=LEVELS[field.name])

    @classmethod
    def from_dict(cls, levels: dict[str, str], *, place: str = "claims") -> Claims:
        """Build from a mapping, naming ``place`` in errors; raises BadInput."""
        for name in levels:
            if name not in LEVELS:
                raise BadInput(place, "unknown dimension", value=name, choices=LEVELS)
        try:
            return cls(**levels)
        except BadInput as error:
            where = f"{place}.{error.place.removeprefix('claims.')}"
            raise BadInput(where, error.problem, value=error.value, choices=error.choices) from None

    @property
    def averages(self) -> bool:
        """A sync round is a mean of its gradients, weighted or not."""
        return self.reduction in ("mean", "weighted")

    def level(self, dimension: str) -> str:
        """The claimed level of one dimension."""
        return str(getattr(self, dimension))

    def as_dict(self) -> dict[str, str]:
        """All levels by dimension, for the manifest."""
        return asdict(self)


SYNC = Claims(barrier="full", read_atomicity="snapshot", reduction="mean")
"""What synchronous training with a full barrier usually promises."""

ASYNC = Claims(read_atomicity="per-shard")
"""What asynchronous training usually promises: exactly once, on arrival, no bound on staleness."""

DEFAULTS = {"sync": SYNC, "async": ASYNC}
