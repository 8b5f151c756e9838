"""The command line ``psconform``: run, check, plot, list, doctor, clean.

replay and shrink are in cli_again.py, images in cli_images.py; list, doctor and clean in cli_machine.py.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from pydantic import ValidationError

from . import cli_images
from .cli_again import replay, shrink
from .cli_machine import clean, doctor, list_
from .errors import BadInput, PsconformError
from .faults.short import RESTART_AFTER
from .history.manifest import STEPS
from .report.progress import show_progress
from .report.series import show_series
from .report.series import summary as series_summary
from .runner.containers import need_gpus
from .runner.draw import make_plans
from .runner.plan import make_plan
from .runner.series import Series, run_series
from .runner.session import Session
from .terminal import Json, print_plan, print_run, run_folder
from .version import __version__

app = typer.Typer(
    name="psconform",
    help="Says which promises a parameter-server training cluster kept.",
    epilog="Exit codes: 0 all claimed guarantees valid, 1 one violated, 2 none violated but one unknown, "
    "3 bad input, 4 psconform itself failed, 130 interrupted.",
    pretty_exceptions_enable=False,
    add_completion=False,
)
USAGE_ERROR: type[BaseException] = typer.BadParameter.__mro__[1]
"""click's UsageError: recent versions of typer carry their own copy of click."""


@app.command()
def run(
    target: Annotated[str, typer.Argument(help="reference, or the path of a target.toml.")] = "reference",
    layout: Annotated[
        str,
        typer.Option(help="ps=2,worker=3,gpus=1 (ps=0: all-reduce), a name (psconform list layouts), or a .toml file."),
    ] = "default",
    update: Annotated[str, typer.Option(help="sync or async.")] = "sync",
    reduction: Annotated[str, typer.Option(help="mean or sum, of a sync round.")] = "mean",
    quorum: Annotated[
        int,
        typer.Option(metavar="R", help="Sync only: gradients that complete a round; later ones are dropped. 0: all."),
    ] = 0,
    staleness: Annotated[
        int | None, typer.Option(metavar="S", help="Async only: the most steps that a worker may be ahead of another.")
    ] = None,
    rate: Annotated[
        str, typer.Option(help="Async only: constant, or staleness-aware: divided by the staleness of a gradient.")
    ] = "constant",
    local_steps: Annotated[
        int, typer.Option(metavar="H", help="Layouts with ps=0: steps of a replica by itself before all are averaged.")
    ] = 1,
    replication: Annotated[
        str, typer.Option(help="Sync only: between-graph, in-graph or model-parallel (digits, quadratic).")
    ] = "between-graph",
    optimizer: Annotated[str, typer.Option(help="Digits, quadratic: sgd, momentum or adam.")] = "sgd",
    schedule: Annotated[
        str, typer.Option(help="Digits, quadratic: constant, or halving: the learning rate, every 50 updates.")
    ] = "constant",
    drop_after: Annotated[
        str, typer.Option(metavar="TIME", help="Go on without a worker that was waited for so long: 2s. 0s: wait.")
    ] = "0s",
    workload: Annotated[str, typer.Option(help="What is trained: psconform list workloads.")] = "ledger",
    steps: Annotated[int, typer.Option(help="Steps of each worker.")] = STEPS,
    seed: Annotated[int, typer.Option(help="Seed of everything that is drawn.")] = 0,
    reads: Annotated[int, typer.Option(help="Reads before each gradient.")] = 1,
    read_every: Annotated[int, typer.Option(help="Async only: read every so many steps.")] = 1,
    model: Annotated[str, typer.Option(help="Workload digits: softmax or mlp.")] = "softmax",
    batch: Annotated[int, typer.Option(help="Workload digits: samples of each worker in a step.")] = 16,
    learning_rate: Annotated[
        float | None,
        typer.Option(help="Digits, quadratic: of a round or an update. Default 0.1, 0.02; see the API for optimizers."),
    ] = None,
    delay: Annotated[int, typer.Option(help="Digits, quadratic: age in steps of what a gradient is taken at.")] = 0,
    condition: Annotated[float, typer.Option(help="Workload quadratic: its condition number.")] = 10.0,
    compression: Annotated[
        str, typer.Option(help="Workload dense-ledger: none or topk, for targets that declare it.")
    ] = "none",
    padding: Annotated[
        int, typer.Option(metavar="N", help="Workload ledger: parameters of each variable besides, to make it large.")
    ] = 0,
    slow: Annotated[
        list[str] | None,
        typer.Option(metavar="TASK=TIME", help="A worker that sleeps before each gradient: worker:1=50ms."),
    ] = None,
    batches: Annotated[
        list[str] | None,
        typer.Option(metavar="TASK=N", help="Workload ledger: a worker with data for N steps only: worker:1=50."),
    ] = None,
    defect: Annotated[str, typer.Option(help="A seeded defect of the reference trainer: psconform list defects.")] = "",
    kill: Annotated[
        list[str] | None,
        typer.Option(metavar="TASK@WHEN", help="SIGKILL: ps:0@20, worker:1@after-push:35 or ps:0@2s. Repeatable."),
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(metavar="TASK@FROM..TO", help="SIGSTOP, then SIGCONT: worker:0@10..15 or ps:0@1s..3s."),
    ] = None,
    poison: Annotated[
        list[str] | None,
        typer.Option(metavar="TASK@STEP", help="A gradient full of NaN, or of Inf: worker:1@20, worker:1@20=inf."),
    ] = None,
    faults: Annotated[
        list[str] | None, typer.Option(metavar="FILE", help="A fault plan: a file, or random, or random:KIND,KIND.")
    ] = None,
    restart_after: Annotated[str, typer.Option(metavar="TIME", help="With --kill: 500ms, or never.")] = RESTART_AFTER,
    checkpoint_every: Annotated[
        str | None,
        typer.Option(metavar="N|TIME", help="Steps of the chief, or 500ms; default 50 with faults, else 0: never."),
    ] = None,
    launcher: Annotated[str, typer.Option(help="process, or docker: each task in a container of its own.")] = "process",
    image: Annotated[
        str, typer.Option(help="With docker: what tasks run in. Default: the trainer's own, psconform images build.")
    ] = "",
    emulate_gpus: Annotated[
        bool, typer.Option("--emulate-gpus", help="GPU:j of a worker is a logical CPU:j: for machines without.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be started, and start nothing.")] = False,
    out: Annotated[Path | None, typer.Option(help="Run folder, new or empty. Default: psconform-runs/TIME.")] = None,
    patience: Annotated[
        float, typer.Option(help="Seconds without progress that end a run; 60 at least until a step is done.")
    ] = 60.0,
    repeat: Annotated[
        int | None, typer.Option(metavar="N", help="Run N times, with the seeds seed, seed + 1, ..., and sum up.")
    ] = None,
    random_layouts: Annotated[
        bool,
        typer.Option("--random-layouts", help="With --repeat: draw layout, reads and steps (up to --steps) each time."),
    ] = False,
    keep_valid: Annotated[bool, typer.Option(help="With --repeat: keep the folders of valid runs.")] = True,
    as_json: Json = False,
) -> None:
    """Run a cluster, judge it, print which guarantees held; with --repeat many times, and print a summary.

    A series exits with the worst there was: 1 violated, else 4 a run that failed, else 2 unknown, else 0.
    """
    from .api import run_plan

    options: dict[str, Any] = {
        "layout": layout,
        "update": update,
        "reduction": reduction,
        "quorum": quorum,
        "staleness": staleness,
        "rate": rate,
        "local_steps": local_steps,
        "replication": replication,
        "optimizer": optimizer,
        "schedule": schedule,
        "drop_after": drop_after,
        "workload": workload,
        "steps": steps,
        "seed": seed,
        "reads": reads,
        "read_every": read_every,
        "model": model,
        "batch": batch,
        "learning_rate": learning_rate,
        "delay": delay,
        "condition": condition,
        "compression": compression,
        "padding": padding,
        "slow": slow or (),
        "batches": batches or (),
        "defect": defect,
        "kill": kill or (),
        "stop": stop or (),
        "poison": poison or (),
        "faults": _plan(faults),
        "restart_after": restart_after,
        "checkpoint_every": checkpoint_every,
        "patience_s": patience,
        "launcher": launcher,
        "image": image,
        "emulate_gpus": emulate_gpus,
    }
    if dry_run and repeat is not None:
        raise BadInput("--dry-run", "shows one run: without --repeat", value=repeat)
    for option, given in (("--random-layouts", random_layouts), ("--no-keep-valid", not keep_valid)):
        if given and repeat is None:
            raise BadInput(option, "is for a series: give --repeat N, too")
    folder = run_folder(out)
    if repeat is not None:
        plans = make_plans(target, out=folder, repeat=repeat, random_layouts=random_layouts, **options)
        _run_series(Series(plans, folder), keep_valid=keep_valid, as_json=as_json)
    plan = make_plan(target, out=folder, **options)
    if dry_run:
        print_plan(plan, as_json=as_json)
        raise typer.Exit(0)
    need_gpus(plan.layout, containers=plan.containers is not None)
    with Session() as session, show_progress(plan) as notify:
        judged = run_plan(plan, session=session, notify=notify)
    print_run(judged.as_dict(), judged.text(), as_json=as_json)
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
    as_json: Json = False,
) -> None:
    """Judge a stored run again, offline, without TensorFlow; changes nothing."""
    from .api import check as check_folder

    try:
        judged = check_folder(folder)
    except OSError as error:
        raise BadInput(str(folder), f"cannot be read ({error.strerror})") from None
    print_run(judged.as_dict(), judged.text(), as_json=as_json)
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
    sys.stdout.write(f"{path}\n")


