"""Whether the model says what real clusters say: the same layouts and fault plans through both, the same verdicts.

``python benchmarks/model_agreement.py`` draws a layout, a mode of training and a fault plan from each of 65 seeds,
trains on a real cluster of local processes, simulates the same plan (`schedule_of`), and compares the verdicts on
every guarantee, under the same claims. Real are the reference trainer and, for the other classes of delivery, the
socket trainer of benchmarks/foreign, which sends again or goes on without; it has two bugs, too, which the model is
given as well. docs/model.md explains where they differ. It resumes where it stopped, as detection.py does. Exit code 1
if a guarantee is violated in one of the two only, 2 if runs are missing (--budget, Ctrl-C) or could not be made, else
0.
"""

from __future__ import annotations

import argparse
import math
import shutil
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from detected import Result
from detection import Case, measure, stamp
from rich.console import Console

from psconform import judge
from psconform.errors import PsconformError
from psconform.faults.fault import BEFORE_PUSH, When
from psconform.faults.fault import Fault as Planned
from psconform.faults.fault_generator import draw
from psconform.faults.kinds import kinds
from psconform.faults.packet_faults import DROP
from psconform.faults.partitions import Dialled
from psconform.faults.plan_file import plan_text
from psconform.faults.process_faults import KILL, STOP
from psconform.faults.proxy_faults import REFUSE, STALL
from psconform.layout import Layout, Task
from psconform.options import Options
from psconform.runner.plan import Plan, make_plan
from psconform.runner.session import Session
from psconform.runner.verdicts import Judged, judge_folder
from psconform.simulation.cluster import Cluster, Parts
from psconform.simulation.record import Recorded
from psconform.simulation.schedule import Fault, Schedule
from psconform.simulation.server import Push, Server

STORE = Path(__file__).parent / ".detection" / "model_agreement.jsonl"
FOREIGN = Path(__file__).parent / "foreign"
RUNS, MOST_FAULTS = 65, 4
SOCKETS = ("at-least-once", "at-most-once", "loses", "doubles")
"""Targets in benchmarks/foreign."""
MODES = (
    *("sync", "async", "bounded", "sync", "at-least-once", "at-most-once"),
    *("async", "staleness-aware", "loses", "doubles", "sync", "async", "quorum"),
)
"""By seed, in turn. With a quorum the reference trainer takes no faults (`psconform list compatibility`): a straggler.
"""
BUGS = {"loses": 0, "doubles": 2}
"""So many times each ps applies the gradients of step BUGGY."""
BUGGY = 3
COMPUTE_S = 0.005
SAME = {KILL.name: KILL, STOP.name: STOP, STALL.name: STALL, REFUSE.name: DROP}
"""Kinds of faults of a real cluster, and of the model; a connection that ends loses what is under way, both ways."""
STATUSES = ("valid", "violated", "unknown", "not judged")


def drawn(seed: int) -> Case:
    """Layout, mode and fault plan of a seed, as `psconform run` takes them."""
    random = Random(f"agreement {seed}")
    mode = MODES[seed % len(MODES)]
    layout = Layout(ps=random.randint(1, 3), workers=random.randint(2, 4))
    steps = random.randint(6, 12)
    every = random.choice((0, 2, 3, 5)) if mode in ("sync", "async") else 0
    options: dict[str, Any] = {"layout": layout.text, "steps": steps, "checkpoint_every": every}
    if mode == "sync":
        options["reduction"] = random.choice(("mean", "sum"))
    elif mode == "quorum":
        options["quorum"] = random.randint(1, layout.workers)
    elif mode == "bounded":
        options["staleness"] = random.randint(0, 4)
    elif mode == "staleness-aware":
        options["rate"] = mode
    elif mode in SOCKETS:
        options["target"] = str(FOREIGN / f"{mode}.toml")
    if mode == "quorum" or random.random() < 0.3:
        options["slow"] = {f"worker:{random.randrange(layout.workers)}": random.choice((0.02, 0.05, 0.1))}
    if mode != "quorum":
        options["faults"] = plan_text(_faults(random, layout, steps, kills=every > 0))
    return Case(defect="", update="sync" if mode in ("sync", "quorum") else "async", seed=seed, options=options)


