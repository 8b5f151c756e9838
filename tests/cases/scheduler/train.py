"""A trainer with two more jobs, as BytePS and MXNet have a scheduler and TensorFlow an evaluator: workers register with
the scheduler and learn the ps from it, and the evaluator reads parameters now and then.
BUG=stuck: a worker asks the scheduler before each step, and does not dial it again if its connection breaks.
BUG=evaluator-writes: evaluators write back what they have read.  BUG=evaluator-dies: they do not know a version above 5."""
import json, os, sys, time
import numpy as np
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from lib import Client, Rounds, serve
from psconform.probe import Probe
job, index, scheduler, ps, listen = sys.argv[1], int(sys.argv[2]), *sys.argv[3:6]
bug = os.environ.get("BUG", "")
if job == "scheduler":
    serve(listen, lambda message: ps.split(","))
if job == "ps":
    workers = json.load(open(os.environ["PSCONFORM_SPEC"]))["workers"]
    rounds = Rounds(workers, lambda theta, got, v: (theta - sum(got) / np.float32(len(got))).astype(np.float32))

    def handle(message):
        if message[0] != "put": return rounds(message)
        with rounds.cond: rounds.theta = message[1]
    serve(listen, handle)
if job == "evaluator":
    shards = [Client(a) for a in Client(scheduler)("register", job, index)]
    while True:
        for c in shards:
            theta, version = c("pull", 0)
            if bug == "evaluator-dies" and version > 5: sys.exit(f"unknown version {version}")
            if bug == "evaluator-writes" and version > 5: time.sleep(0.02); c("put", theta)
        time.sleep(0.02)


probe, shards = Probe.from_env(), [Client(a) for a in Client(scheduler)("register", job, index)]
asked = Client(scheduler) if bug == "stuck" else None
if index == 0:
    first = [probe.initial(i) for i in range(len(shards))]
    for c, v in zip(shards, first): c("init", v)
    probe.initialised(first)
for step in range(probe.steps):
    try: asked and asked("register", job, index)
    except ConnectionError:
        while True: time.sleep(1)
    values = [c("pull", step)[0] for c in shards]
    probe.read(values)
    grads = probe.gradients(step, values)
    probe.push(step)
    for c, g in zip(shards, grads): c("push", index, step, g)
    probe.ack(step, "ok")
probe.wait_for_all()
probe.read([c("pull", probe.steps)[0] for c in shards], final=True)
probe.close()