app.command()(replay)
app.command()(shrink)
app.add_typer(cli_images.app, name="images")
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
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  (closed by the shell's >&-)
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    status = 0
    try:
        status = _run_app()
        sys.stdout.flush()
    except OSError as error:  # standard output cannot be written
        if not isinstance(error, BrokenPipeError) and status != 4:  # 4: an error has been named already
            _say(f"cannot write its output ({error.strerror})")
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or Python would try again and complain
        status = 4
    sys.exit(status)


def _run_app() -> int:
    try:
        status = app(standalone_mode=False, prog_name="psconform")
    except (typer.Abort, KeyboardInterrupt):
        status = 130
    except SystemExit:  # typer's answer to a closed standard output; its 1 would mean "violated"
        return 4
    except USAGE_ERROR as error:
        return _usage_error(error)
    except PsconformError as error:
        _say(str(error))
        return error.exit_code
    except BrokenPipeError:
        raise
    except Exception as error:  # the last line of defence: say what and where, in one line
        _say(f"failed: {type(error).__name__}: {error} ({_innermost(error)}); please report this")
        return 4
    if status == 130:
        _say("interrupted; all tasks have been ended")
    return status if isinstance(status, int) else 0


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
    sys.stderr.write(f"psconform: {' '.join(message.split())}\n")


def _innermost(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else "?"


if __name__ == "__main__":
    main()
