"""Run folder -> History: reads every event file, checks it against the manifest, decodes and indexes it."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

from ..errors import Malformed
from ..layout import Layout, Task
from .decode import decode_worker, whole_scale
from .events import Exit
from .events import Init as InitEvent
from .manifest import Manifest
from .model import History, Init, Worker
from .reader import EventFile, read_events

_NAME = re.compile(r"([a-z][a-z_]*)-(\d{1,4})(?:\.(\d{1,4}))?\.jsonl")
RUNNER = Task("psconform", 0)
"""The task name under which psconform itself records."""


def load_history(folder: Path, manifest: Manifest | None = None) -> History:
    """Read a run folder.

    Raises:
        BadInput: it is no run folder.
        Malformed: something in it is not what psconform or a probe writes; names file and line.
    """
    manifest = manifest or Manifest.read(folder)
    unit = manifest.workload.unit
    if unit is None or not 1e-30 < unit < 1e30:  # within what float32 slots can hold
        raise Malformed(folder / "manifest.json", f"workload.unit must be positive, got {unit}")
    files = _event_files(folder, manifest)
    workers: list[Worker] = []
    shards: tuple[int, ...] | None = None
    notes: list[str] = []
    for file in files.values():
        if file.torn:
            notes.append(f"{file.start.task}'s record ends in a torn line of {file.torn} bytes, which was left out")
    for task in manifest.layout.worker_tasks:
        if (found := files.get(task)) is not None:
            worker, placed = decode_worker(found, task=task, folder=folder, manifest=manifest)
            workers.append(worker)
            if placed is not None and shards not in (None, placed):
                raise Malformed(
                    found.path, f"shards are {list(placed)}, {list(shards or ())} in another worker's record"
                )
            shards = placed if shards is None else shards
    variables = _variables(folder, workers, shards)
    if shards is None and variables == manifest.layout.ps:
        shards = tuple(range(variables))
    scale = whole_scale(workers)
    history = History(
        layout=manifest.layout,
        claims=manifest.claims,
        steps=manifest.workload.steps,
        workers=tuple(workers),
        inits=_inits(files),
        variables=variables,
        shards=shards,
        scale=1.0,
        gaps=tuple(_gaps(manifest, files, workers)),
        notes=tuple(notes),
    )
    return history if scale == 1.0 else _rescaled(history, scale)


def _event_files(folder: Path, manifest: Manifest) -> dict[Task, EventFile]:
    if not (folder / "events").is_dir():
        raise Malformed(folder, "has no folder events/")
    files: dict[Task, EventFile] = {}
    known = {*manifest.layout.tasks, RUNNER}
    for path in sorted((folder / "events").iterdir()):
        match = _NAME.fullmatch(path.name)
        task = Task(match[1], int(match[2])) if match else None
        if task is None or task not in known or not path.is_file():
            hint = "Files here are named JOB-INDEX.jsonl, for the tasks of the layout"
            raise Malformed(path, f"is not an event file of layout {manifest.layout.text}", hint=hint)
        if match and match[3]:
            raise Malformed(path, "is a second incarnation: this psconform judges runs without restarts")
        found = read_events(path, run=manifest.run, name=str(task))
        if found is not None:
            files[task] = found
    return files


def _variables(folder: Path, workers: list[Worker], shards: tuple[int, ...] | None) -> int:
    counts = {worker.reads.clock.shape[1] for worker in workers if len(worker.reads)}
    if len(counts) > 1:
        raise Malformed(folder / "events", f"workers read different numbers of variables: {sorted(counts)}")
    variables = counts.pop() if counts else 0
    if shards is not None and len(shards) != variables:
        raise Malformed(folder / "events", f"shards names {len(shards)} variables, the reads have {variables}")
    return variables


def _inits(files: dict[Task, EventFile]) -> tuple[Init, ...]:
    return tuple(
        Init(task, tuple(float(n) for n in event.nonce))
        for task, file in sorted(files.items())
        for event in file.events
        if isinstance(event, InitEvent)
    )


def _gaps(manifest: Manifest, files: dict[Task, EventFile], workers: list[Worker]) -> list[str]:
    gaps = list(manifest.reasons)
    if manifest.status != "finished":
        gaps.append(f"the run is {manifest.status}, not finished")
    if RUNNER not in files:
        gaps.append("psconform's own record of the run is missing")
    else:
        gaps += _ends(manifest.layout, files[RUNNER], manifest.reasons)
    by_index = {worker.index: worker for worker in workers}
    for task in manifest.layout.worker_tasks:
        worker = by_index.get(task.index)
        if worker is None:
            gaps.append(f"{task} never reported: no probe wrote events for it")
            continue
        lacks = []
        if not files[task].ended:
            lacks.append("its record has no end event, so it was killed or cut short")
        if len(worker.pushes) < manifest.workload.steps:
            lacks.append(f"it pushed {len(worker.pushes)} of {manifest.workload.steps} gradients")
        if not worker.reads.final.any():
            lacks.append("it made no final read after every worker was done")
        if lacks:
            gaps.append(f"{task}: {', '.join(lacks)}")
    return list(dict.fromkeys(gaps))


def how_it_ended(status: int) -> str:
    """An exit status in words."""
    return f"was ended by signal {-status}" if status < 0 else f"failed with status {status}"


def _ends(layout: Layout, file: EventFile, said: list[str]) -> list[str]:
    exits = {event.of: event for event in file.events if isinstance(event, Exit)}
    gaps = [] if file.ended else ["psconform's own record of the run has no end event"]
    for name, event in exits.items():
        if event.status != 0 and not event.stopped and not any(reason.startswith(f"{name} ") for reason in said):
            gaps.append(f"{name} {how_it_ended(event.status)}")
    return gaps + [f"{task} has no recorded end" for task in layout.tasks if str(task) not in exits]


def _rescaled(history: History, scale: float) -> History:
    """The same history with counts in units of ``scale``: a cell that holds exactly that is no longer odd."""
    workers = []
    for worker in history.workers:
        odd = []
        for index in range(len(worker.reads)):
            cells = dict(worker.reads.odd[index])
            if len(cells) < worker.reads.clock[index].sum():  # some hold exactly one: odd now
                for variable, row in enumerate(worker.reads.clock[index].tolist()):
                    for peer, clock in enumerate(row):
                        for step in range(clock):
                            cells.setdefault((variable, peer, step), (1.0, 1.0))
            scaled = {cell: (head / scale, tail / scale) for cell, (head, tail) in cells.items()}
            odd.append({c: p for c, p in scaled.items() if not all(abs(x - 1) < 1e-4 for x in p)})
        workers.append(replace(worker, reads=replace(worker.reads, odd=tuple(odd))))
    return replace(history, workers=tuple(workers), scale=scale)


def outcome_counts(history: History) -> dict[str, int]:
    """Gradients by outcome over all workers: ok, failed, unknown."""
    return dict(Counter(push.outcome for worker in history.workers for push in worker.pushes))
