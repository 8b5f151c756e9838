"""psconform: says which promises a parameter-server training cluster kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .version import __version__

if TYPE_CHECKING:
    from .api import Run, judge

__all__ = ["Run", "__version__", "judge"]


def __getattr__(name: str) -> Any:
    # Late, so that a trainer's `import psconform.probe` costs numpy and nothing else.
    if name in ("Run", "judge"):
        from . import api

        return getattr(api, name)
    raise AttributeError(f"module 'psconform' has no attribute {name!r}")
