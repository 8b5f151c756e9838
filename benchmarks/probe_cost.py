"""What the probe costs: its share of the reference trainer's step time, both measured in the same run.

``python benchmarks/probe_cost.py`` prints a table; the share must stay within 5 %. The time inside the probe includes
``gradient``, which any trainer would have to spend on computing its gradient.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from psconform import judge

TARGET = Path(__file__).parent / "timed" / "target.toml"
LAYOUTS = ("ps=1,worker=1", "ps=1,worker=2", "ps=2,worker=3")
STEPS = 300
LIMIT = 0.05


def share(layout: str, update: str, out: Path) -> tuple[float, float, float]:
    """(share, microseconds in the probe per step, microseconds per step), over all workers of one run."""
    run = judge(TARGET, layout=layout, update=update, steps=STEPS, out=out)
    if not run.valid:
        raise SystemExit(run.explain())
    results = []
    for log in sorted((run.folder / "logs").glob("worker-*.log")):
        lines = [line for line in log.read_text(encoding="utf-8").splitlines() if line.startswith('{"probe_s"')]
        results.append(json.loads(lines[-1]))
    probe = sum(result["probe_s"] for result in results) / len(results) / STEPS
    step = sum(result["loop_s"] for result in results) / len(results) / STEPS
    return probe / step, probe * 1e6, step * 1e6


def main(out: Path) -> int:
    """Measure all layouts; 0 if every share is within the limit."""
    table = Table("layout", "update", "probe, us/step", "step, us", "share", box=None)
    worst = 0.0
    for layout in LAYOUTS:
        for update in ("sync", "async"):
            ratio, probe_us, step_us = share(layout, update, out / f"{layout}-{update}")
            worst = max(worst, ratio)
            table.add_row(layout, update, f"{probe_us:.0f}", f"{step_us:.0f}", f"{ratio:.1%}")
    Console().print(table)
    return int(worst > LIMIT)


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory(prefix="psconform-") as folder:
        sys.exit(main(Path(folder)))
