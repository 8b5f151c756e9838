"""How long recovery takes: from SIGKILL of a ps or a worker to the next update that is applied.

Real clusters of the reference trainer, one kill each, at a drawn step; a killed task is started again at once. The time
ends at the first acknowledgement, by any worker (after the kill of a ps) or by the one that was killed, of a gradient
that was sent after the task was started again. Process start is the part until the new process opened its record: it is
forked from a process that has imported TensorFlow, so a cold start takes seconds more. The rest is what the trainer
takes: noticing, connecting, restoring, resuming.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from machine import machine
from rich.console import Console
from rich.table import Table

from psconform.api import judge
from psconform.runner.session import Session

STEPS, EVERY = 200, 25
HEADS = ("update", "killed", "runs", "median, s", "worst, s", "of it process start", "valid")
SHAPES = {"async": "ps=2,worker=3", "sync": "ps=2,worker=3"}


@dataclass(frozen=True)
class Recovered:
    """One kill: seconds until the next applied update, and until the new process had started; was the run valid?"""

    total_s: float
    start_s: float
    valid: bool


def measure(session: Session, update: str, victim: str, seed: int) -> Recovered:
    """Kill one task of one cluster at a drawn step."""
    step = random.Random(f"{update} {victim} {seed}").randrange(STEPS // 4, 3 * STEPS // 4)
    folder = Path(tempfile.mkdtemp(prefix="psconform-recovery-"))
    try:
        options: dict[str, Any] = {"layout": SHAPES[update], "update": update, "steps": STEPS, "seed": seed}
        options |= {"kill": f"{victim}@{step}", "restart_after": 0.0, "checkpoint_every": EVERY}
        run = judge(**options, out=folder / "run", session=session)
        if not run.valid:
            sys.stderr.write(run.explain())
        return _times(folder / "run", victim, valid=run.valid)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _times(folder: Path, victim: str, *, valid: bool) -> Recovered:
    faults = [event for event in _events(folder, "psconform-0") if event["kind"] == "fault"]
    struck, again = (next(event["mono_ns"] for event in faults if event["on"] is on) for on in (True, False))
    slug = victim.replace(":", "-")
    started = _events(folder, f"{slug}.1")[0]["mono_ns"]
    applied = []
    for path in (folder / "events").glob("worker-*.jsonl"):
        if victim.startswith("ps") or path.name == f"{slug}.1.jsonl":
            applied += _applied_after(_events(folder, path.stem), again)
    return Recovered((min(applied) - struck) / 1e9, (started - struck) / 1e9, valid)


def _applied_after(events: list[dict[str, Any]], moment: int) -> list[int]:
    """When the first gradient that was sent after ``moment`` was acknowledged."""
    sent: dict[int, int] = {}
    for event in events:
        if event["kind"] == "push":
            sent[event["step"]] = event["mono_ns"]
        elif event["kind"] == "ack" and event["outcome"] == "ok" and sent[event["step"]] > moment:
            return [event["mono_ns"]]
    return []


def _events(folder: Path, name: str) -> list[dict[str, Any]]:
    lines = (folder / "events" / f"{name}.jsonl").read_bytes().split(b"\n")[:-1]
    return [json.loads(line) for line in lines]


def row(update: str, victim: str, found: list[Recovered]) -> tuple[str, ...]:
    """As in HEADS."""
    totals = [one.total_s for one in found]
    share = statistics.median(one.start_s / one.total_s for one in found)
    times = f"{statistics.median(totals):.2f}", f"{max(totals):.2f}", f"{share:.0%}"
    return update, victim, str(len(found)), *times, f"{sum(one.valid for one in found)} of {len(found)}"


def page(rows: list[tuple[str, ...]], loads: list[float]) -> str:
    """docs/recovery.md."""
    about = (__doc__ or "").split("\n\n", 1)[1].strip()
    lines = [
        "<!-- written by benchmarks/recovery.py --write docs/recovery.md -->\n",
        f"# How long recovery takes\n\n{about}\n",
        f"{time.strftime('%Y-%m-%d')}, {machine()}; load average {loads[0]:.1f} before, {loads[1]:.1f} after. "
        f"{SHAPES['async']}, {STEPS} steps, a checkpoint every {EVERY}.\n",
        "| " + " | ".join(HEADS) + " |",
        "|" + "---|" * len(HEADS),
        *("| " + " | ".join(line) + " |" for line in rows),
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """0 if every run was valid."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20, help="kills of each kind")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the table as a Markdown page")
    options = parser.parse_args()
    rows, loads, good = [], [os.getloadavg()[0]], True
    table = Table(*HEADS, box=None)
    with Session() as session:
        for update in SHAPES:
            for victim in ("ps:0", "worker:1", "worker:0"):
                found = [measure(session, update, victim, seed) for seed in range(options.runs)]
                good = good and all(one.valid for one in found)
                rows.append(row(update, victim, found))
                table.add_row(*rows[-1])
                Console(stderr=True).print(*rows[-1])
    loads.append(os.getloadavg()[0])
    Console(width=120).print(table)
    if options.write:
        options.write.write_text(page(rows, loads), encoding="utf-8")
    return 0 if good else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
