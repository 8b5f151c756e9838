"""Which classes a task is made of: by its options, by psconform's spec, and by the deliberate bug if there is one."""

from __future__ import annotations

import logging
import os
from argparse import Namespace
from pathlib import Path
from types import NoneType
from typing import Any

from psconform.layout import Task
from psconform.optimizers import CLIP_WHEN
from psconform.probe import DECAY, Probe

from ..cluster import Cluster, tf1
from ..defects import code_of
from ..defects.catalog import DEFECTS
from ..ps import serve
from ..recovery.checkpoints import Recovery
from ..recovery.chief import Chief
from ..recovery.eviction import Eviction
from ..recovery.recoverable_ps import serve_recoverable
from ..recovery.recovering_worker import RecoveringWorker
from .accumulate import Accumulates
from .all_reduce import Replica
from .backup_workers import QuorumWorker
from .full_ps import FullConfig
from .full_worker import FullWorker
from .in_graph import InGraph, serve_tower
from .model_parallel import ModelParallel


def be(options: Namespace, cluster: Cluster, task: Task) -> Any:
    """Be this task until training is over; returns what must not be forgotten before the process ends.

    Raises:
        SystemExit: the options do not go together, or psconform's spec cannot be read; with one line.
        CannotServe: the address of the task is taken.
        GaveUp: the task cannot go on.
    """
    workers = len(cluster["worker"])
    if options.defect and options.defect not in DEFECTS:
        raise SystemExit(f"--defect: unknown {options.defect!r}; valid: {', '.join(DEFECTS)}")
    if "ps" not in cluster:
        return _be_replica(options, workers, task)
    tf1.disable_eager_execution()
    if options.clip_norm and options.clip_when != CLIP_WHEN[0] and len(cluster["ps"]) > 1:
        raise SystemExit(f"--clip-when: {options.clip_when} the average needs one ps, or none: each has a part of it")
    if not 0 <= options.quorum <= workers:
        raise SystemExit(f"--quorum: must be between 1 and {workers}, or 0, got {options.quorum}")
    one_client = options.replication != "between-graph" and task.job == "worker"
    if one_client and task.index:
        logging.info("%s computes for worker:0 on %s", task, cluster["worker"][task.index])
        serve_tower(cluster, task.index)
        return None
    # the one client keeps the record of every worker
    names = [f"worker:{i}" for i in range(workers)] if one_client else [str(task)]
    probes = [_probe(name, workers, options) for name in names]
    probe = probes[0]
    if options.replication == "model-parallel" and probe.trained is None:
        raise SystemExit(f"--replication model-parallel: workload {probe.workload} has no model to cut")
    config, recovery = _config(options, probe, workers), _recovery(options, probe)
    _check_defect(options.defect, config, recovers=recovery is not None)
    if task.job == "ps":
        logging.info("%s serves on %s", task, cluster["ps"][task.index])
        if recovery is not None:
            serve_recoverable(cluster, task.index, config, recovery)
        else:
            serve(cluster, task.index, config)
        probe.close()
        return None
    trained: Any
    if recovery is not None:
        trained = broken(RecoveringWorker, options.defect)(cluster, probe, config, recovery)
    elif one_client:
        healthy = InGraph if options.replication == "in-graph" else ModelParallel
        trained = broken(healthy, options.defect)(cluster, probes, config)
    else:
        plain = Accumulates if config.accumulate > 1 else FullWorker
        trained = broken(QuorumWorker if config.quorum else plain, options.defect)(cluster, probe, config)
    trained.train()
    logging.info("%s trained %d steps; versions %s", task, config.steps, trained.seen)
    return trained


def broken(healthy: type[Any], defect: str) -> type[Any]:
    """This class with a deliberate bug, in itself or in a part of it; SystemExit if it cannot have that bug."""
    if not defect:
        return healthy
    code = code_of(defect)
    if issubclass(code, healthy):
        return code
    if issubclass(code, Eviction):
        code = type(code.__name__, (Chief,), {"eviction_type": code})
    for name in ("shard_type", "chief_type"):
        if issubclass(code, getattr(healthy, name, NoneType)):
            return type(code.__name__, (healthy,), {name: code})
    if issubclass(code, InGraph) and not issubclass(healthy, InGraph):
        return healthy  # between-graph, as which a run of the one client is trained for comparison, too, all is well
    raise SystemExit(f"--defect: this mode of training cannot have {defect}")


