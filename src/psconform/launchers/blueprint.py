"""What each container of a run is: pure, so that it can be shown without starting anything, and looked at in tests.

Of each task there are two: the *helper*, which has the network and the process ids, and alone may signal and change
the network (`psconform.faults.pod_agent`), and the task's own, which joins both and has no privilege at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..layout import Command, Task
from .engine import OWNER_LABEL, RUN_LABEL, TASK_LABEL
from .local import OWNER

RUN, SHARED = "/psconform/run", "/psconform/shared"
"""Where a task finds the run folder, and what psconform shares with all tasks."""
NOBODY = "10001:10001"
"""Whom tasks run as if psconform is root; else as whoever runs psconform, so that the run folder is theirs."""
PORT = 2222
"""At which each task listens, at an address of its own; TensorFlow's examples have it so."""
HELPER_MEMORY = 256 << 20
TMP = 256 << 20
"""Bytes of /tmp, which is memory."""
PERIOD_US = 100_000


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What a task may use; 0: as much as there is.

    Attributes:
        cpus: CPUs' worth of time.
        memory: bytes; more ends the task (OOM).
        shared_memory: bytes of /dev/shm.
    """

    cpus: float = 0.0
    memory: int = 0
    shared_memory: int = 0


@dataclass(frozen=True, kw_only=True)
class Box:
    """What one task's container is, where each is another: a service of somebody's Compose file.

    Attributes:
        image: what it runs in.
        aliases: names at which the others find it, too.
        port: at which it listens.
        entrypoint: its command takes the place of the image's; else the image's is given it, if it is not empty.
        resources: what it may use.
        working_dir: where it starts; empty: where the image says.
    """

    image: str
    aliases: tuple[str, ...] = ()
    port: int = PORT
    entrypoint: bool = True
    resources: Resources = Resources()
    working_dir: str = ""


Limits = tuple[tuple[str, Resources], ...]
"""By job, what each of its tasks may use."""


@dataclass(frozen=True, kw_only=True)
class Containers:
    """Tasks run in containers.

    Attributes:
        image: of all of them; empty: the trainer's own.
        limits: what tasks may use, if that is not all there is.
        gpus: tasks need the image for GPUs, if they run in the trainer's own.
        boxes: by task, what its container is, where each is another, as a Compose file says.
    """

    image: str = ""
    limits: Limits = ()
    gpus: bool = False
    boxes: tuple[tuple[Task, Box], ...] = ()

    def box(self, task: Task) -> Box | None:
        """What the container of a task is, if that is its own."""
        return dict(self.boxes).get(task)

    def port(self, task: Task) -> int:
        """At which it listens."""
        return PORT if (box := self.box(task)) is None else box.port

    def allowed(self, task: Task) -> Resources:
        """What it may use."""
        return dict(self.limits).get(task.job, Resources()) if (box := self.box(task)) is None else box.resources


@dataclass(frozen=True, kw_only=True)
class Container:
    """One container, before there is one."""

    name: str
    image: str
    labels: Mapping[str, str]
    entrypoint: tuple[str, ...] | None = None  # else the image's,
    command: tuple[str, ...] = ()  # which is given this; empty: the image's, too
    user: str = NOBODY
    environment: Mapping[str, str] = field(default_factory=dict)
    hostname: str = ""
    aliases: tuple[str, ...] = ()
    network: str = ""  # one that it is put into,
    joins: str = ""  # or the container whose network and process ids it has
    binds: tuple[str, ...] = ()  # host path:path:mode
    capabilities: tuple[str, ...] = ()
    resources: Resources = Resources()
    gpus: tuple[int, ...] = ()  # of the machine's
    working_dir: str = "/tmp"
    stdin: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """At which it is found in its network."""
        return tuple(filter(None, (self.hostname, *self.aliases)))

    def arguments(self, api: Any) -> dict[str, Any]:
        """The arguments of ``docker.APIClient.create_container``."""
        joins = f"container:{self.joins}"
        of = self.resources
        host: dict[str, Any] = {
            "binds": list(self.binds),
            "cap_drop": ["ALL"],
            "cap_add": list(self.capabilities),
            "security_opt": ["no-new-privileges"],
            "read_only": True,
            "tmpfs": {"/tmp": f"rw,nosuid,nodev,mode=1777,size={TMP}"},
            "network_mode": joins if self.joins else self.network,
            "log_config": {"Type": "none"},  # what a task prints goes into the run folder
            **({"pid_mode": joins} if self.joins else {}),
            # not as NanoCpus: a limit of that sort cannot be changed while it runs
            **({"cpu_period": PERIOD_US, "cpu_quota": round(of.cpus * PERIOD_US)} if of.cpus else {}),
            **({"mem_limit": of.memory, "memswap_limit": of.memory} if of.memory else {}),
            **({"shm_size": of.shared_memory} if of.shared_memory else {}),
            **({"device_requests": [_gpus(self.gpus)]} if self.gpus else {}),
        }
        return {
            "image": self.image,
            "name": self.name,
            **({"command": list(self.command) or None} if self.entrypoint is None else {}),
            **({} if self.entrypoint is None else {"entrypoint": list(self.entrypoint), "command": []}),
            "user": self.user,
            "environment": dict(self.environment),
            "labels": dict(self.labels),
            "stdin_open": self.stdin,
            **({} if self.joins else {"networking_config": _endpoint(api, self.network, self.names)}),
            "healthcheck": {"test": ["NONE"]},  # psconform watches by itself; a check would be one more connection
            "host_config": api.create_host_config(**host),
            **({"hostname": self.hostname} if self.hostname else {}),
            **({"working_dir": self.working_dir} if self.working_dir else {}),  # else the image's own
        }


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """What the containers of one run have in common."""

    run: str
    owner: str
    folder: Path
    shared: Path
    image: str
    helper_image: str
    toxiproxy_image: str
    user: str = NOBODY
    chosen: Containers = Containers()

    @property
    def network(self) -> str:
        """The name of its network."""
        return f"psconform-{self.run}"

    def seen(self, path: Path) -> str:
        """A path of psconform's as tasks see it: one in the run folder, or in what is shared."""
        for outside, inside in ((self.folder, RUN), (self.shared, SHARED)):
            if path.is_relative_to(outside):
                return str(Path(inside) / path.relative_to(outside))
        return str(path)

    def name(self, task: Task) -> str:
        """The name of a task's container."""
        return f"psconform-{self.run}-{task.slug}"

    def labels(self, task: Task | None = None) -> dict[str, str]:
        """Of whatever is made for the run, or for one of its tasks."""
        of_task = {} if task is None else {TASK_LABEL: str(task)}
        return {OWNER_LABEL: self.owner, RUN_LABEL: self.run, **of_task}

    def helper(self, task: Task) -> Container:
        """The container that has a task's network and process ids."""
        box = self.chosen.box(task)
        return Container(
            name=f"{self.name(task)}-pod",
            image=self.helper_image,
            labels={**self.labels(task), "psconform.part": "helper"},
            entrypoint=("python3", "-m", "psconform.faults.pod_agent"),
            user="0:0",
            hostname=task.slug,
            aliases=() if box is None else box.aliases,
            network=self.network,
            capabilities=("KILL", "NET_ADMIN", "NET_RAW"),
            resources=Resources(memory=HELPER_MEMORY),
            stdin=True,
        )

    def task(self, task: Task, command: Command, *, mark: str, suffix: str = "") -> Container:
        """A task's own container. It starts cold, and leaves nothing outside of it.

        ``mark``: of the psconform that owns it; ``suffix``: of a second one.
        """
        box = self.chosen.box(task)
        own = box is None or box.entrypoint
        return Container(
            name=f"{self.name(task)}{suffix}",
            image=self.image if box is None else box.image,
            labels={**self.labels(task), "psconform.part": "task"},
            entrypoint=command.argv if own else None,
            command=() if own else command.argv,
            user=self.user,
            environment={"HOME": "/tmp", "TMPDIR": "/tmp", **command.env, OWNER: mark},
            joins=f"{self.name(task)}-pod",
            binds=(f"{self.folder}:{RUN}:rw", f"{self.shared}:{SHARED}:ro"),
            resources=self.chosen.allowed(task),
            gpus=command.gpus or (),
            # else the image's own, for there is no such folder
            working_dir=(RUN if not command.cwd else "") if box is None else box.working_dir,
        )

    def toxiproxy(self, task: Task, *, address: str, port: int) -> Container:
        """The proxies between the tasks, in a pod of their own."""
        return Container(
            name=self.name(task),
            image=self.toxiproxy_image,
            labels={**self.labels(task), "psconform.part": "toxiproxy"},
            entrypoint=("toxiproxy-server", "-host", address, "-port", str(port)),
            joins=f"{self.name(task)}-pod",
        )


def _endpoint(api: Any, network: str, names: tuple[str, ...]) -> Any:
    """In a network, found there by these names."""
    return api.create_networking_config({network: api.create_endpoint_config(aliases=list(names))})


def _gpus(numbers: tuple[int, ...]) -> Any:
    """These: of a mere count the engine gives everybody the first ones."""
    from docker.types import DeviceRequest

    return DeviceRequest(device_ids=[str(number) for number in numbers], capabilities=[["gpu"]])
