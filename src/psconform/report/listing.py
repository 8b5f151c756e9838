"""What there is to choose from, and tables on the terminal (``psconform list``, ``psconform doctor``)."""

from __future__ import annotations

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
from ..launchers.launcher import launchers
from ..layout import NAMED, Layout
from ..printable import printable
from ..targets.lookup import named_targets
from ..targets.reference import DEFECTS
from ..workloads import all_workloads

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
        no_engine = str(error).partition(". ")[0]  # without how to get one, which doctor says
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


def print_rows(rows: Rows) -> None:
    """A table; one row at least."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    grid = Table(box=None, padding=(0, 2, 0, 0))
    for name in rows[0]:
        grid.add_column(name, overflow="fold", no_wrap=name in ("name", "part", "found"))
    for row in rows:
        grid.add_row(*(Text(printable(value)) for value in row.values()))  # no markup: [x] is text
    console.print(grid)
