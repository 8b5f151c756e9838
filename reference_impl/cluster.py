"""TensorFlow, and the servers and sessions of a cluster with the jobs ``ps`` and ``worker``.

Device filters keep workers apart from each other, so that none of them hangs at the end because another has left (and
the ps from the workers, for the same reason).
"""

from __future__ import annotations

import gc
import os
from typing import Any

from psconform.layout import Task

# Before the import: TensorFlow greets on stderr, and imports Keras 3 with all that Keras finds, half of a task's start.
# Looking for garbage, of which there is hardly any, is another tenth of it, and as much again later if not frozen.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
gc.disable()
import tensorflow as tf  # noqa: E402

gc.freeze()
gc.enable()

__all__ = ["CALL_TIMEOUT_S", "GONE", "CannotServe", "Cluster", "GaveUp", "Tensor", "new_server", "session_config"]
__all__ += ["tf", "tf1"]

tf1 = tf.compat.v1
Tensor = Any  # TensorFlow's own annotations are not visible to type checkers
Cluster = dict[str, list[str]]

CALL_TIMEOUT_S = 60.0
"""Bound on every call to a ps, and on the wait for a round or for initialisation."""
GONE = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)
"""What a task may answer that has just been told that it may end."""


class CannotServe(OSError):
    """The address of a task is taken, by a process that claims to be the same task."""


class GaveUp(Exception):
    """This task cannot go on; one line says why, and names the task that is missing."""


def new_server(cluster: Cluster, task: Task, config: Any = None) -> Any:
    """The TensorFlow server of this task; raises CannotServe."""
    config = config or session_config(task, to_ps=task.job == "worker")
    try:
        spec = tf1.train.ClusterSpec(cluster)
        return tf1.train.Server(spec, job_name=task.job, task_index=task.index, config=config)
    except (tf.errors.UnknownError, tf.errors.InternalError):  # TensorFlow says no more than that
        address = cluster[task.job][task.index]
        raise CannotServe(f"cannot serve as {task} on {address}: another process has that address already") from None


def session_config(task: Task, *, to_ps: bool, to_workers: bool = False, cpus: int = 0) -> Any:
    """Of a server or a session of this task; ``cpus``: logical ones of this process, if not one."""
    filters = [f"/job:{task.job}/task:{task.index}", *(["/job:ps"] if to_ps else [])]
    filters += ["/job:worker"] if to_workers else []
    # Small graphs: more threads than these only fight for the cores.
    return tf1.ConfigProto(
        device_filters=filters,
        intra_op_parallelism_threads=1,
        inter_op_parallelism_threads=4,
        device_count={"CPU": cpus} if cpus else {},
        gpu_options=tf1.GPUOptions(allow_growth=True),
    )
