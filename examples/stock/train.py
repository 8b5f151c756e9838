"""The recipe of TensorFlow's own tutorials: MonitoredTrainingSession, a checkpoint every so many steps, one ps or more.

Async with a GradientDescentOptimizer, sync with a SyncReplicasOptimizer around it. What psconform needs is the probe;
all else is as one would copy it.
"""

import argparse
import json
import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

from psconform.probe import Probe

tf1 = tf.compat.v1


def train(probe: Probe, server: Any, options: argparse.Namespace) -> None:
    chief = probe.index == 0
    config = tf1.ConfigProto(device_filters=["/job:ps", f"/job:worker/task:{probe.index}"])
    with tf1.device(
        tf1.train.replica_device_setter(ps_tasks=options.shards, worker_device=f"/job:worker/task:{probe.index}")
    ):
        initial = [probe.initial(shard) for shard in range(options.shards)]
        theta = [tf1.get_variable(f"theta_{i}", initializer=values) for i, values in enumerate(initial)]
        step = tf1.train.get_or_create_global_step()
        x = tf1.placeholder(tf.float32, [probe.slots])
        loss = tf.add_n([tf.reduce_sum(variable * x) for variable in theta])
        optimizer, hooks = tf1.train.GradientDescentOptimizer(1.0), []
        if options.update == "sync":
            optimizer = tf1.train.SyncReplicasOptimizer(optimizer, probe.workers, total_num_replicas=probe.workers)
            hooks = [optimizer.make_session_run_hook(chief, num_tokens=0)]
        train_op = optimizer.minimize(loss, global_step=step)
    with tf1.train.MonitoredTrainingSession(
        master=server.target,
        is_chief=chief,
        checkpoint_dir=probe.checkpoints or None,
        save_checkpoint_steps=50,
        save_checkpoint_secs=None,
        save_summaries_steps=0,
        save_summaries_secs=None,
        hooks=hooks,
        config=config,
    ) as session:
        if chief and not probe.incarnation:
            probe.initialised(initial)
        for number in range(probe.steps):
            probe.read(session.run(theta))
            gradient = probe.gradient(number)
            probe.push(number)
            session.run(train_op, {x: gradient})
            probe.ack(number, "ok")
        probe.wait_for_all()
        probe.read(session.run(theta), final=True)
        probe.close()
        os._exit(0)  # closing a session waits for good for a chief that has left


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--update", required=True)
    options = parser.parse_args()
    tf1.disable_eager_execution()
    tf1.logging.set_verbosity(tf1.logging.ERROR)
    cluster = json.loads(os.environ["TF_CONFIG"])
    task, options.shards = cluster["task"], len(cluster["cluster"]["ps"])
    server = tf1.train.Server(cluster["cluster"], job_name=task["type"], task_index=task["index"])
    if task["type"] == "ps":
        server.join()
    train(Probe.from_env(), server, options)


if __name__ == "__main__":
    main()
