"""``python -m psconform.reference_impl``: one task of the reference trainer, from ``TF_CONFIG``."""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from psconform.compatibility import GPUS, check_option, check_options
from psconform.errors import BadInput
from psconform.layout import MAX_DROP_AFTER_S, MAX_GPUS, MAX_LOCAL_STEPS
from psconform.options import OF_TRAINERS
from psconform.probe import DECAY, Probe
from psconform.times import parse_seconds, spell

from .compress import COMPRESSIONS
from .memory import keep_memory

if TYPE_CHECKING:
    from .checkpoint import Recovery
    from .in_graph import InGraph
    from .shard import ShardConfig
    from .trainer import Worker

USUAL = {"staleness": -1, "learning_rate": 1.0, "drop_after": 0.0, "emulate_gpus": 0}
"""Defaults that have another type here: no bound, and seconds, as the placeholders of target.toml say."""
BOUNDS = {
    "steps": (1, 10**9),
    "keep": (1, 1000),
    "give_up_after": (1, 86400),
    "drop_after": (0, MAX_DROP_AFTER_S),
    "gpus": (0, MAX_GPUS),
    "local_steps": (1, MAX_LOCAL_STEPS),
    "learning_rate": (1e-9, 1e9),
}

_EXAMPLE = """\
by hand, one task per shell, as with any TensorFlow program:

  export CLUSTER='"cluster": {"ps": ["localhost:2220"], "worker": ["localhost:2221", "localhost:2222"]}'
  TF_CONFIG="{$CLUSTER, \\"task\\": {\\"type\\": \\"ps\\", \\"index\\": 0}}"     python -m psconform.reference_impl
  TF_CONFIG="{$CLUSTER, \\"task\\": {\\"type\\": \\"worker\\", \\"index\\": 0}}" python -m psconform.reference_impl
  TF_CONFIG="{$CLUSTER, \\"task\\": {\\"type\\": \\"worker\\", \\"index\\": 1}}" python -m psconform.reference_impl

Every task must be given the same options. `psconform run` does all this and judges the run.
"""


