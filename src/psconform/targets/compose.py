"""``compose:FILE``: somebody's Compose file as a target. Its services with a label ``psconform.task`` are the tasks.

The file is read with whichever Compose is here, the plugin (``docker compose``) or the older program
(``docker-compose``), and never written to. psconform starts the containers itself, for there are proxies, rules and a
helper between them; it takes of a service what is in ``TAKEN``, and refuses what it would have to leave out.

Variables such as ``${PSCONFORM_STEPS:-200}`` stand for the placeholders of a target file; by hand they have defaults.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import BadInput
from ..files import is_file, read_text
from ..layout import Command, Layout, Task
from ..parts import COMPOSE, Missing, pip_install
from ..probe import UNIT
from .target import PLACEHOLDERS, Addresses, Target, fill, tf_config
from .toml import target_from

PREFIX = "compose:"
TASK_LABEL, PORT_LABEL, EXTENSION = "psconform.task", "psconform.port", "x-psconform"
PORT = 2222
TAKEN = (
    *("command", "cpus", "entrypoint", "environment", "image", "labels", "mem_limit", "shm_size", "working_dir"),
    "deploy.resources.limits",
)
LEFT = frozenset(
    (
        *("build", "container_name", "depends_on", "env_file", "expose", "healthcheck", "hostname", "init", "logging"),
        *("networks", "ports", "profiles", "pull_policy", "restart", "stdin_open", "stop_grace_period", "stop_signal"),
        *("cap_drop", "platform", "read_only", "security_opt", "tmpfs", "tty", "user"),
    )
)
"""What says how a service is started and reached, which is psconform's to decide, or which privileges it lacks."""
_MARK = "PsConformStandsFor"
_MARKED = re.compile(rf"{_MARK}_([a-z_]+)_")
FILLED = ("command", "entrypoint", "environment")
"""Where placeholders are filled in."""
READ_S = 60
LEAST_MEMORY = 6 << 20
"""The engine refuses a task less memory than this."""
LEAST_CPUS = 0.01
"""The kernel shares out no less than a millisecond of each period."""
HOSTS = ("ps_hosts", "worker_hosts", "hosts")


@dataclass(frozen=True)
class Service:
    """What of a service its task's container has; of numbers, 0: not said.

    ``entrypoint``: the command takes the place of the image's; else it is what the image's is given, if anything.
    ``others``: names at which it is found beside its own.
    """

    name: str
    image: str
    others: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    entrypoint: bool = False
    env: tuple[tuple[str, str], ...] = ()
    working_dir: str = ""
    port: int = PORT
    cpus: float = 0.0
    memory: int = 0
    shared_memory: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """At which the others find it."""
        return tuple(dict.fromkeys((self.name, *self.others)))


@dataclass(frozen=True)
class ComposeTarget(Target):
    """A target whose tasks are services, each with a command of its own.

    ``fixed``: they know each other by the names of the services, whatever they are told.
    """

    services: Mapping[Task, Service] | None = None

    @property
    def fixed(self) -> bool:
        """Nobody tells its tasks where the others are."""
        return not self.tf_config and not any(self.uses(name) for name in HOSTS)

    @property
    def layout(self) -> str:
        """The layout that the file has."""
        tasks = self.services or {}
        return ",".join(f"{job}={sum(task.job == job for task in tasks)}" for job in ("ps", "worker"))

    def fits(self, layout: Layout) -> None:
        """Raises BadInput if it is another cluster than the file's."""
        if set(layout.tasks) != set(self.services or {}):
            raise BadInput("--layout", "is not that of the Compose file", value=layout.text, choices=(self.layout,))

    def command(
        self,
        task: Task,
        addresses: Addresses,
        *,
        layout: Layout,
        workload: Mapping[str, str | int | float],
        listens: str = "",
    ) -> Command:
        """The command of a task's service, with what its variables stand for; empty: the image's."""
        service = (self.services or {})[task]
        values = self._values(task, addresses, layout=layout, workload=workload, listens=listens or addresses[task])
        said = dict((*self.jobs[task.job].env, *service.env))  # nearer is stronger
        env = {key: fill(text, values, place=f"{service.name}: {key}") for key, text in said.items()}
        if self.tf_config:
            env["TF_CONFIG"] = tf_config(task, addresses)
        argv = tuple(fill(part, values, place=f"{service.name}: command") for part in service.command)
        return Command(argv, env, "", service.working_dir or "/")


