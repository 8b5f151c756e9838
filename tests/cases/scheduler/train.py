"""A trainer with two more jobs, as BytePS and MXNet have a scheduler and TensorFlow an evaluator: workers register with
the scheduler and learn the ps from it, and the evaluator reads parameters now and then.
BUG=stuck: a worker asks the scheduler before each step, and does not dial it again if its connection breaks.
BUG=evaluator-writes: evaluators write back what they have read.  BUG=evaluator-dies: they do not know a version above 5.
FORM=slow-ps: it listens late, and workers dial it once.  FORM=bye: the evaluator ends when each worker has said so.
FORM=deaf: the scheduler heeds no SIGTERM."""
import json, os, signal, socket, sys, time
import numpy as np
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from lib import Client, Rounds, serve
from psconform.probe import Probe
job, index, scheduler, ps, listen, evaluators = sys.argv[1], int(sys.argv[2]), *sys.argv[3:]
bug, form = os.environ.get("BUG", ""), os.environ.get("FORM", "")
workers = json.load(open(os.environ["PSCONFORM_SPEC"]))["workers"]
if job == "scheduler":
    if form == "deaf": signal.signal(signal.SIGTERM, signal.SIG_IGN)
    serve(listen, lambda message: [ps.split(","), evaluators])
if job == "evaluator" and form == "bye":
    left = set()

    def handle(message):
        left.add(message[1])
        if len(left) == workers: os._exit(0)
    serve(listen, handle)
if job == "ps":
    if form == "slow-ps": time.sleep(3)
    rounds = Rounds(workers, lambda theta, got, v: (theta - sum(got) / np.float32(len(got))).astype(np.float32))

    looked = [0]                                                        # versions that an evaluator has read

    def handle(message):
        if message[0] == "looked": return max(looked)
        if message[0] == "look": looked.append(rounds(("pull", 0))[1]); return rounds(("pull", 0))
        if message[0] != "put": return rounds(message)
        with rounds.cond: rounds.theta = message[1]
    serve(listen, handle)
if job == "evaluator":
    shards = [Client(a) for a in Client(scheduler)("register", job, index)[0]]
    while True:
        for c in shards:
            theta, version = c("look", 0)
            if bug == "evaluator-dies" and version > 5: sys.exit(f"unknown version {version}")
            if bug == "evaluator-writes" and version > 5: time.sleep(0.02); c("put", theta)
        time.sleep(0.02)


probe, (addresses, peers) = Probe.from_env(), Client(scheduler)("register", job, index)
if form == "slow-ps": socket.create_connection(tuple(addresses[0].split(":")), 5).close()
shards = [Client(a) for a in addresses]
asked = Client(scheduler) if bug == "stuck" else None
if index == 0:
    first = [probe.initial(i) for i in range(len(shards))]
    for c, v in zip(shards, first): c("init", v)
    probe.initialised(first)
for step in range(probe.steps):
    try: asked and asked("register", job, index)
    except ConnectionError:
        while True: time.sleep(1)
    while bug.startswith("evaluator") and step == 10 and shards[0]("looked") <= 5: time.sleep(0.01)  # it starts by itself
    values = [c("pull", step)[0] for c in shards]
    probe.read(values)
    grads = probe.gradients(step, values)
    probe.push(step)
    for c, g in zip(shards, grads): c("push", index, step, g)
    probe.ack(step, "ok")
probe.wait_for_all()
probe.read([c("pull", probe.steps)[0] for c in shards], final=True)
probe.close()
if form == "bye":
    try: Client(peers.split(",")[0])("bye", index)
    except OSError: pass
