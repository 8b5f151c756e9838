"""The reference trainer as a Target, and the registry of named targets."""

from __future__ import annotations

from pathlib import Path

from ..claims import ASYNC, SYNC
from ..errors import BadInput
from ..layout import Layout
from ..probe import UNIT
from .defects import DEFECTS, Defect
from .target import Job, Target
from .toml import load_target

_MODULE = "psconform.reference_impl"


def _unit(layout: Layout) -> float:
    """The reference trainer's learning rate is 1."""
    return UNIT / layout.workers if layout.update == "sync" and layout.reduction == "mean" else UNIT


def reference(defect: str = "", *, layout: Layout | None = None, steps: int | None = None) -> Target:
    """The reference trainer, with one deliberate bug if ``defect`` names one.

    Raises:
        BadInput: no such defect, or the layout cannot show it.
    """
    if defect:
        _check_defect(defect, layout, steps)
    command: tuple[str, ...] = ("{python}", "-m", _MODULE, "--update={update}", "--reduction={reduction}")
    if defect:
        command += (f"--defect={defect}",)
    job = Job(command, entry=f"{_MODULE}.__main__:main")
    return Target(
        name="reference",
        source=_MODULE,
        jobs={"ps": job, "worker": job},
        claims={"sync": SYNC, "async": ASYNC},
        unit=_unit,
        preload=(f"{_MODULE}.trainer", f"{_MODULE}.defects"),
        defects=tuple(DEFECTS),
    )


def _check_defect(name: str, layout: Layout | None, steps: int | None) -> Defect:
    if name not in DEFECTS:
        raise BadInput("--defect", "unknown defect", value=name, choices=DEFECTS)
    defect = DEFECTS[name]
    if steps is not None and steps < defect.steps:
        raise BadInput("--steps", f"defect {name} needs at least {defect.steps} to show", value=steps)
    if layout is not None:
        if layout.update not in defect.updates:
            raise BadInput("--update", f"defect {name} needs", value=layout.update, choices=defect.updates)
        for job, least, count in (("ps", defect.ps, layout.ps), ("worker", defect.workers, layout.workers)):
            if count < least:
                raise BadInput("--layout", f"defect {name} needs at least {least} {job}", value=layout.text)
    return defect


REGISTERED = {"reference": "the minimal TensorFlow ps/worker trainer that comes with psconform"}


def find_target(name: str, *, defect: str = "", layout: Layout | None = None, steps: int | None = None) -> Target:
    """A registered target by name, or the target file at that path; raises BadInput."""
    if name == "reference":
        return reference(defect, layout=layout, steps=steps)
    path = Path(name)
    if not path.is_file() and not name.endswith(".toml"):
        hint = "Or give the path of a target.toml"
        raise BadInput("TARGET", "no such target", value=name, choices=REGISTERED, hint=hint)
    if defect:
        raise BadInput("--defect", "only the reference trainer has seeded defects", value=defect)
    return load_target(path)
