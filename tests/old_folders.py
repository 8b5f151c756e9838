"""Run folders of schema 1, which had sentences where those of schema 2 have values: recorded runs are of it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec

from psconform.faults.kinds import kinds
from psconform.history.reasons import FaultMissed, LinksLost, Missed, NoEnd, NoProgress, Problem, Reason, TaskFailed

from .mutations import rechained

HOW = {
    "never struck": Missed.NEVER_INJECTED,
    "was not seen to take effect": Missed.NOT_OBSERVED,
    "was not healed when the run ended": Missed.LEFT_UNHEALED,
    "was not healed": Missed.NOT_HEALED,
}
FAULT = re.compile(rf"fault (\S+) (.*?) ({'|'.join(HOW)})(?: within (\d+) s)?(?:: (.*))?", re.DOTALL)
FAILED = re.compile(r"([a-z]+:\d+) (failed with status|was ended by signal) (\d+)(?:; its log ends: (.*))?", re.DOTALL)
STOPPED = re.compile(r"stopped: no task made progress for (\d+) s")
NO_END = re.compile(r"(.*) did not end within (\d+) s of the last worker")
TASK = re.compile(r"(?:ps|worker):\d+")
LOST = re.compile(r"tasks could not reach each other any more: (.*)", re.DOTALL)


def reason_of(sentence: str) -> Reason:
    """The value that a sentence of schema 1 stands for."""
    if found := FAULT.fullmatch(sentence):
        return FaultMissed(found[1], found[2], HOW[found[3]], found[5] or "", float(found[4] or 0))
    if found := FAILED.fullmatch(sentence):
        return TaskFailed(found[1], int(found[3]) * (-1 if "signal" in found[2] else 1), found[4] or "")
    if found := STOPPED.fullmatch(sentence):
        return NoProgress(float(found[1]))
    if found := NO_END.fullmatch(sentence):
        return NoEnd(tuple(found[1].split(", ")), float(found[2]))
    if found := LOST.fullmatch(sentence):
        return LinksLost(found[1])
    return Problem(sentence)


def _told(event: dict[str, Any]) -> dict[str, Any]:
    """What a fault event of schema 1 said in words alone."""
    return {"harm": kinds()[event["fault"]].harm, "tasks": TASK.findall(event["of"])}


def convert(folder: Path) -> None:
    """Bring a run folder to the schema that psconform reads."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_bytes())
    if manifest["schema"] == 1:
        reasons = [msgspec.to_builtins(reason_of(sentence)) for sentence in manifest.get("reasons", ())]
        path.write_text(json.dumps({**manifest, "schema": 2, "reasons": reasons}), encoding="utf-8")
        own = folder / "events" / "psconform-0.jsonl"
        events = [json.loads(line) for line in own.read_bytes().splitlines()] if own.is_file() else []
        if any(event["kind"] == "fault" for event in events):
            told = [e | (_told(e) if e["kind"] == "fault" else {}) for e in events]
            own.write_bytes(b"".join(rechained([json.dumps(event).encode() for event in told], smooth=False)))
