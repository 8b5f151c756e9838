"""The command line ``psconform``: run, check, plot, list, doctor, clean.

replay and shrink are in cli_replay.py, simulate in cli_simulate.py; images, list, doctor and clean in cli_machine.py.
"""

from __future__ import annotations

import errno
import inspect
import io
import math
import os
import re
import signal
import sys
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NoReturn, TextIO, get_args

import typer
from pydantic import ValidationError

from .cli_machine import clean, doctor, images, list_
from .cli_replay import replay, shrink
from .cli_simulate import simulate
from .errors import BadInput, PsconformError
from .options import OPTIONS, OUTPUT, SERIES, Option, Options
from .printable import printable
from .report.progress_bar import show_progress
from .report.series_summary import show_series
from .report.series_summary import summary as series_summary
from .runner.plan import make_plan
from .runner.random_layouts import make_plans
from .runner.series import Series, run_series
from .runner.session import Session, need_machine
from .terminal import Json, Verbose, print_plan, print_run, run_folder
from .version import __version__

app = typer.Typer(
    name="psconform",
    help="Says which promises a parameter-server training cluster kept.",
    epilog="Exit codes: 0 all claimed guarantees valid, 1 one violated, 2 none violated but one unknown, "
    "3 bad input, or something that is missing here, 4 psconform itself failed, 130 interrupted.",
    pretty_exceptions_enable=False,
    add_completion=False,
)
USAGE_ERROR: type[BaseException] = typer.BadParameter.__mro__[1]
"""click's UsageError: recent versions of typer carry their own copy of click."""


SURROUNDINGS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE)
"""Errors of the machine: a full disk, too many open files."""


class Output(io.TextIOWrapper):
    """Standard output or error. One that cannot be written changes nothing else: no verdict, no exit code, no run."""

    failed: OSError | None = None

    @classmethod
    def of(cls, stream: TextIO | None) -> Output:
        """In place of this one, or of none: closed by the shell's ``>&-``."""
        if not isinstance(stream, io.TextIOWrapper):
            return cls(open(os.devnull, "wb"), encoding="utf-8")
        same = open(stream.fileno(), "wb", closefd=False)  # noqa: SIM115  (it is that of the whole process)
        return cls(same, encoding=stream.encoding, errors=stream.errors, line_buffering=stream.line_buffering)

    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except OSError as error:
            self._give_up(error)
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self.failed = self.failed or error
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())  # or Python would try again, and complain
        os.close(nowhere)


