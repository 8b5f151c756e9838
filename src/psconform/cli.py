"""The command line ``psconform``: run, check, list, doctor, clean."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table

from . import __version__
from .checks import CHECKS
from .errors import PsconformError
from .layout import NAMED, Layout
from .report.progress import show_progress
from .runner.plan import make_plan
from .runner.session import Session
from .targets.defects import DEFECTS
from .targets.reference import REGISTERED
from .workloads import WORKLOADS

app = typer.Typer(
    name="psconform",
    help="Says which promises a parameter-server training cluster kept.",
    epilog="Exit codes: 0 all claimed guarantees valid, 1 one violated, 2 none violated but one unknown, "
    "3 bad input, 4 psconform itself failed, 130 interrupted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of text.")]


@app.command()
def run(
    target: Annotated[str, typer.Argument(help="reference, or the path of a target.toml.")] = "reference",
    layout: Annotated[str, typer.Option(help="ps=2,worker=3, or a name: psconform list layouts.")] = "default",
    update: Annotated[str, typer.Option(help="sync or async.")] = "sync",
    reduction: Annotated[str, typer.Option(help="mean or sum, of a sync round.")] = "mean",
    workload: Annotated[str, typer.Option(help="What is trained: psconform list workloads.")] = "ledger",
    steps: Annotated[int, typer.Option(help="Steps of each worker.")] = 50,
    seed: Annotated[int, typer.Option(help="Seed of everything that is drawn.")] = 0,
    reads: Annotated[int, typer.Option(help="Reads before each gradient.")] = 1,
    read_every: Annotated[int, typer.Option(help="Async only: read every so many steps.")] = 1,
    defect: Annotated[str, typer.Option(help="A seeded defect of the reference trainer: psconform list defects.")] = "",
    out: Annotated[Path | None, typer.Option(help="Run folder, new or empty. Default: psconform-runs/TIME.")] = None,
    patience: Annotated[float, typer.Option(help="Seconds without any event after which a run is stopped.")] = 60.0,
    as_json: Json = False,
) -> None:
    """Run a cluster once, judge it, print which guarantees held."""
    from .api import run_plan

    plan = make_plan(
        target,
        out=out or _default_folder(),
        layout=layout,
        update=update,
        reduction=reduction,
        workload=workload,
        steps=steps,
        seed=seed,
        reads=reads,
        read_every=read_every,
        defect=defect,
        patience_s=patience,
    )
    with Session() as session, show_progress(plan) as notify:
        judged = run_plan(plan, session=session, notify=notify)
    _print_run(judged.as_dict(), judged.text(), as_json=as_json)
    raise typer.Exit(judged.exit_code)


@app.command()
def check(
    folder: Annotated[Path, typer.Argument(help="A run folder.")],
    as_json: Json = False,
) -> None:
    """Judge a stored run again, offline, without TensorFlow; changes nothing."""
    from .api import check as check_folder

    judged = check_folder(folder)
    _print_run(judged.as_dict(), judged.text(), as_json=as_json)
    raise typer.Exit(judged.exit_code)


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
        for check in CHECKS
    ]


def _layouts() -> Rows:
    return [{"name": name, "layout": text, "tasks": len(Layout.parse(name).tasks)} for name, text in NAMED.items()]


def _defects() -> Rows:
    return [
        {
            "name": name,
            "about": defect.title,
            "found by": defect.meant,
            "needs": f"{' or '.join(defect.updates)}, ps>={defect.ps}, worker>={defect.workers}",
        }
        for name, defect in DEFECTS.items()
    ]


def _about(lines: Mapping[str, str]) -> Callable[[], Rows]:
    return lambda: [{"name": name, "about": about} for name, about in lines.items()]


_LISTS: dict[str, Callable[[], Rows]] = {
    "targets": _about(REGISTERED),
    "workloads": _about(WORKLOADS),
    "checks": _checks,
    "layouts": _layouts,
    "defects": _defects,
}
Listing = Literal["targets", "workloads", "checks", "layouts", "defects"]


@app.command(name="list")
def list_(
    what: Annotated[Listing, typer.Argument(help="What to list.")],
    as_json: Json = False,
) -> None:
    """List what there is to choose from."""
    rows = _LISTS[what]()
    if as_json:
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
        return
    _print_rows(rows)


@app.command()
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
    _print_rows(rows)


@app.command()
def clean() -> None:
    """End processes that a killed psconform has left behind; those of a running one are not touched."""
    from .launchers.cleanup import end_orphans

    ended = end_orphans()
    for orphan in ended:
        sys.stdout.write(f"ended {orphan.pid}: {orphan.command}\n")
    sys.stdout.write(f"{len(ended)} process(es) ended\n")


def _version(value: bool) -> None:
    if value:
        sys.stdout.write(f"psconform {__version__}\n")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    del version


def _default_folder() -> Path:
    return Path("psconform-runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"


def _print_run(content: dict[str, Any], text: Any, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(content, indent=2) + "\n")
    else:
        Console(soft_wrap=True, highlight=False).print(text)


def _print_rows(rows: list[dict[str, Any]]) -> None:
    console = Console(highlight=False)
    grid = Table(box=None, padding=(0, 2, 0, 0))
    for name in rows[0]:
        grid.add_column(name, overflow="fold", no_wrap=name in ("name", "part", "found"))
    for row in rows:
        grid.add_row(*(str(value) for value in row.values()))
    console.print(grid)


def main() -> None:
    """Entry point: exit codes as documented, one line per error, no traceback for what a user can mend."""
    import click

    try:
        status = app(standalone_mode=False)
    except click.exceptions.Exit as error:
        status = error.exit_code
    except (click.exceptions.Abort, KeyboardInterrupt):
        sys.stderr.write("psconform: interrupted; all tasks have been ended\n")
        status = 130
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        sys.stderr.write(f"psconform: {error.format_message()}\n")
        if context is not None:
            sys.stderr.write(f"{context.get_usage()}\n")
        status = 3
    except PsconformError as error:
        sys.stderr.write(f"psconform: {error}\n")
        status = error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        status = 4
    except Exception as error:  # the last line of defence: say what and where, in one line
        where = _innermost(error)
        sys.stderr.write(f"psconform: failed: {type(error).__name__}: {error} ({where}); please report this\n")
        status = 4
    sys.exit(status if isinstance(status, int) else 0)


def _innermost(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else "?"


if __name__ == "__main__":
    main()
