"""Reading a run folder back: what is malformed is named by file and line, what is torn is taken and noted."""

from __future__ import annotations

import base64
import json
import zlib

import numpy as np
import pytest

from psconform.errors import BadInput, Malformed
from psconform.history.build import load_history
from psconform.history.manifest import Manifest
from psconform.runner.verdicts import judge_folder

from . import bugs
from .mutations import edit, rechained
from .simulate import Trainer


@pytest.fixture
def folder(tmp_path):
    return Trainer(shards=(0, 1), steps=4).run(tmp_path / "run")


def first(folder, kind, name="worker-1"):
    """Number of the first line of a kind."""
    lines = (folder / "events" / f"{name}.jsonl").read_bytes().splitlines()
    return next(number for number, line in enumerate(lines) if json.loads(line)["kind"] == kind)


def changed(folder, kind, fields):
    """Change fields of the first event of a kind, with a checksum that fits; returns its line number, from 1."""
    number = first(folder, kind)
    edit(folder / "events" / "worker-1.jsonl", number, lambda event: event | fields)
    return number + 1


def refused(folder):
    with pytest.raises(Malformed) as caught:
        load_history(folder)
    return str(caught.value)


def test_torn_last_line_is_left_out_and_noted(folder):
    path = folder / "events" / "worker-1.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]) + lines[-1][:10])
    judged = judge_folder(folder)
    assert judged.history.notes == ("worker:1's record ends in a torn line of 10 bytes, which was left out",)
    assert judged.exit_code == 2


def test_file_with_nothing_but_a_torn_line_is_a_task_that_never_reported(folder):
    path = folder / "events" / "worker-1.jsonl"
    path.write_bytes(path.read_bytes()[:20])
    history = load_history(folder)
    assert "worker:1 never reported: no probe wrote events for it" in history.gaps


@pytest.mark.parametrize(
    ("mutate", "line", "says"),
    [
        (lambda lines: [*lines[:3], *lines[4:]], 4, "does not fit its checksum"),
        (lambda lines: [*lines[:3], lines[4], lines[3], *lines[5:]], 4, "does not fit its checksum"),
        (lambda lines: [*lines[:3], lines[2], *lines[3:]], 4, "does not fit its checksum"),
        (lambda lines: [*lines[:2], b"\n", *lines[2:]], 3, "must end in a crc field"),
        (lambda lines: [*lines[:2], lines[2].replace(b'"step":0', b'"step":1'), *lines[3:]], 3, "checksum"),
        (lambda lines: [*lines, b"x"], 17, "1 bytes after the end event"),
        (lambda lines: rechained([*lines, lines[-1]]), 17, "an event after the end event"),
        (lambda lines: rechained([*lines[:4], lines[0], *lines[4:]]), 5, "the first, must be start"),
        (lambda lines: rechained(lines[1:]), 1, "the first, must be start"),
        (lambda lines: rechained([*lines[:3], *lines[4:]], smooth=False), 4, "seq is 4, expected 3"),
    ],
)
def test_lines_lost_moved_or_changed_are_named(folder, mutate, line, says):
    path = folder / "events" / "worker-1.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(mutate(lines)))
    text = refused(folder)
    assert text.startswith(f"{path}:{line}: ")
    assert says in text


@pytest.mark.parametrize(
    ("kind", "fields", "says"),
    [
        ("start", {"run": "other"}, "belongs to run 'other', not to 'simulated'"),
        ("start", {"task": "worker:0"}, "belongs to task 'worker:0', not to 'worker:1'"),
        ("start", {"schema": 2}, "schema 2, this psconform reads 1"),
        ("read", {"kind": "red"}, "not an event of schema 1"),
        ("read", {"mono_ns": 0}, "mono_ns runs backwards"),
        ("read", {"extra": 1}, "not an event of schema 1"),
        ("read", {"step": 5}, "step 5 of 4"),
        ("read", {"step": -1}, "not an event of schema 1"),
        ("read", {"clock": [[0, 1], [0, 0]]}, "variable 0 contradict the values in worker-1.bin"),
        ("read", {"clock": [[0, 0]]}, "nonce must have 1 numbers"),
        ("read", {"clock": [[0], [0]]}, "clock must have 2 numbers up to 4 per variable"),
        ("read", {"clock": [[0, 5], [0, 0]]}, "clock must have 2 numbers up to 4 per variable"),
        ("read", {"clock": None}, "exactly one of clock and raw"),
        ("read", {"nonce": [1]}, "nonce must have 2 numbers"),
        ("read", {"nonce": None}, "the first read must have a nonce"),
        ("read", {"nonce": [1, 2]}, "contradict the values in worker-1.bin"),
        ("read", {"odd": [[2, 0, 0, 1, 1]]}, "odd names no cell of this workload: [2, 0, 0]"),
        ("read", {"odd": [[0, 0, 3, 1, 1]]}, "is not below the clock"),
        ("read", {"shards": [0, 2]}, "shards must name a ps of ps=2,worker=2"),
        ("read", {"shards": [0]}, "shards must name a ps of ps=2,worker=2"),
        ("read", {"versions": [0]}, "the number of versions changed"),
        ("read", {"versions": [10**17, 0]}, "not an event of schema 1"),
        ("read", {"clock": None, "raw": ["?"]}, "raw is not base64 of float32"),
        ("read", {"clock": None, "raw": ["AAAAAA=="]}, "a raw variable has 1 values"),
        ("push", {"step": 4}, "step 4 of 4"),
        ("push", {"attempt": 1}, "attempt 1 of step 0 is out of order"),
        ("ack", {"step": 3}, "acknowledges step 3, never pushed"),
        ("ack", {"attempt": 1}, "acknowledges step 0, never pushed"),
        ("ack", {"outcome": "perhaps"}, "not an event of schema 1"),
    ],
)
def test_events_that_make_no_sense_are_named(folder, kind, fields, says):
    line = changed(folder, kind, fields)
    text = refused(folder)
    seen = 3 if says.endswith("changed") else 0  # only the next read differs from this one
    assert text.startswith(f"{folder / 'events' / 'worker-1.jsonl'}:{line + seen}: "), text
    assert says in text


