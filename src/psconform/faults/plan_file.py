"""Fault plans: a TOML file, ``psconform run --faults plan.toml``. Any short form can be written so, and more::

[[fault]]
kind = "stall"                # psconform list faults
links = "worker:1->ps:0"      # of the network: what partitions.py knows; else task = "ps:0", or a whole job, "ps"
at = 20                       # a step, "after-push:35", "checkpointing", "1.5s"
until = 25                    # the same; or for = "2s"
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from ..errors import BadInput
from ..files import read_text
from ..layout import Layout, Task
from ..times import parse_seconds, spell
from .cli_syntax import RESTART_AFTER
from .fault import FOLDER, MAX_S, NEWEST, SENT, Fault, When, refuse_twice
from .kinds import DATA, DISK, Kind, kinds
from .partitions import region


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    kind: str
    task: str | None = None
    links: str | None = None
    at: int | str
    until: int | str | None = None
    lasts: str | None = Field(default=None, alias="for")
    restart_after: str | None = None
    value: str | None = None


def _amount_names() -> list[str]:
    return sorted({name for kind in kinds().values() for name in kind.amounts})


@cache
def _file() -> type[BaseModel]:
    """What a plan may hold: each entry has the parameters of all kinds."""
    amounts: dict[str, Any] = dict.fromkeys(_amount_names(), (int | None, None))
    entry = create_model("_Entry", __base__=_Entry, **amounts)
    config = ConfigDict(extra="forbid", strict=True)
    return create_model("_File", __config__=config, fault=(list[entry], []))  # type: ignore[valid-type]


def load_plan(path: Path, *, layout: Layout, steps: int) -> tuple[Fault, ...]:
    """Read a plan file.

    Raises:
        BadInput: it cannot be read, holds no fault, or an entry is wrong: names it, its value and the valid choices.
    """
    try:
        text = read_text(path)
    except (OSError, ValueError) as error:  # a path with a zero byte is a ValueError
        why = error.strerror if isinstance(error, OSError) else str(error)
        why = "not UTF-8" if isinstance(error, UnicodeDecodeError) else why
        raise BadInput("--faults", f"cannot be read ({why})", value=str(path)) from None
    return given_plan(text, place=str(path), layout=layout, steps=steps)


def given_plan(text: str, *, place: str, layout: Layout, steps: int) -> tuple[Fault, ...]:
    """The faults of a plan's text, one at least; raises BadInput."""
    faults = parse_plan(text, place=place, layout=layout, steps=steps)
    if not faults:
        raise BadInput(place, "holds no fault", hint="docs/faults.md shows a complete plan")
    return faults


def parse_plan(text: str, *, place: str, layout: Layout, steps: int) -> tuple[Fault, ...]:
    """The faults of a plan's text; raises BadInput."""
    try:
        file = _file().model_validate(tomllib.loads(text))
    except ValidationError as error:
        raise _bad_field(place, error) from None
    except (ValueError, RecursionError) as error:  # a number of too many digits, too
        raise BadInput(place, f"is not TOML: {error}") from None
    faults: list[Fault] = []
    for number, entry in enumerate(file.fault):  # type: ignore[attr-defined]
        faults += _faults(entry, place=f"{place}: fault {number + 1}", layout=layout, steps=steps)
    refuse_twice(faults)
    return tuple(faults)


def plan_text(faults: Iterable[Fault]) -> str:
    """The same as a file: ``parse_plan`` of it gives the same faults."""
    return "\n".join(_entry_text(fault) for fault in faults)


def _entry_text(fault: Fault) -> str:
    said: dict[str, Any] = {"kind": fault.kind}
    if kinds()[fault.kind].of != DISK:
        said["links" if fault.task is None else "task"] = fault.of
    said["at"] = _moment(fault.when)
    if fault.until is not None:
        said["until"] = _moment(fault.until)
    if fault.lasts_s is not None:
        said["for"] = spell(fault.lasts_s)
    if kinds()[fault.kind].restarts:
        said["restart_after"] = "never" if fault.restart_after_s is None else spell(fault.restart_after_s)
    if fault.value:
        said["value"] = fault.value
    said |= dict(fault.amounts)
    return _toml(said)


