"""What a seeded defect needs of a run, and whether it and the faults of a run go together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..errors import BadInput
from ..faults.data_faults import POISON
from ..faults.fault import Fault
from ..options import OPTIONS, Options
from ..targets.reference import DEFECTS

FAULTS = ("kill", "stop", "faults")


def with_needs(options: Options) -> Options:
    """These options, with what their defect needs where nothing is said; other faults take the place of its own."""
    defect = DEFECTS.get(options.defect)
    if defect is None:  # none, or an unknown one, which is refused elsewhere
        return options
    needs = {**defect.options, "layout": defect.layout}
    if any(getattr(options, name) for name in FAULTS):
        needs = {name: value for name, value in needs.items() if name not in (*FAULTS, "restart_after")}
    return replace(options, **{n: v for n, v in needs.items() if getattr(options, n) == OPTIONS[n].default})


def check_defect(name: str, faults: Sequence[Fault], every: int, batches: Sequence[tuple[str, int]]) -> None:
    """Raises BadInput for faults, checkpoints or workers short of data that the trainer of this defect does not know.

    Of a defect of recovery any faults may be given: other ones than its own may show it or not.
    """
    defect = DEFECTS[name]
    if batches and not defect.batches:
        text = " ".join(f"{task}={number}" for task, number in batches)
        raise BadInput("--batches", f"defect {name} is not about it", value=text)
    for fault in faults:
        if fault.kind == POISON.name and not defect.poison:
            raise BadInput(fault.place, f"defect {name} is not about it", value=str(fault))
        if fault.outside and not defect.recovers:
            raise BadInput(fault.place, f"defect {name} has no recovery", value=str(fault))
    if every and not defect.recovers:
        raise BadInput("--checkpoint-every", f"defect {name} has no recovery", value=every)
    if defect.recovers and not every:
        raise BadInput("--checkpoint-every", f"defect {name} needs checkpoints", value=every)
