"""Tasks in containers: each in a pod of its own, on a network of the run (`blueprint`)."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

from ..errors import PsconformError, Unavailable
from ..layout import Command, Task
from .blueprint import NOBODY, Cluster, Containers
from .container_control import Boxes
from .container_process import Helper, Running
from .engine import engine, sdk, socket_path, told
from .images import need, toxiproxy_image, trainer_image
from .keeper import CONTAINERS
from .launcher import DOCKER, Ended
from .local import LocalLauncher, empty, owner_mark
from .remains import remove_containers

TOXIPROXY = Task("toxiproxy", 0)
TOXIPROXY_PORT = 8474
END_S, CLOSE_S = 15.0, 60.0
WRITTEN = ("events", "vectors", "done", "checkpoints")
"""Parts of the run folder that tasks write."""


class DockerLauncher:
    """Starts tasks in containers, with the Docker engine of this machine; a `Launcher`, and `Pods`.

    Args:
        chosen: in which.

    Raises:
        PsconformError: there is no engine, or an image is missing; says what to do.
    """

    name, about = DOCKER, "a container for each task, with an address of its own"
    python = "python3"
    inherited: Mapping[str, str] = {}

    @property
    def pods(self) -> Self:
        """Each task has one."""
        return self

    def __init__(self, chosen: Containers) -> None:
        began = time.monotonic()
        self.others = os.getuid() == 0
        if self.others and (hides := (mask := _umask()) & 0o005):
            problem = f"umask {mask:03o} hides what psconform writes (by {hides:03o}) from tasks, which are user"
            raise Unavailable(f"{problem} {NOBODY.partition(':')[0]} in their containers: umask 022 shows it")
        self._api, self._chosen = engine(), chosen
        own = _own_image(chosen)
        for name in sorted({chosen.image or own, own, *(box.image for _, box in chosen.boxes)}):
            need(name, own=name == own)
        self._keeper = LocalLauncher()  # it cleans up if psconform cannot
        self.temporary = self._keeper.temporary
        self._owner = f"{owner_mark()}:{self.temporary.name.rpartition('-')[2]}"  # this launcher's, of several
        self._mark = f"{CONTAINERS}{socket_path()}:{self._owner}"
        try:
            self.temporary.chmod(0o755)
            self._keeper.scratch(self._mark)
        except BaseException:
            self._keeper.close()
            raise
        self.control = self.temporary / "control"
        self._cluster: Cluster | None = None
        self._network = ""
        self._helpers: dict[Task, Helper] = {}
        self._processes: dict[int, _Process] = {}  # of this run, by the number that start has returned
        self._latest: dict[Task, int] = {}  # number of its latest start
        self._running: set[int] = set()
        self._companion: Running | None = None
        self._out_of_memory: set[Task] = set()
        self.boxes = Boxes(
            self._api,
            of=self._id_of,
            helpers=self._helpers,
            network=lambda: self._network,
            allowed=chosen.allowed,
        )
        self._ends: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        self.ready_s = time.monotonic() - began

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self, run: str, tasks: Sequence[Task], folder: Path) -> None:
        """A run begins: its network, and a pod for each task.

        Raises:
            PsconformError: the engine refuses; says why.
        """
        self.stop_all(grace=0.0)
        self._cluster = cluster_of(self._chosen, run, folder, owner=self._owner, shared=self.temporary)
        self._make_network(self._cluster)
        self._start_helpers(tasks)

    def _make_network(self, cluster: Cluster) -> None:
        """With a subnet that is said, for only then may a container be told its address. The engine picks which."""
        from docker.types import IPAMConfig, IPAMPool

        make = partial(
            self._api.create_network, cluster.network, driver="bridge", internal=True, labels=cluster.labels()
        )
        with told("the network of the run cannot be made"):
            for attempt in range(5):
                picked = make()["Id"]
                subnet = self._api.inspect_network(picked)["IPAM"]["Config"][0]["Subnet"]
                self._api.remove_network(picked)
                try:
                    self._network = make(ipam=IPAMConfig(pool_configs=[IPAMPool(subnet=subnet)]))["Id"]
                    return
                except OSError:
                    if attempt == 4:
                        raise

    def _start_helpers(self, tasks: Sequence[Task]) -> None:
        assert self._cluster is not None
        make = partial(Helper, self._api, network=self._cluster.network)
        made: dict[Task, Future[Helper]] = {}
        try:
            with ThreadPoolExecutor(max_workers=8) as pool:  # each takes some tenths of a second, mostly the engine's
                for task in tasks:
                    made[task] = pool.submit(make, self._cluster.helper(task))
        finally:  # Ctrl-C, too: those that are there are to be removed
            there = {task: helper for task, helper in made.items() if helper.done() and not helper.exception()}
            self._helpers |= {task: helper.result() for task, helper in there.items()}
        for helper in made.values():
            helper.result()

    def address(self, dialler: Task | None, listener: Task) -> str:
        """Where a task listens: at the address of its pod."""
        del dialler
        return f"{self._helpers[listener].ip}:{self._chosen.port(listener)}"

    def named(self, address: str) -> str:
        """The same address by the name of its task, which holds wherever that may move."""
        ip, _, port = address.rpartition(":")
        name = next((task.slug for task, helper in self._helpers.items() if helper.ip == ip), ip)
        return f"{name}:{port}"

    def ended_by_memory(self, task: Task) -> bool:
        return task in self._out_of_memory

    def ask_pod(self, task: Task, **request: Any) -> dict[str, Any]:
        return self._helpers[task].ask(**request)

    def toxiproxy(self) -> tuple[str, str]:
        assert self._cluster is not None
        need(toxiproxy_image(), own=True)
        self._start_helpers([TOXIPROXY])
        ip = self._helpers[TOXIPROXY].ip
        container = self._cluster.toxiproxy(TOXIPROXY, address=ip, port=TOXIPROXY_PORT)
        log = self._cluster.folder / "logs" / f"{TOXIPROXY.slug}.log"
        self._companion = Running(self._api, container, log=log, ended=lambda _, **__: None)
        return f"http://{ip}:{TOXIPROXY_PORT}", ip

    def lost(self) -> str:
        try:
            with told("the Docker engine, which resolves their names, does not tell of their network"):
                self._api.inspect_network(self._network)
        except Unavailable as error:
            return str(error)
        return ""

    def toxiproxy_runs(self) -> bool:
        return self._companion is not None and self._companion.runs

    def seen(self, path: Path) -> str:
        """A path of psconform's as tasks see it: one in the run folder, or in ``temporary``."""
        assert self._cluster is not None
        return self._cluster.seen(path)

    def start(self, task: Task, command: Command, *, log: Path, second: bool = False) -> int:
        """Start one task; returns a number that stands for its process. See `Launcher.start`."""
        assert self._cluster is not None
        self._give_away(self._cluster.folder)
        suffix = f"-second-{len(self._processes)}" if second else ""
        container = self._cluster.task(task, command, mark=owner_mark(), suffix=suffix)
        number = len(self._processes) + 1
        self._out_of_memory.discard(task)

        def ended(status: int, *, out_of_memory: bool) -> None:
            if out_of_memory:
                self._out_of_memory.add(task)
            self._ends.put((number, status))

        running = Running(self._api, container, log=log, ended=ended)
        pid = int(self.ask_pod(task, do="fresh")["pid"])
        self._processes[number] = _Process(task, running, pid, second)
        self._running.add(number)
        if not second:
            self._latest[task] = number
        return number

    def _give_away(self, folder: Path) -> None:
        """What tasks write is theirs, if they are not whoever runs psconform."""
        if self.others:
            uid, _, gid = NOBODY.partition(":")
            for part in (folder / name for name in WRITTEN):
                if part.is_dir() and part.stat().st_uid == 0:
                    os.chown(part, int(uid), int(gid))

    def poll(self, timeout: float) -> list[Ended]:
        ended: list[Ended] = []
        with contextlib.suppress(queue.Empty):
            while True:
                number, status = self._ends.get(block=not ended and timeout > 0, timeout=timeout)
                process = self._processes.get(number)
                if process is not None and number in self._running:
                    self._running.discard(number)
                    ended.append(Ended(process.task, status, number, process.second))
        return ended

    @property
    def running(self) -> tuple[Task, ...]:
        return tuple(self._processes[n].task for n in sorted(self._running) if not self._processes[n].second)

    def signal(self, task: Task, number: int) -> None:
        if (process := self._of(task)) is not None and process.pid:
            self.ask_pod(task, do="signal", pid=process.pid, number=number, all=True)

    def ask(self, task: Task, pid: int, number: int) -> bool:
        if self._of(task) is None:
            return False
        return bool(self.ask_pod(task, do="signal", pid=pid, number=number, all=False)["done"])

    def state(self, task: Task) -> str:
        return self.state_of(self._latest.get(task, 0))

    def state_of(self, pid: int) -> str:
        process = self._processes.get(pid)
        if process is None or not process.pid or pid not in self._running:
            return ""
        return str(self.ask_pod(process.task, do="state", pid=process.pid)["state"])

    def whose(self, group: int) -> str:
        found = (process.task for process in self._processes.values() if process.running.host_pid == group)
        return str(next(found, ""))

    def kill_second(self, pid: int) -> None:
        process = self._processes.get(pid)
        if process is not None and process.second and pid in self._running:
            self.ask_pod(process.task, do="signal", pid=process.pid, number=signal.SIGKILL, all=True)

    def scratch(self, place: Path | str, *, mine: bool = True) -> None:
        """Have the keeper delete something, should psconform go away; ``mine=False``: not any more."""
        self._keeper.scratch(place, mine=mine)

    def stop_all(self, *, grace: float = 0.3) -> list[Ended]:
        """End every task: SIGTERM, after ``grace`` seconds SIGKILL; then the pods and the network of the run."""
        ended: list[Ended] = []
        deadline = time.monotonic() + grace
        for number, after in ((signal.SIGTERM, deadline), (signal.SIGKILL, deadline + END_S)):
            for task in {self._processes[key].task for key in self._running}:
                with contextlib.suppress(PsconformError):
                    self._signal_all(task, number)
            while self._running and time.monotonic() < after:
                ended += self.poll(0.05)
        left = ", ".join(str(self._processes[key].task) for key in self._running)
        self._take_down()
        if left:
            raise PsconformError(f"tasks could not be ended: {left}")
        return ended

    def _signal_all(self, task: Task, number: int) -> None:
        for key in self._running:
            if self._processes[key].task == task:
                self.ask_pod(task, do="signal", pid=self._processes[key].pid, number=number, all=True)

    def _take_down(self) -> None:
        """Remove the pods and the network of the run, and forget it."""
        for helper in self._helpers.values():
            # one after another: Docker before 20.10.27 can hang if two leave a network at once (moby/moby#46661)
            if not helper.close():
                break  # nor would it answer for the others
        for running in (*(process.running for process in self._processes.values()), self._companion):
            if running is not None and not running.join(END_S):
                running.remove()  # it may be frozen: those do not die with their pod
                running.join(END_S)
        if self._network:
            with told("the network of the run cannot be removed"), contextlib.suppress(sdk().errors.NotFound):
                self._api.remove_network(self._network)
        self._network, self._companion = "", None
        self._helpers.clear()
        self._processes.clear()
        self._latest.clear()
        self._running.clear()
        self._ends = queue.SimpleQueue()
        if self._cluster is not None:  # else it holds what the next run has begun with
            empty(self.temporary)
        self._cluster = None

    def close(self) -> None:
        """End whatever is there."""
        try:
            with contextlib.suppress(PsconformError, OSError, ValueError):
                self.stop_all(grace=0.0)
                remove_containers(socket_path(), self._owner, quiet=1)
                self._keeper.scratch(self._mark, mine=False)  # nothing is left
        finally:
            self._keeper.close(within_s=CLOSE_S)  # which deletes what is left

    def _id_of(self, task: Task) -> str:
        """The container of a task that runs; empty: it does not."""
        process = self._of(task)
        return process.running.id if process is not None else ""

    def _of(self, task: Task) -> _Process | None:
        """The running process of a task."""
        number = self._latest.get(task, 0)
        return self._processes[number] if number in self._running else None


def _own_image(chosen: Containers) -> str:
    """The trainer's image, in which helpers run, and tasks if no other is chosen."""
    return trainer_image(gpu=chosen.gpus and not chosen.image)


def cluster_of(chosen: Containers, run: str, folder: Path, *, owner: str, shared: Path) -> Cluster:
    """What the containers of a run have in common."""
    own = _own_image(chosen)
    return Cluster(
        run=run,
        owner=owner,
        folder=folder,
        shared=shared,
        image=chosen.image or own,
        helper_image=own,
        chosen=chosen,
        toxiproxy_image=toxiproxy_image(),
        user=NOBODY if os.getuid() == 0 else f"{os.getuid()}:{os.getgid()}",
    )


@dataclass(frozen=True)
class _Process:
    task: Task
    running: Running
    pid: int  # in its pod; 0: it had ended before it could be asked for
    second: bool


def _umask() -> int:
    """That of this process, without setting it for a moment, which other threads would see."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    return int(status.partition("\nUmask:")[2].split()[0], 8)