def _toml(said: Mapping[str, Any]) -> str:
    return "[[fault]]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in said.items())


def _moment(when: When) -> int | str:
    text = str(when)
    return int(text) if text.isascii() and text.isdecimal() else text


def _faults(entry: _Entry, *, place: str, layout: Layout, steps: int) -> list[Fault]:
    if entry.kind not in kinds():
        raise BadInput(f"{place}: kind", "unknown kind", value=entry.kind, choices=kinds())
    kind = kinds()[entry.kind]
    if kind.of == DATA and not isinstance(entry.at, int):
        raise BadInput(f"{place}: at", f"must be a step: {entry.kind} is of one gradient", value=entry.at)
    when = _when(entry.at, place=f"{place}: at", layout=layout, steps=steps)
    if kind.first and when != When():
        raise BadInput(f"{place}: at", 'must be "0s": it is late from the beginning', value=entry.at)
    until = None if entry.until is None else _when(entry.until, place=f"{place}: until", layout=layout, steps=steps)
    lasts = _seconds(entry.lasts, place=f"{place}: for")
    _check_end(kind, entry, when, until, place=place)
    again = RESTART_AFTER if entry.restart_after is None else entry.restart_after
    if entry.restart_after is not None and not kind.restarts:
        raise BadInput(f"{place}: restart_after", f"is not for {entry.kind}", value=entry.restart_after)
    if kind.again and again == "never":
        raise BadInput(f"{place}: restart_after", f"must be a time: {kind.again}", value=again)
    if kind.first and lasts == 0:
        raise BadInput(f"{place}: for", "must be longer than 0s: it would be there with the others", value=entry.lasts)
    common: dict[str, Any] = {
        "kind": entry.kind,
        "when": when,
        "until": until,
        "lasts_s": lasts,
        "restart_after_s": None
        if not kind.restarts or again == "never"
        else _seconds(again, place=f"{place}: restart_after"),
        "value": _value(entry, kind, place=place),
        "amounts": _amounts(entry, kind, place=place),
        "written": place,
    }
    if kind.of_links:
        _only("links", entry, place=place)
        links = region(entry.links or "", layout=layout, place=f"{place}: links")
        return [Fault(region=" ".join((entry.links or "").split()), links=links, **common)]
    if kind.of == DISK:
        for name in ("task", "links"):
            if getattr(entry, name) is not None:
                raise BadInput(f"{place}: {name}", f"is not for {entry.kind}", value=getattr(entry, name))
        return [Fault(region=FOLDER if kind.mounts else NEWEST, **common)]
    _only("task", entry, place=place)
    job = (entry.task or "").partition(":")[0]
    if kind.asked and job in {task.job for task in layout.all_tasks} - {"worker"}:
        raise BadInput(f"{place}: task", f"{entry.kind} is for workers: nothing in a {job} tells", value=entry.task)
    tasks = layout.worker_tasks if kind.of == DATA or kind.asked else layout.all_tasks
    return [Fault(task=task, **common) for task in _tasks(entry.task or "", tasks, layout, place=f"{place}: task")]


def _only(name: str, entry: _Entry, *, place: str) -> None:
    """Of ``task`` and ``links`` a kind takes one."""
    other = {"task": "links", "links": "task"}[name]
    if getattr(entry, other) is not None:
        raise BadInput(f"{place}: {other}", f"is not for {entry.kind}, it takes {name}", value=getattr(entry, other))
    if getattr(entry, name) is None:
        example = {"task": "ps:0, or ps for all of them", "links": "worker:1->ps:0, isolate worker:1 or halves"}[name]
        raise BadInput(f"{place}: {name}", "is missing", hint=f"{entry.kind} takes {name} = {example}")


def _tasks(text: str, among: Iterable[Task], layout: Layout, *, place: str) -> list[Task]:
    found = [task for task in among if text in (str(task), task.job)]
    if not found:
        problem = f"layout {layout.text} has no such task for it"
        raise BadInput(place, problem, value=text, choices=(*dict.fromkeys(t.job for t in among), *map(str, among)))
    return found


def _when(given: int | str, *, place: str, layout: Layout, steps: int) -> When:
    when = When.parse(str(given), place=place)
    when.check(layout=layout, steps=steps, place=place, value=given)
    return when


