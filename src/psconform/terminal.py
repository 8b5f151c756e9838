"""What the commands of the command line share: where a run goes, how a result is printed."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from .errors import BadInput
from .report.text import wrapped
from .runner.dry_run import dry_run
from .runner.plan import Plan

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of text.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="List why each guarantee was not judged.")]


def run_folder(given: str | Path | None) -> Path:
    """A new run folder; one that cannot be used is refused before anything has started."""
    name = "--out" if given is not None else "psconform-runs"
    fresh = Path("psconform-runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"
    out = fresh if given is None else Path(given)
    try:
        out = out if out.name not in ("", "..") else out.resolve()
        above = next(path for path in (out, *out.absolute().parents) if path.exists())
        if above != out and not above.is_dir():
            raise BadInput(name, f"cannot be made ({above} is not a folder)", value=str(out))
        if above == out and (not out.is_dir() or any(out.iterdir())):
            raise BadInput(name, "is there already and not empty; nothing is overwritten", value=str(out))
        with tempfile.TemporaryDirectory(prefix=".psconform-", dir=above):
            pass  # not all that looks like a folder takes one: /proc, a disk that is read-only or full
    except OSError as error:
        raise BadInput(name, f"cannot be used ({error.strerror})", value=str(out)) from None
    return out


def print_json(content: Any) -> None:
    """For machines."""
    sys.stdout.write(json.dumps(content, indent=2) + "\n")


def print_run(content: dict[str, Any], text: Any, *, as_json: bool) -> None:
    """A result on standard output, for people or for machines."""
    if as_json:
        print_json(content)
        return
    console = Console(soft_wrap=True, highlight=False)
    console.print(wrapped(text, console.width) if console.is_terminal else text)


def print_plan(plan: Plan, *, as_json: bool) -> None:
    """What a run would start: a heading and what is asked for, or a list for machines."""
    parts = dry_run(plan)
    if as_json:
        print_json(parts)
        return
    for part in parts:
        key = next(iter(part))
        content = part["create"] if "create" in part else {name: part[name] for name in part if name != key}
        sys.stdout.write(f"{key} {part[key]}\n{json.dumps(content, indent=2)}\n\n")
