"""FLEXible-FL/FLEXible#122, leonagoel/hybrid-recommender#1298: FedAvg must weigh a client's update by its number of
samples; the weights are not applied. Clients have 10, 20, 30, ... samples (SIZES). BUG=unweighted."""
import json, os, sys
import numpy as np
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from lib import Client, Rounds, serve
from psconform.probe import Probe
job, index, ps, listen = sys.argv[1], int(sys.argv[2]), sys.argv[3].split(","), sys.argv[4]
bug = os.environ.get("BUG", "")
if job == "ps":
    n = json.load(open(os.environ["PSCONFORM_SPEC"]))["workers"]
    def update(theta, got, version):
        weights = [1.0 if bug == "unweighted" else k for _, k in got]
        return (theta - sum(w * g for w, (g, _) in zip(weights, got)) / sum(weights)).astype(np.float32)
    serve(listen, Rounds(n, update))
probe, shards = Probe.from_env(), [Client(a) for a in ps]
if index == 0:
    first = [probe.initial(i) for i in range(len(ps))]
    for c, v in zip(shards, first): c("init", v)
    probe.initialised(first)
sizes = [float(x) for x in os.environ.get("SIZES", "10,20,30,40").split(",")]
for step in range(probe.steps):
    values = [c("pull", step)[0] for c in shards]
    probe.read(values)
    grads = probe.gradients(step, values)
    probe.push(step, weight=sizes[index])
    for c, g in zip(shards, grads): c("push", index, step, (g, sizes[index]))
    probe.ack(step, "ok")
probe.wait_for_all()
probe.read([c("pull", probe.steps)[0] for c in shards], final=True)
probe.close()
