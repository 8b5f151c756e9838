"""The run folder: where everything about one execution is kept. docs/run-folder.md describes it."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from ..errors import BadInput
from ..faults.data_faults import POISON
from ..faults.fault import Fault
from ..faults.kinds import kinds
from ..faults.plan_file import plan_text
from ..files import open_regular, tail
from ..history.logs import LENGTH, LOOKED_AT
from ..history.manifest import PLAIN, TWIN, Bounds, Manifest, write_json
from ..history.reasons import Overgrown
from ..layout import Task
from ..options import OPTIONS
from ..probe import WEIGHTS
from ..version import __version__
from .layout_file import FILE, layout_text
from .plan import FAULTS, Plan

ROOM = 4096
"""Bytes that a new manifest has to spare: should the disk be full in the end, it says so all the same."""
AT_MOST = 2
"""Looks at what has come since, before a log is cut: of a flood there is always more."""
PARTS = ("events", "vectors", "done", "logs")
CHECKPOINTS = "checkpoints"
"""Where a target that can may put its checkpoints."""
VECTORS = 10
"""About so many times per worker, at most every 50 reads, and at the end, the full parameters go to vectors/."""
VECTORS_MIB = 256
"""... unless that would take more than this: they are a second record of what the events say already."""


def new_folder(path: Path) -> Path:
    """Make an empty run folder; raises BadInput if something is in the way (nothing is ever overwritten)."""
    if path.exists() and (not path.is_dir() or any(entry.name not in (PLAIN, TWIN) for entry in path.iterdir())):
        raise BadInput("--out", "is there already and not empty; nothing is overwritten", value=str(path))
    try:
        with contextlib.suppress(FileNotFoundError):  # another pytest has just taken an empty psconform-runs/ away
            path.mkdir(parents=True, exist_ok=True)
        for part in PARTS:
            (path / part).mkdir(parents=True)
    except OSError as error:
        raise BadInput("--out", f"cannot be made ({error.strerror})", value=str(path)) from None
    return path.resolve()


def new_manifest(folder: Path, plan: Plan) -> Manifest:
    """The manifest of a run about to start, written to the folder, with what the run can be repeated by."""
    manifest = manifest_of(plan)
    manifest.write(folder, room=ROOM)
    if plan.faults:
        (folder / FAULTS).write_text(plan_text(plan.faults), encoding="utf-8")
    if plan.limited and plan.containers is not None:
        (folder / FILE).write_text(layout_text(plan.layout, plan.containers.limits), encoding="utf-8")
    return manifest


def manifest_of(plan: Plan) -> Manifest:
    """What is known of a run before it starts."""
    return Manifest(
        run=f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(4).hex()}",
        created=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        target=plan.target.name,
        source=plan.target.source,
        layout=plan.layout,
        claims=plan.target.claimed(plan.layout, plan.workload.compression),
        workload=plan.workload,
        defect=plan.defect,
        faults=[f"{fault.kind} {fault}" for fault in plan.faults],
        checkpoint_every=plan.checkpoint_every,
        checkpoint_seconds=plan.checkpoint_seconds,
        patience_s=plan.patience_s,
        bounds=plan.bounds,
        require_faults=plan.require_faults,
        dynamic_work=plan.target.dynamic_work,
        shared_spec=plan.target.shared and plan.proxied,
        launcher=plan.launcher,
        image="" if plan.containers is None else plan.containers.image,
        limited=plan.limited,
        environment=dict(plan.environment),
        repeat=plan.repeat,
        versions=_versions(),
        platform={"system": platform.platform(), "machine": platform.machine(), "cpus": str(os.cpu_count())},
    )


def write_spec(
    folder: Path,
    manifest: Manifest,
    *,
    faults: tuple[Fault, ...] = (),
    wait_s: float,
    seen: Callable[[Path], str] = str,
    looks: Sequence[Mapping[str, str | int | None]] = (),
) -> Path:
    """spec.json: what a probe needs to know. ``PSCONFORM_SPEC`` points to it; ``seen``: a path as tasks see it.

    ``looks``: phases at which a task waits although nothing strikes there.
    """
    workload = manifest.workload
    behind_s = workload.steps * max((seconds for _, seconds in workload.slow), default=0.0)
    spec = {
        **manifest.spec,
        "vector_every": _vector_every(manifest),
        "wait_s": wait_s + behind_s,  # a straggler comes last, and is waited for
    }
    if poisons := [fault for fault in faults if fault.kind == POISON.name]:
        spec["poison"] = [{"task": str(f.task), "step": f.when.step, "value": f.value} for f in poisons]
    if any(fault.outside for fault in faults) or manifest.checkpoint_every or manifest.checkpoint_seconds:
        spec["strikes"] = [strike for fault in faults if fault.outside for strike in fault.strikes]
        if asked := sorted({str(fault.task) for fault in faults if kinds()[fault.kind].asked}):
            spec["clocks"] = asked
        spec["checkpoints"], spec["checkpoint_every"] = seen(folder / CHECKPOINTS), manifest.checkpoint_every
        spec["checkpoint_seconds"] = manifest.checkpoint_seconds
        (folder / CHECKPOINTS).mkdir()
    if looks:
        spec["strikes"] = [*spec.get("strikes", ()), *looks]
    write_json(folder / "spec.json", spec)
    return folder / "spec.json"


def placeholders(manifest: Manifest) -> dict[str, str | int | float]:
    """What of the workload the commands of a target may be told, by the name of its placeholder."""
    workload = manifest.workload
    return {
        "workload": workload.name,
        "steps": workload.steps,
        "seed": workload.seed,
        "compression": workload.compression,
        **({} if manifest.layout.plain else {"learning_rate": workload.learning_rate}),
    }


def _vector_every(manifest: Manifest) -> int:
    """A worker's full vectors are written every so many reads; 0: never."""
    workload, layout = manifest.workload, manifest.layout
    if WEIGHTS not in workload.shows:
        return 1 if not workload.is_ledger else max(50, workload.steps * workload.reads)  # each read, or the last
    every = max(50, workload.steps * workload.reads // VECTORS)  # or the folder grows with steps squared
    written = workload.steps * workload.reads // every + 2
    size = 4 * layout.holders * (2 * layout.workers * workload.steps + 1)
    return every if written * size * layout.workers <= VECTORS_MIB << 20 else 0


def log_of(folder: Path, task: Task, *, second: int = 0) -> Path:
    """Where a task's standard output and error go; those of a second process of it, by its incarnation, elsewhere."""
    return folder / "logs" / f"{task.slug}{f'.{second}' if second else ''}.log"


def log_text(folder: Path, task: Task, *, second: int = 0) -> str:
    """The end of a task's log; empty if it has none."""
    return tail(log_of(folder, task, second=second), LOOKED_AT)


def cut_log(log: Path, limit: int, before: int = 0) -> int:
    """Of a log that has grown beyond ``limit`` bytes, keep the first and the last quarter of those.

    Args:
        log: a task may be appending to it.
        limit: bytes.
        before: how many have been cut out of it.

    Returns:
        How many bytes have been cut by now; between the two parts a line says so.
    """
    try:
        if log.lstat().st_size <= limit:
            return before
        with open_regular(log, flags=os.O_RDWR | os.O_APPEND) as file:
            kept, size = limit // 4, os.fstat(file.fileno()).st_size
            file.seek(size - kept)
            last = file.read(kept)
            for _ in range(AT_MOST):  # what the task has appended since
                last = (last + (more := file.read(kept)))[-kept:]
                size += len(more)
            before += size - 2 * kept - (len(_mark(before)) if before else 0)
            file.truncate(kept)  # it is opened for appending, so the task goes on behind that
            file.write(_mark(before) + last)
    except OSError:
        pass  # it is not there yet, or no file any more: then nothing grows
    return before


def _mark(cut: int) -> bytes:
    return f"\npsconform: {cut} bytes of this log were cut here ({OPTIONS['max_log'].flag})\n".encode()


def overgrown(folder: Path, bounds: Bounds) -> Overgrown | None:
    """What of a run folder is larger than it may be: an event file, or all that tasks write."""
    whole = 0
    for part in PARTS:
        with contextlib.suppress(OSError), os.scandir(folder / part) as found:
            for entry in found:
                size = entry.stat(follow_symlinks=False).st_size
                if part == "events" and size > bounds.record:
                    return Overgrown(f"{part}/{entry.name}", bounds.record, OPTIONS["max_record"].flag)
                whole += size
    return Overgrown("the run folder", bounds.run, OPTIONS["max_run"].flag) if whole > bounds.run else None


def log_tail(folder: Path, task: Task, *, lines: int = 5, second: int = 0) -> list[str]:
    """The last lines of a task's log, or of that of a second process of it."""
    said = log_text(folder, task, second=second).splitlines()
    return [line[:LENGTH] for line in said if line.strip()][-lines:]


def _versions() -> dict[str, str]:
    versions = {"psconform": __version__, "python": sys.version.split()[0]}
    for name in ("numpy", "tensorflow", "tensorflow-cpu"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions
