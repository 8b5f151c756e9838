"""How long recovery takes, from SIGKILL of a ps or a worker to the next update that is applied; what checkpoints cost.

Real clusters of the reference trainer, one kill each, at a drawn step; a killed task is started again at once. The time
ends at the first acknowledgement, by any worker (after the kill of a ps) or by the one that was killed, of a gradient
that was sent after the task was started again. Process start is the part until the new process opened its record: it is
forked from a process that has imported TensorFlow, so a cold start takes seconds more. The rest is what the trainer
takes: noticing, connecting, restoring, resuming.

The cost of checkpoints is what training takes longer with one every 50 steps than with the first and the last alone,
all else the same: from the first acknowledgement to the last, two workers, in turns, medians. A checkpoint is flushed
to the disk before it counts; workers that push meanwhile wait at the gate (async) or for the chief (sync).
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
DEFAULT_EVERY = 50
SIZES = {"1MB": 1 << 18, "64MB": 1 << 24}
COST_STEPS = {"1MB": 400, "64MB": 100}
COST_HEADS = ("update", "parameters", "steps/s without", "with", "cost")
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


def rate(session: Session, update: str, size: str, every: int, steps: int) -> float:
    """Steps per second of one run without faults, from the first acknowledgement to the last."""
    folder = Path(tempfile.mkdtemp(prefix="psconform-recovery-"))
    try:
        options: dict[str, Any] = {"layout": "ps=1,worker=2", "update": update, "steps": steps}
        options |= {"padding": SIZES[size], "checkpoint_every": every}
        run = judge(**options, out=folder / "run", session=session)
        if not run.valid:
            sys.stderr.write(run.explain())
        acks = [
            event["mono_ns"]
            for worker in range(2)
            for event in _events(folder / "run", f"worker-{worker}")
            if event["kind"] == "ack"
        ]
        return float(1e9 * (steps - 1) / (max(acks) - min(acks)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def cost(session: Session, update: str, size: str, rounds: int) -> tuple[str, ...]:
    """As in COST_HEADS."""
    steps = COST_STEPS[size]
    found: dict[int, list[float]] = {DEFAULT_EVERY: [], steps: []}
    for _ in range(rounds):
        for every, rates in found.items():
            rates.append(rate(session, update, size, every, steps))
    with_them, without = (statistics.median(rates) for rates in found.values())
    return update, size, f"{without:.1f}", f"{with_them:.1f}", f"{1 - with_them / without:.1%}"


def row(update: str, victim: str, found: list[Recovered]) -> tuple[str, ...]:
    """As in HEADS."""
    totals = [one.total_s for one in found]
    share = statistics.median(one.start_s / one.total_s for one in found)
    times = f"{statistics.median(totals):.2f}", f"{max(totals):.2f}", f"{share:.0%}"
    return update, victim, str(len(found)), *times, f"{sum(one.valid for one in found)} of {len(found)}"


def page(rows: list[tuple[str, ...]], costs: list[tuple[str, ...]], loads: list[float]) -> str:
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
        f"\n## What checkpoints cost\n\nOne every {DEFAULT_EVERY} steps of the chief, ps=1,worker=2.\n",
        "| " + " | ".join(COST_HEADS) + " |",
        "|" + "---|" * len(COST_HEADS),
        *("| " + " | ".join(line) + " |" for line in costs),
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """0 if every run was valid."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20, help="kills of each kind")
    parser.add_argument("--rounds", type=int, default=5, help="runs with and without checkpoints")
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
        costs = [cost(session, update, size, options.rounds) for size in SIZES for update in SHAPES]
    loads.append(os.getloadavg()[0])
    Console(width=120).print(table, *costs, sep="\n")
    if options.write:
        options.write.write_text(page(rows, costs, loads), encoding="utf-8")
    return 0 if good else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
