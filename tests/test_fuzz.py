"""A stored run spoiled in a thousand ways: one clear error or a verdict, never a traceback, never a wrong pass."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from random import Random

import pytest

from psconform.errors import BadInput
from psconform.runner.verdicts import judge_folder

from . import bugs
from .mutations import NONSENSE, bytewise, sensewise
from .simulate import Trainer

BYTES, SENSE, VECTORS, MANIFEST = 100, 130, 40, 60
"""Mutations per run; there are five runs."""
thorough = pytest.mark.parametrize("times", [1, pytest.param(20, marks=pytest.mark.nightly)])
"""In the nightly tier so many times as many."""
RUNS = {
    "healthy sync": (Trainer, {"shards": (0, 1), "steps": 6}),
    "healthy async": (Trainer, {"update": "async", "shards": (0, 1), "steps": 6}),
    "decayed async": (Trainer, {"update": "async", "shards": (0, 1), "steps": 6, "workload": "decayed-ledger"}),
    "violated sync": (bugs.Dropped, {"shards": (0, 1), "steps": 6}),
    "violated async": (bugs.Twice, {"update": "async", "shards": (0, 1), "steps": 6}),
}
EVENTS = ("worker-0", "worker-1", "psconform-0")


@pytest.fixture(params=RUNS)
def stored(request, tmp_path):
    kind, options = RUNS[request.param]
    return kind(**options).run(tmp_path / "run")


def healthy(folder):
    return judge_folder(folder).exit_code == 0


def outcome(folder):
    """What judging comes to: refused, or the exit code; any other exception fails the test."""
    try:
        return judge_folder(folder).exit_code
    except BadInput as error:
        text = str(error)
        assert str(folder) in text
        assert "\n" not in text
        return "refused"


def spoil(path, mutate, other, random):
    """Judge with one file spoiled; None if the mutation changed nothing."""
    before = path.read_bytes()
    after = mutate(before, other, random)
    path.write_bytes(after)
    try:
        return None if after == before else outcome(path.parent.parent)
    finally:
        path.write_bytes(before)


@thorough
def test_bytes_lost_or_changed_never_pass(stored, times):
    was_healthy, random, seen = healthy(stored), Random(1), Counter()
    for _ in range(BYTES * times):
        name, other = random.sample(EVENTS, 2)
        strange = (stored / "events" / f"{other}.jsonl").read_bytes()
        seen[spoil(stored / "events" / f"{name}.jsonl", bytewise, strange, random)] += 1
    assert set(seen) - {None} <= ({"refused", 2} if was_healthy else {"refused", 1, 2}), seen
    assert seen["refused"] > BYTES * times / 3  # else the mutations are too tame to mean anything
    assert sum(seen.values()) - seen["refused"] - seen[None] > BYTES * times / 20


@thorough
def test_events_with_right_checksums_and_wrong_sense_never_crash(stored, times):
    random, seen = Random(2), Counter()
    for _ in range(SENSE * times):
        name, other = random.sample(EVENTS, 2)
        strange = (stored / "events" / f"{other}.jsonl").read_bytes()
        seen[spoil(stored / "events" / f"{name}.jsonl", sensewise, strange, random)] += 1
    assert set(seen) <= {None, "refused", 0, 1, 2}
    assert seen["refused"] > SENSE * times / 3
    assert seen[1] + seen[2] > SENSE * times / 50


def test_values_changed_or_lost_are_refused(stored):
    random = Random(3)
    for _ in range(VECTORS):
        path = stored / "vectors" / random.choice(["worker-0.bin", "worker-1.bin"])

        def change(data, _, random):
            at = random.randrange(len(data))
            flipped = data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :]
            return random.choice([flipped, data[:at], b"", data[at + 1 :]])

        assert spoil(path, change, b"", random) == "refused"


@thorough
def test_manifest_spoiled_is_refused_or_judged(stored, times):
    path, random, seen = stored / "manifest.json", Random(4), Counter()
    text = path.read_bytes()
    for number in range(MANIFEST * times):
        if number % 2:
            path.write_bytes(bytewise(text, text, random))
        else:
            content = json.loads(text)
            part = random.choice([content, content["layout"], content["claims"], content["workload"]])
            part[random.choice([*part, "new"])] = random.choice(NONSENSE)
            path.write_text(json.dumps(content))
        seen[outcome(stored)] += 1
    assert set(seen) <= {"refused", 0, 1, 2}
    assert seen["refused"] > MANIFEST * times / 3


@pytest.mark.parametrize("line", [b'{"kind":' + b"[" * 100_000, b'{"kind":"read","odd":' + b"[" * 50_000, b"[" * 10**6])
def test_deep_nesting_is_refused(tmp_path, line):
    folder = Trainer(steps=2).run(tmp_path / "run")
    path = folder / "events" / "worker-0.jsonl"
    path.write_bytes(b'%s,"crc":"%08x"}\n' % (line, zlib.crc32(line)))
    assert outcome(folder) == "refused"
    path.write_bytes(line)  # without an end: a torn line
    assert outcome(folder) == 2


@pytest.mark.parametrize("missing", ["events/worker-0.jsonl", "events/psconform-0.jsonl", "vectors/worker-1.bin"])
def test_missing_files_never_pass(stored, missing):
    was_healthy = healthy(stored)
    (stored / missing).unlink()
    assert outcome(stored) in (("refused", 2) if was_healthy else ("refused", 1, 2))


@pytest.mark.parametrize("number", ["1e400", "-1e400", "1" * 400, "1" + "0" * 5000, "1e-400", "NaN"])
def test_gigantic_numbers_in_the_manifest_never_crash(tmp_path, number):
    folder = Trainer(steps=2).run(tmp_path / "run")
    path = folder / "manifest.json"
    text = path.read_text()
    for field in ('"unit": 420.0', '"steps": 2', '"seed": 0', '"ps": 1', '"workers": 2', '"schema": 2'):
        assert field in text
        path.write_text(text.replace(field, f"{field.rpartition(' ')[0]} {number}"))
        assert outcome(folder) in ("refused", 0) if "seed" in field else outcome(folder) == "refused", field
