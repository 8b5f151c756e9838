"""The table that a person reads: guarantee, claimed level, verdict, and the witnesses under it."""

from __future__ import annotations

import io

from rich.console import Console
from rich.text import Text

from ..runner.verdicts import Judged
from ..verdict import Verdict

STYLES = {"valid": "green", "violated": "bold red", "unknown": "yellow", "not judged": "dim"}


def table(judged: Judged) -> Text:
    """The whole report of one run."""
    manifest, layout = judged.manifest, judged.manifest.layout
    mode = f"{layout.update} {layout.reduction}" if layout.update == "sync" else layout.update
    text = Text()
    text.append(f"{manifest.target}", style="bold")
    text.append(f" on {layout.text}, {mode}, {manifest.workload.name}, {manifest.workload.steps} steps, ")
    text.append(f"seed {manifest.workload.seed}" + (f", defect {manifest.defect}" if manifest.defect else "") + "\n\n")
    for verdict in judged.verdicts:
        _row(text, verdict)
    if judged.history.gaps:
        text.append("\nthe record is incomplete, so nothing can be called valid:\n", style="yellow")
        for gap in judged.history.gaps:
            text.append(f"  {gap}\n")
    for note in judged.history.notes:
        text.append(f"\nnote: {note}\n", style="yellow")
    text.append("\n" + summary(judged) + "\n", style=_overall(judged))
    text.append(f"run folder: {judged.folder}\nrun again:  {manifest.repeat}\n", style="dim")
    return text


def summary(judged: Judged) -> str:
    """One line: how many guarantees are valid, violated, unknown."""
    counts = {status: sum(v.status == status for v in judged.verdicts) for status in STYLES}
    word = {0: "VALID", 1: "VIOLATED", 2: "UNKNOWN"}[judged.exit_code]
    gradients = sum(len(worker.pushes) for worker in judged.history.workers)
    reads = sum(len(worker.reads) for worker in judged.history.workers)
    tally = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    return f"{word}: {tally}; {gradients} gradients, {reads} reads"


def explain(judged: Judged) -> str:
    """The report as plain text."""
    buffer = io.StringIO()
    console = Console(file=buffer, width=100000, color_system=None)
    console.print(table(judged), soft_wrap=True)
    return buffer.getvalue()


def _row(text: Text, verdict: Verdict) -> None:
    text.append(f"  {verdict.guarantee:<3} {verdict.title:<21} {verdict.claimed:<13} ")
    text.append(f"{verdict.status:<10}", style=STYLES[verdict.status])
    text.append(f" {verdict.reason}".rstrip() + "\n", style="dim" if verdict.status != "unknown" else "")
    for line in verdict.witness:
        text.append(f"        {line}\n")


def _overall(judged: Judged) -> str:
    return STYLES[{0: "valid", 1: "violated", 2: "unknown"}[judged.exit_code]]
