"""What is lost of a record, or may be: files that are cut or gone, unseen ends; and devices that are not as told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from ..layout import Layout, Task
from .events import Devices, Exit
from .reader import EventFile

NOT_ENDED = "psconform's own record of the run has no end event"
Files = dict[Task, dict[int, Path]]
"""Event files by task and incarnation."""


def unbroken(files: Files, own: EventFile | None, notes: list[str]) -> tuple[Files, list[str], list[str]]:
    """Of each task, its lives up to the first that is missing or was cut; the notes; and what is missing.

    psconform saw, when they ended, that they had left an event file, and how long it was. What comes after a gap is
    left out, so that the record is one that was cut short there: of one with a hole in it nobody knows what a life's
    first read shows for the first time, or what was pushed before. Where psconform's own record has lost how long a
    life was, there may be one.
    """
    kept, notes, lost = {task: dict(found) for task, found in files.items()}, list(notes), []
    named = {str(task): task for task in files}
    exits = _exits(own)
    broken: dict[str, int] = {}  # the first life that is not whole
    for (name, life), event in exits.items():
        found = files[named[name]] if name in named else {}
        there = found[life].lstat().st_size if life in found else 0
        if name in broken or not event.recorded or (life in found and there >= event.recorded_bytes):
            continue
        what = f"is cut: {there} of {event.recorded_bytes} bytes are there" if life in found else "is missing"
        lost.append(f"{name}: what it recorded in incarnation {life} {what}")
        broken[name] = life
    told = own is not None and own.ended
    for task, found in kept.items():
        unseen = [life for life in sorted(found)[:-1] if not told and (str(task), life) not in exits]
        if unseen and unseen[0] < broken.get(str(task), max(found)):
            lost.append(f"{task}: nobody knows how much it recorded in incarnation {unseen[0]}")
            broken[str(task)] = unseen[0]
        for later in sorted(life for life in found if life > broken.get(str(task), max(found))):
            notes.append(f"{found.pop(later).name} comes after a gap in the record of {task}, and was left out")
    return {task: found for task, found in kept.items() if found}, notes, lost


def endless(files: Files, own: EventFile | None, closed: dict[Task, int], layout: Layout) -> Iterator[str]:
    """Whose record has an end that nobody has seen, so that more may have been there; ``closed``: lives with an end.

    In a run that had not finished, after a power loss or in a copy that was made meanwhile, each file may end at a
    moment of its own.
    """
    if own is None or not own.ended:
        yield NOT_ENDED
    exits = _exits(own)
    for task in layout.all_tasks:
        life = max(files.get(task, ()), default=0)
        if closed.get(task, -1) < life and (str(task), life) not in exits:
            yield f"{task}: its record has no end event, and nobody saw it end"


def unwritable(folder: Path, layout: Layout) -> Iterator[str]:
    """Whose probe could not go on with its record: of a full disk, say."""
    for task in layout.all_tasks:
        names = (f"{task.slug}.unwritable", f"{task.slug}.*.unwritable")
        if any(found for name in names for found in (folder / "done").glob(name)):
            yield f"{task}: its probe could not go on writing its record; its log says why"


def _exits(own: EventFile | None) -> dict[tuple[str, int], Exit]:
    """By task and incarnation, how it ended, in the order of the record; without second processes."""
    exits: dict[tuple[str, int], Exit] = {}
    lives: dict[str, int] = {}
    for event in own.of(Exit) if own is not None else ():
        if not event.second:
            life = lives.get(event.of, 0) if event.incarnation is None else event.incarnation
            lives[event.of] = lives.get(event.of, 0) + 1
            exits[event.of, life] = event
    return exits


By = Mapping[int, tuple[str, ...]]
"""By worker, the device of each of its towers."""


def devices_of(task: Task, file: EventFile) -> dict[int, tuple[str, ...]]:
    """What a worker says in one of its lives; the last word counts."""
    said = [tuple(event.names) for event in file.of(Devices)]
    return {task.index: said[-1]} if said else {}


def elsewhere(layout: Layout, devices: By) -> list[str]:
    """Workers that have not computed where the layout says: what the run would show there is not known."""
    wanted = _wanted(layout)
    return [
        f"{task} computed on {', '.join(devices[task.index]) or 'nothing'}, not on {', '.join(wanted)}"
        for task in layout.worker_tasks
        if wanted and task.index in devices and sorted(devices[task.index]) != sorted(wanted)
    ]


def unsaid(layout: Layout, devices: By) -> list[str]:
    """Workers with GPUs that do not say where they compute."""
    silent = [str(task) for task in layout.worker_tasks if _wanted(layout) and task.index not in devices]
    return [f"{', '.join(silent)} did not say on which devices they compute (probe.devices)"] if silent else []


def _wanted(layout: Layout) -> tuple[str, ...]:
    return tuple(f"{'CPU' if layout.emulated else 'GPU'}:{number}" for number in range(layout.gpus))
