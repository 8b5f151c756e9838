"""Errors that a user can mend: each names the place, the value and the valid choices."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

VALUE, LONGEST = 300, 2000
"""Characters of a value in an error, and of what is wrong with it."""


class PsconformError(Exception):
    """Something psconform itself could not do (exit code 4)."""

    exit_code = 4


class Unavailable(PsconformError):
    """Something that this machine lacks, or refuses: an engine, a program, an extra, a port (exit code 3)."""

    exit_code = 3


class BadInput(PsconformError):
    """A layout, target file, option or run folder that cannot be used as it is (exit code 3).

    Args:
        place: where the value stands, e.g. ``--layout`` or ``target.toml: claims.sync.barrier``.
        problem: what is wrong with it, in a few words.
        value: the offending value, shown as it was given.
        choices: the valid values, if they can be listed; the nearest one is suggested.
        hint: one more sentence on what to do.
    """

    exit_code = 3

    def __init__(
        self,
        place: str,
        problem: str,
        *,
        value: object = None,
        choices: Iterable[str] = (),
        hint: str = "",
    ) -> None:
        self.place, self.problem, self.value, self.hint = place, problem, value, hint
        self.choices = tuple(choices)
        text = f"{place}: {_shortened(problem, LONGEST)}"
        if value is not None:
            text += f", got {_shortened(repr(value), VALUE)}"
        if self.choices:
            near = difflib.get_close_matches(str(value), self.choices, n=1)
            text += f"; valid: {', '.join(self.choices)}"
            text += f" (did you mean {near[0]!r}?)" if near else ""
        super().__init__(text + (f". {hint}" if hint else ""))


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 40]} ... {text[-30:]}"


class NotStarted(BadInput):
    """The user's set-up: a task ended, or hung, before its probe had started (exit code 3)."""


class Malformed(BadInput):
    """A stored run that cannot be read: names the file and, where there is one, the line (exit code 3)."""

    def __init__(self, path: object, problem: str, *, line: int | None = None, hint: str = "") -> None:
        place = f"{path}:{line}" if line is not None else str(path)
        super().__init__(place, problem, hint=hint)