def _check_end(kind: Kind, entry: _Entry, when: When, until: When | None, *, place: str) -> None:
    ends = [name for name, value in (("until", entry.until), ("for", entry.lasts)) if value is not None]
    if not kind.lasts and ends:
        raise BadInput(f"{place}: {ends[0]}", f"is not for {entry.kind}, which is over by itself", value=ends[0])
    if kind.lasts and len(ends) != 1:
        hint = 'Give until = 25, or for = "2s"'
        raise BadInput(
            place, f"{entry.kind} needs one end, until or for", value=" and ".join(ends) or "none", hint=hint
        )
    if until is None:
        return
    if until.phase and (until.step is None or until.phase == SENT):
        raise BadInput(f"{place}: until", "must be a step or a time", value=entry.until)
    if bool(until.phase) != bool(when.phase):
        raise BadInput(f"{place}: until", "must be a step if at is one, or a time if at is one", value=entry.until)
    comparable = not when.phase or when.step is not None  # a phase alone is somewhere
    if comparable and (until.step or 0, until.after_s) <= (when.step or 0, when.after_s):
        raise BadInput(f"{place}: until", "must come after at", value=entry.until)


def _seconds(text: str | None, *, place: str) -> float | None:
    if text is None:
        return None
    seconds = parse_seconds(text, place=place)
    if not 0 <= seconds <= MAX_S:
        raise BadInput(place, f"must be between 0 and {MAX_S:.0f} s", value=text)
    return seconds


def _value(entry: _Entry, kind: Kind, *, place: str) -> str:
    if not kind.values:
        if entry.value is not None:
            raise BadInput(f"{place}: value", f"is not for {entry.kind}", value=entry.value)
        return ""
    value = entry.value or kind.values[0]
    if value not in kind.values:
        raise BadInput(f"{place}: value", "unknown value", value=value, choices=kind.values)
    return value


def _amounts(entry: _Entry, kind: Kind, *, place: str) -> tuple[tuple[str, int], ...]:
    for name in _amount_names():
        if name not in kind.amounts and getattr(entry, name) is not None:
            choices = tuple(kind.amounts) or ("none",)
            raise BadInput(f"{place}: {name}", f"is not for {entry.kind}", value=getattr(entry, name), choices=choices)
    found = []
    for name, amount in kind.amounts.items():
        value = getattr(entry, name)
        value = amount.usual if value is None else value
        if value is None:
            raise BadInput(f"{place}: {name}", "is missing", hint=amount.about)
        if not amount.least <= value <= amount.most:
            raise BadInput(f"{place}: {name}", f"must be between {amount.least} and {amount.most}", value=value)
        if not value and not amount.zero:
            raise BadInput(f"{place}: {name}", "must not be 0: nothing would happen", value=value)
        found.append((name, value))
    return tuple(found)


def _bad_field(place: str, error: ValidationError) -> BadInput:
    """The first of pydantic's complaints, in our form."""
    first = error.errors()[0]
    location = first["loc"]
    entry = f"fault {int(location[1]) + 1}" if len(location) > 1 else "top level"
    if location == ("fault",):
        return BadInput(f"{place}: fault", "must be a list: [[fault]] before each", value=first["input"])
    name = str(location[2] if len(location) > 2 else location[-1])
    if first["type"] == "extra_forbidden":
        known = [field.alias or key for key, field in _Entry.model_fields.items()]
        fields = [*known, *_amount_names()] if len(location) > 1 else ["fault"]
        return BadInput(f"{place}: {entry}", "unknown field", value=name, choices=sorted(fields))
    where = f"{place}: {entry}" + (f": {name}" if len(location) > 2 else "")
    if first["type"] == "missing":
        return BadInput(where, "is missing", hint="docs/faults.md shows a complete plan")
    if len(location) == 2:
        return BadInput(where, "must be a table: [[fault]] before its lines", value=first["input"])
    if name in ("at", "until"):
        problem = "must be a step, a phase such as after-push:35, or a time such as 1.5s"
        return BadInput(where, problem, value=first["input"])
    return BadInput(where, first["msg"], value=first["input"])