def _config(options: Namespace, probe: Probe, workers: int) -> FullConfig:
    return FullConfig(
        slots=probe.slots,
        workers=workers,
        update=options.update,
        reduction=options.reduction,
        steps=probe.steps,
        seed=probe.seed,
        quorum=options.quorum,
        rate=options.rate,
        staleness=options.staleness if options.staleness >= 0 else None,
        compression=options.compression,
        optimizer=options.optimizer,
        schedule=options.schedule,
        learning_rate=options.learning_rate,
        clip_norm=options.clip_norm,
        clip_when=options.clip_when,
        drop_after=options.drop_after,
        accumulate=options.accumulate,
        gpus=options.gpus,
        emulated=bool(options.emulate_gpus),
        decay=DECAY if probe.workload == "decayed-ledger" else 0.0,
    )


def _check_defect(defect: str, config: FullConfig, *, recovers: bool) -> None:
    """SystemExit with one line if a worker of this set-up does not have this bug."""
    if not defect:
        return
    if DEFECTS[defect].all_reduce:
        raise SystemExit(f"--defect: {defect} is of replicas: needs a cluster without ps")
    if recovers and not DEFECTS[defect].recovers:
        raise SystemExit(f"--defect: {defect} has no recovery: leave out --checkpoint-dir")
    if not recovers and DEFECTS[defect].recovers:
        raise SystemExit(f"--defect: {defect} is a defect of recovery: give --checkpoint-dir")
    if not (config.plain or recovers):
        raise SystemExit(f"--defect: {defect} needs --optimizer sgd and --schedule constant, without --clip-norm")


def _recovery(options: Namespace, probe: Probe) -> Recovery | None:
    """Checkpoints, if this task is to have them: psconform's spec may ask for them, too."""
    if options.checkpoint_dir:
        give_up_s = max(options.give_up_after, 2 * options.drop_after)
        return Recovery(Path(options.checkpoint_dir), options.every, options.every_s, options.keep, give_up_s)
    plain = options.quorum or options.compression != "none" or options.replication != "between-graph"
    if not probe.checkpoints or plain:
        return None
    every, every_s = probe.checkpoint_every, probe.checkpoint_seconds
    return Recovery(Path(probe.checkpoints), every, every_s, options.keep, probe.wait_s)


def _probe(task: str, workers: int, options: Namespace) -> Probe:
    """The probe of a task; SystemExit with one line if psconform's spec cannot be read."""
    if not os.environ.get("PSCONFORM_SPEC"):
        return Probe.detached(workers=workers, steps=options.steps, task=task)
    try:
        return Probe.from_env(task)
    except (OSError, ValueError, KeyError) as error:
        raise SystemExit(f"PSCONFORM_SPEC: {os.environ['PSCONFORM_SPEC']}: {error}") from None


def _be_replica(options: Namespace, workers: int, task: Task) -> Replica:
    """Be one worker of a cluster without ps."""
    if options.update != "sync" or options.quorum or options.compression != "none":
        raise SystemExit("TF_CONFIG: no job ps: then --update must be sync, without --quorum and --compression")
    if options.optimizer != "sgd" or options.schedule != "constant":
        raise SystemExit("TF_CONFIG: no job ps: then --optimizer must be sgd and --schedule constant")
    if options.defect and not DEFECTS[options.defect].all_reduce:
        raise SystemExit(f"--defect: {options.defect} is of a cluster with ps")
    probe = _probe(str(task), workers, options)
    kind = broken(Replica, options.defect)
    replica: Replica = kind(
        probe,
        workers=workers,
        reduction=options.reduction,
        local_steps=options.local_steps,
        accumulate=options.accumulate,
        learning_rate=options.learning_rate,
        clip_norm=options.clip_norm,
        clip_when=options.clip_when,
    )
    replica.train()
    logging.info("%s trained %d steps", task, probe.steps)
    return replica
