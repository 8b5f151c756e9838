"""Gradient accumulation: a worker adds up the gradients of A steps, and brings 1/A of their sum to a round.
BUG=no-division: the sum itself (huggingface/transformers#34191).  BUG=no-zero-grad: worker:1 does not begin anew after a
round.  BUG=drop-rest: what is left in the end is dropped, and told applied.  BUG=sync-each: worker:1 brings its gradient of
the first step of a round alone."""
import json, os, sys
import numpy as np
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from lib import Client, Rounds, serve
from psconform.probe import Probe
job, index, ps, listen, several = sys.argv[1], int(sys.argv[2]), sys.argv[3].split(","), sys.argv[4], int(sys.argv[5])
bug = os.environ.get("BUG", "")
if job == "ps":
    n = json.load(open(os.environ["PSCONFORM_SPEC"]))["workers"]
    serve(listen, Rounds(n, lambda theta, got, v: (theta - sum(got) / n).astype(np.float32)))
probe, shards = Probe.from_env(), [Client(a) for a in ps]
if index == 0:
    first = [probe.initial(i) for i in range(len(ps))]
    for c, v in zip(shards, first): c("init", v)
    probe.initialised(first)
kept, rounds = None, 0
for step in range(probe.steps):
    values = [c("pull", rounds)[0] for c in shards]
    probe.read(values)
    grads = probe.gradients(step, values)
    kept = grads if kept is None or (bug == "sync-each" and index and step % several) else [k + g for k, g in zip(kept, grads)]
    probe.push(step)
    if (step + 1) % several == 0 or (step + 1 == probe.steps and bug != "drop-rest"):
        factor = np.float32(1 if bug == "no-division" else several)
        for c, k in zip(shards, kept): c("push", index, rounds, k / factor)
        rounds += 1
        if not (bug == "no-zero-grad" and index): kept = None
    probe.ack(step, "ok")
probe.wait_for_all()
probe.read([c("pull", rounds)[0] for c in shards], final=True)
probe.close()
