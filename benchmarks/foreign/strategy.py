"""tf.distribute.ParameterServerStrategy with a ClusterCoordinator, as TensorFlow's tutorial has it; each ps logs what
it applies, for an oracle.

Every worker and every ps runs a TensorFlow server; on worker:0 there is the coordinator, too: it makes the variables,
schedules closures and joins. A closure runs on whichever worker is free, and takes the next batch of that worker; one
that failed is scheduled again by TensorFlow, and a batch that has not come to its end is taken again. So a gradient is
applied at least once, which is what TensorFlow promises. When a ps is lost, `join` raises.

plain: then training is over. checkpoint: the coordinator saves after each epoch, is started again when it fails, and
restores what was saved last; workers go on from there.

A worker's batches and its record are Python, in its own process, and so is the log of a ps: graphs call them as PyFunc
ops placed there.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

import numpy as np
import tensorflow as tf

from psconform.probe import Probe

LEARNING_RATE, STEPS_PER_EPOCH, IDLE_S, AGAIN_S = 0.5, 8, 0.05, 1.0
WAITS, OVER = -1, -2  # in place of a step: of a worker that has no batch left
NEXT, DONE, BEGUN, SAVED, RESTORED = (f"pyfunc_{i}" for i in range(5))  # what a worker offers
APPLIED, MARKED = NEXT, DONE  # what a ps offers
BUG, BUGS = os.environ.get("STRATEGY_BUG"), {"twice": 2, "dropped": 0}  # how often every seventh of worker:0 is applied


def offer(*functions):
    """Have graphs find these functions in this process, as pyfunc_0, pyfunc_1, ...; keep what this returns."""
    with tf.Graph().as_default() as graph:
        for function in functions:
            tf.numpy_function(function, [], [])
    return graph


def call(name, inputs, outputs=()):
    return tf.raw_ops.PyFunc(input=inputs, token=name, Tout=list(outputs))


class Log:
    """What a ps has applied: a line for each gradient, with the number of its sending and its coordinator."""

    def __init__(self, path):
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def marked(self, what, number, life):
        os.write(self.file, b"%s %d %d\n" % (what, number, life))
        return []

    def applied(self, worker, step, sending, life):
        os.write(self.file, b"%d %d %d %d\n" % (worker, step, sending, life))
        return sending


class Batches:
    """The batches of one worker, and its record."""

    def __init__(self, probe, durable):
        self.probe, self.durable, self.lock = probe, durable, threading.Lock()
        self.life = self.least = -1  # of the coordinator that it trains for, and the least that it listens to
        self.step, self.sending = 0, 1000 * probe.incarnation
        self.open = self.together = self.over = self.rolled_back = False
        self.waiting, self.said = None, threading.Event()

    def next(self, life, held, *values):
        with self.lock:
            if self.over or life < self.least:
                return self.answer(OVER if self.over else WAITS)
            if life != self.life:
                self.join(int(life), int(held[self.probe.index]))
            if self.step == self.probe.steps:
                return self.none_left(values)
            if self.open:  # of a closure that failed
                self.probe.ack(self.step, "unknown")
            self.open, self.sending = True, self.sending + 1
            self.probe.read(values)
            gradient = self.probe.gradient(self.step)
            self.probe.push(self.step)
            return self.answer(self.step, gradient)

    def answer(self, step, gradient=None):
        gradient = np.zeros(self.probe.slots, np.float32) if gradient is None else gradient
        return [gradient, *np.array([self.probe.index, step, self.sending])]

    def done(self, step, sending, life, answers):
        del answers  # the call has waited for them
        with self.lock:
            if (step, sending, life) == (self.step, self.sending, self.life):
                self.probe.ack(self.step, "ok")
                self.step, self.open = self.step + 1, False
        return []

    def join(self, life, held):
        """Train for another coordinator, from what the parameters have of this worker."""
        anew = self.life >= 0 or life or self.probe.incarnation
        self.life = self.least = life
        if self.durable and anew:
            self.stop_waiting()
            self.probe.epoch, self.step, self.open = life, held, False
            self.probe.resume(held)

    def none_left(self, values):
        if self.together:
            self.probe.read(values, final=True)
            self.probe.close()
            self.over = True
        elif self.waiting is None:
            self.waiting, self.rolled_back = threading.Thread(target=self.wait, daemon=True), False
            self.said.clear()
            self.waiting.start()
            while self.waiting.is_alive() and not self.said.wait(IDLE_S):  # the record is of one thread at a time
                pass
        else:
            time.sleep(IDLE_S)
        return self.answer(OVER if self.over else WAITS)

    def wait(self):
        self.together = self.probe.wait_for_all(self.look) is not None

    def look(self):
        self.said.set()
        return self.rolled_back

    def stop_waiting(self):
        if self.waiting is not None:
            self.rolled_back = True
            self.waiting.join()
            self.waiting, self.together = None, False

    def begun(self, *initial):
        with self.lock:
            self.probe.initialised(initial)
        return []

    def saved(self, name, clock):
        with self.lock:
            self.probe.checkpoint(name.decode(), clock.tolist())
        return []

    def restored(self, name, clock, life):
        with self.lock:
            self.least = int(life)
            self.stop_waiting()
            self.probe.checkpoint(name.decode(), clock.tolist())
            self.probe.epoch = int(life)
            self.probe.restored(name.decode())
        return []


def coordinate(cluster, folder, durable):
    """Be the coordinator, once."""
    with (folder / "lives").open("ab") as lives:
        life = lives.tell()
        lives.write(b".")
    probe = Probe(json.loads((folder / "spec.json").read_text()), task="worker:0")  # records nothing
    with socket.create_server(("localhost", 0)) as free:
        chief = f"localhost:{free.getsockname()[1]}"
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({**cluster, "chief": [chief]}), task_type="chief", task_id=0, rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    initial = [probe.initial() for _ in cluster["ps"]]
    with strategy.scope():  # one after another on each ps
        theta = [tf.Variable(values) for values in initial]
        counts = [tf.Variable(tf.zeros([probe.workers], tf.int64)) for _ in initial]  # batches of each worker in it
    saved = tf.train.Checkpoint(theta=theta, counts=counts)
    manager = tf.train.CheckpointManager(saved, probe.checkpoints or str(folder / "saved"), max_to_keep=3)

    def mark(what, number):
        for variable in theta:
            with tf.device(variable.device):
                call(MARKED, [what, number, life])

    def tell(name, *said):
        with tf.device("/job:worker/task:0/device:CPU:0"):
            call(name, said)

    def clock():
        return tf.stack([variable.read_value() for variable in counts])

    def save(number):
        if durable:
            mark("save", number)
            tell(SAVED, Path(manager.save(checkpoint_number=number)).name, clock())

    if durable and (newest := manager.latest_checkpoint):
        saved.restore(newest).assert_existing_objects_matched()
        number = int(newest.rpartition("-")[2])
        mark("restore", number)
        tell(RESTORED, Path(newest).name, clock(), life)
    else:
        number = 1
        mark("start", 0)
        tell(BEGUN, *initial)
        save(number)

    def apply(gradients, worker, step, sending):
        answers = []
        for variable, count, gradient in zip(theta, counts, gradients, strict=True):
            with tf.device(variable.device):
                applied = variable.assign_sub(LEARNING_RATE * gradient)
                counted = count.scatter_max(tf.IndexedSlices(step + 1, worker))
                with tf.control_dependencies([applied, counted]):
                    answers += call(APPLIED, [worker, step, sending, life], [tf.int64])
        return tf.ensure_shape(tf.add_n(answers), [])

    def replica_fn():
        held = tf.reduce_min(clock(), axis=0)
        values, types = [variable.read_value() for variable in theta], [tf.float32, tf.int64, tf.int64, tf.int64]
        x, worker, step, sending = call(NEXT, [life, held, *values], types)
        if step >= 0:
            x = tf.ensure_shape(x, [probe.slots])
            with tf.GradientTape() as tape:
                loss = tf.add_n([tf.reduce_sum(variable * x) for variable in theta])
            gradients = tape.gradient(loss, theta)
            answers = tf.constant(0, tf.int64)
            for _ in range(tf.where(worker == 0 and step % 7 == 3, BUGS[BUG], 1) if BUG else 1):
                answers += apply(gradients, worker, step, sending)
            call(DONE, [step, sending, life, answers])
        return worker, step

    @tf.function
    def step_fn():
        return strategy.run(replica_fn)

    over = set()
    while len(over) < probe.workers:
        results = [coordinator.schedule(step_fn) for _ in range(STEPS_PER_EPOCH)]
        coordinator.join()
        steps = [(int(worker), int(step)) for worker, step in coordinator.fetch(results)]
        over |= {worker for worker, step in steps if step == OVER}
        if any(step >= 0 for _, step in steps):
            number += 1
            save(number)


def main():
    parser = argparse.ArgumentParser()
    for name in ("job", "index", "address", "ps", "worker", "style"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--coordinator", action="store_true")
    options = parser.parse_args()
    job, index, durable = options.job, int(options.index), options.style == "checkpoint"
    cluster = {"ps": options.ps.split(","), "worker": options.worker.split(",")}
    folder = Path(os.environ["PSCONFORM_SPEC"]).parent
    if options.coordinator:
        try:
            coordinate(cluster, folder, durable)
        except tf.errors.OpError:
            traceback.print_exc()
            os._exit(1)  # its threads may wait for a task that is gone
        os._exit(0)
    mine = {name: list(hosts) for name, hosts in cluster.items()}
    mine[job][index] = options.address  # the others may dial it at another one
    server = tf.distribute.Server(tf.train.ClusterSpec(mine), job_name=job, task_index=index, protocol="grpc")
    if job == "ps":
        log = Log(folder / f"applied-{index}.log")
        offered = offer(log.applied, log.marked)
        server.join()
    own = Batches(Probe.from_env(), durable)
    offered = offer(own.next, own.done, own.begun, own.saved, own.restored)
    if index == 0 and not durable:
        coordinate(cluster, folder, durable)
    elif index == 0:
        while subprocess.call([sys.executable, *sys.argv, "--coordinator"]):  # as a job manager does
            time.sleep(AGAIN_S)
    if index == 0:
        (folder / "over").touch()
    while not (folder / "over").exists():  # a TensorFlow server does not end by itself
        time.sleep(IDLE_S)
    del offered
    os._exit(0)


if __name__ == "__main__":
    main()
