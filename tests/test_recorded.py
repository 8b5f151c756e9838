"""Recorded runs of real clusters are judged as they must be, in seconds; tests/recorded.py records them."""

from __future__ import annotations

import dataclasses
import json
import lzma

import msgspec
import pytest

from psconform.anomalies import DETECTORS
from psconform.checks import all_checks
from psconform.faults.kinds import kinds
from psconform.history.manifest import Manifest, Workload
from psconform.layout import Layout
from psconform.optimizers import CLIP_WHEN, OPTIMIZERS, SCHEDULES
from psconform.options import MODELS, RATES, REDUCTIONS, REPLICATIONS, UPDATES
from psconform.runner.verdicts import judge_folder
from psconform.targets.reference import DEFECTS
from psconform.workloads import all_workloads

from .mutations import edit, measured
from .recorded import Accused, no_more_valid, objections
from .recorded_cases import CASES
from .recorded_runs import (
    LARGEST,
    LEAST,
    RECORDED,
    Scrubber,
    all_expected,
    differences,
    dumped,
    expectation,
    expected_of,
    extract,
    leaks,
    names,
    pack,
    scrub,
    unpack,
)

COMMAND = "python -m tests.recorded"
FEWEST = 40
USUAL = {**msgspec.to_builtins(Workload()), **dataclasses.asdict(Layout())}


@pytest.mark.parametrize("name", names())
def test_it_is_judged_as_it_must_be(name, tmp_path):
    archive = RECORDED / f"{name}.tar.xz"
    assert archive.stat().st_size <= LARGEST
    unpack(archive, tmp_path)
    assert list(leaks(tmp_path)) == []
    expected = expected_of(name)
    found = {"recorded": expected["recorded"], **expectation(judge_folder(tmp_path))}
    hint = f"if that is meant: {COMMAND} --judge --only {name}"
    assert found == expected, "; ".join(differences(expected, found)) + f"; {hint}"


def test_archives_expectations_and_cases_belong_together():
    expectations = {path.stem for path in RECORDED.glob("*.json")}
    assert set(names()) == expectations
    strays = sorted(set(names()) - set(CASES))
    assert not strays, f"no case in recorded_cases.py is called so: delete {', '.join(strays)}"


def healthy():
    return [expected for expected in all_expected() if not expected["covers"]["defect"]]


def values(field):
    """What healthy runs have of a field of the layout or the workload."""
    part = "layout" if field in dataclasses.asdict(Layout()) else "workload"
    return [run["covers"][part].get(field, USUAL[field]) for run in healthy()]


def test_there_are_enough_healthy_runs_and_all_is_valid_in_them():
    assert len(healthy()) >= FEWEST
    for run in healthy():
        assert (run["violated"], run["unknown"]) == ({}, [])


@pytest.mark.parametrize(("name", "update"), [(name, u) for name, defect in DEFECTS.items() for u in defect.updates])
def test_each_defect_is_found_in_each_mode(name, update):
    case = f"{name}-{update}"
    assert case in names(), f"no recorded run of defect {name} in {update}: {COMMAND} --only {case}"
    run, defect = expected_of(case), DEFECTS[name]
    assert (run["covers"]["defect"], run["covers"]["layout"].get("update", "sync")) == (name, update)
    assert defect.meant_in(update) in run["violated"]
    assert run["violated"].keys() <= defect.concerns
    witness = run["violated"][defect.meant_in(update)]
    assert witness["tasks"] or witness["steps"] or defect.meant_in(update) in ("S5", "I1"), "what all gradients have"


CHOICES = {
    "name": all_workloads(),
    "update": UPDATES,
    "reduction": REDUCTIONS,
    "rate": RATES,
    "replication": REPLICATIONS,
    "optimizer": OPTIMIZERS,
    "schedule": SCHEDULES,
    "clip_when": CLIP_WHEN,
    "model": MODELS,
    "emulated": (False, True),
}


@pytest.mark.parametrize(("field", "choice"), [(field, choice) for field, known in CHOICES.items() for choice in known])
def test_each_workload_and_mode_is_in_a_healthy_run(field, choice):
    assert choice in values(field), f"declare a healthy run with {field} {choice} in recorded_cases.py, then {COMMAND}"


FIELDS = sorted({field.name for field in dataclasses.fields(Layout)} | {*Workload.__struct_fields__} - LEAST)


@pytest.mark.parametrize("field", FIELDS)
def test_each_option_of_training_is_in_a_healthy_run(field):
    unusual = [value for value in values(field) if value != USUAL[field]]
    assert unusual, f"declare a healthy run with {field} other than usual in recorded_cases.py, then {COMMAND}"


@pytest.mark.parametrize("kind", kinds())
def test_each_kind_of_fault_is_in_a_healthy_run(kind):
    case = next((name for name in CASES if name.startswith(f"fault-{kind}-")), None)
    struck = {fault for run in healthy() for fault in run["covers"]["faults"]}
    assert kind in struck, f"no healthy run in which {kind} has struck: {COMMAND} --only {case}"


@pytest.mark.parametrize("check", [check.name for check in all_checks()])
def test_each_guarantee_holds_in_a_healthy_run(check):
    assert any(check in run["valid"] for run in healthy()), f"declare one in recorded_cases.py, then {COMMAND}"


