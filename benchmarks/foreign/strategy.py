"""tf.distribute.ParameterServerStrategy with a ClusterCoordinator, as TensorFlow's tutorial has it; each ps logs what
it applies, for an oracle.

The process of worker:0 is the coordinator, too: it makes the variables, schedules closures and joins. Every worker and
every ps runs a TensorFlow server. A closure runs on whichever worker is free, and takes the next batch of that worker;
a closure that failed is scheduled again by TensorFlow, and a batch that has not come to its end is taken again. So a
gradient is applied at least once, which is what TensorFlow promises. Nothing is restored: when a ps is lost, `join`
raises, and the coordinator ends.

A worker's batches and its record are Python, in its own process, and so is the log of a ps: a graph calls them as
PyFunc ops placed there.
"""

import argparse
import os
import socket
import threading
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

import numpy as np
import tensorflow as tf

from psconform.probe import Probe

LEARNING_RATE, STEPS_PER_EPOCH, IDLE_S = 0.5, 8, 0.05
WAITS, OVER = -1, -2  # in place of a step: of a worker that has no batch left
NEXT, DONE = APPLIED, ANEW = "pyfunc_0", "pyfunc_1"  # what a worker offers, and what a ps does
BUG, BUGS = os.environ.get("STRATEGY_BUG"), {"twice": 2, "dropped": 0}  # how often every seventh of worker:0 is applied


def offer(*functions):
    """Have graphs find these functions in this process, as pyfunc_0, pyfunc_1; returns what must be kept alive."""
    with tf.Graph().as_default() as graph:
        for function in functions:
            tf.numpy_function(function, [], [])
    return graph


def call(name, inputs, outputs=()):
    return tf.raw_ops.PyFunc(input=inputs, token=name, Tout=list(outputs))


class Log:
    """What a ps has applied; a line of its own process for each gradient."""

    def __init__(self, path):
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def anew(self):
        os.write(self.file, b"start\n")
        return []

    def applied(self, worker, step, sending):
        os.write(self.file, b"%d %d %d\n" % (worker, step, sending))
        return sending


class Batches:
    """The batches of one worker, and its record."""

    def __init__(self, probe):
        self.probe, self.lock, self.step = probe, threading.Lock(), 0
        self.sending = 1000 * probe.incarnation  # every sending has a number, for the oracle
        self.open = self.together = self.over = False
        self.absent = set()

    def next(self, *values):
        with self.lock:
            probe = self.probe
            if self.step == probe.steps:
                return self.none_left(values)
            if self.open:  # of a closure that failed
                probe.ack(self.step, "unknown")
            self.open, self.sending = True, self.sending + 1
            probe.read(values)
            gradient = probe.gradient(self.step)
            probe.push(self.step)
            return self.answer(gradient, self.step)

    def answer(self, gradient, step):
        return [gradient, *np.array([self.probe.index, step, self.sending])]

    def none_left(self, values):
        if self.together and not self.over:
            self.probe.read(values, final=True)
            self.probe.close()
            self.over = True
        elif not self.over:
            time.sleep(IDLE_S)
        return self.answer(np.zeros(self.probe.slots, np.float32), OVER if self.over else WAITS)

    def done(self, step, sending, answers):
        del answers  # the call has waited for them
        with self.lock:
            if (step, sending) == (self.step, self.sending):
                self.probe.ack(self.step, "ok")
                self.step, self.open = self.step + 1, False
                if self.step == self.probe.steps:
                    threading.Thread(target=self.wait, daemon=True).start()
        return []

    def wait(self):
        self.absent = {int(name.partition(":")[2]) for name in self.probe.wait_for_all()}
        self.together = True


def coordinate(cluster, batches):
    probe, workers = batches.probe, range(len(cluster["worker"]))
    with socket.create_server(("localhost", 0)) as free:
        chief = f"localhost:{free.getsockname()[1]}"
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({**cluster, "chief": [chief]}), task_type="chief", task_id=0, rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    initial = [probe.initial() for _ in cluster["ps"]]
    with strategy.scope():
        theta = [tf.Variable(values) for values in initial]  # one after another on each ps
    for variable in theta:
        with tf.device(variable.device):
            call(ANEW, [])
    probe.initialised(initial)

    def apply(gradients, batch):
        answers = []
        for variable, gradient in zip(theta, gradients, strict=True):
            with tf.device(variable.device), tf.control_dependencies([variable.assign_sub(LEARNING_RATE * gradient)]):
                answers += call(APPLIED, batch, [tf.int64])
        return tf.ensure_shape(tf.add_n(answers), [])

    def replica_fn():
        types = [tf.float32, tf.int64, tf.int64, tf.int64]
        x, worker, step, sending = call(NEXT, [variable.read_value() for variable in theta], types)
        if step >= 0:
            x = tf.ensure_shape(x, [probe.slots])
            with tf.GradientTape() as tape:
                loss = tf.add_n([tf.reduce_sum(variable * x) for variable in theta])
            gradients = tape.gradient(loss, theta)
            answers = tf.constant(0, tf.int64)
            for _ in range(tf.where(worker == 0 and step % 7 == 3, BUGS[BUG], 1) if BUG else 1):
                answers += apply(gradients, [worker, step, sending])
            call(DONE, [step, sending, answers])
        return worker, step

    @tf.function
    def step_fn():
        return strategy.run(replica_fn)

    over = set()
    while not over | batches.absent >= set(workers):
        results = [coordinator.schedule(step_fn) for _ in range(STEPS_PER_EPOCH)]
        coordinator.join()
        over |= {int(worker) for worker, step in coordinator.fetch(results) if step == OVER}


def main():
    parser = argparse.ArgumentParser()
    for name in ("job", "index", "address", "ps", "worker"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    job, index = options.job, int(options.index)
    cluster = {"ps": options.ps.split(","), "worker": options.worker.split(",")}
    mine = {name: list(hosts) for name, hosts in cluster.items()}
    mine[job][index] = options.address  # the others may dial it at another one
    server = tf.distribute.Server(tf.train.ClusterSpec(mine), job_name=job, task_index=index, protocol="grpc")
    folder = Path(os.environ["PSCONFORM_SPEC"]).parent
    if job == "ps":
        log = Log(folder / f"applied-{index}.log")
        offered = offer(log.applied, log.anew)
        server.join()
    batches = Batches(Probe.from_env())
    offered = offer(batches.next, batches.done)
    if index == 0:
        coordinate(cluster, batches)
        (folder / "over").touch()
    while not (folder / "over").exists():  # a TensorFlow server does not end by itself
        time.sleep(IDLE_S)
    del offered
    os._exit(0)


if __name__ == "__main__":
    main()
