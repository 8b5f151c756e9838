"""Progress of a run on standard error: a bar on a terminal, a few lines elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from ..printable import printable
from ..runner.plan import Plan
from ..runner.progress import Notify, Progress
from ..verdict import counted


def states_of(progress: Progress) -> str:
    """``2 ps running, 3 workers running``, after what it is if that is not the run itself."""
    counts = Counter((task.partition(":")[0], state) for task, state in progress.tasks.items())
    states = (f"{counted(n, job) if job != 'ps' else f'{n} ps'} {state}" for (job, state), n in counts.items())
    return f"{progress.what}: " * bool(progress.what) + ", ".join(states)


@contextmanager
def show_progress(plan: Plan) -> Iterator[Notify]:
    """Yields the function to call with each Progress."""
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    what = f"starting {plan.target.name} on {plan.layout.text}, {plan.layout.update}; run folder {plan.out}"
    console.print(printable(what))
    if not console.is_terminal:
        yield with_warnings(console, _lines(console))
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("steps"))
    with Bar(*columns, TextColumn("{task.fields[rate]}"), TimeElapsedColumn(), console=console, transient=True) as bar:
        task = bar.add_task("waiting", total=None, rate="")

        def notify(progress: Progress) -> None:
            rate = f"{progress.rate:.0f}/s" if progress.rate is not None else ""
            description = states_of(progress)
            bar.update(task, description=description, completed=progress.steps, total=progress.total, rate=rate)

        yield with_warnings(console, notify)


def with_warnings(console: Console, notify: Notify) -> Notify:
    """Print which faults can hardly take effect, and pass all other progress on."""

    said: set[str] = set()  # in a series, by the runs before

    def warn(what: str) -> None:
        if what not in said:
            said.add(what)
            console.print(f"warning: {what}: {why}", style="yellow")

    why = "either none dials there, or the tasks tell each other addresses of their own"

    def told(progress: Progress) -> None:
        for fault in progress.unused:
            warn(f"no task used the links of fault {fault} in calibration, so it may not take effect")
        if progress.undialled:
            warn("no task dialled another in calibration, so no fault of the network is drawn")
        if not progress.unused and not progress.undialled:
            notify(progress)

    return told


def _lines(console: Console) -> Notify:
    """For logs: a line when the tasks' states change, and at each fifth of the steps."""
    said: list[tuple[str, int]] = [("", -1)]

    def notify(progress: Progress) -> None:
        now = (states_of(progress), 5 * progress.steps // max(1, progress.total))
        if now != said[0]:
            said[0] = now
            rate = f", {progress.rate:.0f} steps/s" if progress.rate is not None else ""
            console.print(f"{now[0]}: {progress.steps} of {progress.total} steps{rate}")

    return notify
