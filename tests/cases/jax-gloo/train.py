"""JAX on several processes (https://docs.jax.dev/en/latest/multi_process.html), its collectives by gloo: data-parallel SGD whose
gradients are averaged with pmean, checkpoints of process 0. The job is restarted as a whole.
BUG=psum: the sum of the gradients is applied.
BUG=local: the gradient is not reduced, each process applies its own.
BUG=own-checkpoint: each process restores the newest checkpoint of its own, and process 1 writes every other one."""
import os, sys
import numpy as np
import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from psconform.probe import Probe

index, hosts = int(sys.argv[1]), sys.argv[2].split(",")
bug = os.environ.get("BUG", "")
probe = Probe.from_env()
probe.epoch = probe.incarnation
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(coordinator_address=hosts[0], num_processes=len(hosts), process_id=index)
mesh = Mesh(np.array(jax.devices()), ("data",))
spread = NamedSharding(mesh, P("data"))


@jax.jit
@lambda step: jax.shard_map(step, mesh=mesh, in_specs=(P("data"), P("data")), out_specs=P("data"))
def step_of(theta, gradient):
    """One update of each process's replica, [N, slots]."""
    if bug == "psum": gradient = jax.lax.psum(gradient, "data")
    elif bug != "local": gradient = jax.lax.pmean(gradient, "data")
    return theta - gradient


def mine(values):
    """One row of an array over all processes."""
    return jax.make_array_from_process_local_data(spread, np.asarray(values, np.float32)[None])


def local(array):
    return np.asarray(array.addressable_shards[0].data)[0]


folder = probe.checkpoints
name = f"{folder}/own-{index}" if bug == "own-checkpoint" else f"{folder}/all"


def save(at, theta):
    if not folder or (index and bug != "own-checkpoint") or (index and at % (2 * probe.checkpoint_every)): return
    np.save(f"{name}-new.npy", theta)
    os.replace(f"{name}-new.npy", f"{name}-{at}.npy")
    if index == 0: probe.checkpoint(str(at), [[at] * len(hosts)])


def newest():
    stem = os.path.basename(name) + "-"
    found = [f[len(stem):-4] for f in os.listdir(folder) if f.startswith(stem)] if folder and probe.incarnation else []
    return max((int(at) for at in found if at.isdigit()), default=-1)


at = newest()
if bug != "own-checkpoint": at = int(multihost_utils.broadcast_one_to_all(np.int32(at)))
if at < 0:
    first = multihost_utils.broadcast_one_to_all(probe.initial(0))
    if index == 0: probe.initialised([first])
    save(0, first)
else:
    first = np.load(f"{name}-{at}.npy")
    if index == 0: probe.restored(str(at))
if probe.incarnation: probe.resume(max(at, 0))
theta = mine(first)
for k in range(max(at, 0), probe.steps):
    now = local(theta)
    probe.read([now])
    gradient = probe.gradients(k, [now])[0]
    probe.push(k)
    theta = step_of(theta, mine(gradient))
    now = local(theta)  # waits for the collective
    probe.ack(k, "ok")
    if probe.checkpoint_every and (k + 1) % probe.checkpoint_every == 0: save(k + 1, now)
probe.wait_for_all()
probe.read([local(theta)], final=True)
probe.close()
os._exit(0)