@pytest.mark.parametrize("kind", DETECTORS)
def test_each_kind_of_anomaly_is_reported_in_a_run(kind):
    assert any(anomaly["kind"] == kind for run in all_expected() for anomaly in run["anomalies"])


def test_a_healthy_run_that_is_accused_is_no_matter_of_chance(tmp_path):
    unpack(RECORDED / "early-commit-sync.tar.xz", tmp_path)
    judged = judge_folder(tmp_path)
    assert list(objections(CASES["early-commit-sync"], judged)) == []
    with pytest.raises(Accused, match="S1 is violated"):
        list(objections(CASES["healthy-ledger-sync"], judged))


def test_what_a_healthy_run_no_longer_shows_is_seen():
    before, after = {"valid": ["S1", "S2"]}, {"valid": ["S2", "S3"]}
    assert no_more_valid(CASES["healthy-ledger-sync"], before, after) == ["S1"]
    assert no_more_valid(CASES["early-commit-sync"], before, after) == []


@pytest.fixture
def run(tmp_path):
    """A run folder that was recorded, of a worker that was killed."""
    unpack(RECORDED / "fault-kill-sync.tar.xz", tmp_path / "run")
    return tmp_path / "run"


def test_another_history_is_told_from_the_one_that_was_recorded(run):
    """A gradient that the second read of worker:0 no longer shows."""
    path = run / "events" / "worker-0.jsonl"
    events = [json.loads(line) for line in path.read_bytes().splitlines()]
    at = next(number for number, event in enumerate(events) if event["kind"] == "read" and event["step"] == 5)
    edit(path, at, lambda event: {**event, "clock": [[5, 4]]})
    measured(run)
    assert "S1: valid -> violated" in differences(expected_of("fault-kill-sync"), expectation(judge_folder(run)))


PLANTED = {
    "path": ("evidence", "cannot write /home/somebody/runs/worker-0.log"),
    "address": ("evidence", "it came back at 10.0.0.77:4711"),
    "container": ("evidence", "container 4f2a9c0d11be was ended"),
    "pid": ("pid", 4711),
    "process": ("evidence", "process 4711 ended"),
    "thread": ("evidence", "its log ends: E0000 00:00:1795676763.286131   15163 cuda_platform.cc:52] failed call"),
    "boot": ("boot", "c19be039-1dc7-4a2d-860d-e2f92ff9bfde"),
    "run": ("run", "20261126-065857-30efbbd2"),
}


@pytest.mark.parametrize("what", PLANTED)
def test_what_tells_of_a_machine_is_found_and_scrubbed(run, what):
    Manifest.read(run).write(run)  # with every field that one of today has
    assert list(leaks(run)) == []
    before = judge_folder(run)
    field, value = PLANTED[what]
    (run / "logs").mkdir()
    files = sorted((run / "events").iterdir())
    for path in files if what == "run" else [run / "events" / "psconform-0.jsonl"]:
        events = [json.loads(line) for line in path.read_bytes().splitlines()]
        at = next((number for number, event in enumerate(events) if field in event), 0)
        edit(path, at, lambda event: {**event, field: value})
    if what == "run":
        manifest = json.loads((run / "manifest.json").read_bytes())
        (run / "manifest.json").write_text(json.dumps({**manifest, "run": value}), encoding="utf-8")
    measured(run)
    assert list(leaks(run))
    scrub(run, Scrubber())
    assert list(leaks(run)) == []
    assert expectation(judge_folder(run)) == expectation(before)


def test_what_was_equal_stays_equal():
    scrubber = Scrubber()
    first, second = (f"c19be039-1dc7-4a2d-860d-e2f92ff9bfd{digit}" for digit in "ef")
    said = scrubber.value([{"boot": boot, "pid": 7} for boot in (first, second, first)])
    assert said == [{"boot": f"boot-{number}", "pid": 0} for number in (1, 2, 1)]
    assert scrubber.text("127.0.0.1:5000 from 10.1.2.3:80, 10.1.2.4:80") == "127.0.0.1:1 from 192.0.2.1:2, 192.0.2.2:2"
    assert (
        scrubber.text('File "/usr/lib/python3.11/threading.py", line 3') == 'File ".../python3.11/threading.py", line 3'
    )
    assert scrubber.text("x/y, 3/4 and http://a/b") == "x/y, 3/4 and http://a/b"


def test_an_expectation_is_json_with_a_line_for_each_guarantee():
    for name in names():
        text = (RECORDED / f"{name}.json").read_text(encoding="utf-8")
        assert dumped(json.loads(text)) == text


@pytest.mark.parametrize("name", ["fault-kill-sync", "healthy-decayed-ledger-sync", "tower-repeats-batch-sync"])
def test_what_was_unpacked_is_packed_as_it_was(name, tmp_path):
    """Of one run folder, of one with another beside it, and of one with digits."""
    extract(RECORDED / f"{name}.tar.xz", tmp_path / "run")
    pack(tmp_path / "run", tmp_path / "again.tar.xz")
    again, before = (
        lzma.decompress(path.read_bytes()) for path in (tmp_path / "again.tar.xz", RECORDED / f"{name}.tar.xz")
    )
    assert again == before
