"""Text that a target may have written, as a terminal or a page may show it."""

from __future__ import annotations


def printable(text: object) -> str:
    r"""In place of what controls a terminal, breaks a line or turns the direction of writing, its escape: ``\x1b``.

    A log, the name of a file or a field of a manifest may hold anything, also what clears the screen and writes a
    verdict of its own.
    """
    said = str(text)
    if said.isprintable():
        return said
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in said)