def _faults(random: Random, layout: Layout, steps: int, *, kills: bool) -> list[Planned]:
    """As ``--faults random`` draws them, but each at a step of a worker, and for a time: the model knows no others."""
    names = [name for name in SAME if kills or name != KILL.name]
    dialled = Dialled.seen((worker, ps) for worker in layout.worker_tasks for ps in layout.tasks if ps.job == "ps")
    found = []
    least, most = (2, MOST_FAULTS) if kills else (1, MOST_FAULTS - 1)
    for fault in draw(random, names, layout=layout, steps=steps, least=least, most=most, dialled=dialled):
        where = str(random.choice(layout.worker_tasks)) if fault.where == "worker" else fault.where
        lasts = fault.lasts_s or round(random.uniform(0.2, 0.6), 2) if kinds()[fault.kind].lasts else None
        when = When(BEFORE_PUSH, fault.when.step, task=where)
        found.append(replace(fault, when=when, until=None, lasts_s=lasts))
    return found


def schedule_of(plan: Plan) -> Schedule:
    """The same for the model."""
    layout, workload = plan.layout, plan.workload
    mode = "quorum" if layout.quorum else layout.update
    if layout.staleness is not None:
        mode = "bounded"
    elif layout.rate != Layout.rate:
        mode = layout.rate
    slow = dict(workload.slow)
    return Schedule(
        seed=workload.seed,
        mode=mode,
        ps=layout.ps,
        workers=layout.workers,
        steps=workload.steps,
        reduction=layout.reduction,
        quorum=layout.quorum,
        staleness=layout.staleness,
        delivery=plan.target.claimed(layout).delivery,
        every=plan.checkpoint_every,
        compute_s=COMPUTE_S,
        slow=tuple(1 + slow.get(str(worker), 0.0) / COMPUTE_S for worker in layout.worker_tasks),
        faults=tuple(map(_fault, plan.faults)),
    )


def _fault(fault: Planned) -> Fault:
    links = [(str(link.source), str(link.destination)) for link in fault.links]
    if fault.kind == REFUSE.name:
        links += [(destination, source) for source, destination in links]
    return Fault(
        SAME[fault.kind],
        tuple(map(str, fault.tasks)),
        worker=Task.parse(fault.where).index,
        step=fault.when.step or 0,
        lasts_s=fault.restart_after_s if fault.kind == KILL.name else fault.lasts_s,
        links=tuple(dict.fromkeys(links)),
    )


def _parts(case: Case) -> Parts:
    """The machines of the model, with the bug of the real trainer if it has one."""
    times = BUGS.get(Path(case.options.get("target", "")).stem, 1)

    class Buggy(Server):
        def apply(self, push: Push, weight: float) -> None:
            for _ in range(times if push.step == BUGGY else 1):
                super().apply(push, weight)
            self.applied[push.worker] = push.step + 1

    return Parts(server=Buggy)


def simulated(case: Case, folder: Path) -> Judged:
    """The model's run of a case, judged by what the real trainer claims."""
    plan = make_plan(Options(**case.options, update=case.update, seed=case.seed))
    trace = Recorded(folder, schedule_of(plan))
    trace.manifest.claims = plan.target.claimed(plan.layout)
    cluster = Cluster(trace.schedule, trace, _parts(case))
    cluster.run()
    trace.finish(cluster)
    return judge_folder(folder)


