"""Run by test_reference.py: workers of the reference trainer whose calls are cut off at random and repeated.

``python cut_off.py UPDATE WORKERS STEPS``: forks a ps and workers that push ones. Every read must show one version, as
many gradients in each parameter as the counters say; prints how often a call was cut off.

TensorFlow loses a timeout that passes before the call is under way (its master then has nothing to cancel yet, and
waits for the end of the call without a bound: WaitForNotification in core/distributed_runtime/local_master.cc). Such a
call may wait for news that a call that was cut off has taken with it, and all others with it. So whoever is overdue
gets news here, as old as can be: that ends a wait, and nothing else may come of it.
"""

import ctypes
import os
import random
import signal
import socket
import sys
import threading
import traceback
from contextlib import contextmanager

import numpy as np
from psconform.reference_impl.cluster import new_server, tf, tf1
from psconform.reference_impl.ps import Config
from psconform.reference_impl.worker import Worker

from psconform.layout import Task
from psconform.probe import Probe

SLOTS = 1 << 20
OVERDUE_S = 1.0
UPDATE, WORKERS, STEPS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


class Zeros(Probe):
    def initial(self, variable=0):
        del variable
        return np.zeros(SLOTS, np.float32)

    def initialised(self, variables):
        del variables


def port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def gradients(worker, row):
    """Those in a row that was read; all parameters and counters must agree on it."""
    shard, theta = worker.shards[0], worker.shards[0].theta(row)
    assert (theta == theta[0]).all(), "torn"
    assert row[-1] == row[-1 - WORKERS : -1].sum() == -theta[0], (theta[0], row[-1 - WORKERS :])
    if shard.config.sync:
        assert row[-1] % WORKERS == 0, "a round that is not complete"
    return row


@contextmanager
def repeatedly(call, *args, after):
    """Call it every ``after`` seconds while the block lasts."""
    over = threading.Event()

    def wait():
        while not over.wait(after):
            call(*args)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def train(cluster, index):
    config = Config(slots=SLOTS, workers=WORKERS, update=UPDATE, reduction="sum", steps=STEPS)
    worker = Worker(cluster, Zeros.detached(workers=WORKERS, steps=STEPS, task=f"worker:{index}"), config)
    worker.join()
    draw, cut, ones = random.Random(index), 0, np.ones(SLOTS, np.float32)
    shard, (x,) = worker.shards[0], worker._x
    look = {shard.until: np.zeros(1, np.int32)} if config.sync else {}
    with worker.graph.as_default(), shard.device():
        news = shard.wakeups[index].enqueue(0)
    for step in range(STEPS):
        has, patience_ms = False, 40
        while not has:
            push = shard.blank(index)  # one that was cut off may still be under way
            shard.write(push, ones, step, step + 1)
            short = tf1.RunOptions(timeout_in_ms=draw.randint(2, patience_ms))
            patience_ms += 20  # a busy machine may never be done in so short a time
            try:
                with repeatedly(worker.session.run, news, after=short.timeout_in_ms / 1000 + OVERDUE_S):
                    (row,) = worker.session.run(worker._push_pull, {x: push}, options=short)
            except tf.errors.OpError:
                cut += 1
                (row,) = worker.session.run(worker._read, look)
            has = shard.has(gradients(worker, row), index, step)
    sys.stdout.write(f"{cut}\n")


def fork():
    pid = os.fork()
    if not pid:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    return pid


def main():
    jobs = {"ps": 1, "worker": WORKERS}
    cluster = {job: [f"127.0.0.1:{port()}" for _ in range(count)] for job, count in jobs.items()}
    tf1.disable_eager_execution()
    ps = fork()
    if not ps:
        new_server(cluster, Task("ps", 0)).join()
    workers = []
    for index in range(WORKERS):
        workers.append(fork())
        if not workers[-1]:
            status = 1
            try:
                train(cluster, index)
                status = 0
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            os._exit(status)
    failed = [os.waitpid(pid, 0)[1] for pid in workers]
    os.kill(ps, signal.SIGKILL)
    os.waitpid(ps, 0)
    sys.exit(int(any(failed)))


if __name__ == "__main__":
    main()
