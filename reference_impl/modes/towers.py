"""Towers: copies of a worker's graph, each on a GPU of its own; their gradients are averaged before the push.

So does ``tf.distribute.MirroredStrategy`` within one worker, and so did TensorFlow's multi-GPU CIFAR-10 tutorial, where
the word is from. Each tower has a share of the parameters' slots to which its part of the batch gives a gradient, N
times as large as in the mean of N towers. So the mean is the gradient, and a tower that is left out is missed.

Where there is no GPU, GPU:j is a logical CPU:j of this process (``device_count`` of the server). Soft placement is off,
as it is by default: what was put on a device runs there, or fails. Where it has run is read from run metadata.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..cluster import Tensor, tf, tf1
from ..worker import inner


def devices(worker: int, count: int, *, emulated: bool) -> list[str]:
    """The devices of a worker's towers."""
    kind = "CPU" if emulated else "GPU"
    return [f"/job:worker/task:{worker}/device:{kind}:{number}" for number in range(count)]


def gradients(thetas: Sequence[Tensor], inputs: Sequence[Tensor], on: Sequence[str]) -> list[list[Tensor]]:
    """The gradient of <theta, x> of every shard, float32[slots], by tower."""
    found = []
    for tower, device in enumerate(on):
        with tf.device(device):
            shares = [x * _share(tower, len(on), int(x.shape[0])) for x in inputs]
            loss = tf.add_n([inner(theta, share) for theta, share in zip(thetas, shares, strict=True)])
            made = tf.gradients(loss, list(thetas))
            found.append([tf.identity(gradient, name=f"tower_{tower}_shard_{n}") for n, gradient in enumerate(made)])
    return found


def averaged(towers: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """Their mean, by shard."""
    return [tf.add_n(list(of_shard)) / len(towers) for of_shard in zip(*towers, strict=True)]


def placed(session: Any, towers: Sequence[Sequence[Tensor]], feeds: dict[Tensor, Any]) -> list[str]:
    """The device on which each tower's first gradient was computed, ``GPU:0``, as the run metadata of a step has it."""
    metadata = tf1.RunMetadata()
    options = tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE)
    firsts = [tower[0].op for tower in towers]
    session.run(firsts, feeds, options=options, run_metadata=metadata)
    ran = {
        node.node_name: stats.device
        for stats in metadata.step_stats.dev_stats
        for node in stats.node_stats
        if "stream" not in stats.device  # a GPU's own view of the same
    }
    return [ran.get(op.name, "").rpartition("device:")[2] for op in firsts]


def _share(tower: int, count: int, slots: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The N-th part of the slots, N fold."""
    return np.where(np.arange(slots) * count // slots == tower, np.float32(count), np.float32(0))