def _with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command a parameter for each option of a run, in place of its ``**given``: typer reads signatures."""
    own = inspect.signature(command, eval_str=True).parameters.values()
    parameters = [*map(_parameter, OPTIONS.values()), *(_own(each) for each in own if each.kind is each.KEYWORD_ONLY)]
    vars(command)["__signature__"] = inspect.Signature(parameters)
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def integer(given: str | int) -> int:
    """A whole number in up to 18 ASCII digits: int() takes the digits of all scripts. Defaults are numbers already."""
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", str(given)):
        raise typer.BadParameter(f"must be a whole number, got {str(given)[:50]!r}")
    return int(given)


def number(given: str | float) -> float:
    """A finite number in ASCII digits."""
    try:
        found = float(given) if str(given).isascii() else math.nan
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise typer.BadParameter(f"must be a number, got {str(given)[:50]!r}")
    return found


PARSERS: dict[Any, Callable[[Any], Any]] = {int: integer, float: number}


def _parameter(option: Option) -> inspect.Parameter:
    kind = option.typed or option.kind
    default = None if kind == list[str] else option.default
    shown: Any = typer.Argument(help=option.help)
    if option.flag.startswith("--"):
        shown = typer.Option(
            option.flag,
            help=option.help,
            metavar=option.metavar,
            rich_help_panel=option.group.title,
            parser=next((PARSERS[each] for each in (kind, *get_args(kind)) if each in PARSERS), None),
        )
    taken: Any = Annotated[kind | None if default is None else kind, shown]
    return inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=taken)


def _own(parameter: inspect.Parameter) -> inspect.Parameter:
    """One that is no option of a run: of many runs, or else of what is printed."""
    kind, shown = get_args(parameter.annotation)
    shown = copy(shown)  # other commands have it, too, and no groups
    shown.rich_help_panel = shown.rich_help_panel or OUTPUT.title
    return parameter.replace(annotation=Annotated[kind, shown])


@app.command()
@_with_options
def run(
    *,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print what would be started, and start nothing."),
    ] = False,
    repeat: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            parser=integer,
            help="Run N times, with the seeds seed, seed + 1, ..., and sum up.",
            rich_help_panel=SERIES.title,
        ),
    ] = None,
    random_layouts: Annotated[
        bool,
        typer.Option(
            "--random-layouts",
            help="With --repeat: draw layout, reads and steps (up to --steps) each time.",
            rich_help_panel=SERIES.title,
        ),
    ] = False,
    keep_valid: Annotated[
        bool, typer.Option(help="With --repeat: keep the folders of valid runs.", rich_help_panel=SERIES.title)
    ] = True,
    verbose: Verbose = False,
    as_json: Json = False,
    **given: Any,
) -> None:
    """Run a cluster, judge it, print which guarantees held; with --repeat many times, and print a summary.

    A series exits with the worst there was: 1 violated, else 4 or 3 a run that failed, else 2 unknown, else 0.
    """
    from .api import run_plan

    given["faults"] = _plan(given["faults"])
    options = Options(**{name: value for name, value in given.items() if value not in (None, [])})
    if dry_run and repeat is not None:
        raise BadInput("--dry-run", "shows one run: without --repeat", value=repeat)
    for option, said in (("--random-layouts", random_layouts), ("--no-keep-valid", not keep_valid)):
        if said and repeat is None:
            raise BadInput(option, "is for a series: give --repeat N, too")
    folder = run_folder(options.out)
    options = replace(options, out=folder)
    if repeat is not None:
        plans = make_plans(options, repeat=repeat, random_layouts=random_layouts)
        need_machine(plans[0])  # what one lacks, all lack
        _run_series(Series(plans, folder), keep_valid=keep_valid, as_json=as_json)
    plan = make_plan(options)
    if dry_run:
        print_plan(plan, as_json=as_json)
        raise typer.Exit(0)
    need_machine(plan)
    with Session() as session, show_progress(plan) as notify:
        judged = run_plan(plan, session=session, notify=notify)
    print_run(judged.as_dict(), judged.text(verbose=verbose), as_json=as_json)
    raise typer.Exit(judged.exit_code)


def _plan(given: list[str] | None) -> str:
    """A list, so that a second one does not take the place of the first; and one that is empty is no plan."""
    if given and (len(given) > 1 or not given[0].strip()):
        hint = "Faults of several files go into one; without faults leave the option out"
        raise BadInput("--faults", "must be given once, with a plan", value=" ".join(given), hint=hint)
    return given[0] if given else ""


def _run_series(series: Series, *, keep_valid: bool, as_json: bool) -> NoReturn:
    with Session() as session, show_series(series) as (notify, done):
        run_series(series, session, notify=notify, done=done, keep_valid=keep_valid)
    print_run(series.as_dict(), series_summary(series), as_json=as_json)
    if series.interrupted:
        raise KeyboardInterrupt  # said, and turned into 130, as for a single run
    raise typer.Exit(series.exit_code)


@app.command()
def check(
    folder: Annotated[Path, typer.Argument(help="A run folder.")],
    max_record: Annotated[
        str, typer.Option(metavar="SIZE", help="How large an event file may be. Default: as in the run.")
    ] = "",
    verbose: Verbose = False,
    as_json: Json = False,
) -> None:
    """Judge a stored run again, offline, without TensorFlow; changes nothing."""
    from .api import check as check_folder

    try:
        judged = check_folder(folder, max_record=max_record)
    except OSError as error:
        raise BadInput(str(folder), f"cannot be read ({error.strerror})") from None
    print_run(judged.as_dict(), judged.text(verbose=verbose), as_json=as_json)
    raise typer.Exit(judged.exit_code)


@app.command()
def plot(
    folder: Annotated[Path, typer.Argument(help="A run folder.")],
    out: Annotated[
        Path | None, typer.Option(help="The picture, .png or .svg. Default: plot.svg in the run folder.")
    ] = None,
) -> None:
    """Draw a stored run: loss curves (workloads that train a model), step times, staleness."""
    from .report.plot import plot_run
    from .runner.verdicts import judge_folder

    path = out or folder / "plot.svg"
    plot_run(judge_folder(folder), path)
    sys.stdout.write(f"{printable(path)}\n")


app.command()(replay)
app.command()(shrink)
app.command()(simulate)
app.add_typer(images, name="images")
app.command(name="list")(list_)
app.command()(doctor)
app.command()(clean)


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


def main() -> None:
    """Entry point: exit codes as documented, one line per error, no traceback for what a user can mend."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C: tasks first, the record closed
    before, output = (sys.stdout, sys.stderr), Output.of(sys.stdout)
    sys.stdout, sys.stderr = output, Output.of(sys.stderr)
    try:
        status = _run_app()
        output.flush()
        if output.failed and not isinstance(output.failed, BrokenPipeError):
            _say(f"cannot write its output ({output.failed.strerror})")
            status = 3 if status is None else status
    finally:
        sys.stderr.flush()
        sys.stdout, sys.stderr = before
    sys.exit(status or 0)


def _run_app() -> int | None:
    """The exit code; None of a command that has done what it says."""
    try:
        status = app(standalone_mode=False, prog_name="psconform")
    except (typer.Abort, KeyboardInterrupt):
        status = 130
    except USAGE_ERROR as error:
        return _usage_error(error)
    except PsconformError as error:
        _say(str(error))
        return error.exit_code
    except Exception as error:  # the last line of defence: say what and where, in one line
        if isinstance(error, OSError) and error.errno in SURROUNDINGS:
            _say(f"{error.filename or 'a file'}: {error.strerror}")
            return 3
        _say(f"failed: {type(error).__name__}: {error} ({_innermost(error)}); please report this")
        return 4
    if status == 130:
        _say("interrupted; all tasks have been ended")
    return status if isinstance(status, int) else None


def _usage_error(error: Any) -> int:
    """What typer found wrong with the command line: one line, and the usage."""
    message = error.format_message().rstrip(".").replace("Value error, ", "")
    cause = error.__cause__
    if isinstance(cause, ValidationError) and (value := repr(cause.errors()[0]["input"])) not in message:
        message += f", got {value}"
    _say(message)
    if error.ctx is not None:
        sys.stderr.write(" ".join(error.ctx.get_usage().split()) + "\n")
    return 3


def _say(message: str) -> None:
    sys.stderr.write(f"psconform: {printable(' '.join(message.split()))}\n")


def _innermost(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else "?"


if __name__ == "__main__":
    main()
