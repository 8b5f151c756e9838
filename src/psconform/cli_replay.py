"""``psconform replay`` and ``psconform shrink``: a stored run again, as it was or smaller."""

from __future__ import annotations

import shutil
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.status import Status as ConsoleStatus

from .errors import BadInput, PsconformError
from .launchers.local import scratch_folder
from .report.series_summary import show_series
from .report.series_summary import summary as series_summary
from .runner import replay as replaying
from .runner.plan import Plan
from .runner.series import run_series
from .runner.session import Session
from .runner.shrink import PER_FAILURE, Try, as_it_was, enough
from .runner.shrink import shrink as shrink_plan
from .runner.verdicts import judge_folder, store
from .terminal import Json, print_run, run_folder

MOST_RUNS = 100
Folder = Annotated[Path, typer.Argument(help="A run folder.")]
Out = Annotated[Path | None, typer.Option(help="Where to put it, new or empty. Default: psconform-runs/TIME.")]


def replay(
    folder: Folder,
    times: Annotated[int, typer.Option(metavar="N", help="Run it so often.")] = 1,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Run a stored run again, with the same plan and seed, and say how often its verdict came back.

    Exits as a series does: with the worst that came of it.
    """
    found = replaying.replayed(folder, times=times, out=run_folder(out))
    with Session() as session, show_series(found.series) as (notify, done):
        run_series(found.series, session, notify=notify, done=done)
    content = {**found.series.as_dict(), "came_back": found.came_back, "summary": found.summary}
    text = series_summary(found.series)
    text.append(f"{found.summary}\n", style="bold")
    print_run(content, text, as_json=as_json)
    if found.series.interrupted:
        raise KeyboardInterrupt
    raise typer.Exit(found.series.exit_code)


def shrink(
    folder: Folder,
    runs: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Each smaller plan is run up to so often ... Default: as many runs as the plan itself takes to fail "
            f"K+1 times, within {PER_FAILURE} x (K+1).",
        ),
    ] = None,
    failing: Annotated[int, typer.Option(metavar="K", help="... and taken if it fails so often.")] = 2,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Find a smaller plan that still fails: fewer faults, tasks, steps. It is run until it fails, and that run is kept.

    It fails if one of the guarantees is violated that the stored run violates; what fails too rarely as it was is not
    shrunk. Exits as the run that is kept. Ctrl-C keeps the smallest plan so far.
    """
    _check_numbers(runs, failing)
    kept = run_folder(out)
    before, plan = judge_folder(folder), replaying.stored_plan(folder, out=kept)
    if before.exit_code != 1:
        raise BadInput(str(folder), "violates nothing, so there is nothing to shrink")
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    failures, up_to = enough(k=failing, n=runs)
    violated = ", ".join(before.names("violated"))
    console.print(
        f"shrinking {_size(plan)}, which violates {violated}; it is run as it was until "
        f"it has failed {failures} times, up to {up_to} times"
    )
    with Session() as session, scratch_folder() as scratch, console.status("") as status:
        show = _Show(console, status, plan)
        fails = replaying.Fails(before, session, scratch, replaying.short_patience(before, plan))
        try:
            first, failed = _search(plan, fails, show, kept=kept, k=failing, n=runs)
        except (KeyboardInterrupt, PsconformError, OSError):  # whatever happens, what has been found is not lost
            console.print(f"so far: {_size(show.smallest)}\n{replaying.keep(show.smallest, kept)}")
            raise
        if not first.taken:
            problem = f"failed again in {first.failed} of {first.runs} runs, which is too rarely to be shrunk"
            hint = _how_to_ask_less(runs, failing)
            raise BadInput(str(folder), f"{problem} ({failures} of {up_to} are asked for)", hint=hint)
    judged = judge_folder(kept)
    store(judged)
    from .api import Run  # it imports more than a wrong folder needs

    result = Run(judged)
    print_run(result.as_dict(), result.text(), as_json=as_json)
    if not as_json:
        doubt = "" if failed else f"; it did not fail in the last {runs or first.runs} runs, of which this is one"
        sys.stdout.write(f"shrunk to {_size(show.smallest)} in {fails.runs} runs{doubt}\n")
    raise typer.Exit(judged.exit_code)


@dataclass
class _Show:
    """Shows a search for a smaller plan: each try, and how much longer it takes at most."""

    console: Console
    status: ConsoleStatus
    smallest: Plan
    tries: int = 0
    rest: str = ""
    began: float = field(default_factory=time.monotonic)

    def begins(self, patience_s: float, plan: Plan) -> None:
        """All is tried with this patience."""
        self.smallest = plan
        if patience_s < plan.patience_s:
            kept = f"the run that is kept has the {plan.patience_s:g} s of the plan"
            self.console.print(f"a run that is not kept has --patience {patience_s:.1f}; {kept}")

    def runs(self, number: int, plan: Plan) -> None:
        """A run begins."""
        self.status.update(f"run {number}: {_size(plan)}{self.rest}")

    def tell(self, tried: Try) -> None:
        """A plan has been tried."""
        self.tries += 1
        self.smallest = tried.plan if tried.taken else self.smallest
        word = f"still fails, {_size(tried.plan)}" if tried.taken else "does not"
        word = f"cannot be run: {tried.error}" if tried.error else word
        rest_s = tried.left * (time.monotonic() - self.began) / self.tries
        self.rest = f"; at most {tried.left} left to try, about {_spoken(rest_s)}" if tried.left else ""
        self.console.print(f"{tried.what}: failed {tried.failed} of {tried.runs}; {word}{self.rest}")

    def last(self, plan: Plan) -> None:
        """The smallest plan is run once more, to be kept."""
        self.rest = ""
        self.console.print(f"all is tried; now the run that is kept, with --patience {plan.patience_s:g}")


def _spoken(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


def _search(plan: Plan, fails: replaying.Fails, show: _Show, *, kept: Path, k: int, n: int | None) -> tuple[Try, bool]:
    """The plan as it was, and whether the smallest one that was found failed in the run that is kept.

    If that hangs no more with the patience of the plan, or the plan itself failed too rarely without it, all is tried
    once more with it.
    """

    def run(tried: Plan) -> replaying.Seen:
        show.runs(fails.runs + 1, tried)
        return fails(tried)

    hung = fails.before.manifest.status == "stalled"
    while True:
        short = fails.patience_s < plan.patience_s
        show.begins(fails.patience_s, plan)
        first = as_it_was(plan, run, k=k, n=n)
        show.tell(first)
        failed = False
        if first.taken:
            show.console.print(f"smaller plans are to fail in {k} of {n or first.runs} runs")
            shrink_plan(first, run, k=k, n=n, tell=show.tell)
            show.last(plan)
            smallest = replace(show.smallest, out=kept)
            failed = replaying.run_until_it_fails(smallest, fails.before, fails.session, times=n or first.runs)
        if failed or not short or not (first.taken or hung):
            return first, failed
        shutil.rmtree(kept, ignore_errors=True)
        fails.patience_s = plan.patience_s


def _check_numbers(runs: int | None, failing: int) -> None:
    if runs is not None and not 1 <= runs <= MOST_RUNS:
        raise BadInput("--runs", f"must be between 1 and {MOST_RUNS}", value=runs)
    most = MOST_RUNS // PER_FAILURE - 1 if runs is None else runs
    if not 1 <= failing <= most:
        why = f"{most}, or --runs be said" if runs is None else f"--runs ({runs})"
        raise BadInput("--failing", f"must be between 1 and {why}", value=failing)


def _how_to_ask_less(runs: int | None, failing: int) -> str:
    ways = ["more --runs"] * ((runs or 0) < MOST_RUNS) + ["fewer --failing"] * (failing > 1)
    give = f"Give {', '.join(ways)}; psconform" if ways else "psconform"
    return f"{give} replay says how often its verdict comes back"


def _size(plan: Plan) -> str:
    faults = f"{len(plan.faults)} fault{'' if len(plan.faults) == 1 else 's'}"
    return f"{faults} on {plan.layout.text}, {plan.workload.steps} steps"
