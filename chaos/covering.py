"""What the cases of the suite are made of: every kind of fault on every role, in each update mode, at each moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from allpairspy import AllPairs

from psconform.faults.fault import SENT
from psconform.faults.kinds import drawn_kinds, kinds
from psconform.faults.proxy_faults import SLOW_CLOSE
from psconform.targets.target import Target

ROLE = ("worker:0", "worker:1", "ps:0", "ps:1")
"""worker:0 is the chief."""
MOMENT = ("before-push", SENT, "after-push")
"""``sent``: and not acknowledged."""
UPDATE = ("sync", "async")
Case = tuple[str, str, str, str]
"""Kind, role, update mode, moment."""


@dataclass(frozen=True)
class Factors:
    """What there is to be combined, and what is left out of it, with the reason.

    ``asked`` are kinds of which only the worker that is struck can tell: of a ps there are none.
    """

    kinds: tuple[str, ...]
    asked: tuple[str, ...]
    moments: tuple[str, ...]
    roles: tuple[str, ...] = ROLE
    left_out: tuple[tuple[str, str], ...] = ()

    def product(self) -> list[Case]:
        """All there is."""
        workers = [role for role in self.roles if role.startswith("worker")]
        return [
            *product(self.kinds, self.roles, UPDATE, self.moments),
            *product(self.asked, workers, UPDATE, self.moments),
        ]

    def pairs(self) -> list[Case]:
        """So few of them that each two values of different factors that may meet do so in one of them.

        An array for each sort of kinds: one array with a filter leaves pairs out (allpairspy 2.5.1 ends where no value
        of a factor passes the filter).
        """
        workers = [role for role in self.roles if role.startswith("worker")]
        return [
            *_array(self.kinds, self.roles, UPDATE, self.moments),
            *_array(self.asked, workers, UPDATE, self.moments),
        ]


def factors_of(target: Target, launcher: str = "process") -> Factors:
    """What this target can be broken by, here. An image has all that kinds of faults need."""
    left_out: list[tuple[str, str]] = []
    drawn: tuple[str, ...] = drawn_kinds() if target.shared else (*drawn_kinds(), SLOW_CLOSE.name)
    moments = tuple(moment for moment in MOMENT if moment != SENT or (target.push_alone and not target.shared))
    if target.shared:
        left_out += [
            (name, 'all tasks share one cluster spec (cluster_spec = "shared")') for name in (SENT, SLOW_CLOSE.name)
        ]
    elif not target.push_alone:
        left_out.append((SENT, "its pushes may ask for something before they are sent (push_alone in target.toml)"))
    asked = tuple(name for name, kind in kinds().items() if kind.asked)
    lacking = {name: lacks for name in asked if launcher != "docker" and (lacks := kinds()[name].lacks)}
    left_out += [(name, f"needs {lacks}") for name, lacks in lacking.items()]
    most = {"ps": target.span("ps")[1], "worker": target.span("workers")[1]}
    roles = tuple(role for role in ROLE if int(role.partition(":")[2]) < most[role.partition(":")[0]])
    left_out += [(role, "the target takes fewer tasks (its target.toml)") for role in ROLE if role not in roles]
    return Factors(drawn, tuple(name for name in asked if name not in lacking), moments, roles, tuple(left_out))


def _array(*factors: Sequence[str]) -> list[Case]:
    if not all(factors):
        return []
    rows = AllPairs([list(factor) for factor in factors])
    return [(kind, role, update, moment) for kind, role, update, moment in rows]
