"""psconform from Python: ``psconform.judge(...) -> Run``."""

from __future__ import annotations

import atexit
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from rich.text import Text

from .anomalies import Anomaly
from .faults.short import RESTART_AFTER
from .history.manifest import STEPS
from .report.text import explain, table
from .runner.plan import Plan, make_plan
from .runner.progress import Notify
from .runner.session import Session
from .runner.slow import Counted, Spelled
from .runner.verdicts import Judged, judge_folder, store
from .verdict import Verdict


class Run:
    """One judged run: its folder, its verdicts, and what they mean."""

    def __init__(self, judged: Judged) -> None:
        self._judged = judged

    @property
    def folder(self) -> Path:
        """The run folder; ``psconform check FOLDER`` judges it again."""
        return self._judged.folder

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """Verdicts by the name of the guarantee, such as ``S1``."""
        return {verdict.guarantee: verdict for verdict in self._judged.verdicts}

    @property
    def violated(self) -> tuple[str, ...]:
        """Names of the guarantees that did not hold."""
        return tuple(v.guarantee for v in self._judged.verdicts if v.status == "violated")

    @property
    def anomalies(self) -> tuple[Anomaly, ...]:
        """What went unusually, with which task and since when; changes no verdict."""
        return self._judged.anomalies

    @property
    def valid(self) -> bool:
        """Every claimed guarantee that this workload can show held."""
        return self._judged.exit_code == 0

    @property
    def exit_code(self) -> int:
        """What ``psconform run`` would exit with: 0, 1 or 2."""
        return self._judged.exit_code

    @property
    def repeat(self) -> str:
        """The command line that runs the same again."""
        return self._judged.manifest.repeat

    def text(self) -> Text:
        """``explain`` with colours, for rich."""
        return table(self._judged)

    def explain(self) -> str:
        """The table that ``psconform run`` prints, as plain text."""
        return explain(self._judged)

    def as_dict(self) -> dict[str, Any]:
        """The content of verdicts.json."""
        return self._judged.as_dict()

    def __repr__(self) -> str:
        state = "valid" if self.valid else f"violated {', '.join(self.violated)}" if self.violated else "unknown"
        return f"<Run {self.folder}: {state}>"


@cache
def default_session() -> Session:
    """The session behind ``judge``: its warm processes live as long as this one."""
    session = Session()
    atexit.register(session.close)
    return session