def _options(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m psconform.reference_impl",
        description="One task of a minimal TensorFlow ps/worker trainer; cluster and task come from TF_CONFIG "
        "(jobs ps and worker; worker:0 is the chief). Without a job ps every worker holds a replica, and they exchange "
        "gradients by all-reduce.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for option in OF_TRAINERS:
        default = USUAL.get(option.name, option.default)
        choices = COMPRESSIONS if option.name == "compression" else option.choices or None
        parser.add_argument(option.flag, type=type(default), choices=choices, default=default, help=option.help)
    parser.add_argument("--steps", type=int, default=200, help="steps of each worker (under psconform, from its spec)")
    parser.add_argument("--checkpoint-dir", default="", help="survive the death of any task: where checkpoints go")
    parser.add_argument("--checkpoint-every", default="50", help="steps of worker:0 (default: 50), or 500ms")
    parser.add_argument(
        "--give-up-after",
        type=float,
        default=600.0,
        help="with --checkpoint-dir: seconds without a sign of the others after which a task ends (default: 600)",
    )
    parser.add_argument("--keep", type=int, default=3, help="checkpoints that are kept, the newest (default: 3)")
    parser.add_argument("--gpus", type=int, default=0, help="a tower on each so many GPUs of a worker (default: none)")
    parser.add_argument("--defect", default="", help="one deliberate bug: see `psconform list defects`")
    options = parser.parse_args(argv)
    try:
        options.every, options.every_s = _interval(options.checkpoint_every)
        _check(options)
    except BadInput as error:
        parser.error(str(error))
    return options


def _check(options: argparse.Namespace) -> None:
    """Raises BadInput for options that are out of bounds, or do not go together."""
    for name, (least, most) in BOUNDS.items():
        if not least <= getattr(options, name) <= most:
            option = f"--{name.replace('_', '-')}"
            raise BadInput(option, f"must be between {least} and {most}", value=getattr(options, name))
    values = {option.name: getattr(options, option.name) for option in OF_TRAINERS}
    values |= {"staleness": None if options.staleness < 0 else options.staleness, GPUS: options.gpus}
    values |= {"drop_after": spell(options.drop_after), "emulate_gpus": bool(options.emulate_gpus)}
    check_options(values)
    if options.checkpoint_dir:
        saved = {**values, "checkpoint_every": options.checkpoint_every}
        check_option("checkpoint_every", saved, place="--checkpoint-dir", value=options.checkpoint_dir)


def _interval(text: str) -> tuple[int, float]:
    """Steps or seconds between checkpoints, the other one is 0; raises BadInput."""
    place = "--checkpoint-every"
    steps, seconds = (int(text), 0.0) if text.isdecimal() else (0, parse_seconds(text, place=place))
    if not (steps >= 1 or seconds > 0):
        raise BadInput(place, "must be at least one step, or a time such as 500ms", value=text)
    return steps, seconds


def _place() -> tuple[dict[str, list[str]], str, int]:
    """Cluster, job and index from TF_CONFIG; SystemExit with one line if they are not there."""
    try:
        config = json.loads(os.environ["TF_CONFIG"])
        cluster = {job: [str(address) for address in hosts] for job, hosts in config["cluster"].items()}
        job, index = str(config["task"]["type"]), int(config["task"]["index"])
        for address in (address for hosts in cluster.values() for address in hosts):
            if not re.fullmatch(r".+:\d{1,5}", address):
                raise ValueError(f"no host:port: {address!r}")
        if job not in ("ps", "worker") or not 0 <= index < len(cluster[job]) or cluster.get("ps") == []:
            raise ValueError(f"no task {job}:{index} in the jobs ps and worker of {cluster}")
    except KeyError as error:
        raise SystemExit(f"TF_CONFIG: lacks {error}; see --help for an example") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise SystemExit(f"TF_CONFIG: {error}; see --help for an example") from None
    return cluster, job, index


def main(argv: list[str] | None = None) -> NoReturn:
    """Be one task until training is over, then end this process with status 0.

    A task that cannot go on, for lack of an address or of the others, says so in one line, and ends with status 1.
    """
    options = _options(sys.argv[1:] if argv is None else argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    cluster, job, index = _place()
    keep_memory()
    _load()
    if "ps" not in cluster:
        _replica(options, workers=len(cluster["worker"]), task=f"{job}:{index}")
    from .calls import GaveUp
    from .trainer import CannotServe

    task = f"{job}:{index}"
    try:
        kept = _be(options, cluster, job, index)
    except (CannotServe, GaveUp) as error:
        _end(task, error)
    _end(task, kept=kept)


def _load() -> None:
    """Import TensorFlow, without what takes a fifth of the time that a task takes to start: Keras 3, which is not used
    and goes without this variable (0.2 s), and looking for garbage, of which hardly any is made (a tenth)."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    gc.disable()
    import tensorflow  # noqa: F401

    gc.enable()


def _be(options: argparse.Namespace, cluster: dict[str, list[str]], job: str, index: int) -> object:
    """Be one task of a cluster with ps; returns what must not be forgotten before the end."""
    from .defects import RECOVERING, WORKERS, client_type, survivor_type, worker_type
    from .in_graph import serve_tower
    from .serving import serve_recoverable
    from .shard import ShardConfig, tf1
    from .trainer import serve

    if options.defect not in {**WORKERS, **RECOVERING}:
        valid = ", ".join(filter(None, [*WORKERS, *RECOVERING]))
        raise SystemExit(f"--defect: unknown {options.defect!r}; valid: {valid}")
    tf1.disable_eager_execution()
    if not 0 <= options.quorum <= len(cluster["worker"]):
        raise SystemExit(f"--quorum: must be between 1 and {len(cluster['worker'])}, or 0, got {options.quorum}")
    task, workers = f"{job}:{index}", len(cluster["worker"])
    one_client = options.replication != "between-graph" and job == "worker"
    if one_client and index:
        logging.info("%s computes for worker:0 on %s", task, cluster[job][index])
        serve_tower(cluster, index)
        return None
    # the one client keeps the record of every worker
    probes = [
        _probe(f"worker:{i}" if one_client else task, workers, options) for i in range(workers if one_client else 1)
    ]
    probe = probes[0]
    if options.replication == "model-parallel" and probe.trained is None:
        raise SystemExit(f"--replication model-parallel: workload {probe.workload} has no model to cut")
    config = ShardConfig(
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
        drop_after=options.drop_after,
        gpus=options.gpus,
        emulated=bool(options.emulate_gpus),
        decay=DECAY if probe.workload == "decayed-ledger" else 0.0,
    )
    recovery = _recovery(options, probe)
    _check_defect(options.defect, config, recovers=recovery is not None)
    if job == "ps":
        logging.info("%s serves on %s", task, cluster[job][index])
        if recovery is not None:
            serve_recoverable(cluster, index, config, recovery)
        else:
            serve(cluster, index, config)
        probe.close()
        return None
    trained: Worker | InGraph
    if recovery is not None:
        trained = survivor_type(options.defect, config, chief=index == 0)(cluster, probe, config, recovery)
    elif one_client:
        trained = client_type(options.defect, options.replication)(cluster, probes, config)
    else:
        trained = worker_type(options.defect, config)(cluster, probe, config)
    trained.train()
    logging.info("%s trained %d steps; versions %s", task, config.steps, trained.seen)
    return trained


def _check_defect(defect: str, config: ShardConfig, *, recovers: bool) -> None:
    """SystemExit with one line if a worker of this set-up does not have this bug."""
    from .defects import RECOVERING, WORKERS

    if recovers and defect not in RECOVERING:
        raise SystemExit(f"--defect: {defect} is none of recovery, and goes without --checkpoint-dir")
    if not recovers and defect not in WORKERS:
        raise SystemExit(f"--defect: {defect} is one of recovery, and needs --checkpoint-dir")
    if not config.plain and defect and defect in WORKERS:
        raise SystemExit(f"--defect: {defect} needs --optimizer sgd and --schedule constant")


def _recovery(options: argparse.Namespace, probe: Probe) -> Recovery | None:
    """Checkpoints, if this task is to have them: psconform's spec may ask for them, too."""
    from .checkpoint import Recovery

    if options.checkpoint_dir:
        give_up_s = max(options.give_up_after, 2 * options.drop_after)
        return Recovery(Path(options.checkpoint_dir), options.every, options.every_s, options.keep, give_up_s)
    plain = options.quorum or options.compression != "none" or options.replication != "between-graph"
    if not probe.checkpoints or plain:
        return None
    every, every_s = probe.checkpoint_every, probe.checkpoint_seconds
    return Recovery(Path(probe.checkpoints), every, every_s, options.keep, probe.wait_s)


def _probe(task: str, workers: int, options: argparse.Namespace) -> Probe:
    """The probe of a task; SystemExit with one line if psconform's spec cannot be read."""
    if not os.environ.get("PSCONFORM_SPEC"):
        return Probe.detached(workers=workers, steps=options.steps, task=task)
    try:
        return Probe.from_env(task)
    except (OSError, ValueError, KeyError) as error:
        raise SystemExit(f"PSCONFORM_SPEC: {os.environ['PSCONFORM_SPEC']}: {error}") from None


def _replica(options: argparse.Namespace, *, workers: int, task: str) -> NoReturn:
    """Be one worker of a cluster without ps."""
    from .faulty_replicas import REPLICAS

    if options.update != "sync" or options.quorum or options.compression != "none":
        raise SystemExit("TF_CONFIG: no job ps: then --update must be sync, without --quorum and --compression")
    if options.optimizer != "sgd" or options.schedule != "constant":
        raise SystemExit("TF_CONFIG: no job ps: then --optimizer must be sgd and --schedule constant")
    if options.defect not in REPLICAS:
        raise SystemExit(f"--defect: unknown {options.defect!r}; valid: {', '.join(filter(None, REPLICAS))}")
    probe = _probe(task, workers, options)
    kind = REPLICAS[options.defect]
    replica = kind(probe, workers=workers, reduction=options.reduction, local_steps=options.local_steps)
    replica.train()
    logging.info("%s trained %d steps", task, probe.steps)
    _end(task)


def _end(task: str, reason: object = None, *, kept: object = None) -> NoReturn:
    """End this process; ``kept`` is what has a session, which forgetting it would close."""
    if reason is not None:
        logging.error("%s ends: %s", task, reason)
    else:
        logging.info("%s ends", task)
    logging.shutdown()
    # Without closing sessions and servers: closing one sends a last call to every ps, and waits for good for the
    # answer of one that has ended already (3 of 20 runs with 3 ps hung so).
    os._exit(0 if reason is None else 1)


if __name__ == "__main__":
    main()
