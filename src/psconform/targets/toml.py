"""target.toml: somebody else's trainer, described in a file."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..claims import DEFAULTS, LEVELS, Claims
from ..errors import BadInput
from ..files import read_text
from ..layout import JOBS, MAX_TASKS, check_jobs
from ..options import REDUCTIONS, UPDATES
from ..workloads import find_workload
from .target import IMAGE, PLACEHOLDERS, Job, Ready, Target, fill, hosts_of

Words = Annotated[list[str], Field(min_length=1)]
_Number = Annotated[int, Field(ge=1, le=MAX_TASKS)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Ready(_Strict):
    port: bool = False
    log: str = ""
    timeout_s: Annotated[float, Field(gt=0, le=600)] = 30.0


class _Job(_Strict):
    command: Words
    env: dict[str, str] = {}
    ready: _Ready = _Ready()
    exits: bool = True


class _Other(_Job):
    """A job that does not train."""

    count: Annotated[int, Field(ge=1, le=MAX_TASKS)] = 1


class _Jobs(_Strict):
    model_config = ConfigDict(extra="allow", strict=True)
    __pydantic_extra__: dict[str, _Other]

    ps: _Job | None = None
    worker: _Job


class _File(_Strict):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    jobs: _Jobs
    tf_config: bool = True
    env: dict[str, str] = {}
    reductions: Annotated[list[str], Field(min_length=1)] | None = None
    workloads: Annotated[list[str], Field(min_length=1)] = ["ledger"]
    compressions: Annotated[list[str], Field(min_length=1)] = ["none"]
    dynamic_work: bool = False
    min_ps: _Number = 1
    max_ps: _Number = MAX_TASKS
    min_workers: _Number = 1
    max_workers: _Number = MAX_TASKS
    batches: bool = False
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    on_failure: Literal["nothing", "restart-task", "restart-all"] | None = None
    cluster_spec: Literal["own", "shared"] = "own"
    push_alone: bool = False
    image: Annotated[str, Field(pattern=f"^({IMAGE})?$")] = ""
    environment: list[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]] = []
    claims: dict[str, dict[str, str]]


def load_target(path: Path) -> Target:
    """Read a target file (docs/targets.md has every field).

    Raises:
        BadInput: it cannot be read, or a field is wrong; names the field, its value and the valid choices.
    """
    try:
        raw = tomllib.loads(read_text(path))
    except OSError as error:
        raise BadInput(str(path), f"cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:  # of TOML, of UTF-8, of a number with thousands of digits
        raise BadInput(str(path), f"is not TOML: {error}") from None
    return target_from(path, raw)


def target_from(path: Path, raw: dict[str, Any], *, within: str = "") -> Target:
    """The target that a table describes, which stands in a file, ``within`` another table maybe; raises BadInput."""
    try:
        file = _File.model_validate(raw)
    except ValidationError as error:
        raise _bad_field(path, error, within=within) from None
    here = path.resolve().parent
    claims = _claims(path, file.claims)
    for reduction in file.reductions or ():
        if reduction not in REDUCTIONS:
            raise BadInput(f"{path}: reductions", "unknown reduction", value=reduction, choices=REDUCTIONS)
    for workload in file.workloads:
        find_workload(workload, place=f"{path}: workloads")
    others = file.jobs.__pydantic_extra__
    check_jobs([(name, job.count) for name, job in others.items()], place=f"{path}: jobs")
    read = partial(_job, path, shared=file.env, known=tuple(map(hosts_of, others)))
    jobs = {"worker": read("worker", file.jobs.worker)}
    if file.jobs.ps is not None:  # else replicas that exchange gradients by all-reduce
        jobs["ps"] = read("ps", file.jobs.ps)
    jobs |= {name: replace(read(name, job), count=job.count) for name, job in others.items()}
    if file.jobs.ps is None and "async" in claims:
        hint = "A target without [jobs.ps] has replicas, which exchange gradients in rounds"
        raise BadInput(f"{path}: claims", "needs [jobs.ps]", value="async", choices=("sync",), hint=hint)
    for job in ("ps", "workers"):
        least, most = (getattr(file, f"{bound}_{job}") for bound in ("min", "max"))
        if least > most:
            raise BadInput(f"{path}: min_{job}", f"is more than max_{job} ({most})", value=least)
    rules = ("optimizer", "schedule", "clip_norm")
    used = [name for name in rules if any(job.uses(name) for job in jobs.values())]
    if used and not any(job.uses("learning_rate") for job in jobs.values()):
        hint = "With an optimizer, a schedule or clipping the learning rate is the trainer's to apply"
        taken = " and ".join(f"{{{name}}}" for name in used)
        raise BadInput(f"{path}: jobs", f"take {taken} without {{learning_rate}}", hint=hint)
    return Target(
        name=file.name,
        source=str(path.resolve()),
        jobs=jobs,
        claims=claims,
        reductions=tuple(_reductions(path, file, jobs)),
        tf_config=file.tf_config,
        here=here,
        workloads=tuple(file.workloads),
        compressions=tuple(file.compressions),
        dynamic_work=file.dynamic_work,
        min_ps=file.min_ps,
        max_ps=file.max_ps,
        min_workers=file.min_workers,
        max_workers=file.max_workers,
        batches=file.batches,
        learning_rate=file.learning_rate,
        on_failure=file.on_failure or "",
        shared=file.cluster_spec == "shared",
        push_alone=file.push_alone,
        image=file.image,
        environment=tuple(file.environment),
        exchanges=("ps",) if file.jobs.ps is not None else ("all-reduce",),
    )


def _reductions(path: Path, file: _File, jobs: Mapping[str, Job]) -> list[str]:
    """The claimed one first; where the file names none, no other unless a command takes it. Raises BadInput."""
    claimed = file.claims.get("sync", {}).get("reduction")
    if file.reductions and claimed in REDUCTIONS and claimed not in file.reductions:
        raise BadInput(
            f"{path}: claims.sync.reduction", "is not among reductions", value=claimed, choices=file.reductions
        )
    usual = [reduction for reduction in REDUCTIONS if reduction in (*Target.reductions, claimed)]
    found = sorted(file.reductions or usual, key=lambda reduction: reduction != claimed)
    return found if file.reductions or any(job.uses("reduction") for job in jobs.values()) else found[:1]


def _job(path: Path, name: str, job: _Job, *, shared: dict[str, str], known: Sequence[str]) -> Job:
    """One job of the file, its templates tried out (``known``: their placeholders for other jobs); raises BadInput."""
    env = tuple({**shared, **job.env}.items())
    for where, text in [("command", part) for part in job.command] + [(f"env.{k}", v) for k, v in env]:
        _check_template(text, known, place=f"{path}: jobs.{name}.{where}")
    for variable, _ in env:
        if not variable or "=" in variable or "\0" in variable:
            raise BadInput(f"{path}: jobs.{name}.env", "is no name of an environment variable", value=variable)
    try:
        re.compile(job.ready.log)
    except re.error as error:
        problem = f"is no regular expression ({error})"
        raise BadInput(f"{path}: jobs.{name}.ready.log", problem, value=job.ready.log) from None
    return Job(tuple(job.command), "", env, Ready(**job.ready.model_dump()), job.exits)


def _check_template(text: str, known: Sequence[str], *, place: str) -> None:
    """Fill it in once for practice, so that a wrong placeholder shows before anything starts."""
    if "\0" in text:
        raise BadInput(place, "must not contain a null character", value=text)
    try:
        fill(text, dict.fromkeys((*PLACEHOLDERS, *known), ""), place=place)
    except TypeError as error:  # {host[name]}
        raise BadInput(place, f"cannot be filled in ({error})", value=text, choices=(*PLACEHOLDERS, *known)) from None


def _claims(path: Path, tables: dict[str, dict[str, str]]) -> dict[str, Claims]:
    if not tables:
        hint = "Write [claims.async] (it may be empty: the usual claims of that mode)"
        raise BadInput(f"{path}: claims", "names no update mode", choices=UPDATES, hint=hint)
    claims = {}
    for update, levels in tables.items():
        if update not in UPDATES:
            raise BadInput(f"{path}: claims", "unknown update mode", value=update, choices=UPDATES)
        place = f"{path}: claims.{update}"
        claims[update] = Claims.from_dict({**DEFAULTS[update].as_dict(), **levels}, place=place)
        for dimension in ("barrier", "reduction"):
            if update == "async" and (level := claims[update].level(dimension)) != "none":
                raise BadInput(f"{place}.{dimension}", "is a promise of sync only", value=level, choices=("none",))
    return claims


def _bad_field(path: Path, error: ValidationError, *, within: str = "") -> BadInput:
    """The first of pydantic's complaints, in our form."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    place = f"{path}: {within}{where}"
    if first["type"] == "missing":
        return BadInput(place, "is missing", hint="docs/targets.md shows a complete file")
    if first["type"] == "extra_forbidden":
        return BadInput(
            f"{path}: {within}{'.'.join(map(str, first['loc'][:-1])) or 'top level'}",
            "unknown field",
            value=str(first["loc"][-1]),
            choices=_fields(first["loc"][:-1]),
        )
    choices: tuple[str, ...] = ()
    if first["loc"][:1] == ("claims",):  # claims, claims.UPDATE, claims.UPDATE.DIMENSION
        known = (UPDATES, tuple(LEVELS), LEVELS.get(where.rpartition(".")[2], tuple(LEVELS)))
        choices = known[min(len(first["loc"]), 3) - 1]
    return BadInput(place, first["msg"], value=first["input"], choices=choices)


def _fields(location: tuple[int | str, ...]) -> list[str]:
    models: dict[int, type[BaseModel]] = {0: _File, 1: _Jobs, 2: _Job, 3: _Ready}
    if len(location) == 2 and location[1] not in JOBS:
        return sorted(_Other.model_fields)
    return sorted(models[min(len(location), 3)].model_fields)
