"""A layout in a file: how many tasks of each job, and what each of them may use (docker/layouts has examples)."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..errors import BadInput
from ..files import read_text
from ..launchers.blueprint import Limits, Resources
from ..layout import MAX_GPUS, MAX_TASKS, Layout
from ..sizes import parse_size
from ..targets.compose import LEAST_CPUS, LEAST_MEMORY

FILE = "layout.toml"
"""In the run folder, if tasks were limited."""


class _Job(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    count: Annotated[int, Field(ge=0, le=MAX_TASKS)]
    cpus: Annotated[float, Field(ge=0, le=1024)] = 0.0
    memory: str = ""
    shared_memory: str = ""


class _Worker(_Job):
    gpus: Annotated[int, Field(ge=0, le=MAX_GPUS)] = 0


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    ps: _Job
    worker: _Worker


@dataclass(frozen=True, kw_only=True)
class LayoutFile:
    """What a file says.

    Attributes:
        text: the spelling that ``--layout`` takes, ``ps=1,worker=2,gpus=1``.
        limits: by job what its tasks may use, if that is not all there is.
    """

    text: str
    limits: Limits


def read_layout(path: Path) -> LayoutFile:
    """Read one.

    Raises:
        BadInput: it cannot be read, or a field is wrong; names the field, its value and the valid choices.
    """
    try:
        file = _File.model_validate(tomllib.loads(read_text(path)))
    except OSError as error:
        raise BadInput("--layout", f"cannot be read ({error.strerror})", value=str(path)) from None
    except ValidationError as error:
        raise _bad_field(path, error) from None
    except (ValueError, RecursionError) as error:
        raise BadInput(str(path), f"is not TOML: {error}") from None
    resources = tuple((name, _resources(path, name, job)) for name, job in (("ps", file.ps), ("worker", file.worker)))
    gpus = f",gpus={file.worker.gpus}" if file.worker.gpus else ""
    return LayoutFile(
        text=f"ps={file.ps.count},worker={file.worker.count}{gpus}",
        limits=tuple(pair for pair in resources if pair[1] != Resources()),
    )


def layout_text(layout: Layout, limits: Limits) -> str:
    """The file that says so."""
    lines = []
    for job, count in (("ps", layout.ps), ("worker", layout.workers)):
        of = dict(limits).get(job, Resources())
        lines += [f"[{job}]", f"count = {count}"]
        lines += [f"gpus = {layout.gpus}"] if job == "worker" and layout.gpus else []
        lines += [f"cpus = {of.cpus}"] if of.cpus else []
        sizes = (("memory", of.memory), ("shared_memory", of.shared_memory))
        lines += [f'{name} = "{size >> 10}KiB"' for name, size in sizes if size]
        lines.append("")
    return "\n".join(lines)


def _resources(path: Path, name: str, job: _Job) -> Resources:
    sizes = {
        field: parse_size(text, place=f"{path}: {name}.{field}") if (text := getattr(job, field)) else 0
        for field in ("memory", "shared_memory")
    }
    if 0 < sizes["memory"] < LEAST_MEMORY:
        raise BadInput(f"{path}: {name}.memory", "must be at least 6MiB", value=job.memory)
    if 0 < job.cpus < LEAST_CPUS:
        raise BadInput(
            f"{path}: {name}.cpus", f"must be at least {LEAST_CPUS}, or 0: all that there are", value=job.cpus
        )
    return Resources(cpus=job.cpus, **sizes)


def _bad_field(path: Path, error: ValidationError) -> BadInput:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "missing":
        return BadInput(f"{path}: {where}", "is missing", hint="docker/layouts has complete examples")
    if first["type"] == "extra_forbidden":
        models: dict[str, type[BaseModel]] = {"ps": _Job, "worker": _Worker}
        model = models.get(str(first["loc"][0]), _File) if len(first["loc"]) > 1 else _File
        above = ".".join(map(str, first["loc"][:-1])) or "top level"
        return BadInput(f"{path}: {above}", "unknown field", value=str(first["loc"][-1]), choices=model.model_fields)
    return BadInput(f"{path}: {where}", first["msg"], value=first["input"])
