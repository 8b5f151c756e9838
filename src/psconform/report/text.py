"""The table that a person reads: guarantee, claimed level, verdict, and the witnesses under it."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from ..history.reasons import TaskFailed
from ..history.slips import Cost
from ..printable import printable
from ..runner.figures import Curves, Timing
from ..runner.verdicts import Judged
from ..times import spell
from ..verdict import Verdict

STEP_ROWS = 8
STYLES = {"valid": "green", "violated": "bold red", "unknown": "yellow", "not judged": "dim"}


def table(judged: Judged) -> Text:
    """The whole report of one run."""
    manifest, layout = judged.manifest, judged.manifest.layout
    text = Text()
    text.append(printable(manifest.target), style="bold")
    text.append(f" on {layout.text}, {layout.mode}, {manifest.workload.name}, {manifest.workload.steps} steps, ")
    text.append(
        f"seed {manifest.workload.seed}" + (f", defect {printable(manifest.defect)}" if manifest.defect else "")
    )
    text.append("".join(f", {task} slow by {spell(seconds)}" for task, seconds in manifest.workload.slow) + "\n\n")
    if devices := judged.history.devices:
        where = "; ".join(
            f"worker:{index} on {printable(', '.join(names))}" for index, names in sorted(devices.items())
        )
        text.append(f"  devices{' (emulated GPUs)' if layout.emulated else ''}: {where}\n")
    for fault in judged.history.faults:
        text.append(printable(f"  fault: {fault.what}: {fault.evidence}"))
        text.append(f", then {printable(fault.healed)}\n" if fault.healed else "\n")
    for missed in judged.history.missed:
        text.append(f"  {printable(missed)}\n", style="yellow")
    for verdict in judged.verdicts:
        if verdict.status != "not judged":
            _row(text, verdict)
    _not_judged(text, judged.verdicts)
    _steps(text, judged.timing)
    _training(text, judged.curves)
    if judged.anomalies:
        text.append("\n  Anomalies\n", style="yellow")
        text.append("".join(f"  {printable(anomaly)}\n" for anomaly in judged.anomalies))
    shown = [line for verdict in judged.verdicts for line in verdict.witness]
    stops = {str(stop): stop.how if isinstance(stop, TaskFailed) else str(stop) for stop in judged.history.stops}
    stops |= {str(endless): str(endless) for endless in judged.history.endless}
    if untold := [stop for stop, begins in stops.items() if not any(line.startswith(begins) for line in shown)]:
        text.append("\n" + "".join(f"  {printable(stop)}\n" for stop in untold), style="yellow")
    if judged.history.gaps:
        text.append("\nthe record is incomplete, so nothing can be called valid:\n", style="yellow")
        for gap in judged.history.gaps:
            text.append(f"  {printable(gap)}\n")
    slips = (str(slip) for slip in judged.history.slips if slip.cost is Cost.NOTHING)
    for note in (*judged.history.notes, *slips):
        text.append(f"\nnote: {printable(note)}\n", style="yellow")
    text.append("\n" + summary(judged) + "\n", style=_overall(judged))
    text.append(f"run folder: {printable(judged.folder)}\nrun again:  {printable(manifest.repeat)}\n", style="dim")
    return text


def summary(judged: Judged) -> str:
    """One line: how many guarantees are valid, violated, unknown."""
    counts = {status: sum(v.status == status for v in judged.verdicts) for status in STYLES}
    word = {0: "VALID", 1: "VIOLATED", 2: "UNKNOWN"}[judged.exit_code]
    gradients = sum(len(worker.pushes) for worker in judged.history.workers)
    reads = sum(len(worker.reads) for worker in judged.history.workers)
    tally = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    covered = f"; {judged.coverage}" if judged.coverage.planned else ""
    return f"{word}: {tally}; {gradients} gradients, {reads} reads{covered}"


def explain(judged: Judged) -> str:
    """The report as plain text."""
    buffer = io.StringIO()
    console = Console(file=buffer, width=100000, color_system=None)
    console.print(table(judged), soft_wrap=True)
    return buffer.getvalue()


def _row(text: Text, verdict: Verdict) -> None:
    text.append(printable(f"  {verdict.guarantee:<3} {verdict.title:<21} {verdict.claimed:<13} "))
    text.append(f"{verdict.status:<10}", style=STYLES[verdict.status])
    text.append(printable(f" {verdict.reason}".rstrip()) + "\n", style="dim" if verdict.status != "unknown" else "")
    for line in verdict.witness:
        text.append(f"        {printable(line)}\n")


def _not_judged(text: Text, verdicts: Sequence[Verdict]) -> None:
    """One line per reason, or they would hide what was judged."""
    reasons: dict[str, list[str]] = {}
    for verdict in verdicts:
        if verdict.status == "not judged":
            reasons.setdefault(verdict.reason, []).append(verdict.guarantee)
    for reason, names in reasons.items():
        text.append(f"  not judged: {', '.join(names)} ({printable(reason)})\n", style=STYLES["not judged"])


def _steps(text: Text, timing: Timing) -> None:
    """Step times, the slowest workers first if there are too many for a short table."""
    if not timing.workers:
        return
    shown = timing.workers
    if len(shown) > STEP_ROWS:
        shown = tuple(sorted(shown, key=lambda worker: -worker.median_ms)[:STEP_ROWS])
    text.append("\n  steps       median       p95\n", style="dim")
    for worker in shown:
        text.append(f"  {worker.task:<10} {worker.median_ms:6.1f} ms {worker.p95_ms:6.1f} ms\n")
    if len(shown) < len(timing.workers):
        text.append(f"  and {len(timing.workers) - len(shown)} faster workers\n")
    text.append(f"  all workers: {timing.updates_per_s:.0f} updates/s\n")


def _training(text: Text, curves: Curves | None) -> None:
    if curves is None:
        return
    found = curves.summary
    text.append("\n  training   reached    serial\n", style="dim")
    for name, what in (("loss", "loss"), ("accuracy", "accuracy")):
        if found[name] is not None and found[f"serial_{name}"] is not None:
            text.append(f"  {what:<10} {found[name]:<10.4g} {found[f'serial_{name}']:.4g}\n")


def _overall(judged: Judged) -> str:
    return STYLES[{0: "valid", 1: "violated", 2: "unknown"}[judged.exit_code]]
