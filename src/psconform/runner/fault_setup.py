"""What the faults of a plan need: injectors, the file system over the checkpoints, a look for those of the probe."""

from __future__ import annotations

import io
import json
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import PsconformError, Unavailable
from ..faults.data_faults import OUT_OF_DATA, POISON
from ..faults.disk_faults import Disk
from ..faults.fault import Fault
from ..faults.injectors import Injector, Life, Scene
from ..faults.kinds import kinds
from ..files import open_regular, pieces
from ..history.events import MAX_LINE
from ..history.reasons import FaultMissed, Missed
from ..launchers.cleanup import SOURCE, mounts
from ..launchers.keeper import MOUNT, unmount
from ..launchers.launcher import Launcher
from ..launchers.local import OWNER, LocalLauncher, owner_mark
from ..layout import Command, Layout, Task
from ..probe import EventLog
from .folder import CHECKPOINTS
from .plan import Plan

if TYPE_CHECKING:  # what it imports is an extra
    from ..faults.pod_network import Wires
    from ..faults.proxies import Links


def clock_of(temporary: Path, task: Task) -> Path:
    """The file from which a task whose clock may jump reads how far it is ahead; deleted with the tasks."""
    return temporary / f"clock-{task.slug}"


def injectors(
    plan: Plan,
    launcher: Launcher,
    links: Links | None,
    *,
    folder: Path,
    life: Life,
    start_second: Callable[[Task], int],
    recorded: Callable[[int], bool],
    disk: Disk | None = None,
    wires: Wires | None = None,
    moved: Callable[[Task, str], None] = lambda *_: None,
) -> dict[Fault, Injector]:
    """One for each fault that psconform injects.

    ``disk`` is what is mounted over the folder for checkpoints, ``wires`` the network of tasks in containers; the rest
    is as a `Scene` has it.
    """
    found = {fault: maker for fault in plan.faults if (maker := kinds()[fault.kind].injector) is not None}
    pods = launcher.pods
    scene = Scene(
        processes=launcher,
        life=life,
        done=lambda task: is_done(folder, plan.layout, task),
        seed=plan.workload.seed,
        checkpoints=folder / CHECKPOINTS,
        clock=lambda task: clock_of(launcher.temporary, task),
        start_second=start_second,
        recorded=recorded,
        numbers={fault: number for number, fault in enumerate(found)},
        moved=moved,
        by_memory=lambda task: pods is not None and pods.ended_by_memory(task),
        proxies=links,
        disk=disk,
        network=wires,
        containers=None if pods is None else pods.boxes,
    )
    return {fault: maker(fault, scene) for fault, maker in found.items()}


def is_done(folder: Path, layout: Layout, task: Task | None) -> bool:
    """A worker has made its last step; for any other task, all workers have."""
    workers = (task,) if task is not None and task.job == "worker" else layout.worker_tasks
    return all((folder / "done" / worker.slug).exists() for worker in workers)


SERVER = Task("disk", 0)
READY_S = 60.0


@contextmanager
def mounted(folder: Path, *, whose: Callable[[int], str], others: bool = False) -> Iterator[Disk]:
    """Mount it over ``folder`` (resolved), until the end; should psconform go away, the keeper unmounts it.

    It has a keeper of its own, so that it is there until all tasks have ended. ``others``: tasks are another user than
    psconform, which is root.

    Raises:
        PsconformError: it cannot be mounted, or not be unmounted; says what it said last.
    """
    below = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with LocalLauncher() as launcher:
            yield from _serve(launcher, folder, Path(f"/proc/self/fd/{below}"), whose, others=others)
    finally:
        os.close(below)