def load_compose(path: Path) -> ComposeTarget:
    """Read a Compose file.

    Raises:
        BadInput: it cannot be read, or says something that a judged run cannot do; names the service and the field.
        PsconformError: there is no Compose.
    """
    variables = {f"PSCONFORM_{name.upper()}": f"{_MARK}_{name}_" for name in PLACEHOLDERS}
    said = resolve(path, variables)
    services: dict[Task, Service] = {}
    for name, content in (said.get("services") or {}).items():
        label = _pairs(content.get("labels")).get(TASK_LABEL)
        if label is None:
            continue
        place = f"{path}: services.{name}.labels"
        task = Task.parse(label, place=place)
        if task in services:
            raise BadInput(place, f"{services[task].name} is {TASK_LABEL}, too", value=label)
        services[task] = _service(content, name=name, place=f"{path}: services.{name}")
    _check_tasks(path, services)
    _check_names(path, services)
    raw = read_extension(path, EXTENSION)
    rate = raw.pop("learning_rate", None)
    target = _described(path, raw, services)
    found = ComposeTarget(**target, services=dict(sorted(services.items())))
    if found.fixed and found.shared:
        problem = "must be own where services know each other by name: each is diverted in its own network"
        raise BadInput(f"{path}: {EXTENSION}.cluster_spec", problem, value="shared", choices=("own",))
    if rate is not None:
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < 1e6:
            raise BadInput(f"{path}: {EXTENSION}.learning_rate", "must be a positive number", value=rate)
        return replace(found, unit=lambda layout: UNIT * rate / _share(found, layout))
    if found.fixed:
        told = "Have it told where the others are (${PSCONFORM_PS_HOSTS:-...}, or tf_config: true)"
        hint = f"{told}, or say {EXTENSION}.learning_rate"
        raise BadInput(str(path), "is one cluster for good, so nobody can calibrate it with one worker", hint=hint)
    return found


def _described(path: Path, raw: dict[str, Any], services: Mapping[Task, Service]) -> dict[str, Any]:
    """What a target file would say, of the extension and of what the services' commands contain."""
    jobs = raw.pop("jobs", {})
    if not isinstance(jobs, dict):
        raise BadInput(f"{path}: {EXTENSION}.jobs", "must be a table", value=jobs)
    for job, of in jobs.items():
        if not isinstance(of, dict):
            raise BadInput(f"{path}: {EXTENSION}.jobs.{job}", "must be a table", value=of)
        if "command" in of:
            raise BadInput(f"{path}: {EXTENSION}.jobs.{job}.command", "is said by the services", value=of["command"])
    if "image" in raw:
        raise BadInput(f"{path}: {EXTENSION}.image", "is said by the services", value=raw["image"])
    made: dict[str, Any] = {job: dict(of) for job, of in jobs.items()}
    for task, service in services.items():
        words = [*service.command, *(text for _, text in service.env)]
        job = made.setdefault(task.job, {})
        job["command"] = [*job.get("command", []), *words] or [service.name]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", path.resolve().parent.name).strip("-._") or "compose"
    target = target_from(path, {"name": name, "tf_config": False, **raw, "jobs": made}, within=f"{EXTENSION}.")
    described = {field: getattr(target, field) for field in Target.__dataclass_fields__}
    return described | {"source": f"{PREFIX}{path.resolve()}"}


