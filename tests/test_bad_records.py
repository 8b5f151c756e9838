"""Run folders in which something is missing, or is not what its name says: named, never taken for a whole record."""

from __future__ import annotations

import json
import shutil
import zlib

import pytest

from psconform.errors import BadInput, Malformed
from psconform.history.build import load_history
from psconform.history.manifest import PLAIN
from psconform.runner.verdicts import judge_folder

from . import test_reader
from .mutations import rechained
from .simulate import Trainer
from .test_reader import refused

folder = test_reader.folder


def rewrite(path, change):
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    path.write_bytes(b"".join(rechained([json.dumps(event).encode() for event in change(lines)])))


def set_in_manifest(folder, **fields):
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["workload"] |= fields
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize("name", ["worker-01.jsonl", "worker-1.0.jsonl", "worker-1.01.jsonl"])
def test_a_file_that_is_not_named_as_psconform_names_it_is_refused(folder, name):
    (folder / "events" / name).write_text("garbage\n")
    assert f"{name}: is not named as psconform names it. It would be worker-1" in refused(folder)


@pytest.mark.parametrize("clock", ['"x"', "[[1.5]]", '[[0,0],[0,0]],"odd":[]', "null"])
def test_a_clock_that_is_there_twice_is_looked_at_each_time(folder, clock):
    """Of a key that is there twice the last one counts; what is no clock is refused all the same."""
    path = folder / "events" / "worker-1.jsonl"
    line = test_reader.first(folder, "read")
    lines = path.read_bytes().splitlines(keepends=True)
    text = lines[line].replace(b'"clock":', b'"clock":' + clock.encode() + b',"clock":', 1)
    assert text != lines[line]
    lines[line] = text
    path.write_bytes(chained_as_they_are(lines))
    if clock == "null" or clock.startswith("[[0"):
        assert judge_folder(folder).exit_code == 0
    else:
        assert f"worker-1.jsonl:{line + 1}: not an event" in refused(folder)


def chained_as_they_are(lines):
    """These lines with checksums that fit, byte for byte the same before them."""
    crc, written = 0, []
    for line in lines:
        body = line.rstrip(b"\n").rpartition(b',"crc":')[0]
        crc = zlib.crc32(body, crc)
        written.append(b'%s,"crc":"%08x"}\n' % (body, crc))
    return b"".join(written)


def test_a_life_that_was_recorded_and_is_not_there_is_a_gap(folder):
    own = folder / "events" / "psconform-0.jsonl"

    def told(events):
        said = [event["kind"] == "exit" and event["of"].startswith("worker") for event in events]
        return [event | ({"recorded": True} if yes else {}) for event, yes in zip(events, said, strict=True)]

    rewrite(own, told)
    assert load_history(folder).gaps == ()

    def twice(events):
        """As if worker:1 had had another life before."""
        at = next(i for i, event in enumerate(events) if event["kind"] == "exit" and event["of"] == "worker:1")
        return [*events[:at], events[at] | {"status": -9}, *events[at:]]

    rewrite(own, twice)
    assert load_history(folder).gaps == ("worker:1: what it recorded in incarnation 1 is missing",)
    assert judge_folder(folder).exit_code == 2


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"batches": [["worker:9", 3]]}, "workload.batches must name workers of ps=2,worker=2, got 'worker:9'"),
        ({"batches": [["foo", 3]]}, "workload.batches must name workers"),
        ({"batches": [["ps:0", 3]]}, "workload.batches must name workers"),
        ({"batches": [["worker:1", -3]]}, "workload.batches of worker:1 must be between 1 and 3, got -3"),
        ({"batches": [["worker:1", 4]]}, "workload.batches of worker:1 must be between 1 and 3, got 4"),
        ({"slow": [["worker:2", 0.5]]}, "workload.slow must name workers"),
    ],
)
def test_a_manifest_that_speaks_of_other_workers_is_refused(folder, fields, says):
    set_in_manifest(folder, **fields)
    with pytest.raises(Malformed, match=r"manifest\.json") as caught:
        judge_folder(folder)
    assert says in str(caught.value)


def test_a_name_that_no_folder_can_have_is_refused(tmp_path):
    with pytest.raises(BadInput, match="cannot be a run folder"):
        judge_folder(tmp_path / ("x" * 5000))


def test_a_plain_ledger_of_another_set_up_says_nothing_of_the_order(tmp_path):
    run = Trainer(workload="decayed-ledger", update="async", shards=(0, 1), steps=6).run(tmp_path / "run")

    def order():
        return next(verdict for verdict in judge_folder(run).verdicts if verdict.guarantee == "A8")

    assert order().status == "valid"
    shutil.rmtree(run / PLAIN)
    Trainer(update="sync", shards=(0, 1), steps=3).run(run / PLAIN)
    assert order().status == "unknown"
    assert "another set-up" in order().reason
