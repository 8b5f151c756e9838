"""A recorded run: a run folder without what tells of the machine, in an archive, and what judging it must give.

``tests/data/recorded/NAME.tar.xz`` is the run folder, NAME.json the expectation. The digits are the same in every run
that trains on them, so they are kept once, beside the archives.

What is left out is what judging does not need: spec.json, done/, checkpoints/, losses.json, verdicts.json, and logs but
for the last line and the stacks in those of a run that stalled, which its witness shows.
"""

from __future__ import annotations

import dataclasses
import io
import json
import lzma
import re
import socket
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import msgspec

from psconform.history import logs
from psconform.history.manifest import Manifest, Workload
from psconform.layout import Layout
from psconform.runner.verdicts import Judged
from psconform.trained import DATA
from psconform.verdict import Verdict

from .mutations import measured, rechained
from .old_folders import convert

RECORDED = Path(__file__).parent / "data" / "recorded"
LARGEST = 50_000
"""Bytes of an archive."""
RUN = "recorded"
"""The id of every recorded run."""
PARTS = ("manifest.json", "faults.toml", "layout.toml", "events", "vectors", "logs", "plain", "twin")
LEAST = {"steps", "seed", "unit", "scales", "rate"}
"""Fields of a workload that are no mode of it."""


# What a machine is known by

PATH = re.compile(r"(?<![\w.<>/:+=-])(?:/[\w.+@~-]+)+/?")
ADDRESS = re.compile(r"\b(\d{1,3}(?:\.\d{1,3}){3})(?::(\d{2,5}))?\b")
BOOT = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")
CONTAINER = re.compile(r"\b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*[0-9])(?:[0-9a-f]{64}|[0-9a-f]{12})\b")
PROCESS = re.compile(r"\b(pid|process|tid|[EFIW]\d{4} \d\d:\d\d:[\d.]+ ) *[1-9]\d*\b")
"""With the prefix of a line that TensorFlow logs: level and day, time, thread."""
THREAD = re.compile(r"\b0x[0-9a-f]{6,}")
KNOWN = re.compile(r"/(psconform|site-packages|python3\.\d+)/(.+)")
LOCAL, EXAMPLE = "127.0.0.1", "192.0.2."
"""The only addresses in a recorded run: of this machine, and of the net that RFC 5737 keeps for examples."""
HARMLESS = (LOCAL, "0.0.0.0")
FIELDS: dict[str, Callable[[Any], bool]] = {
    "pid": lambda pid: pid == 0,
    "boot": lambda boot: re.fullmatch(r"|boot-\d+", boot) is not None,
    "run": lambda run: run == RUN or isinstance(run, int),  # the id of a run, or how many bytes it may have
    "system": lambda system: system in ("", "Linux", "Darwin"),
    **dict.fromkeys(("host", "hostname", "node", "user", "home", "cwd"), lambda _: False),
}
"""Fields that hold something of a machine, and what they hold where they do not."""


@dataclass
class Scrubber:
    """Replaces what tells of a machine; what was equal stays equal."""

    runs: tuple[str, ...] = ()
    known: dict[tuple[str, str], str] = field(default_factory=dict)

    def placeholder(self, kind: str, found: str, spelled: str) -> str:
        """The same one for the same thing, numbered from 1."""
        if (kind, found) not in self.known:
            number = 1 + sum(of == kind for of, _ in self.known)
            self.known[kind, found] = spelled.format(number)
        return self.known[kind, found]

    @cached_property
    def hosts(self) -> re.Pattern[str]:
        """The names of this machine."""
        names = {socket.gethostname(), socket.getfqdn()} - {"localhost", ""}
        return re.compile("|".join(rf"\b{re.escape(name)}\b" for name in sorted(names, key=len)) or r"(?!)")

    def text(self, text: str) -> str:
        """Any text that a run folder holds."""
        for run in self.runs:
            text = text.replace(run, RUN)
        text = self.hosts.sub("host", text)
        text = BOOT.sub(lambda match: self.placeholder("boot", match[0], "boot-{}"), text)
        text = CONTAINER.sub(lambda match: self.placeholder("container", match[0], "container-{}"), text)
        text = PROCESS.sub(r"\1 0", text)
        text = THREAD.sub("0x0", text)
        text = PATH.sub(self._path, text)
        return ADDRESS.sub(self._address, text)

    def value(self, value: Any, name: str = "") -> Any:
        """A value of JSON, that of a field whose name says what it is among them."""
        if name == "pid":
            return 0
        if name == "boot" and value:
            return self.placeholder("boot", str(value), "boot-{}")
        if isinstance(value, str):
            return value if name == "raw" else self.text(value)
        if isinstance(value, list):
            return [self.value(item, name) for item in value]
        return {key: self.value(item, key) for key, item in value.items()} if isinstance(value, dict) else value

    def _path(self, match: re.Match[str]) -> str:
        known = KNOWN.search(match[0])
        return f".../{known[1]}/{known[2]}" if known else ".../" + match[0].rstrip("/").rpartition("/")[2]

    def _address(self, match: re.Match[str]) -> str:
        host = match[1]
        if host not in HARMLESS:
            host = self.placeholder("address", host, EXAMPLE + "{}")
        return host + (":" + self.placeholder("port", match[2], "{}") if match[2] else "")