def _service(content: Mapping[str, Any], *, name: str, place: str) -> Service:
    """One labelled service; raises BadInput for what would have to be left out."""
    given, deploy = _said(content), _said(content.get("deploy") or {})
    given.pop("deploy", None)
    resources = _said(deploy.pop("resources", {}))
    limits = _said(resources.pop("limits", {}))
    others = {f"deploy.{key}": value for key, value in deploy.items()}
    others |= {f"deploy.resources.{key}": value for key, value in resources.items()}
    others |= {f"deploy.resources.limits.{key}": limits[key] for key in limits.keys() - {"cpus", "memory"}}
    for key, value in (given | others).items():
        if key not in TAKEN and key not in LEFT and not key.startswith("x-"):
            raise BadInput(f"{place}.{key}", "cannot be had in a judged run", value=value, choices=TAKEN)
    _check_words(content, place=place)
    if not given.get("image"):
        raise BadInput(f"{place}.image", "is missing", hint="Build it, and name it here: psconform starts containers")
    entrypoint, command = (_words(given.get(key)) for key in ("entrypoint", "command"))
    port = _pairs(given.get("labels")).get(PORT_LABEL, str(PORT))
    if not (port.isascii() and port.isdecimal()) or not 0 < int(port) < 1 << 16:
        raise BadInput(f"{place}.labels.{PORT_LABEL}", "must be a port", value=port)
    cpus = _cpus(given.get("cpus") or limits.get("cpus") or 0, place=f"{place}.cpus")
    return Service(
        name=name,
        image=str(given["image"]),
        others=_others(given, place=place),
        command=tuple(map(_template, (*entrypoint, *command))),
        entrypoint=bool(entrypoint),
        env=tuple((key, _template(text)) for key, text in _pairs(given.get("environment")).items()),
        working_dir=str(given.get("working_dir", "")),
        port=int(port),
        cpus=cpus,
        memory=_memory(given.get("mem_limit") or limits.get("memory", 0), place=f"{place}.mem_limit"),
        shared_memory=parse_size(given.get("shm_size", 0), place=f"{place}.shm_size"),
    )


def _others(given: Mapping[str, Any], *, place: str) -> tuple[str, ...]:
    """Names beside a service's own at which Docker finds it: of its container, and its aliases in its networks.

    https://docs.docker.com/reference/compose-file/services/#aliases
    """
    networks = given.get("networks")
    of_networks = [_said(said or {}) for said in networks.values()] if isinstance(networks, Mapping) else []
    for said in of_networks:
        for key in sorted(said.keys() - {"aliases", "priority", "gw_priority"}):
            raise BadInput(f"{place}.networks", f"{key} cannot be had in a judged run", value=said[key])
    aliases = [str(alias) for said in of_networks for alias in said.get("aliases", ())]
    return tuple(filter(None, (str(given.get("container_name", "")), *aliases)))


def _check_words(content: Mapping[str, Any], *, place: str) -> None:
    """Raises BadInput for a placeholder that psconform does not fill in, and for what looks as if it were not said."""
    for key in sorted(content.keys() - set(FILLED)):
        if _MARKED.search(text := str(content[key])):
            said = _MARKED.sub(lambda match: f"${{PSCONFORM_{match[1].upper()}}}", text)
            raise BadInput(f"{place}.{key}", "cannot be made of a placeholder", value=said, choices=FILLED)
    for key in ("entrypoint", "command"):
        if content.get(key) in ([], ""):
            hint = "Say what is to be run: psconform takes an image's own only as a whole"
            raise BadInput(
                f"{place}.{key}", "is empty, which takes away the image's own", value=content[key], hint=hint
            )
    tmpfs = content.get("tmpfs") or ()
    for mounted in [tmpfs] if isinstance(tmpfs, str) else tmpfs:
        if str(mounted).rstrip("/") != "/tmp":  # which is as large for everybody
            raise BadInput(f"{place}.tmpfs", "cannot be had in a judged run", value=mounted, choices=("/tmp",))


def _cpus(given: Any, *, place: str) -> float:
    with contextlib.suppress(ValueError, TypeError):
        if not (cpus := float(given)) or LEAST_CPUS <= cpus < math.inf:
            return cpus
    raise BadInput(place, f"must be a number of CPUs, not below {LEAST_CPUS}, or 0", value=given)


def _memory(given: Any, *, place: str) -> int:
    size = parse_size(given, place=place)
    if size and size < LEAST_MEMORY:
        raise BadInput(place, f"must be at least {LEAST_MEMORY >> 20} MiB, or 0", value=given)
    return size


def _said(content: Mapping[str, Any]) -> dict[str, Any]:
    """What is not empty: Compose prints much that nobody has said."""
    return {key: value for key, value in content.items() if value not in (None, [], {}, False, "")}


def _check_tasks(path: Path, services: Mapping[Task, Service]) -> None:
    """Raises BadInput unless tasks are numbered from 0, and there is a worker."""
    counts = {job: sorted(task.index for task in services if task.job == job) for job in ("ps", "worker")}
    wrong = [str(task) for task in services if task.job not in counts]
    if wrong or any(found != list(range(len(found))) for found in counts.values()) or not counts["worker"]:
        named = ", ".join(sorted(map(str, services))) or "none"
        hint = f"Label services {TASK_LABEL}: ps:0, worker:0, worker:1 and so on"
        raise BadInput(f"{path}: services", "are no cluster of ps and workers, each from 0", value=named, hint=hint)


