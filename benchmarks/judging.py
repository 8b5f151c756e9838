"""How long judging takes, and how it grows: synthetic runs of up to 1,000,000 updates, from files to verdicts.

    python benchmarks/judging.py            # a table; --write docs/judging.md puts it into the docs

Each row writes a run folder of an async run (one ``update`` event per update, one read per ten) and judges it in a
process of its own on one core, whose time and peak memory are taken. The growth figures compare cost per event.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

from psconform.claims import ASYNC
from psconform.history.build import RUNNER
from psconform.history.manifest import Manifest, Workload
from psconform.layout import Layout
from psconform.probe import UNIT, EventLog
from psconform.runner.folder import new_folder

READ_EVERY = 10
SIZES = ((100_000, 8), (1_000_000, 8), (1_000_000, 2), (1_000_000, 32))
"""(updates, workers)."""
SHARDS = 4


def write_run(folder: Path, *, updates: int, workers: int, shards: int = SHARDS) -> Path:
    """A run folder as a healthy async trainer leaves it, its workers taking turns."""
    folder = new_folder(folder)
    steps = updates // workers
    layout = Layout(ps=shards, workers=workers, update="async")
    manifest = Manifest(
        run="synthetic",
        created="2026-01-01T00:00:00+0000",
        target="synthetic",
        source="benchmarks/judging.py",
        layout=layout,
        claims=ASYNC,
        workload=Workload(steps=steps, unit=UNIT, read_every=READ_EVERY),
        status="finished",
    )
    manifest.write(folder)
    for worker in range(workers):
        lines = _lines(worker, workers=workers, steps=steps, shards=shards)
        with (folder / "events" / f"worker-{worker}.jsonl").open("wb") as file:
            crc = 0
            for seq, (kind, fields) in enumerate(lines):
                body = f'{{"kind":"{kind}","seq":{seq},"mono_ns":{seq * 1000}{fields}'.encode()
                crc = zlib.crc32(body, crc)
                file.write(b'%s,"crc":"%08x"}\n' % (body, crc))
    log = EventLog(folder / "events" / f"{RUNNER.slug}.jsonl", run=manifest.run, task=str(RUNNER), incarnation=0)
    for task in layout.tasks:
        log.write("exit", of=str(task), status=0)
    log.close()
    return folder


def _lines(worker: int, *, workers: int, steps: int, shards: int) -> Any:
    boot = ',"boot":"","pid":1'
    yield "start", f',"schema":1,"run":"synthetic","task":"worker:{worker}","incarnation":0{boot}'
    nonce = f',"nonce":{json.dumps([7.0 + shard for shard in range(shards)], separators=(",", ":"))}'
    if worker == 0:
        yield "init", nonce
    for step in range(steps):
        if step % READ_EVERY == 0:
            yield "read", f',"step":{step}{_read(step, worker, workers, shards)}{nonce if step == 0 else ""}'
        version = step * workers + worker + 1
        yield "update", f',"step":{step},"outcome":"ok","versions":{_list([version] * shards)}'
    yield "done", ""
    yield "read", f',"step":{steps}{_read(steps, 0, workers, shards)},"final":true,"absent":[]'
    yield "end", ',"reason":"closed"'


def _read(step: int, worker: int, workers: int, shards: int) -> str:
    clock = _list([step + 1] * worker + [step] * (workers - worker))
    version = step * workers + worker
    return f',"clock":[{",".join([clock] * shards)}],"versions":{_list([version] * shards)}'


def _list(numbers: list[int]) -> str:
    return f"[{','.join(map(str, numbers))}]"


_JUDGE = """
import resource, sys, time
from pathlib import Path
from psconform.runner.verdicts import judge_folder
began = time.process_time()
judged = judge_folder(Path(sys.argv[1]))
taken = time.process_time() - began
assert judged.exit_code == 0, judged.as_dict()
print(taken, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def measure(folder: Path) -> tuple[float, float]:
    """CPU seconds from files to verdicts, and peak memory in MiB, of a process on one core."""
    done = subprocess.run(
        [sys.executable, "-c", _JUDGE, str(folder)],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}),
    )
    seconds, mib = map(float, done.stdout.split())
    return seconds, mib


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown, and what grows how."""
    lines = ["| updates | workers | reads | seconds | MiB | microseconds per event |", "|--:|--:|--:|--:|--:|--:|"]
    for row in rows:
        lines.append(
            f"| {row['updates']:,} | {row['workers']} | {row['reads']:,} | {row['seconds']:.2f} | {row['mib']:.0f} | "
            f"{row['per_event']:.2f} |"
        )
    cost = {(row["updates"], row["workers"]): row["found"] for row in rows}
    for (a, b), what in (
        (((100_000, 8), (1_000_000, 8)), "from 100,000 to 1,000,000 updates"),
        (((1_000_000, 2), (1_000_000, 32)), "from 2 to 32 workers"),
    ):
        if a in cost and b in cost:
            grown = sorted(after / before for before, after in zip(cost[a], cost[b], strict=True))
            spread = f" ({grown[0]:.2f} to {grown[-1]:.2f} in rounds)" if len(grown) > 1 else ""
            lines += ["", f"Cost per event {what}: x {statistics.median(grown):.2f}{spread}."]
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and write the docs if asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--repeat", type=int, default=3, help="rounds in which each run is judged; the median counts")
    parser.add_argument("--write", type=Path, help="put the table into this Markdown file")
    options = parser.parse_args()
    rows, folder = [], Path(tempfile.mkdtemp(prefix="psconform-judging-"))
    try:
        for number, (updates, workers) in enumerate(SIZES):
            write_run(folder / str(number), updates=updates, workers=workers)
        # in turns, so that what else the machine does hits all sizes alike
        rounds = [[measure(folder / str(number)) for number in range(len(SIZES))] for _ in range(options.repeat)]
        for number, (updates, workers) in enumerate(SIZES):
            reads, times = updates // READ_EVERY + workers, [found[number][0] for found in rounds]
            rows.append(
                {
                    "updates": updates,
                    "workers": workers,
                    "reads": reads,
                    "seconds": statistics.median(times),
                    "mib": max(found[number][1] for found in rounds),
                    "per_event": 1e6 * statistics.median(times) / (updates + reads),
                    "found": [seconds / (updates + reads) for seconds in times],
                }
            )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    text = table(rows)
    sys.stdout.write(text + "\n")
    if options.write:
        command = f"python benchmarks/judging.py --repeat {options.repeat}"
        head = f"# Speed of judging\n\nMeasured on {time.strftime('%Y-%m-%d')} with `{command}`"
        what = (
            f"{SHARDS} shards, one core. Seconds are CPU time,\nfrom the files (in memory, as they were just written) "
        )
        what += "to the verdicts, without the start of Python."
        options.write.write_text(f"{head}: {what}\n\n{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
