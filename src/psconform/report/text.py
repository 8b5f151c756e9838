"""The table that a person reads: guarantee, claimed level, verdict, and the witnesses under it."""

from __future__ import annotations

import re
from pathlib import Path

from rich.text import Text

from ..history.reasons import TaskFailed
from ..history.slips import Cost
from ..printable import printable
from ..runner.figures import Curves, Timing
from ..runner.verdicts import Judged
from ..times import spell
from ..verdict import Status, Verdict, counted

STEP_ROWS = 8
HANGING = 4
"""Indentation of a wrapped line, in columns, beyond that of its first part."""
STYLES = {"valid": "green", "violated": "bold red", "unknown": "yellow", "not judged": "dim"}
SHOWN: tuple[Status, ...] = ("violated", "unknown", "valid")
"""What a row is about, in the order of the rows: what a reader can act on comes first."""


def table(judged: Judged, *, verbose: bool = False) -> Text:
    """The whole report of one run; ``verbose``: with the reason of each guarantee that was not judged."""
    manifest, layout = judged.manifest, judged.manifest.layout
    text = Text()
    text.append(summary(judged) + "\n", style=_overall(judged))
    defect = f", defect {printable(manifest.defect)}" if manifest.defect else ""
    text.append("calibration of " * manifest.calibration + printable(manifest.target), style="bold")
    steps = counted(manifest.workload.steps, "step")
    text.append(f" on {layout.text}, {layout.mode}, {manifest.workload.name}, {steps}, ")
    text.append(f"seed {manifest.workload.seed}{defect}")
    text.append("".join(f", {task} slow by {spell(seconds)}" for task, seconds in manifest.workload.slow) + "\n\n")
    if devices := judged.history.devices:
        where = "; ".join(f"worker:{index} on {', '.join(names)}" for index, names in sorted(devices.items()))
        text.append(f"  devices{' (emulated GPUs)' if layout.emulated else ''}: {printable(where)}\n")
    for fault in judged.history.faults:
        what = f"{fault.what}, {fault.ends}" if fault.ends else fault.what
        text.append(printable(f"  fault: {what}: {fault.evidence}"))
        text.append(f", then {printable(fault.healed)}\n" if fault.healed else "\n")
    for missed in judged.history.missed:
        text.append(f"  {printable(missed)}\n", style="yellow")
    for status in SHOWN:
        if status == "unknown":
            _gaps(text, judged)
        for verdict in judged.verdicts:
            if verdict.status == status and not _of_gaps(verdict, judged):
                _row(text, verdict)
    _not_judged(text, judged, verbose=verbose)
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
    slips = (str(slip) for slip in judged.history.slips if slip.cost is Cost.NOTHING)
    for note in (*judged.history.notes, *slips):
        text.append(f"\nnote: {printable(note)}\n", style="yellow")
    text.append(f"\nrun folder: {printable(judged.folder)}\nrun again:  {printable(manifest.repeat)}\n", style="dim")
    return text


def summary(judged: Judged) -> str:
    """One line: how many guarantees are valid, violated, unknown, and whether training came to its end."""
    counts = {status: sum(v.status == status for v in judged.verdicts) for status in (*SHOWN, "not judged")}
    word = {0: "VALID", 1: "VIOLATED", 2: "UNKNOWN"}[judged.exit_code]
    gradients = sum(len(worker.pushes) for worker in judged.history.workers)
    reads = sum(len(worker.reads) for worker in judged.history.workers)
    tally = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    covered = f"; {judged.coverage}" if judged.coverage.planned else ""
    ended = f"; {judged.history.cut}" if judged.history.cut else ""
    return f"{word}: {tally}; {counted(gradients, 'gradient')}, {counted(reads, 'read')}{covered}{ended}"


def explain(judged: Judged, *, verbose: bool = False) -> str:
    """The report as plain text."""
    return table(judged, verbose=verbose).plain + "\n"


def wrapped(text: Text, width: int) -> Text:
    """The same, wrapped between words for a terminal of this width; the wrapped parts are indented.

    A word that is longer than a line, such as a path, is left whole, so that it can be copied.
    """
    lines = []
    for line in text.split("\n", allow_blank=True):
        margin = len(line.plain) - len(line.plain.lstrip(" "))
        first, *others = line.divide(_breaks(line.plain, width, margin + HANGING))
        first.rstrip()
        lines.append(first)
        for other in others:
            other.rstrip()
            lines.append(Text(" " * (margin + HANGING)) + other)
    return Text("\n").join(lines)


def _breaks(line: str, width: int, margin: int) -> list[int]:
    """Offsets at which a line is wrapped; its other parts are indented by ``margin`` columns."""
    breaks: list[int] = []
    begin, room = 0, width
    for word in re.finditer(r"\S+", line):
        if word.end() - begin > room and line[begin : word.start()].strip():
            begin, room = word.start(), width - margin
            breaks.append(begin)
    return breaks


def _of_gaps(verdict: Verdict, judged: Judged) -> bool:
    """It is unknown because the record is incomplete."""
    return verdict.status == "unknown" and bool(judged.history.gaps) and verdict.reason == judged.history.incomplete


def _gaps(text: Text, judged: Judged) -> None:
    """What the record lacks, and which guarantees are unknown because of that."""
    if not judged.history.gaps:
        return
    text.append("  the record is incomplete, so nothing can be called valid:\n", style=STYLES["unknown"])
    for gap in judged.history.gaps:
        text.append(f"      {printable(gap)}\n")
    if names := [verdict.guarantee for verdict in judged.verdicts if _of_gaps(verdict, judged)]:
        text.append(f"  unknown for that reason: {', '.join(names)}\n", style=STYLES["unknown"])


def _row(text: Text, verdict: Verdict) -> None:
    text.append(printable(f"  {verdict.guarantee:<3} {verdict.title:<21} "))
    text.append(f"{verdict.status:<9} ", style=STYLES[verdict.status])
    reason = verdict.reason
    said = f"{verdict.claimed:<13} {reason}" if reason not in ("", verdict.claimed) else verdict.claimed
    text.append(printable(said) + "\n", style="dim" if verdict.status != "unknown" else "")
    for line in verdict.witness:
        text.append(f"      {printable(line)}\n")


def _not_judged(text: Text, judged: Judged, *, verbose: bool) -> None:
    """How many, and what of them a target file could claim; or one line for each reason."""
    style = STYLES["not judged"]
    reasons: dict[str, list[str]] = {}
    claims: dict[str, list[str]] = {}
    for verdict in judged.verdicts:
        if verdict.status == "not judged":
            reasons.setdefault(verdict.reason, []).append(verdict.guarantee)
            if verdict.claim:
                claims.setdefault(verdict.claim, []).append(verdict.guarantee)
    if verbose:
        for reason, names in reasons.items():
            text.append(f"  not judged: {', '.join(names)} ({printable(reason)})\n", style=style)
    elif reasons:
        text.append(f"  {sum(map(len, reasons.values()))} not judged (-v lists why)\n", style=style)
    if Path(judged.manifest.source).suffix == ".toml":
        for claim, names in claims.items():
            where = f"[claims.{judged.manifest.layout.update}]"
            text.append(f"  to have {', '.join(names)} judged, write {claim} under {where}\n", style=style)


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
