"""All-reduce in a job that is restarted as a whole, as torchrun, TFJob and MultiWorkerMirroredStrategy need it: rank 0 keeps
checkpoints, and a rank whose peer is gone ends with an error.
BUG=stale: the checkpoint before the newest is restored.
BUG=rank0-only (Lightning-AI/pytorch-lightning#19780): only rank 0 loads it; the others go on with initial parameters.
BUG=next-step: training goes on one step too late, so that a round is missing.
BUG=crash: worker:1 fails at step 7.
BUG=other-weights: what is restored is an average over time, of which each parameter is 0.98 times what it was.
BUG=torn: parameters are those of the checkpoint for the head only.
BUG=local-average: what is kept beside the parameters (as the statistics of a batch normalisation) is of each rank's own
gradients. BUG=no-average: it is not in the checkpoint, and begins anew. BUG=one-state: only rank 0 records it, so that nothing is
compared."""
import os, pathlib, sys
import numpy as np
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from lib import Gather
from psconform.probe import Probe
index, hosts, listen = int(sys.argv[1]), sys.argv[2].split(","), sys.argv[3]
bug = os.environ.get("BUG", "")
probe = Probe.from_env()
probe.epoch = probe.incarnation  # of all the same: they are started together
gather = Gather(index, hosts, listen)
folder = pathlib.Path(probe.checkpoints) if probe.checkpoints else None


def save(step, theta):
    if index or folder is None: return
    np.save(folder / f"average-{step}.npy", average)
    np.save(folder / "new.npy", theta)
    os.replace(folder / "new.npy", folder / f"step-{step}.npy")
    probe.checkpoint(f"step-{step}", [[step] * len(hosts)])


def newest():
    found = sorted(int(path.stem.split("-")[1]) for path in folder.glob("step-*.npy")) if folder else []
    return found[-2 if bug == "stale" and len(found) > 1 else -1] if found else None


start, theta, average = 0, probe.initial(0) if index == 0 else None, np.zeros(2)
restored = newest() if index == 0 and probe.incarnation else None
restored = gather(restored)[0]
if restored is None:
    theta = gather(theta)[0]
    if index == 0: probe.initialised([theta])
    save(0, theta)
else:
    first = theta if theta is not None else probe.initial(0)
    mine = np.load(folder / f"step-{restored}.npy") if index == 0 else None
    theta = gather(mine)[0] if bug != "rank0-only" else mine if index == 0 else np.where(np.arange(len(first)) == (len(first) - 1) // 2, np.load(folder / "step-0.npy"), 0).astype(np.float32)
    if bug == "other-weights": theta = np.where(theta == np.trunc(theta) * (np.arange(len(theta)) == (len(theta) - 1) // 2), theta, theta * np.float32(0.98))
    if bug == "torn": theta = np.concatenate([theta[: len(theta) // 2], np.zeros(len(theta) - len(theta) // 2, np.float32)])
    if bug != "no-average": average = np.load(folder / f"average-{restored}.npy")
    if index == 0: probe.restored(f"step-{restored}")
    start = restored + (bug == "next-step")
if probe.incarnation: probe.resume(start)
for step in range(start, probe.steps):
    if bug == "crash" and (index, step) == (1, 7): raise RuntimeError("out of luck")
    probe.read([theta])
    if bug != "one-state" or index == 0: probe.state("average", average)
    gradient = probe.gradients(step, [theta])[0]
    probe.push(step)
    gathered = gather(gradient)
    theta = (theta - sum(gathered) / np.float32(len(hosts))).astype(np.float32)
    seen = gradient if bug == "local-average" else sum(gathered)
    average = 0.9 * average + 0.1 * np.array([np.abs(seen).sum() * (index + 1 if bug == "local-average" else 1), step])
    probe.ack(step, "ok")
    if probe.checkpoint_every and (step + 1) % probe.checkpoint_every == 0: save(step + 1, theta)
probe.wait_for_all()
probe.read([theta], final=True)
probe.close()