def leaks(folder: Path) -> Iterator[str]:
    """What in a run folder tells of the machine that it ran on."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        if path.suffix in (".bin", ".npz"):
            continue
        text = path.read_text(encoding="utf-8")
        for pattern in (PATH, BOOT, CONTAINER, PROCESS):
            yield from (f"{path.name}: {match[0]}" for match in pattern.finditer(text))
        hosts = (match[1] for match in ADDRESS.finditer(text))
        yield from (f"{path.name}: {host}" for host in hosts if host not in HARMLESS and not host.startswith(EXAMPLE))
        if path.suffix in (".json", ".jsonl"):
            for value in [json.loads(text)] if path.suffix == ".json" else map(json.loads, text.splitlines()):
                yield from (f"{path.name}: {name} {value}" for name, value in _named(value))


def _named(value: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Fields that hold something of the machine, by their names."""
    for name, item in value.items():
        if name in FIELDS and not FIELDS[name](item):
            yield name, item
        if isinstance(item, dict):
            yield from _named(item)


# A run folder -> a recorded one


def scrub(folder: Path, scrubber: Scrubber) -> None:
    """Leave out of a copy of a run folder what judging does not need, and what tells of the machine."""
    manifest = Manifest.read(folder)
    scrubber.runs += (manifest.run,)
    path = folder / "manifest.json"
    content = scrubber.value(json.loads(path.read_bytes()))
    content["platform"] = {**content["platform"], "system": content["platform"].get("system", "").partition("-")[0]}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    for path in (folder / "faults.toml", folder / "layout.toml"):
        if path.is_file():
            path.write_text(scrubber.text(path.read_text(encoding="utf-8")), encoding="utf-8")
    for path in sorted((folder / "events").iterdir()):
        whole, newline, torn = path.read_bytes().rpartition(b"\n")
        events = [scrubber.value(json.loads(line)) for line in whole.splitlines()]
        lines = rechained([json.dumps(event).encode() for event in events], smooth=False)
        path.write_bytes(b"".join(lines) + torn if newline else torn)
    measured(folder)
    for path in sorted((folder / "logs").iterdir()):
        path.write_text(scrubber.text(_last_words(path)) if manifest.status == "stalled" else "", encoding="utf-8")
    for path in (path for path in folder.iterdir() if path.is_dir() and (path / "manifest.json").is_file()):
        scrub(path, scrubber)


def _last_words(log: Path) -> str:
    """The last line that a task logged, and its stacks if there are any: what the witness of a hang shows."""
    text = log.read_text(encoding="utf-8", errors="replace")
    own, _ = logs.split(text)
    kept = [line for line in own.splitlines() if line.strip()][-1:]
    return "\n".join([*kept, *([logs.MARK + text.rpartition(logs.MARK)[2]] if logs.MARK in text else [])])