def run_both(case: Case, *, session: Session, folder: Path) -> Result:
    """One real cluster, and the model. The folders of a pair that does not agree are kept."""
    result: Result = {"defect": "", "update": case.update, "seed": case.seed, "options": case.options, "folder": None}
    model = simulated(case, folder / "model")
    result["model"] = {verdict.guarantee: verdict.status for verdict in model.verdicts}
    result["seen"] = {"model": model.coverage.observed, "planned": len(model.manifest.faults)}
    began = time.monotonic()
    try:
        run = judge(**case.options, update=case.update, seed=case.seed, session=session, out=folder / "real")
    except KeyboardInterrupt:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    except PsconformError as error:
        return result | {"error": " ".join(str(error).split()), "statuses": {}, "folder": str(folder)}
    result["statuses"] = {name: verdict.status for name, verdict in run.verdicts.items()}
    result["seen"]["real"] = run.coverage.observed
    result["seconds"] = round(time.monotonic() - began, 1)
    if different(result):
        return result | {"folder": str(folder)}
    shutil.rmtree(folder)
    return result


def different(result: Result) -> dict[str, tuple[str, str]]:
    """The guarantees that they do not agree on, and both verdicts: of the real cluster, of the model."""
    both = {name: (result["statuses"].get(name, ""), said) for name, said in result["model"].items()}
    return {} if "error" in result else {name: pair for name, pair in both.items() if pair[0] != pair[1]}


def one_violated(result: Result) -> bool:
    """A guarantee is violated in one of the two only."""
    return any("violated" in pair for pair in different(result).values())


def describe(result: Result) -> str:
    """A line for each pair: what it was, where it differs, and how to look at it again."""
    options = {name: value for name, value in result["options"].items() if name != "faults"}
    target, mode = Path(options.pop("target", "reference")).stem, MODES[result["seed"] % len(MODES)]
    said = " ".join(f"{name}={value}" for name, value in options.items() if value)
    found = [f"{name} {real}, model {model}" for name, (real, model) in different(result).items()]
    seen = result["seen"]
    faults = f"{seen.get('real', 0)} of {seen['planned']} faults observed, model {seen['model']}"
    again = f"python benchmarks/model_agreement.py --runs 1 --seed {result['seed']}"
    kept = f" ({result['folder']})" if result["folder"] else ""
    return f"seed {result['seed']}, {mode}, {target} {said}; {faults}: " + (
        f"{result.get('error') or '; '.join(found) or 'the same'}; {again}{kept}"
    )


def table(results: list[Result]) -> str:
    """A row for each guarantee that is judged in any run, in Markdown."""
    pairs = [result for result in results if "error" not in result]
    lines = [f"| guarantee | {' | '.join(f'both {status}' for status in STATUSES)} | different |"]
    lines.append("|---|" + "---:|" * (len(STATUSES) + 1))
    for name in pairs[0]["model"] if pairs else ():
        same = Counter(p["model"][name] for p in pairs if name not in different(p))
        if same["not judged"] < len(pairs):
            counts = [*(same[status] for status in STATUSES), len(pairs) - same.total()]
            lines.append(f"| {name} | {' | '.join(map(str, counts))} |")
    alike = sum(not different(result) for result in pairs)
    return "\n".join([*lines, "", f"{alike} of {len(pairs)} runs have the same verdict on every guarantee."])


def main(arguments: list[str] | None = None) -> int:
    """Run what is missing, print the table and each difference; 0 if all is well."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=RUNS, help=f"drawn layouts and plans (default {RUNS})")
    parser.add_argument("--seed", type=int, default=0, help="the first of them")
    parser.add_argument("--budget", type=float, default=math.inf, metavar="MIN", help="start no run after so long")
    parser.add_argument("--store", type=Path, default=STORE, help="file of results")
    options = parser.parse_args(arguments)
    if options.runs < 1:
        parser.error("--runs must be at least 1")
    cases = [drawn(seed) for seed in range(options.seed, options.seed + options.runs)]
    results = measure(
        cases,
        store=options.store,
        code=stamp(),
        deadline=time.monotonic() + 60 * options.budget,
        console=Console(stderr=True, highlight=False, markup=False, soft_wrap=True),
        run=run_both,
        right=lambda result: "error" not in result and not different(result),
        say=describe,
    )
    noted = [describe(result) for result in results if "error" in result or different(result)]
    sys.stdout.write(table(results) + "\n" + "".join(f"* {line}\n" for line in noted))
    if any(map(one_violated, results)):
        return 1
    return 2 if len(results) < len(cases) or any("error" in result for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
