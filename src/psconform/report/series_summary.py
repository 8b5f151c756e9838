"""A series for people: its progress on standard error, its summary on standard output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.text import Text

from ..printable import printable
from ..runner.progress import Notify, Progress
from ..runner.series import STATUSES, UNMADE, Done, Outcome, Series
from ..workloads.equivalence import ACCURACY
from .progress_bar import with_warnings
from .text import STYLES

WORDS = {0: "valid", 1: "violated", 2: "unknown", **dict.fromkeys(UNMADE, "failed")}
LISTED = 20
"""So many runs that were not valid are shown; summary.json has all."""


def one_line(outcome: Outcome) -> str:
    """``0003 ps=1,worker=2, 17 steps, seed 2: violated R1 (1.2 s)``."""
    workload = outcome.plan.workload
    text = f"{outcome.plan.out.name} {outcome.plan.layout.text}, {workload.steps} steps, seed {workload.seed}"
    text += f", {workload.reads} reads" if workload.reads != 1 else ""
    text += f", reads every {workload.read_every}" if workload.read_every != 1 else ""
    text += f": {WORDS[outcome.exit_code]}"
    named = {1: outcome.names("violated"), 2: outcome.names("unknown")}.get(outcome.exit_code)
    text += f" {', '.join(named)}" if named else ""
    reported = dict.fromkeys(f"{anomaly.kind} {anomaly.task}" for anomaly in outcome.anomalies)
    text += f", reported {', '.join(reported)}" if reported else ""
    return text + (f" ({outcome.times_s['ended']:.1f} s)" if "ended" in outcome.times_s else "")


@contextmanager
def show_series(series: Series) -> Iterator[tuple[Notify, Done]]:
    """Yields what to call with each Progress of a run, and with each outcome."""
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    plan, count = series.plans[0], len(series.plans)
    console.print(printable(f"starting {count} runs of {plan.target.name}, {plan.layout.update}; folder {series.out}"))
    if not console.is_terminal:
        yield with_warnings(console, lambda _: None), lambda outcome: console.print(one_line(outcome))
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"))
    with Bar(*columns, TimeElapsedColumn(), console=console, transient=True) as bar:
        runs = bar.add_task("runs", total=count, note="")
        steps = bar.add_task("steps", total=None, note="")
        found: Counter[str] = Counter()

        def notify(progress: Progress) -> None:
            now = series.plans[min(len(series.outcomes), count - 1)]
            rate = f", {progress.rate:.0f}/s" if progress.rate is not None else ""
            note = f"{now.out.name}: {now.layout.text}{rate}"
            bar.update(steps, completed=progress.steps, total=progress.total, note=note)

        def done(outcome: Outcome) -> None:
            found[WORDS[outcome.exit_code]] += 1
            tally = ", ".join(f"{found[word]} {word}" for word in dict.fromkeys(WORDS.values()) if found[word])
            bar.update(runs, advance=1, note=tally)
            if outcome.exit_code or outcome.anomalies:
                console.print(one_line(outcome))

        yield with_warnings(console, notify), done


def summary(series: Series) -> Text:
    """The whole report of a series."""
    plan = series.plans[0]
    text = Text()
    text.append(printable(plan.target.name), style="bold")
    text.append(f", {plan.layout.mode}, {len(series.outcomes)} of {len(series.plans)} runs")
    text.append(f", defect {plan.defect}\n" if plan.defect else "\n")
    if series.guarantees:
        text.append(f"\n  {'':<26}" + "".join(f"{status:>12}" for status in STATUSES) + "\n", style="dim")
    titles = series.titles
    for name, counts in series.guarantees.items():
        text.append(f"  {name:<3} {titles[name]:<22}")
        for status in STATUSES:
            text.append(f"{counts[status] or '.':>12}", style=STYLES[status] if counts[status] else "dim")
        text.append("\n")
    _equivalence(text, series)
    _times(text, series)
    _anomalies(text, series)
    _not_valid(text, series)
    counts = Counter(WORDS[outcome.exit_code] for outcome in series.outcomes)
    words = dict.fromkeys(WORDS.values())
    tally = ", ".join(f"{counts[word]} {word}" for word in words if counts[word]) or "no run finished"
    tally += f"; C2 over all seeds: {series.equivalence.outcome}" if series.equivalence is not None else ""
    word = WORDS.get(series.exit_code, "interrupted")
    text.append(f"\n{word.upper()}: {tally}\n", style=STYLES.get(word, "bold red"))
    if series.interrupted and series.interrupted.exists():
        text.append(f"interrupted in: {printable(series.interrupted)}\n", style="dim")
    text.append(f"summary: {printable(series.out / 'summary.json')}\n", style="dim")
    return text


def _equivalence(text: Text, series: Series) -> None:
    found = series.equivalence
    if found is None:
        return
    text.append(f"\n  C2 over all {len(series.plans)} seeds: {found.outcome}", style="bold")
    text.append(
        f": test accuracy less that of serial training {found.mean:+.4f}, 90 % interval [{found.low:+.4f}, "
        f"{found.high:+.4f}], margin {ACCURACY.margin}\n"
    )


def _times(text: Text, series: Series) -> None:
    rows = [(label, series.spread(name)) for label, name in (("cluster", "ended"), ("first ack", "first_ack"))]
    if not any(spread for _, spread in rows):
        return
    text.append(f"\n  {'seconds':<14}" + "".join(f"{name:>9}" for name in ("min", "median", "p95", "max")), style="dim")
    for label, spread in rows:
        if spread:
            text.append(f"\n  {label:<14}" + "".join(f"{value:>9.2f}" for value in spread.values()))
    text.append(f"\n  {'all together':<14}{series.total_s:>9.2f}\n")


def _anomalies(text: Text, series: Series) -> None:
    found = Counter(
        place
        for outcome in series.outcomes
        for place in {(anomaly.kind, anomaly.task) for anomaly in outcome.anomalies}
    )
    if found:
        text.append("\n  reported, with no weight for the verdict\n", style="dim")
    for (kind, task), count in sorted(found.items()):
        text.append(f"  {kind} {task}: in {count} of {len(series.outcomes)} runs\n")


def _not_valid(text: Text, series: Series) -> None:
    bad = series.not_valid
    if bad:
        text.append("\nruns that were not valid:\n")
    for outcome in bad[:LISTED]:
        text.append(f"  {one_line(outcome)}\n", style=STYLES.get(WORDS[outcome.exit_code], "bold red"))
        text.append(f"        {printable(outcome.error)}\n" if outcome.error else "")
        text.append(f"        {printable(outcome.plan.out)}\n" if outcome.kept else "")
        text.append(f"        {printable(outcome.plan.repeat)}\n", style="dim")
    if len(bad) > LISTED:
        text.append(f"  and {len(bad) - LISTED} more, in summary.json\n")
