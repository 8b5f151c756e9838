"""From nothing to a trained step in containers: psconform's start against `docker compose up` of the same images.

``python benchmarks/containers.py`` starts 1 ps + 2 workers and 2 ps + 4 workers so often each way, in turn, and prints
seconds from the call until the last worker says that it has trained its one step, and their ratio; ``--write FILE``
writes docs/containers-start.md. Needs an engine, the images (`psconform images build`) and a Compose.

psconform starts more than Compose does: a helper container for each task, and Toxiproxy if a link is to break.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import yaml
from machine import machine, paragraph, today, versions

from psconform.launchers.engine import engine
from psconform.launchers.images import trainer_image
from psconform.layout import Layout
from psconform.options import Options
from psconform.runner.plan import make_plan
from psconform.runner.session import Session
from psconform.targets.compose import compose

LAYOUTS = ("ps=1,worker=2", "ps=2,worker=4")
TIMES = 5
TRAINED = "trained 1 steps"
FAULT = 'fault = [{kind = "latency", links = "worker:1->ps:0", at = 0, for = "10ms", ms = 1}]'
PROJECT = "psconform-benchmark"


def trained_at(text: str) -> float:
    """When a worker's log says that it has trained, in seconds of the epoch; a container's clock is UTC."""
    line = next(line for line in text.splitlines() if TRAINED in line)
    return datetime.strptime(line[:23], "%Y-%m-%d %H:%M:%S,%f").replace(tzinfo=UTC).timestamp()


def by_psconform(layout: Layout, folder: Path, session: Session, *, faults: str = "") -> float:
    """Seconds until all workers have trained."""
    options = Options(out=folder, layout=layout.text, steps=1, launcher="docker", update="async", faults=faults)
    plan = make_plan(options)
    began = time.time()
    session.run(plan)
    logs = [folder / "logs" / f"{task.slug}.log" for task in layout.worker_tasks]
    return max(trained_at(log.read_text(encoding="utf-8")) for log in logs) - began


def by_compose(layout: Layout, folder: Path) -> float:
    """The same of the same tasks as services."""
    cluster: dict[str, list[str]] = {"ps": [], "worker": []}
    for task in layout.tasks:
        cluster[task.job].append(f"{task.slug}:2222")
    services = {
        task.slug: {
            "image": trainer_image(),
            "entrypoint": ["python3", "-m", "psconform.reference_impl"],
            "command": ["--update=async", "--steps=1"],
            "read_only": True,
            "cap_drop": ["ALL"],
            "tmpfs": ["/tmp"],
            "healthcheck": {"disable": True},
            "environment": {
                "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": task.job, "index": task.index}})
            },
        }
        for task in layout.tasks
    }
    folder.mkdir(parents=True)
    file = folder / "compose.yaml"
    file.write_text(yaml.safe_dump({"services": services}), encoding="utf-8")
    words = [*compose()[0], "-p", PROJECT, "-f", str(file)]
    began = time.time()
    try:
        subprocess.run([*words, "up", "-d"], check=True, capture_output=True, timeout=120)
        api = engine()
        said = api.containers(all=True, filters={"label": f"com.docker.compose.project={PROJECT}"})
        there = {container["Labels"]["com.docker.compose.service"]: container["Id"] for container in said}
        for task in layout.worker_tasks:
            api.wait(there[task.slug], timeout=120)
        return max(trained_at(api.logs(there[task.slug]).decode()) for task in layout.worker_tasks) - began
    finally:
        subprocess.run([*words, "down"], check=True, capture_output=True, timeout=120)


def rows(times: int, folder: Path, tell: Callable[[str], object]) -> Iterator[str]:
    """A row for each layout, in Markdown: medians, and what psconform takes of what Compose takes."""
    with Session() as session:
        for text in LAYOUTS:
            layout = Layout.parse(text)
            taken: dict[str, list[float]] = {"compose": [], "psconform": [], "proxied": []}
            for number in range(times + 1):  # the first warms the page cache, and does not count
                place = folder / f"{text}-{number}"
                found = {
                    "compose": by_compose(layout, place / "compose"),
                    "psconform": by_psconform(layout, place / "plain", session),
                    "proxied": by_psconform(layout, place / "proxied", session, faults=FAULT),
                }
                tell(f"{text} {number}: " + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in found.items()))
                for name, seconds in found.items() if number else ():
                    taken[name].append(seconds)
            plain, own, proxied = (statistics.median(taken[name]) for name in ("compose", "psconform", "proxied"))
            yield f"| {text} | {plain:.1f} | {own:.1f} | {own / plain:.2f} | {proxied:.1f} | {proxied / plain:.2f} |"


def main(arguments: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--times", type=int, default=TIMES, help=f"of each (default {TIMES})")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the page, e.g. docs/containers-start.md")
    options = parser.parse_args(arguments)
    if options.times < 1:
        parser.error("--times must be at least 1")
    head = "| layout | Compose, s | psconform, s | ratio | with Toxiproxy, s | ratio |\n|---|---:|---:|---:|---:|---:|"
    with tempfile.TemporaryDirectory(prefix="psconform-") as folder:
        table = "\n".join([head, *rows(options.times, Path(folder), lambda line: sys.stderr.write(f"{line}\n"))])
    sys.stdout.write(table + "\n")
    if options.write:
        about = paragraph(
            f"Seconds from the call until the last worker has trained one step: medians of {options.times}, taken in",
            f"turn, with the same image and {' '.join(compose()[0])} {compose()[1]}. psconform starts a helper",
            "container for each task, too, and looks at all of them; with a fault of a link Toxiproxy in a pod of its",
            "own, with a proxy for each ordered pair of tasks.",
        )
        lines = [
            "<!-- written by benchmarks/containers.py --write -->\n",
            "# How soon containers train\n",
            about,
            table,
        ]
        lines += ["", paragraph(f"{today()}, {machine()}, {versions()}."), "```sh"]
        lines += [f"python benchmarks/containers.py --times {options.times} --write {options.write}", "```"]
        options.write.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