def test_gradient_pushed_after_done_is_named(folder):
    # then the others' final reads, made when all were said to be done, prove nothing
    path = folder / "events" / "worker-1.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    done = first(folder, "done")
    path.write_bytes(
        b"".join(rechained([*lines[: done - 2], lines[done], *lines[done - 2 : done], *lines[done + 1 :]]))
    )
    text = refused(folder)
    assert text.startswith(f"{path}:{done}: step 3 goes on after done")


def test_all_reads_must_agree_where_variables_are(folder):
    changed(folder, "read", {"shards": [1, 0]})
    assert "read: shards are [0, 1], [1, 0] in a read before" in refused(folder)
    path = folder / "events" / "worker-1.jsonl"
    for number, line in enumerate(path.read_bytes().splitlines()):
        if json.loads(line)["kind"] == "read":
            edit(path, number, lambda event: event | {"shards": [1, 0]})
    assert refused(folder) == f"{path}: shards are [1, 0], [0, 1] in another worker's record"


@pytest.mark.parametrize("name", ["notes.txt", "worker-2.jsonl", "chief-0.jsonl", "worker-1.1.jsonl"])
def test_files_that_are_not_of_this_run_are_named(folder, name):
    path = folder / "events" / name
    path.write_text("")
    assert refused(folder).startswith(f"{path}: is ")


def test_directory_in_place_of_a_file_is_named(folder):
    (folder / "events" / "ps-0.jsonl").mkdir()
    assert "ps-0.jsonl: is not an event file" in refused(folder)


def test_values_that_do_not_fit_are_named(folder):
    path = folder / "vectors" / "worker-0.bin"
    path.write_bytes(path.read_bytes()[:-1])
    assert refused(folder).startswith(f"{path}: bytes ")
    path.unlink()
    assert refused(folder).startswith(f"{path}: cannot be read")


@pytest.mark.parametrize("more", [-4, 4])
def test_values_of_another_length_are_named_though_their_checksum_fits(folder, more):
    """Of a workload with other variables."""
    events = folder / "events" / "worker-0.jsonl"
    values = (folder / "vectors" / "worker-0.bin").read_bytes()
    lines = events.read_bytes().splitlines()
    at = next(number for number, line in enumerate(lines) if "vector" in json.loads(line))

    def longer(event):
        begin, length, _ = event["vector"]
        length += more
        return {**event, "vector": [begin, length, zlib.crc32(values[begin : begin + length])]}

    edit(events, at, longer)
    assert "do not fit the read in worker-0.jsonl" in refused(folder)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"schema": 1}, "schema 1, this psconform reads 2"),
        ({"layout": {"ps": 65, "workers": 1, "update": "sync", "reduction": "mean"}}, "ps must be between 0 and 64"),
        ({"claims": {"delivery": "often"}}, "unknown level, got 'often'"),
        ({"workload": {"steps": 0}}, "workload.steps must be between 1 and 2000000, got 0"),
        ({"workload": {"steps": 4}}, "workload.unit must be positive, got None"),
        ({"workload": {"steps": 4, "unit": -1.0}}, "workload.unit must be positive, got -1.0"),
        ({"status": "lost"}, "not a manifest of schema 2"),
        ({"surprise": 1}, "not a manifest of schema 2"),
    ],
)
def test_manifest_that_makes_no_sense_is_named(folder, fields, says):
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    text = refused(folder)
    assert text.startswith(f"{path}: ")
    assert says in text


def test_no_run_folder_is_bad_input(tmp_path):
    with pytest.raises(BadInput, match="is not a run folder: it has no manifest"):
        Manifest.read(tmp_path)
    folder = Trainer(steps=1).run(tmp_path / "run")
    for path in (folder / "events").iterdir():
        path.unlink()
    (folder / "events").rmdir()
    assert refused(folder) == f"{folder}: has no folder events/"


def test_raw_reads_say_the_same_as_compact_ones(tmp_path):
    # a client in another language writes raw values and no encoder: same History, same verdicts
    folder = bugs.Twice(update="async", steps=4).run(tmp_path / "run")
    compact = judge_folder(folder)
    for worker in (0, 1):
        path = folder / "events" / f"worker-{worker}.jsonl"
        odd, nonce = {}, 0.0
        lines = path.read_bytes().splitlines(keepends=True)
        for number, line in enumerate(lines):
            event = json.loads(line)
            if event["kind"] != "read":
                continue
            nonce = event.pop("nonce", [nonce])[0]
            odd |= {(w, s): pair for _, w, s, *pair in event.pop("odd", [])}
            values = np.zeros((2, 2, 4), np.float32)
            for w, clock in enumerate(event.pop("clock")[0]):
                values[:, w, :clock] = -840
            for (w, s), pair in odd.items():
                values[:, w, s] = pair
            flat = np.concatenate([values[0].ravel(), [np.float32(nonce)], values[1].ravel()])
            event["raw"] = [base64.b64encode(flat.astype("<f4").tobytes()).decode()]
            event.pop("vector", None)
            lines[number] = json.dumps(event).encode() + b"\n"
        path.write_bytes(b"".join(rechained(lines)))
    assert judge_folder(folder).verdicts == compact.verdicts