def _check_names(path: Path, services: Mapping[Task, Service]) -> None:
    """Raises BadInput if a name is another task's, too: who dials it would reach either."""
    for task, service in services.items():
        for other in (other for other in services if other != task):
            for name in service.names:
                if name in (other.slug, *services[other].names):
                    hint = f"In a run {other} is found as {other.slug}, too: label it so, or give it another name"
                    raise BadInput(
                        f"{path}: services.{service.name}", f"is {task}, and {other}, too", value=name, hint=hint
                    )


def _words(given: Any) -> list[str]:
    """A command as Compose has it: words, or a line that a shell would split."""
    return shlex.split(given) if isinstance(given, str) else [str(word) for word in given or ()]


def _pairs(given: Any) -> dict[str, str]:
    """Labels, or an environment: a mapping, or a list of NAME=VALUE; what has no value is left out."""
    if isinstance(given, Mapping):
        return {str(key): str(value) for key, value in given.items() if value is not None}
    return dict(item.split("=", 1) for item in given or () if "=" in item)


def _template(text: str) -> str:
    """Braces are braces, and what stands for a placeholder is one; Compose doubles each dollar of what it prints."""
    plain = text.replace("$$", "$").replace("{", "{{").replace("}", "}}")
    return _MARKED.sub(r"{\1}", plain)


def _share(target: Target, layout: Layout) -> int:
    mean = layout.update == "sync" and target.claimed(layout).averages
    return layout.per_round if mean else 1


@cache
def compose() -> tuple[tuple[str, ...], str]:
    """The Compose of this machine, as the words of a command, and its version; two empty ones: there is none."""
    for words in (("docker", "compose"), ("docker-compose",)):
        if shutil.which(words[0]) is None:
            continue
        done = _run([*words, "version", "--short"])
        if done is not None and done.returncode == 0:
            return words, done.stdout.strip()
    return (), ""


def resolve(path: Path, variables: Mapping[str, str]) -> dict[str, Any]:
    """What a Compose file says once its variables, anchors and extensions are put in.

    Raises:
        BadInput: it is not there, or Compose refuses it, in whose words.
        PsconformError: there is no Compose, or no PyYAML.
    """
    if not is_file(path):
        raise BadInput("TARGET", "there is no such Compose file", value=str(path))
    words, _ = compose()
    if not words:
        raise Missing(COMPOSE, "not installed")
    # the plugin prints YAML that any parser takes; JSON only it can print
    done = _run([*words, "-f", str(path.resolve()), "config"], variables)
    if done is None or done.returncode:
        said = " ".join((done.stderr if done is not None else "it did not end").split())
        raise BadInput(str(path), f"is refused by {' '.join(words)}: {said[:400]}")
    return _table(done.stdout, place=str(path))


def read_extension(path: Path, name: str) -> dict[str, Any]:
    """A table of the file that Compose leaves alone (``x-...``); empty: there is none."""
    said = _table(read_text(path), place=str(path)).get(name) or {}
    if not isinstance(said, dict):
        raise BadInput(f"{path}: {name}", "must be a table", value=said)
    return said


def parse_size(given: Any, *, place: str) -> int:
    """Bytes, of a number or of ``512m``, ``1gb``; raises BadInput."""
    if isinstance(given, int):
        return given
    from docker.errors import DockerException
    from docker.utils import parse_bytes

    try:
        return int(parse_bytes(str(given)))
    except DockerException:
        raise BadInput(place, "is no size in bytes, such as 512m", value=given) from None


def _run(words: list[str], variables: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str] | None:
    env = {**os.environ, **(variables or {})}
    try:
        return subprocess.run(
            words, env=env, capture_output=True, text=True, errors="replace", timeout=READ_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None


def _table(text: str, *, place: str) -> dict[str, Any]:
    try:
        import yaml
    except ImportError:
        raise Missing(COMPOSE, "there is no Python module yaml", pip_install("pyyaml")) from None
    try:
        said = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise BadInput(place, f"is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(said, dict):
        raise BadInput(place, "is no Compose file")
    return said
