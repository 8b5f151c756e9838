"""Commands about this machine and about what there is to choose from: list, doctor, clean."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Literal

import typer

from .report.listing import LISTS, print_rows
from .terminal import Json

Listing = Literal["targets", "workloads", "checks", "layouts", "defects", "faults", "compatibility"]


def list_(
    what: Annotated[Listing, typer.Argument(help="What to list.")],
    as_json: Json = False,
) -> None:
    """List what there is to choose from."""
    rows = LISTS[what]()
    if as_json:
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
        return
    print_rows(rows)


def doctor(as_json: Json = False) -> None:
    """Say what this machine has for psconform, and what to do about what it lacks."""
    from .doctor import examine

    findings = examine()
    if as_json:
        sys.stdout.write(json.dumps([finding.as_dict() for finding in findings], indent=2) + "\n")
        return
    rows = [
        {
            "part": finding.name,
            "found": "yes" if finding.found else "no",
            "version": finding.version,
            "for": finding.needed_for,
            "what to do": finding.advice,
        }
        for finding in findings
    ]
    print_rows(rows)


def clean() -> None:
    """End processes, remove containers, networks, mounts and folders that a killed psconform has left.

    Nothing of a running one is touched.
    """
    from .errors import PsconformError
    from .launchers.cleanup import end_orphans, remove_folders, remove_mounts, remove_pods

    silent: PsconformError | None = None
    ended = end_orphans()
    for orphan in ended:
        sys.stdout.write(f"ended {orphan.pid}: {orphan.command}\n")
    sys.stdout.write(f"{len(ended)} process(es) ended\n")
    try:
        for name in remove_pods():
            sys.stdout.write(f"removed {name}\n")
    except PsconformError as error:
        silent = error  # what is left of the rest is removed all the same
    for folder in remove_mounts():  # before what they may lie in is deleted
        sys.stdout.write(f"unmounted {folder}\n")
    for folder in remove_folders():
        sys.stdout.write(f"deleted {folder}\n")
    if silent is not None:
        raise silent
