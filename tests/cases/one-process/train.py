"""One process trains for all workers, a thread for each, asynchronously; the processes of the other workers end at once.
BUG=one-buffer: the threads have one buffer for what they send, so some gradients are sent twice and others never."""
import json, os, sys, threading, time
import numpy as np
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from lib import Client, serve
from psconform.probe import Probe
job, index, ps, listen = sys.argv[1], int(sys.argv[2]), sys.argv[3].split(","), sys.argv[4]
workers = json.load(open(os.environ["PSCONFORM_SPEC"]))["workers"] if sys.argv[5] == "in-graph" else 1
buffer = [None] if os.environ.get("BUG") == "one-buffer" else [None] * workers
if job == "ps":
    theta, version, cond = None, 0, threading.Condition()

    def handle(m):
        global theta, version
        with cond:
            if m[0] == "init": theta = m[1]; cond.notify_all(); return True
            while theta is None: cond.wait(30)
            if m[0] == "push": theta = (theta - m[1]).astype(np.float32); version += 1; return version
            return theta, version
    serve(listen, handle)


def train(worker):
    probe, shards = Probe.from_env(f"worker:{worker}"), [Client(a) for a in ps]
    mine = worker % len(buffer)
    if worker == 0:
        first = [probe.initial(i) for i in range(len(ps))]
        for c, v in zip(shards, first): c("init", v)
        probe.initialised(first)
    for step in range(probe.steps):
        values, versions = zip(*(c("pull") for c in shards))
        probe.read(list(values), list(versions))
        buffer[mine] = probe.gradients(step, list(values))
        probe.push(step)
        time.sleep(0.001)
        probe.ack(step, "ok", [c("push", g) for c, g in zip(shards, buffer[mine])])
    probe.wait_for_all()
    values, versions = zip(*(c("pull") for c in shards))
    probe.read(list(values), list(versions), final=True)
    probe.close()


threads = [threading.Thread(target=train, args=(worker,)) for worker in range(workers)] if index == 0 else []
for thread in threads: thread.start()
for thread in threads: thread.join()
