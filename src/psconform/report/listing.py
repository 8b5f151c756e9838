"""What there is to choose from, and tables on the terminal (``psconform list``, ``psconform doctor``)."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..checks import all_checks
from ..compatibility import rows as compatible
from ..errors import PsconformError
from ..faults.kinds import IN_CONTAINERS, kinds
from ..launchers.engine import GLANCE_S, engine
from ..launchers.launcher import DOCKER, launchers
from ..layout import NAMED, Layout
from ..printable import printable
from ..targets.lookup import named_targets
from ..targets.reference import DEFECTS
from ..workloads import all_workloads
from .text import wrapped

Rows = list[dict[str, Any]]


def _checks() -> Rows:
    return [
        {
            "name": check.name,
            "title": check.title,
            "judges": check.dimension or "always",
            "update": " or ".join(check.updates),
            "definition": " ".join(check.definition.split("\n\n")[0].split()),
        }
        for check in all_checks()
    ]


def _layouts() -> Rows:
    return [{"name": name, "layout": text, "tasks": len(Layout.parse(name).tasks)} for name, text in NAMED.items()]


def _defects() -> Rows:
    return [
        {
            "name": name,
            "about": defect.title,
            "found by": defect.found_by,
            "needs": defect.needs,
        }
        for name, defect in DEFECTS.items()
    ]


def _faults() -> Rows:
    try:
        engine(answers_s=GLANCE_S)
        no_engine = ""
    except PsconformError as error:
        no_engine = str(error)
    return [
        {
            "name": name,
            "of": f"{kind.of} (--launcher docker)" if kind.lacks == IN_CONTAINERS else kind.of,
            "about": kind.about,
            "evidence": kind.evidence,
            "amounts": ", ".join(f"{name} ({amount.usual})" for name, amount in kind.amounts.items()),
            "lacks here": no_engine if kind.lacks == IN_CONTAINERS else kind.lacks,
        }
        for name, kind in kinds().items()
    ]


def _compatibility() -> Rows:
    shown = sorted(compatible(), key=lambda row: row.given)
    rows = [{"option": row.given, "condition": row.needed, "because": row.why} for row in shown]
    for name, kind in kinds().items():
        if kind.in_containers:
            rows.append({"option": f"fault {name}", "condition": "needs --launcher docker", "because": ""})
        for other in sorted(kind.undoes):
            why = "the end of one would end the other" if other != name else "the end of one would end both"
            rows.append({"option": f"fault {name}", "condition": f"excludes {other} of the same task", "because": why})
    return rows


def _targets() -> Rows:
    return [{"name": name, "about": about} for name, about in named_targets().items()]


def _workloads() -> Rows:
    return [{"name": name, "about": kind.about} for name, kind in all_workloads().items()]


def _launchers() -> Rows:
    return [{"name": name, "about": launcher.about} for name, launcher in launchers().items()]


LISTS: dict[str, Callable[[], Rows]] = {
    "targets": _targets,
    "workloads": _workloads,
    "checks": _checks,
    "layouts": _layouts,
    "defects": _defects,
    "faults": _faults,
    "launchers": _launchers,
    "compatibility": _compatibility,
}


def _faults_shown(rows: Rows) -> Rows:
    """With one note in place of what kinds in containers need, and what is lacking for a kind."""
    shown = []
    for row in rows:
        kind = kinds()[row["name"]]
        note = row["lacks here"] or f"only with --launcher {DOCKER}" * kind.in_containers
        shown.append({name: row[name] for name in row if name != "lacks here"} | {"of": kind.of, NOTE: note})
    return shown


def _compatibility_shown(rows: Rows) -> Rows:
    """One row for all options of the same condition for the same reason."""
    options: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        options.setdefault((row["condition"], row["because"]), []).append(row["option"])
    return [{"option": ", ".join(names), "condition": of, "because": why} for (of, why), names in options.items()]


SHOWN: dict[str, Callable[[Rows], Rows]] = {"faults": _faults_shown, "compatibility": _compatibility_shown}
"""How people see a list, where that is not as machines do: what many rows have in common is said once."""
NOTE = "note"
"""A column of texts that stand below the table, each once."""


def print_list(what: str) -> None:
    """For people."""
    rows = LISTS[what]()
    print_rows(SHOWN[what](rows) if what in SHOWN else rows)


def print_rows(rows: Rows) -> None:
    """A table; one row at least. In a pipe it is wide, if COLUMNS does not say how wide."""
    narrow = sys.stdout.isatty() or "COLUMNS" in os.environ
    console = Console(highlight=False, soft_wrap=True, width=None if narrow else 160)
    notes = {text: f"[{n}]" for n, text in enumerate(dict.fromkeys(row[NOTE] for row in rows if row.get(NOTE)), 1)}
    grid = Table(box=None, padding=(0, 2, 0, 0))
    for name in rows[0]:
        grid.add_column(name, overflow="fold", no_wrap=name in ("name", "of", NOTE))
    for row in rows:
        cells = (notes.get(value, "") if name == NOTE else value for name, value in row.items())
        grid.add_row(*(Text(printable(cell)) for cell in cells))  # no markup: [x] is text
    console.print(grid, soft_wrap=False)
    for text, mark in notes.items():
        console.print(wrapped(Text(f"{mark} {printable(text)}"), console.width))
