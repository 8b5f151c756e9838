"""Raw TensorFlow, the baseline: the same layout and model, written as its own examples would, only faster.

Plain sessions (a MonitoredTrainingSession spends more on hooks than a small step costs) and ``make_callable``; only
the train op is run, so nothing is fetched. Variables, threads and device filters are those of the reference trainer.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import tensorflow as tf
from psconform.reference_impl.cluster import Cluster, new_server, session_config

from psconform.layout import Task

from .pace import Pace

tf1 = tf.compat.v1
LEARNING_RATE = 1.0


def serve(cluster: Cluster, index: int) -> None:
    """Be ``ps:index`` until killed."""
    new_server(cluster, Task("ps", index)).join()


def train(cluster: Cluster, index: int, *, sync: bool, slots: int, reads: bool, pace: Pace) -> None:
    """Be ``worker:index``: train in the driver's pace. ``reads``: fetch the parameters of each step as well."""
    task, workers = Task("worker", index), len(cluster["worker"])
    server = new_server(cluster, task)
    with tf.Graph().as_default():
        theta = []
        for ps in range(len(cluster["ps"])):
            with tf.device(f"/job:ps/task:{ps}/device:CPU:0"):
                zeros = tf1.zeros_initializer()
                theta.append(tf1.get_variable(f"theta_{ps}", [slots], tf.float32, zeros, use_resource=True))
        with tf.device("/job:ps/task:0/device:CPU:0"):
            step = tf1.train.get_or_create_global_step()
        optimizer: Any = tf1.train.GradientDescentOptimizer(LEARNING_RATE)
        if sync:
            optimizer = tf1.train.SyncReplicasOptimizer(optimizer, workers, total_num_replicas=workers)
        with tf.device(f"/job:worker/task:{index}/device:CPU:0"):
            x = tf1.placeholder(tf.float32, [slots])
            loss = tf.add_n([tf.reduce_sum(variable * x) for variable in theta])
            gradients = optimizer.compute_gradients(loss, theta)
            train_op = optimizer.apply_gradients(gradients, global_step=step if sync else None)
        # No tokens to begin with: with the default, N, a worker pushes to a round twice, and that is no barrier.
        hook = optimizer.make_session_run_hook(index == 0, num_tokens=0) if sync else None
        if hook:
            hook.begin()
        variables = tf1.global_variables()
        initialise, missing = tf1.variables_initializer(variables), tf1.report_uninitialized_variables(variables)
        session = tf1.Session(server.target, config=session_config(task, to_ps=True))
        if index == 0:
            session.run(initialise)
        while len(session.run(missing)):
            time.sleep(0.01)
        if hook:
            hook.after_create_session(session, tf1.train.Coordinator())
        fetches = [train_op, *(variable.read_value() for variable in theta)] if reads else train_op
        run = session.make_callable(fetches, feed_list=[x])
        gradient = np.zeros(slots, np.float32)
        while pace.wait():
            run(gradient)
