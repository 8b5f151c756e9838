"""``python -m psconform.reference_impl``: one task of the reference trainer, from ``TF_CONFIG``."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import re
import sys
from typing import NoReturn

from psconform.layout import Task

from .arguments import parse_arguments

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # of mallopt(3)


def main(argv: list[str] | None = None) -> NoReturn:
    """Be one task until training is over, then end this process with status 0.

    A task whose address is taken, or that gives up (recovery/), says so in one line, and ends with status 1.
    """
    options = parse_arguments(sys.argv[1:] if argv is None else argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    cluster, task = place()
    keep_memory()
    from .cluster import CannotServe, GaveUp  # which import TensorFlow
    from .modes.setup import be

    try:
        kept = be(options, cluster, task)
    except (CannotServe, GaveUp) as error:
        end(task, error)
    end(task, kept=kept)


def place() -> tuple[dict[str, list[str]], Task]:
    """Cluster and task from TF_CONFIG; SystemExit with one line if they are not there."""
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
    return cluster, Task(job, index)


def keep_memory() -> None:
    """Tell glibc not to give memory back; before any thread allocates. Elsewhere (musl, macOS) it does nothing.

    TensorFlow allocates a tensor for each message and frees it right after. glibc gives blocks that large back to the
    kernel (from 32 MiB on always, see mallopt(3)), so every step pays for the same pages again: at 64 MB of parameters
    that was a quarter of a sync step's CPU time.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        # one arena: the others are heaps of 64 MiB at most, so large blocks would be mapped all the same
        for parameter, value in ((M_MMAP_THRESHOLD, 1 << 30), (M_TRIM_THRESHOLD, 1 << 30), (M_ARENA_MAX, 1)):
            mallopt(parameter, value)


def end(task: Task, reason: object = None, *, kept: object = None) -> NoReturn:
    """End this process; ``kept`` holds the session, which is closed if it is garbage-collected before."""
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