def judge(
    target: str | Path = "reference",
    *,
    layout: str = "default",
    update: str = "sync",
    reduction: str = "mean",
    quorum: int = 0,
    staleness: int | None = None,
    rate: str = "constant",
    local_steps: int = 1,
    replication: str = "between-graph",
    optimizer: str = "sgd",
    schedule: str = "constant",
    drop_after: str | float = 0.0,
    workload: str = "ledger",
    steps: int = STEPS,
    seed: int = 0,
    reads: int = 1,
    read_every: int = 1,
    model: str = "softmax",
    batch: int = 16,
    learning_rate: float | None = None,
    delay: int = 0,
    condition: float = 10.0,
    compression: str = "none",
    padding: int = 0,
    slow: Spelled = (),
    batches: Counted = (),
    defect: str = "",
    kill: str | Iterable[str] = (),
    stop: str | Iterable[str] = (),
    poison: str | Iterable[str] = (),
    faults: str | Path = "",
    restart_after: str | float | None = RESTART_AFTER,
    checkpoint_every: int | str | None = None,
    out: str | Path | None = None,
    patience_s: float = 60.0,
    launcher: str = "process",
    image: str = "",
    emulate_gpus: bool = False,
    session: Session | None = None,
    notify: Notify = lambda _: None,
) -> Run:
    """Run a target once on a real cluster and judge it.

    Args:
        target: ``reference``, or the path of a target.toml.
        layout: ``ps=2,worker=3`` (``ps=0``: all-reduce), with ``gpus=1`` GPUs for each worker; or a name from
            ``psconform list layouts``; or a file, ``docker/layouts/gpu.toml``, that says what tasks may use, too.
        update: ``sync`` or ``async``.
        reduction: ``mean`` or ``sum``, of a sync round.
        quorum: sync only: gradients that complete a round, so that later ones are dropped; 0: those of all workers.
        staleness: async only: the most steps that a worker may be ahead of another; by default as many as it likes.
        rate: async only: ``constant``, or ``staleness-aware``: divided by the staleness of a gradient.
        local_steps: layouts with ps=0: steps that a replica takes by itself before all are averaged.
        replication: sync only: ``between-graph``, ``in-graph`` or ``model-parallel``.
        optimizer: digits and quadratic, between-graph: ``sgd``, ``momentum`` or ``adam``; see psconform.optimizers.
        schedule: the same: ``constant``, or ``halving``: the learning rate halves every 50 updates of a ps.
        drop_after: seconds, or ``"2s"``, that the job waits for a worker before it goes on without it, until it comes
            back; 0: it waits. For targets that recover.
        workload: one of ``psconform list workloads``.
        steps: steps of each worker.
        seed: of everything that is drawn.
        reads: reads before each gradient.
        read_every: async only: read every so many steps.
        model: workload digits: ``softmax`` or ``mlp``.
        batch: workload digits: samples of each worker in a step.
        learning_rate: workloads digits and quadratic: of a round or an update; by default 0.1 and 0.02 (momentum 0.01
            and 0.002, adam 0.001 and 0.01).
        delay: digits and quadratic: age in steps of the parameters at which a gradient is taken.
        condition: workload quadratic: its condition number.
        compression: workload dense-ledger: what a worker does to gradients, for targets that declare it: ``topk``.
        padding: workload ledger: parameters of each variable besides, between head and tail, to make it large.
        slow: stragglers, which sleep before each gradient: ``{"worker:1": 0.05}`` or ``"worker:1=50ms"``.
        batches: workload ledger: workers that have data for fewer steps: ``{"worker:1": 50}`` or ``"worker:1=50"``.
        defect: a seeded defect of the reference trainer.
        kill: tasks to SIGKILL, and when: ``"ps:0@20"``, ``"worker:1@after-push:35"``, ``"ps:0@2s"``, or several.
        stop: tasks to SIGSTOP, and until when: ``"worker:0@10..15"``, ``"ps:0@1s..3s"``.
        poison: workers whose gradient of a step is NaN or Inf: ``"worker:1@20"``, ``"worker:1@20=inf"``.
        faults: the path of a fault plan (docs/faults.md), or its text, or ``"random"``, ``"random:stall,kill"``.
        restart_after: seconds, or ``"500ms"``, after which a killed task is started again; None or ``"never"``.
        checkpoint_every: steps of the chief between checkpoints, or a time such as ``500ms``; by default 50 steps with
            faults, else 0: none.
        out: the run folder, new or empty; by default a temporary one, which is yours to delete.
        patience_s: seconds without any event after which the run is stopped as stalled.
        launcher: ``process``: tasks are processes of this machine; ``docker``: each in a container of its own.
        image: with ``docker``: what tasks run in; by default the trainer's own (``psconform images build``).
        emulate_gpus: GPU:j of a worker is a logical CPU:j, for layouts with GPUs on machines without.
        session: keeps warm processes between runs; by default one per Python process.
        notify: called with a ``Progress`` about twenty times a second.

    Raises:
        BadInput: an option, a target file or an update rule that cannot be judged.
        PsconformError: the cluster could not be started.
    """
    plan = make_plan(
        str(target),
        out=Path(out or "."),
        layout=layout,
        update=update,
        reduction=reduction,
        quorum=quorum,
        staleness=staleness,
        rate=rate,
        local_steps=local_steps,
        replication=replication,
        optimizer=optimizer,
        schedule=schedule,
        drop_after=drop_after,
        workload=workload,
        steps=steps,
        seed=seed,
        reads=reads,
        read_every=read_every,
        model=model,
        batch=batch,
        learning_rate=learning_rate,
        delay=delay,
        condition=condition,
        compression=compression,
        padding=padding,
        slow=slow,
        batches=batches,
        defect=defect,
        kill=kill,
        stop=stop,
        poison=poison,
        faults=faults,
        restart_after=restart_after,
        checkpoint_every=checkpoint_every,
        patience_s=patience_s,
        launcher=launcher,
        image=image,
        emulate_gpus=emulate_gpus,
    )
    if out is None:
        plan = replace(plan, out=Path(tempfile.mkdtemp(prefix="psconform-")))
    try:
        return run_plan(plan, session=session or default_session(), notify=notify)
    except BaseException:
        if out is None and not any(plan.out.iterdir()):
            plan.out.rmdir()
        raise


def run_plan(plan: Plan, *, session: Session, notify: Notify = lambda _: None) -> Run:
    """Run a plan, judge it, store the verdicts. Raises as ``judge`` does."""
    session.run(plan, notify=notify)
    judged = judge_folder(plan.out)
    store(judged)
    return Run(judged)


def check(folder: str | Path) -> Run:
    """Judge a stored run again, offline.

    Raises:
        BadInput: not a run folder, or one that cannot be read; names file and line.
    """
    return Run(judge_folder(Path(folder)))
