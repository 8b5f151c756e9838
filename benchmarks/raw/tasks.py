"""One process of a measured cluster, forked from a server that has imported TensorFlow already."""

from __future__ import annotations

import ctypes
import os
import signal
from multiprocessing.connection import Connection

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from psconform.reference_impl.__main__ import keep_memory
from psconform.reference_impl.cluster import tf1
from psconform.reference_impl.modes.full_ps import FullConfig
from psconform.reference_impl.modes.full_worker import FullWorker
from psconform.reference_impl.ps import serve

from . import trainer as raw
from .pace import Pace, PacedProbe

STEPS = 1_000_000
"""More than any measurement takes: a task is killed when it is not needed any more."""


def be(side: str, task: str, cluster: dict[str, list[str]], update: str, slots: int, pipe: Connection | None) -> None:
    """Be one task of the reference, of raw TensorFlow (``raw``), or of raw TensorFlow that fetches (``raw+read``)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG: nothing outlives the fork server ...
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ... which ends with the driver, and so Ctrl-C is the driver's
    tf1.logging.set_verbosity(tf1.logging.ERROR)  # SyncReplicasOptimizer is deprecated, and says so
    tf1.disable_eager_execution()
    if side == "reference":
        keep_memory()
    index, workers = int(task.partition(":")[2]), len(cluster["worker"])
    config = FullConfig(slots=slots, workers=workers, update=update, steps=STEPS)
    if pipe is None:
        if side == "reference":
            serve(cluster, index, config)
        else:
            raw.serve(cluster, index)
        return
    pace = Pace(pipe)
    if side == "reference":
        probe = PacedProbe(pace, workers=workers, slots=slots, steps=STEPS, task=task)
        FullWorker(cluster, probe, config).train()
    else:
        raw.train(cluster, index, sync=config.sync, slots=slots, reads=side == "raw+read", pace=pace)
