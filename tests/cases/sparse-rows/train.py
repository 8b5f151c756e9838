"""An embedding on a parameter server: a gradient is (rows, values), and only these rows are changed.

Sync, BUG=row-mean (tensorflow/tensorflow#5252): a row is divided by the number of gradients that touch it, not by that of
the workers. BUG=last-writer: of gradients that touch the same row only the last one is taken (theta[rows] -= g with rows
that are there twice, as numpy has it). Async, BUG=lost-rows: rows are read, changed and written back without a lock, so
that of two workers at once one loses what it added to a row that both change; their own rows are whole."""
import json, os, sys, threading
import numpy as np
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from lib import Client, Rounds, serve
from psconform.probe import Probe
job, index, ps, listen, update = sys.argv[1], int(sys.argv[2]), sys.argv[3].split(","), sys.argv[4], sys.argv[5]
bug = os.environ.get("BUG", "")
spec = json.load(open(os.environ["PSCONFORM_SPEC"]))
n = spec["workers"]


def round_of(theta, got, version):
    theta = theta.copy()
    rows, values = np.concatenate([r for r, _ in got]), np.concatenate([v for _, v in got])
    if bug == "row-mean":
        touched = np.bincount(rows, minlength=len(theta))
        np.subtract.at(theta, rows, values / touched[rows])
    elif bug == "last-writer": theta[rows] -= values / n
    else: np.subtract.at(theta, rows, values / n)
    return theta


class Arrivals:
    """An async shard."""
    def __init__(self):
        self.lock, self.theta = threading.Condition(), None
        self.meet = threading.Barrier(2)

    def __call__(self, m):
        with self.lock:
            if m[0] == "init":
                self.theta = m[1] if self.theta is None else self.theta
                self.lock.notify_all()
                return True
            while self.theta is None: self.lock.wait(60)
            if m[0] == "pull": return self.theta.copy(), 0
            _, worker, step, (rows, values) = m
            if bug != "lost-rows":
                self.theta[rows] -= values
                return True
            before = self.theta[rows]
        if step % 4 == 1 and n > 1 and worker < 2:                    # two at once, now and then
            try: self.meet.wait(20)
            except threading.BrokenBarrierError: pass
        with self.lock: self.theta[rows] = before - values
        return True


if job == "ps": serve(listen, Rounds(n, round_of) if update == "sync" else Arrivals())
probe, shards = Probe.from_env(), [Client(a) for a in ps]
if index == 0:
    first = [probe.initial() for _ in ps]
    for c, v in zip(shards, first): c("init", v)
    probe.initialised(first)
for step in range(probe.steps):
    probe.read([c("pull", step)[0] for c in shards])
    g = probe.gradient(step)
    rows = np.flatnonzero(g)
    probe.push(step)
    for c in shards: c("push", index, step, (rows, g[rows]))
    probe.ack(step, "ok")
probe.wait_for_all()
probe.read([c("pull", probe.steps)[0] for c in shards], final=True)
probe.close()