def pack(folder: Path, archive: Path) -> None:
    """Write a run folder into an archive, the same bytes for the same folder; the digits beside it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path in _files(folder):
            info = tarfile.TarInfo(path.relative_to(folder).as_posix())
            info.size, info.mode = path.stat().st_size, 0o644
            tar.addfile(info, io.BytesIO(path.read_bytes()))
    archive.parent.mkdir(parents=True, exist_ok=True)
    archive.write_bytes(lzma.compress(buffer.getvalue(), preset=6 | lzma.PRESET_EXTREME))
    digits, kept = folder / DATA, archive.parent / f"{DATA}.xz"
    if digits.is_file() and not kept.is_file():
        kept.write_bytes(lzma.compress(digits.read_bytes(), preset=6 | lzma.PRESET_EXTREME))


def _files(folder: Path) -> list[Path]:
    """What is kept of it, in order."""
    parts = (folder / part for part in PARTS)
    found = [path for part in parts for path in (part.rglob("*") if part.is_dir() else [part]) if path.is_file()]
    inner = {"plain", "twin"}
    kept = [
        path
        for path in found
        if path.name != DATA and (path.relative_to(folder).parts[0] not in inner or _kept(path.relative_to(folder)))
    ]
    return sorted(path for path in kept if path.stat().st_size or path.parent.name == "events")


def _kept(path: Path) -> bool:
    return path.parts[1] in PARTS


def extract(archive: Path, folder: Path) -> None:
    """What an archive holds, as it was recorded."""
    with tarfile.open(archive, "r:xz") as tar:
        for member in tar:  # extractall has filters since Python 3.11.4 only, and warns without one in later ones
            path = folder / member.name
            if member.isdir():
                path.mkdir(parents=True, exist_ok=True)
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            data = tar.extractfile(member)
            assert data is not None
            path.write_bytes(data.read())


def unpack(archive: Path, folder: Path) -> None:
    """The run folder of an archive, as psconform writes one today."""
    extract(archive, folder)
    for path in folder.rglob("manifest.json"):
        convert(path.parent)
    for inner in (folder, folder / "twin"):
        path = inner / "manifest.json"
        if path.is_file() and Manifest.read(inner).workload.name == "digits":
            (inner / DATA).write_bytes(lzma.decompress((archive.parent / f"{DATA}.xz").read_bytes()))


def scrubbed_copy(run: Path, folder: Path) -> Scrubber:
    """Make ``folder`` what is recorded of a run; returns what was replaced in it."""
    with tempfile.TemporaryDirectory() as temporary:
        archive = Path(temporary) / "run.tar.xz"
        pack(run, archive)
        unpack(archive, folder)
    for inner in (folder, folder / "plain", folder / "twin"):
        if inner.is_dir():
            (inner / "logs").mkdir(exist_ok=True)
    scrubber = Scrubber()
    scrub(folder, scrubber)
    return scrubber


# What judging it must give

TASK = re.compile(r"\b(?:worker|ps):\d+\b")
STEPS = re.compile(r"\b(?:step|round)s? (\d+(?:(?:, | to | and )\d+)*)\b(?! more)")
"""Verdicts have their witnesses as sentences only, so tasks and steps are found in them, here and nowhere else."""
OPTION = re.compile(r"--([a-z-]+)(?: ([\w.,=-]+(?: or [\w-]+)*))?")
CLAIM = re.compile(r"needs a claim: (\w+) is")
NEEDS = {
    "a fault: ": "fault",
    "a rollback: ": "rollback",
    "a run without faults": "no fault",
    "a run in which no": "no death",
    "a ps: ": "ps",
    "replicas, ": "replicas",
    "a worker that comes back": "return",
    "a worker that leaves": "leave",
    "gradients that arrive whole": "lossless gradients",
    "gradients that are sent once": "single sending",
    "versions in reads": "versions",
    "a cluster epoch": "epoch",
    "training hung": "end",
    "training ended": "end",
    "three faults of one kind": "three faults alike",
    "faults that are healed": "healed faults",
    "faults that last as long": "longer faults",
    "tasks that went on until": "tasks alive",
    "a round with the gradients of all": "full rounds",
    "a read before each push": "read before push",
    "samples": "samples",
    "all workers on one machine": "one machine",
    "the ps of each variable": "shards",
    "the initialiser": "initial values",
    **{f"{number} steps of a worker": "steps" for number in range(2, 100)},
}
"""How the sentences begin that say what a check needs, where that is no option and no claim."""


def needed(reason: str) -> list[str]:
    """What a check would need to judge, as values; ValueError where that is in words that are not known here."""
    text = reason.removeprefix("needs ")
    if text.startswith("--"):
        found = OPTION.findall(text)
        return [f"{name}={value}" if value else name for name, values in found for value in values.split(" or ")]
    if claim := CLAIM.match(reason):
        return [f"claim={claim[1]}"]
    for begin, value in NEEDS.items():
        if text.startswith(begin):
            return [value]
    raise ValueError(f"say in NEEDS of {__name__} what this is: {reason!r}")


def evidence(verdict: Verdict) -> dict[str, Any]:
    """The tasks and steps that a witness names."""
    lines = "\n".join(verdict.witness)
    steps = {int(step) for text in STEPS.findall(lines) for step in re.findall(r"\d+", text)}
    return {"tasks": sorted(set(TASK.findall(lines))), "steps": sorted(steps)}


def expectation(judged: Judged) -> dict[str, Any]:
    """What a run is of, and what it must be judged as."""
    by_status: dict[str, Any] = {}
    for status, said in (
        ("violated", evidence),
        ("unknown", None),
        ("valid", None),
        ("not judged", lambda verdict: needed(verdict.reason)),
    ):
        found = [verdict for verdict in judged.verdicts if verdict.status == status]
        by_status[status] = {v.guarantee: said(v) for v in found} if said else [v.guarantee for v in found]
    anomalies = [{"kind": a.kind, "task": a.task, "step": a.step} for a in judged.anomalies]
    found = {"covers": covers(judged), **by_status, "anomalies": anomalies}
    return json.loads(json.dumps(found))  # lists for tuples


def covers(judged: Judged) -> dict[str, Any]:
    """The defect, the mode of training (what is not as usual) and the kinds of faults that took effect."""
    manifest = judged.manifest
    layout = {name: value for name, value in dataclasses.asdict(manifest.layout).items() if value != USUAL[name]}
    workload = msgspec.to_builtins(manifest.workload)
    usual = msgspec.to_builtins(Workload())
    return {
        "defect": manifest.defect,
        "launcher": manifest.launcher,
        "layout": layout,
        "workload": {name: value for name, value in workload.items() if value != usual[name] and name not in LEAST},
        "checkpoints": "seconds" if manifest.checkpoint_seconds else "steps" if manifest.checkpoint_every else "none",
        "faults": sorted({fault.kind for fault in judged.history.faults}),
    }


USUAL = dataclasses.asdict(Layout())


def statuses(expected: dict[str, Any]) -> dict[str, str]:
    """By guarantee."""
    return {name: status for status in ("violated", "unknown", "valid", "not judged") for name in expected[status]}


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """In verdicts, and in the tasks that show an anomaly, a line each."""
    old, new = statuses(before), statuses(after)
    seen, sees = ({(a["kind"], a["task"]) for a in run["anomalies"]} for run in (before, after))
    return [
        *(
            f"{name}: {old.get(name, 'not there')} -> {new.get(name, 'not there')}"
            for name in sorted(old.keys() | new.keys())
            if old.get(name) != new.get(name)
        ),
        *(f"anomaly {kind} of {task}: no more" for kind, task in sorted(seen - sees)),
        *(f"anomaly {kind} of {task}: new" for kind, task in sorted(sees - seen)),
    ]


def dumped(expected: dict[str, Any]) -> str:
    """JSON with a line for each guarantee, so that a difference is one line."""
    lines = [f'  "{key}": {_value(value)}' for key, value in expected.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _value(value: Any) -> str:
    if isinstance(value, dict) and value:
        return "{\n" + ",\n".join(f"    {json.dumps(k)}: {json.dumps(v)}" for k, v in value.items()) + "\n  }"
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + ",\n".join(f"    {json.dumps(item)}" for item in value) + "\n  ]"
    return json.dumps(value)


def names() -> list[str]:
    """Of all recorded runs."""
    return sorted(path.name.removesuffix(".tar.xz") for path in RECORDED.glob("*.tar.xz"))


def expected_of(name: str) -> dict[str, Any]:
    """The expectation of a recorded run."""
    return json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))


@cache
def all_expected() -> tuple[dict[str, Any], ...]:
    """Of all recorded runs; not to be changed."""
    return tuple(expected_of(name) for name in names())
