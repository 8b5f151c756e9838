"""L2 of one worker among others: as fast again, slower for good, or nobody knows."""

from __future__ import annotations

import dataclasses
import json
import shutil

import pytest

from psconform.checks.throughput import BACK_S, LEAST, throughput_back
from psconform.history.build import load_history
from psconform.runner.verdicts import judge_folder

from .mutations import rechained
from .stories import Story
from .test_checks_recovery import violated

MS = 10**6
USUAL = 10 * MS
STEPS = 12 * LEAST
BEFORE = LEAST + 5


def _told(folder, *, workers=2, update="async"):
    """All take a few steps, a ps is lost and is back, and they take the others."""
    story = Story(folder, steps=STEPS, workers=workers, update=update)
    for worker in range(workers):
        story.step(worker, BEFORE)
    story.kill("ps:0")
    story.fault("kill", "ps:0", on=False)
    story.exits.clear()
    story.finish()
    return folder


def _retimed(folder, pace):
    """Judge it as if each worker's steps took 10 ms before the fault, and ``pace(worker, step)`` after it."""
    began = min(json.loads(p.read_bytes().split(b"\n")[0])["mono_ns"] for p in (folder / "events").glob("*.jsonl"))
    struck = began + 60 * 10**9
    back = struck + int((BACK_S + 1) * 1e9)
    for path in sorted((folder / "events").glob("*.jsonl")):
        events = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        worker = int(path.stem.split("-")[1]) if path.stem.startswith("worker") else None
        at, after = struck - (BEFORE + 1) * USUAL, 0
        for event in events:
            if worker is None:
                event["mono_ns"] = struck + (event["kind"] == "fault" and not event["on"]) * MS
            elif event["kind"] == "ack":
                if event["step"] < BEFORE:
                    at += USUAL
                else:
                    at = max(at, back) + int(pace(worker, after))
                    after += 1
            event["mono_ns"] = event["mono_ns"] if worker is None else at
        if worker is None:
            events[0]["mono_ns"] = began
        path.write_bytes(b"".join(rechained([json.dumps(event).encode() for event in events])))
    return judge_folder(folder)


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    return _told(tmp_path_factory.mktemp("throughput") / "run")


def _l2(judged):
    return next(verdict for verdict in judged.verdicts if verdict.guarantee == "L2")


@pytest.mark.parametrize("times", [1.0, 3.5])
def test_all_are_as_fast_again(told, times):
    assert _l2(_retimed(told, lambda worker, step: USUAL * times)).status == "valid"


def test_one_worker_that_stays_slow(told):
    judged = _retimed(told, lambda worker, step: USUAL * (6.5 if worker == 1 else 1))
    assert violated(judged) == {"L2"}
    assert [line.split(":")[1] for line in _l2(judged).witness] == ["1"]
    assert "10.0 ms or less before kill ps:0 at 5" in _l2(judged).witness[0]
    assert "65.0 ms or more" in _l2(judged).witness[0]


def test_one_that_is_slow_at_first_only(told):
    judged = _retimed(told, lambda worker, step: USUAL * (50 if worker == 1 and step < 30 else 1))
    assert _l2(judged).status == "valid"


@pytest.mark.parametrize("busy", [2.5, 3.9])
def test_one_that_is_slow_where_the_other_is_no_more_what_it_was(told, busy):
    """That may be the machine, so nobody is accused."""
    judged = _retimed(told, lambda worker, step: USUAL * (4.5 if worker == 1 else busy))
    assert _l2(judged).status == "unknown"
    assert "worker:1: a step took" in _l2(judged).reason
    assert violated(judged) == set()


def test_one_that_is_slow_when_the_other_is_done(told):
    """It may be that the machine was busy then: few of its steps are from before, and they were as quick as ever."""
    done = (STEPS - BEFORE) * USUAL

    def pace(worker, step):
        return USUAL if worker == 0 else done * 2 if step == 0 else USUAL * 5

    judged = _retimed(told, pace)
    assert _l2(judged).status == "unknown"


def test_of_three_the_two_that_are_slow(tmp_path):
    judged = _retimed(_told(tmp_path / "run", workers=3), lambda worker, step: USUAL * (6.5 if worker else 1))
    assert violated(judged) == {"L2"}
    assert [line.split(":")[1] for line in _l2(judged).witness] == ["1", "2"]


def test_one_that_had_the_time_for_its_steps_and_has_not_taken_them(told, tmp_path):
    """Its record ends meanwhile: it was not done, and it had not failed."""
    folder = tmp_path / "run"
    shutil.copytree(told, folder)
    path = folder / "events" / "worker-1.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    acks = [number for number, line in enumerate(lines) if json.loads(line)["kind"] == "ack"]
    path.write_bytes(b"".join(lines[: acks[BEFORE + 3] + 1]))
    judged = _retimed(folder, lambda worker, step: USUAL * (50 if worker == 1 else 1))
    assert _l2(judged).status == "unknown"
    assert _l2(judged).reason.startswith("worker:1 took 4 step(s) in "), _l2(judged).reason


def test_in_sync_they_wait_for_each_other(told):
    """One that seems slow alone is no trainer's doing there; all of them are."""
    for pace, status in ((lambda worker, step: USUAL * (6.5 if worker else 1), "valid"), (_all_slow, "violated")):
        _retimed(told, pace)
        history = load_history(told)
        sync = dataclasses.replace(history, layout=dataclasses.replace(history.layout, update="sync"))
        assert throughput_back(sync).status == status
        assert throughput_back(history).status == "violated"


def _all_slow(worker, step):
    return USUAL * 6.5
