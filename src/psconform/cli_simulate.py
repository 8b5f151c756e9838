"""``psconform simulate``: runs of a model of a trainer in virtual time, and what the checks say of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from .errors import BadInput
from .report.text import STYLES
from .terminal import Json, Verbose, print_run, run_folder
from .verdict import Status

MOST_RUNS = 10_000_000
STATUSES: tuple[Status, ...] = ("valid", "violated", "unknown")
LISTED = 10


def simulate(
    seed: Annotated[int, typer.Option(min=0, help="Draws the schedule. The same seed gives the same run.")] = 0,
    runs: Annotated[
        int, typer.Option(metavar="N", min=1, max=MOST_RUNS, help="Judge so many runs, seeds SEED, SEED+1 ...")
    ] = 1,
    mode: Annotated[
        str,
        typer.Option(
            help="sync, quorum, async, bounded, staleness-aware, all-reduce or local-steps. Default: drawn by the seed."
        ),
    ] = "",
    faults: Annotated[bool, typer.Option(help="With faults in most runs.")] = True,
    out: Annotated[
        Path | None, typer.Option(help="Of one run: its folder, new or empty. Default: psconform-runs/TIME.")
    ] = None,
    verbose: Verbose = False,
    as_json: Json = False,
) -> None:
    """Simulate healthy training in virtual time, and judge it: no cluster, the same checks, the same run folder.

    docs/model.md says what is simulated. A run that is accused is a bug of the checks or of the model.
    """
    if runs > 1:
        if out is not None:
            raise BadInput("--out", "is for one run: of several, none is kept", value=str(out))
        _many(range(seed, seed + runs), mode=mode, faults=faults, as_json=as_json)
    from .api import check
    from .simulation.record import simulate as simulated
    from .simulation.schedule import draw

    schedule = draw(seed, mode=mode, faults=faults)
    folder = run_folder(out)
    simulated(schedule, folder)
    judged = check(folder)
    print_run(judged.as_dict(), judged.text(verbose=verbose), as_json=as_json)
    raise typer.Exit(judged.exit_code)


def _many(seeds: range, *, mode: str, faults: bool, as_json: bool) -> NoReturn:
    from .simulation.schedule import draw
    from .simulation.tally import Tally, judge_many

    draw(seeds[0], mode=mode)  # raises BadInput for a wrong mode
    tally = Tally()
    columns = (TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        shown = bar.add_task("runs", total=len(seeds))
        for tally in judge_many(seeds, mode=mode, faults=faults):
            bar.update(shown, completed=tally.runs)
    text = Text(f"{tally.runs} simulated runs, seeds {seeds[0]} to {seeds[-1]}\n\n")
    text.append(f"  {'':<26}" + "".join(f"{status:>12}" for status in STATUSES) + "\n", style="dim")
    for name, title in tally.titles.items():
        counts = [tally.verdicts[name, status] for status in STATUSES]
        if any(counts):
            text.append(f"  {name:<3} {title:<22} " + "".join(f"{count or '.':>12}" for count in counts) + "\n")
    for reason, count in tally.unknown.most_common(LISTED):
        text.append(f"\n  unknown in {count}: {reason}")
    for number, names in tally.accused[:LISTED]:
        again = f"psconform simulate --seed {number}" + (f" --mode {mode}" if mode else "")
        text.append(f"\n  {', '.join(names)} violated: {again}{'' if faults else ' --no-faults'}", style="bold red")
    word = {0: "valid", 1: "violated", 2: "unknown"}[tally.exit_code]
    judged = sum(map(tally.number, STATUSES))
    undecided = f"{tally.undecided} undecided ({tally.number('unknown')} of {judged} verdicts unknown)"
    bound = tally.accused_at_most
    at_most = "" if bound is None else f" (with 95 % confidence at most {100 * bound:.2g} % of such runs are)"
    said = f"{len(tally.accused)} accused{at_most}, {undecided}"
    text.append(f"\n{word.upper()}: {said}", style=STYLES.get(word, ""))
    print_run(tally.as_dict(), text, as_json=as_json)
    raise typer.Exit(tally.exit_code)
