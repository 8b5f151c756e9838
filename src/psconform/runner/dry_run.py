"""What a run would start, without starting anything: container by container, or process by process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import PsconformError
from ..faults import faketime
from ..faults.kinds import kinds
from ..launchers.blueprint import PORT, RUN, SHARED, Resources
from ..launchers.containers import TOXIPROXY, TOXIPROXY_PORT, cluster_of
from ..launchers.images import trainer_image
from ..launchers.local import OWNER as MARK
from ..layout import Task
from .container_setup import Containers
from .execute import View, command_of, environment_of
from .fault_setup import clock_name
from .folder import log_of, manifest_of
from .plan import Plan

UNKNOWN, OWNER = "RUN", "OWNER"
"""Stand for the name of the run, which it gets when it starts, and for the mark of the psconform that starts it."""
LOCAL = "127.0.0.1:PORT"
CONTROL, TEMPORARY = "CONTROL", "TEMPORARY"
API = "1.41"
"""Version of the engine's API in whose words containers are described (Docker 20.10)."""


def dry_run(plan: Plan) -> list[dict[str, Any]]:
    """What would be started, in this order.

    Of containers: the network, then ``create`` with the arguments of ``docker.APIClient.create_container``; of
    processes: ``argv``, ``environment`` and ``cwd``. What is known only when the run starts is a word in capitals.

    Raises:
        PsconformError: containers, and the docker SDK is missing.
    """
    if plan.containers is None:
        return [_process(plan, task) for task in plan.layout.tasks]
    return _containers(plan, plan.containers)


def _process(plan: Plan, task: Task) -> dict[str, Any]:
    manifest = manifest_of(plan, layout=plan.layout, workload=plan.workload)
    manifest.run = UNKNOWN
    view = View(python="python3", seen=str, named=str)
    known = dict.fromkeys(plan.layout.tasks, LOCAL)
    command = command_of(plan.target, manifest, task, known, listens=LOCAL, view=view)
    spec = plan.out / "spec.json"
    env = environment_of(manifest, task, life=0, spec=spec, control=CONTROL, view=view)
    env |= _clock(plan, task, TEMPORARY, {**os.environ, **dict(command.env)})
    gpus = plan.layout.gpus_of(task) if plan.layout.gpus else None
    env |= {} if gpus is None else {"CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus)) or "-1"}
    log = log_of(plan.out, task)
    return {
        "task": str(task),
        "argv": list(command.argv),
        "environment": {**dict(command.env), **env},
        "cwd": command.cwd or str(log.parent),
        "log": str(log),
    }


def _clock(plan: Plan, task: Task, shared: str, env: Mapping[str, str]) -> dict[str, str]:
    """What a task whose clock is to jump is given besides ``env``; ``shared`` is where the library is copied to."""
    if not any(kinds()[fault.kind].asked and fault.task == task for fault in plan.faults):
        return {}
    return faketime.environment(f"{shared}/{faketime.NAME}", f"{shared}/{clock_name(task)}", env)


def _containers(plan: Plan, chosen: Containers) -> list[dict[str, Any]]:
    try:
        import docker
    except ImportError:
        raise PsconformError("containers need the docker SDK: pip install 'psconform[docker]'") from None
    api = docker.APIClient("unix:///nowhere", version=API)  # it is not asked anything
    own = trainer_image(gpu=chosen.gpus and not chosen.image)
    folder, shared = plan.out.absolute(), Path("/SHARED")
    cluster = cluster_of(UNKNOWN, folder, owner=OWNER, shared=shared, image=chosen.image or own, own=own)
    manifest = manifest_of(plan, layout=plan.layout, workload=plan.workload)
    manifest.run = UNKNOWN
    proxied = any(fault.proxied for fault in plan.faults)
    view = View(python="python3", seen=cluster.seen, named=str)
    boxes = dict(chosen.boxes)
    listens = {task: f"{task.slug}:{boxes[task].port if boxes else PORT}" for task in plan.layout.tasks}
    helpers = [cluster.helper(task, aliases=boxes[task].aliases if boxes else ()) for task in plan.layout.tasks]
    tasks = []
    for task in plan.layout.tasks:
        others = dict.fromkeys(listens, f"{TOXIPROXY.slug}:PORT") if proxied else listens
        own_address = listens[task]
        known = others | {task: own_address}
        command = command_of(plan.target, manifest, task, known, listens=own_address, view=view)
        control = f"unix:{SHARED}/control"
        env = environment_of(manifest, task, life=0, spec=folder / "spec.json", control=control, view=view)
        env |= _clock(plan, task, SHARED, dict(command.env))
        tasks.append(
            cluster.task(
                task,
                command.argv,
                {**dict(command.env), **env, MARK: OWNER},
                working_dir="" if command.cwd else RUN,
                resources=dict(chosen.limits).get(task.job, Resources()),
                gpus=plan.layout.gpus_of(task),
                box=boxes.get(task),
            )
        )
    proxies = [cluster.helper(TOXIPROXY), cluster.toxiproxy(TOXIPROXY, address="IP", port=TOXIPROXY_PORT)]
    network = {"network": cluster.network, "driver": "bridge", "internal": True, "labels": cluster.labels()}
    network["ipam"] = {"Config": [{"Subnet": "SUBNET"}]}  # said, for only then may a container be told its address
    made = [*helpers, *(proxies if proxied else []), *tasks]
    return [network, *({"container": one.name, "create": one.arguments(api)} for one in made)]