def _serve(
    launcher: LocalLauncher, folder: Path, below: Path, whose: Callable[[int], str], *, others: bool
) -> Iterator[Disk]:
    control, log = launcher.temporary / "control", launcher.temporary / "disk.log"
    control.mkdir()

    def check() -> None:
        launcher.poll(0.0)
        if SERVER not in launcher.running:
            raise Unavailable(f"the file system over {folder} has ended; {_last_words(log)}")

    disk = Disk(below, control, whose=whose, check=check)
    launcher.scratch(f"{MOUNT}{folder}")
    module = ("-m", "psconform.faults.fuse_server")
    names = (
        str(folder),
        str(control),
        f"{OWNER}={owner_mark()}",
        SOURCE + owner_mark().replace(":", "-"),
        *(["others"] if others else []),
    )
    try:
        launcher.start(SERVER, Command((sys.executable, *module, *names)), log=log)
        deadline = time.monotonic() + READY_S
        while folder not in mounts():
            check()
            if time.monotonic() > deadline:
                raise Unavailable(f"nothing was mounted over {folder} in {READY_S:.0f} s; {_last_words(log)}")
            launcher.poll(0.02)
        yield disk
    finally:
        unmount(str(folder))
        if folder in mounts():
            raise PsconformError(f"{folder} could not be unmounted; try umount -l {folder}")
        launcher.scratch(f"{MOUNT}{folder}", mine=False)
        deadline = time.monotonic() + READY_S
        while SERVER in launcher.running and time.monotonic() < deadline:  # it ends by itself, then
            launcher.poll(0.02)


def _last_words(log: Path) -> str:
    said = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    return f"it said last: {said[-1] if said else 'nothing'}"


def never_poisoned(faults: Sequence[Fault], folder: Path, *, without: Collection[str] = ()) -> list[FaultMissed]:
    """Poisons of which no record of their task tells: they prove nothing.

    ``without``: names of files that are no record of a task, but of a second process of it.
    """
    poisons = [fault for fault in faults if fault.kind == POISON.name]
    told = {fault.task: _steps(folder, fault.task, "poison", without) for fault in poisons if fault.task is not None}
    return [
        _never(fault, "its probe was not asked for that gradient")
        for fault in poisons
        if fault.task is not None and fault.when.step not in told[fault.task]
    ]


def ran_out(
    faults: Sequence[Fault], folder: Path, log: EventLog, *, without: Collection[str] = ()
) -> list[FaultMissed]:
    """Record the workers that ran out of data, with their last push; returns those that never got there."""
    missing = []
    for fault in (fault for fault in faults if fault.kind == OUT_OF_DATA.name):
        assert fault.task is not None
        assert fault.when.step is not None
        pushed = _steps(folder, fault.task, "push", without) | _steps(folder, fault.task, "update", without)
        if fault.when.step - 1 in pushed:
            said = f"the last gradient that it pushed is of step {max(pushed)}"
            told = {"fault": fault.kind, "of": str(fault.task), "on": True, "at": str(fault.when), "evidence": said}
            told |= {"words": fault.what, "ends": fault.ends}
            log.write("fault", **told, tasks=[str(fault.task)], harm=OUT_OF_DATA.harm.value)
        else:
            missing.append(_never(fault, "training did not get there"))
    return missing


def _never(fault: Fault, why: str) -> FaultMissed:
    return FaultMissed(fault.kind, str(fault), Missed.NEVER_INJECTED, why, words=fault.words)


def _steps(folder: Path, task: Task, kind: str, without: Collection[str]) -> set[int]:
    """Steps of a task's events of this kind, in any of its lives; whatever cannot be read says nothing."""
    steps: set[int] = set()
    for path in (folder / "events").glob(f"{task.slug}*.jsonl"):
        if path.name.split(".")[0] != task.slug or path.name in without:
            continue  # worker-11 is not worker-1
        for line in _lines(path):
            if f'"{kind}"'.encode() not in line:
                continue
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                continue  # torn: the reader says so
            if not isinstance(event, dict) or event.get("kind") != kind or not isinstance(event.get("step"), int):
                continue  # the reader says what is wrong with it
            if kind != "poison" or event.get("seeded"):
                steps.add(event["step"])
    return steps


def _lines(path: Path) -> Iterator[bytes]:
    with suppress(OSError), open_regular(path) as file:
        for lines, _ in pieces(file, MAX_LINE):
            yield from io.BytesIO(lines)
