"""Each kind of fault that local processes can have: injected, seen, healed, and survived by a small trainer."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from psconform.api import check
from psconform.faults.kinds import CONTAINER, PACKETS, kinds

TARGET = Path(__file__).parent / "socket_ps" / "target_durable.toml"
STEPS = 40
pytestmark = pytest.mark.engine


@dataclass(frozen=True)
class Case:
    """A fault as its plan says it, what it is said to strike, and what is to be seen of it (regular expressions).

    ``healed`` is empty for a fault that is over by itself. A fault that stops no task ends at a step, where the worker
    waits for it: a time might outlast the training.
    """

    update: str
    plan: str
    of: str
    evidence: str
    healed: str = ""
    layout: str = "ps=1,worker=2"


ALONE = "ps=1,worker=1"
AGAIN = "started again"
HELD = 'at = 10\nfor = "300ms"'
"""For a fault with which the worker that it strikes, or all, cannot go on."""
PASSED, CAME = r"\d+ bytes passed through it", r"\d+ bytes came through"
STEPWISE = 'at = "worker:1@10"\nuntil = "worker:1@30"'
LINK = 'links = "worker:1->ps:0"\n'


BROKEN = HELD.replace("300ms", "1s")
"""No task waits until it is seen, and a ps must use the disk meanwhile, on a busy machine too."""
FOLDER, WELL = "the folder for checkpoints", "ps:0: .* succeeded"
LOST = 'at = "worker:0@20"\n[[fault]]\nkind = "kill"\ntask = "ps:0"\nat = "worker:0@20"\nrestart_after = "0s"'
"""A ps is lost at the moment at which a file is damaged, and has to make do with the other one."""


def failed(error):
    return rf"ps:0: \w+ of ps-0\.\w+ failed with {error}(, and .*)?"


CASES = {
    "kill": Case(
        "async", 'task = "ps:0"\nat = 10\nrestart_after = "0s"', "ps:0", "the process ended by signal 9", AGAIN
    ),
    "term": Case(
        "sync",
        'task = "worker:1"\nat = "after-push:10"\nrestart_after = "0s"',
        "worker:1",
        "the process ended.*",
        AGAIN,
    ),
    "crash-loop": Case(
        "sync",
        'task = "ps:0"\nat = 10\nrestart_after = "0s"\nlives_ms = 0',
        "ps:0",
        "the process ended by signal 9",
        AGAIN,
    ),
    "late": Case("sync", 'task = "worker:1"\nat = "0s"\nfor = "500ms"', "worker:1", "it was not there", "started"),
    "stop": Case(
        "async", 'task = "ps:0"\nat = 10\nfor = "300ms"', "ps:0", r"the process is stopped \(state T\)", "it goes on"
    ),
    "throttle": Case(
        "async",
        f'task = "worker:1"\n{STEPWISE}\npercent = 30',
        "worker:1",
        r"stopped \d+ times, for .*",
        "it goes on",
    ),
    "twice": Case(
        "async",
        'task = "ps:0"\nat = 10',
        "ps:0",
        "a second process of ps:0 ran beside the first",
        "it failed with status 1.*",
    ),
    "clock": Case(
        "sync",
        f'task = "worker:1"\n{STEPWISE}',
        "worker:1",
        r"its clock is 3600\.\d s ahead",
        r"its clock is 0\.\d s ahead",
    ),
    "stall": Case("sync", f"{LINK}{HELD}", "worker:1->ps:0", r"\d+ bytes held back", CAME),
    "latency": Case("async", f"{LINK}{STEPWISE}\nms = 2", "worker:1->ps:0", PASSED, CAME),
    "bandwidth": Case("sync", f"{LINK}{STEPWISE}", "worker:1->ps:0", PASSED, CAME),
    "slice": Case("async", f"{LINK}{STEPWISE}", "worker:1->ps:0", PASSED, CAME),
    "refuse": Case("sync", f"{LINK}{HELD}", "worker:1->ps:0", r"\d+ connection\(s\) ended", CAME),
    "reset": Case("async", f"{LINK}{HELD}", "worker:1->ps:0", r"\d+ connection\(s\) ended", CAME),
    "cut": Case("sync", f"{LINK}{HELD}\nbytes = 100", "worker:1->ps:0", r"\d+ connection\(s\) ended", CAME),
    "slow-close": Case(
        "async",
        'links = "mute worker:1"\nat = 8\nfor = "4s"\nms = 3000\n'
        '[[fault]]\nkind = "kill"\ntask = "worker:1"\nat = 12\nrestart_after = "100ms"',
        "mute worker:1",
        r"\d+ connection\(s\) open whose other end had gone",
        "no connection is open whose other end has gone",
    ),
    "truncate": Case("async", LOST, "the newest checkpoint", r"ps-0\.[ab]: cut from \d+ to \d+ bytes", layout=ALONE),
    "flip": Case("sync", LOST, "the newest checkpoint", r"ps-0\.[ab]: bit \d+ of \d+ turned over", layout=ALONE),
    "full": Case("sync", BROKEN, FOLDER, failed("ENOSPC"), WELL),
    "read-only": Case("async", BROKEN, FOLDER, failed("EROFS"), WELL),
    "unreadable": Case("sync", BROKEN, FOLDER, failed("EIO"), WELL),
    "slow-disk": Case("async", f"{STEPWISE}\nms = 1", FOLDER, r"ps:0: \w+ of ps-0\.\w+ was delayed by .*", WELL),
    "out-of-data": Case(
        "async", 'task = "worker:1"\nat = 20', "worker:1", "the last gradient that it pushed is of step 19"
    ),
    "poison": Case("sync", 'task = "worker:1"\nat = 20', "worker:1", "its gradient was nan in every entry"),
}


def test_no_kind_is_left_out():
    """Those of packets and of containers are struck in tests/containers."""
    assert set(CASES) == {name for name, kind in kinds().items() if kind.of not in (PACKETS, CONTAINER)}
    assert {case.update for case in CASES.values()} == {"sync", "async"}


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.psconform_needs(kinds()[kind].part) if kinds()[kind].part else ())
        for kind in CASES
    ],
)
def test_it_is_injected_seen_healed_and_survived(judge, kind):
    case, plan = CASES[kind], f'[[fault]]\nkind = "{kind}"\n{CASES[kind].plan}\n'
    slow = {"worker:1": 0.02} if case.layout != ALONE else {}  # it trains while the fault is there
    run = judge(TARGET, layout=case.layout, update=case.update, steps=STEPS, slow=slow, faults=plan)
    assert run.valid, run.explain()
    assert run.verdicts["R1"].status == "valid"
    fault = next(fault for fault in run.as_dict()["faults"] if fault["kind"] == kind)
    assert fault["of"] == case.of
    assert re.fullmatch(case.evidence, fault["evidence"])
    assert re.fullmatch(case.healed, fault["healed"])
    turns = [event["on"] for event in events(run) if event["kind"] == "fault" and event["fault"] == kind]
    if kind == "poison":  # the probe injects it by itself, from spec.json
        assert [event["value"] for event in events(run, "worker-1") if event["kind"] == "poison"] == ["nan"]
    else:
        assert turns == ([True, False] if case.healed else [True]) * (3 if kind == "crash-loop" else 1)
    if case.plan == LOST:
        assert f"{fault['file']} is damaged" in (run.folder / "logs" / "ps-0.log").read_text(encoding="utf-8")
    assert check(run.folder).verdicts == run.verdicts


def events(run, name="psconform-0"):
    lines = (run.folder / "events" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]
