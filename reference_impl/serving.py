"""The process of a ps that may be killed and started again."""

from __future__ import annotations

import tensorflow as tf

from psconform.layout import Task

from .checkpoint import Recovery
from .recoverable import RecoverableShard
from .shard import ShardConfig, tf1
from .trainer import Cluster, new_server, session_config

SERVE_S = 1.0
"""Between two looks of a ps at whether training is over."""


def serve_recoverable(cluster: Cluster, index: int, config: ShardConfig, recovery: Recovery) -> None:
    """Be ``ps:index``: serve until the chief says that everybody has left. It is empty until the chief restores it."""
    server, store = new_server(cluster, Task("ps", index)), recovery.store()
    options = tf1.RunOptions(timeout_in_ms=int(SERVE_S * 1000))
    with tf.Graph().as_default():
        shard = RecoverableShard(index, config)
        goodbye = shard.goodbyes.dequeue()
        with tf1.Session(server.target, config=session_config(Task("ps", index), to_ps=False)) as session:
            session.run(shard.control.initializer)
            while not store.finished:
                try:
                    session.run(goodbye, options=options)
                    return
                except tf.errors.DeadlineExceededError:
                    continue
