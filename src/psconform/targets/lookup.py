"""A target by its name: the reference trainer, one of another package, a Compose file or a target file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from ..errors import BadInput
from ..extensions import named
from ..files import is_file
from ..layout import Layout
from .compose import PREFIX, load_compose
from .reference import ABOUT, REFERENCE, reference
from .target import Target
from .toml import load_target

ENTRY_POINTS = "psconform.targets"
"""The group in which another package names its targets, each a `Target`."""


@cache
def packaged_targets() -> Mapping[str, Target]:
    """Targets of other packages, by name.

    Raises:
        BadInput: an entry point cannot be loaded, is no target, or has the name of another one.
    """
    what = "a psconform.targets.target.Target"
    found = named(ENTRY_POINTS, what, lambda value: isinstance(value, Target), taken=(REFERENCE,))
    return {name: replace(target, source=name) for name, target in found.items()}


def named_targets() -> dict[str, str]:
    """What may be given as a name, with one line each; raises BadInput as `packaged_targets` does."""
    return {REFERENCE: ABOUT, **{name: target.about for name, target in packaged_targets().items()}}


def find_target(
    name: str, *, defect: str = "", layout: Layout | None = None, steps: int | None = None, **options: str
) -> Target:
    """A target by name, ``compose:FILE``, or the target file at that path; raises BadInput.

    The layout, the steps and the other options (workload, compression) are those in which a defect is to show.
    """
    if name == REFERENCE:
        return reference(defect, layout=layout, steps=steps, **options)
    path, packaged = Path(name), packaged_targets()
    if not (name in packaged or name.startswith(PREFIX) or is_file(path) or name.endswith(".toml")):
        hint = "Or give the path of a target.toml"
        raise BadInput("TARGET", "no such target", value=name, choices=named_targets(), hint=hint)
    if defect:
        raise BadInput("--defect", "only the reference trainer has seeded defects", value=defect)
    if name in packaged:
        return packaged[name]
    return load_compose(Path(name.removeprefix(PREFIX))) if name.startswith(PREFIX) else load_target(path)
