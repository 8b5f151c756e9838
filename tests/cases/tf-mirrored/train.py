"""TensorFlow's MultiWorkerMirroredStrategy: one mirrored variable, a mean by its all-reduce, checkpoints with
tf.train.CheckpointManager as the guide has it (https://www.tensorflow.org/tutorials/distribute/multi_worker_with_ctl): the chief
writes, all restore. The job is restarted as a whole.
BUG=local-mean: the gradient is not reduced, each replica applies its own.
BUG=sum: the sum of the gradients is applied.
BUG=chief-only: only the chief restores the checkpoint."""
import os, sys
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import numpy as np
import tensorflow as tf
from psconform.probe import Probe

bug = os.environ.get("BUG", "")
probe = Probe.from_env()
probe.epoch = probe.incarnation
chief, workers = probe.index == 0, probe.workers
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    theta = tf.Variable(tf.zeros(probe.slots), trainable=True)
    step = tf.Variable(0, dtype=tf.int64, trainable=False)


@tf.function
def reduced(values, how):
    """All-reduced over the replicas: ``how`` is SUM or MEAN."""
    def one(mine):
        return tf.distribute.get_replica_context().all_reduce(how, tf.identity(mine))
    return strategy.run(one, args=(values,))


def everywhere(values):
    """What the chief has, in all replicas: the others add nothing to it."""
    return reduced(tf.constant(values if chief else np.zeros_like(values)), "SUM").numpy()


def assign(values, at):
    local = theta.values[0] if hasattr(theta, "values") else theta
    local.assign(values)
    (step.values[0] if hasattr(step, "values") else step).assign(at)


def value():
    return (theta.values[0] if hasattr(theta, "values") else theta).numpy()


first = probe.initial(0)
manager = None
folder = os.path.join(probe.checkpoints, "mirrored") if probe.checkpoints else ""
mine = folder if chief else os.path.join(folder, f"temporary-{probe.index}")
if folder:
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(theta=theta, step=step), mine, max_to_keep=100)
latest = tf.train.latest_checkpoint(folder) if folder and probe.incarnation else None


def save(at):
    if manager is None: return
    path = manager.save(checkpoint_number=at)
    if chief: probe.checkpoint(os.path.basename(path), [[at] * workers])


if latest and (chief or bug != "chief-only"):
    tf.train.Checkpoint(theta=theta, step=step).restore(latest).assert_consumed()
elif latest:
    assign(first, int(latest.rpartition("-")[2]))
else:
    assign(everywhere(first), 0)
start = int((step.values[0] if hasattr(step, "values") else step).numpy())
if latest:
    if chief: probe.restored(os.path.basename(latest))
elif chief:
    probe.initialised([value()])
if probe.incarnation: probe.resume(start)
if not latest: save(0)
for k in range(start, probe.steps):
    now = value()
    probe.read([now])
    gradient = probe.gradients(k, [now])[0]
    probe.push(k)
    mean = gradient if bug == "local-mean" else reduced(tf.constant(gradient), "SUM" if bug == "sum" else "MEAN").numpy()
    assign((now - mean).astype(np.float32), k + 1)
    probe.ack(k, "ok")
    if probe.checkpoint_every and (k + 1) % probe.checkpoint_every == 0: save(k + 1)
probe.wait_for_all()
probe.read([value()], final=True)
probe.close()
os._exit(0)
