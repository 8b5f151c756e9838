"""What a run would start, without starting anything: container by container, or process by process."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..launchers.blueprint import SHARED, Containers
from ..launchers.containers import TOXIPROXY, TOXIPROXY_PORT, cluster_of
from ..launchers.engine import sdk
from ..layout import Command, Task
from .execute import command_of
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
        return [_process(plan, task) for task in plan.layout.all_tasks]
    return _containers(plan, plan.containers)


@dataclass
class _View:
    """What tasks would see."""

    temporary: Path
    inherited: Mapping[str, str]
    seen: Callable[[Path], str] = str
    named: Callable[[str], str] = str
    python: str = "python3"


def _process(plan: Plan, task: Task) -> dict[str, Any]:
    known = dict.fromkeys(plan.layout.all_tasks, LOCAL)
    command = _command(plan, task, known, CONTROL, _View(Path(TEMPORARY), os.environ))
    log = log_of(plan.out, task)
    return {
        "task": str(task),
        "argv": list(command.argv),
        "environment": {**command.env, **command.visible},
        "cwd": command.cwd or str(log.parent),
        "log": str(log),
    }


def _command(plan: Plan, task: Task, known: Mapping[Task, str], control: str, view: _View) -> Command:
    manifest = manifest_of(plan)
    manifest.run, spec = UNKNOWN, plan.out / "spec.json"
    return command_of(plan, manifest, task, known, listens=known[task], life=0, spec=spec, control=control, view=view)


def _containers(plan: Plan, chosen: Containers) -> list[dict[str, Any]]:
    api = sdk().APIClient("unix:///nowhere", version=API)  # it is not asked anything
    plan, shared = replace(plan, out=plan.out.absolute()), Path("/SHARED")
    cluster = cluster_of(chosen, UNKNOWN, plan.out, owner=OWNER, shared=shared)
    view = _View(shared, {}, cluster.seen)
    proxied = plan.proxied
    listens = {task: f"{task.slug}:{chosen.port(task)}" for task in plan.layout.all_tasks}
    helpers = [cluster.helper(task) for task in plan.layout.all_tasks]
    tasks = []
    for task, own_address in listens.items():
        one_spec = plan.target.shared
        through = plan.layout.tasks if proxied and (one_spec or task in plan.layout.tasks) else ()
        behind = dict.fromkeys(through, f"{TOXIPROXY.slug}:PORT")
        known = {**listens, **behind} if one_spec else {**listens, **behind, task: own_address}
        command = _command(plan, task, known, f"unix:{SHARED}/control", view)
        tasks.append(cluster.task(task, command, mark=OWNER))
    proxies = [cluster.helper(TOXIPROXY), cluster.toxiproxy(TOXIPROXY, address="IP", port=TOXIPROXY_PORT)]
    network = {"network": cluster.network, "driver": "bridge", "internal": True, "labels": cluster.labels()}
    network["ipam"] = {"Config": [{"Subnet": "SUBNET"}]}  # said, for only then may a container be told its address
    made = [*helpers, *(proxies if proxied else []), *tasks]
    return [network, *({"container": one.name, "create": one.arguments(api)} for one in made)]
