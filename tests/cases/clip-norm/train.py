"""Clipping by global norm: of each worker's gradient before it is pushed, or of the mean, which one ps has (as declared).
BUG=per-variable: each variable by its own norm (Keras' clipnorm in place of global_clipnorm).  BUG=by-value: each entry.
BUG=none: not at all.  BUG=other-side: after the average if before is declared, and the other way round."""
import json, os, sys
import numpy as np
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from lib import Client, Rounds, serve
from psconform.probe import Probe
job, index, ps, listen = sys.argv[1], int(sys.argv[2]), sys.argv[3].split(","), sys.argv[4]
rate, norm, when = np.float32(sys.argv[5]), float(sys.argv[6]), sys.argv[7]
bug = os.environ.get("BUG", "")
before = (when == "before") != (bug == "other-side")


def clip(grads):
    if not norm or bug == "none": return grads
    if bug == "by-value": return [np.clip(g, -norm, norm) for g in grads]
    sizes = [np.linalg.norm(g) for g in grads]
    if bug != "per-variable": sizes = [np.sqrt(sum(size**2 for size in sizes))] * len(grads)
    return [g * np.float32(min(1, norm / size)) for g, size in zip(grads, sizes)]


def update(theta, got, version):
    mean = sum(got) / np.float32(len(got))
    return theta - rate * (mean if before else clip([mean])[0])


if job == "ps":
    serve(listen, Rounds(json.load(open(os.environ["PSCONFORM_SPEC"]))["workers"], update))
probe, shards = Probe.from_env(), [Client(a) for a in ps]
if index == 0:
    first = [probe.initial(i) for i in range(len(ps))]
    for c, v in zip(shards, first): c("init", v)
    probe.initialised(first)
for step in range(probe.steps):
    values = [c("pull", step)[0] for c in shards]
    probe.read(values)
    grads = probe.gradients(step, values)
    probe.push(step)
    for c, g in zip(shards, clip(grads) if before else grads): c("push", index, step, g)
    probe.ack(step, "ok")
probe.wait_for_all()
probe.read([c("pull", probe.steps)[0] for c in shards], final=True)
probe.close()
