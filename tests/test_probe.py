"""The probe: what it decodes, how little it writes, what it refuses, and that it stands alone."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psconform import probe as probe_module
from psconform.probe import TOLERANCE, UNIT, LedgerDecoder, Probe

from .test_slips import slips_in

VALUES = st.sampled_from([-UNIT, -UNIT, -UNIT, 0.0, -0.0, -2 * UNIT, UNIT, -UNIT / 2, math.nan, math.inf, -math.inf])


def naive(values, *, workers, steps):
    """Clock, odd cells and nonce, straight from the definition."""
    cells = workers * steps
    heads, tails = values[:cells].reshape(workers, steps), values[cells + 1 :].reshape(workers, steps)
    clock, odd = [], {}
    for worker in range(workers):
        shown = [s for s in range(steps) if heads[worker, s] != 0 or tails[worker, s] != 0]
        clock.append(max(shown) + 1 if shown else 0)
        for step in range(clock[worker]):
            pair = (float(heads[worker, step]), float(tails[worker, step]))
            if not all(abs(value + UNIT) <= UNIT * TOLERANCE for value in pair):
                odd[worker, step] = pair
    return clock, odd, float(values[cells])


@st.composite
def ledgers(draw):
    """Successive parameters of one variable: each differs from the one before in a few slots, up or down."""
    workers, steps = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    size = 2 * workers * steps + 1
    values, sequence = np.zeros(size, np.float32), []
    for _ in range(draw(st.integers(1, 8))):
        for index, value in draw(st.dictionaries(st.integers(0, size - 1), VALUES, max_size=size)).items():
            values[index] = value
        if draw(st.booleans()):  # and the healthy step: one gradient, at head and tail
            cell = draw(st.integers(0, workers * steps - 1))
            values[cell] = values[workers * steps + 1 + cell] = -UNIT
        sequence.append(values.copy())
    return workers, steps, sequence


@settings(max_examples=400, deadline=None)
@given(ledgers())
def test_incremental_decoding_equals_a_full_look_at_every_read(drawn):
    workers, steps, sequence = drawn
    decoder = LedgerDecoder(workers=workers, steps=steps, unit=UNIT)
    before: dict = {}
    for values in sequence:
        touched = decoder.update(values)
        clock, odd, nonce = naive(values, workers=workers, steps=steps)
        assert decoder.clock == clock
        assert repr(sorted(decoder.odd.items())) == repr(sorted(odd.items()))  # repr: NaN differs from itself
        assert repr(decoder.nonce) == repr(nonce) or nonce == decoder.nonce
        # what a compact read leaves out is what did not change
        changed = {cell for cell in odd.keys() | before.keys() if repr(odd.get(cell)) != repr(before.get(cell))}
        assert set(touched) == changed
        before = odd


def spec(folder: Path, *, steps=5, workers=2, unit=UNIT):
    for part in ("events", "vectors", "done"):
        (folder / part).mkdir(parents=True)
    return {"run": "r", "workers": workers, "steps": steps, "unit": unit, "wait_s": 0.0, "vector_every": 10**9}


def lines_of(folder: Path, name="worker-0"):
    return (folder / "events" / f"{name}.jsonl").read_text().splitlines()


def longest_read(folder: Path, steps: int) -> int:
    probe = Probe(spec(folder, steps=steps), task="worker:0", folder=str(folder))
    theta = probe.initial()
    for step in range(40):
        probe.read([theta], [step])
        theta -= probe.gradient(step)
    probe.close()
    return max(len(line) for line in lines_of(folder)[2:] if '"vector"' not in line)


def test_healthy_read_is_as_short_in_a_long_run_as_in_a_short_one(tmp_path):
    short, long = longest_read(tmp_path / "short", 50), longest_read(tmp_path / "long", 5000)
    assert long <= short + 4  # a digit of the clock here and there
    assert long < 200


def test_read_says_again_only_what_changed(tmp_path):
    probe = Probe(spec(tmp_path), task="worker:0", folder=str(tmp_path))
    theta = probe.initial()
    theta[[0, 11, 12]] = -2 * UNIT, -UNIT, -2 * UNIT
    for _ in range(3):
        probe.read([theta])
    probe.close()
    reads = [json.loads(line) for line in lines_of(tmp_path) if '"kind":"read"' in line]
    assert [read.get("odd") for read in reads] == [[[0, 0, 0, -2 * UNIT, -2 * UNIT]], None, None]
    assert [("nonce" in read) for read in reads] == [True, False, False]


@pytest.mark.parametrize(("every", "written"), [(0, []), (1, [0, 1, 2, 3, 4, 5]), (2, [0, 2, 4, 5])])
def test_values_are_written_every_so_many_reads_and_in_the_end(tmp_path, every, written):
    probe = Probe(spec(tmp_path) | {"vector_every": every}, task="worker:0", folder=str(tmp_path))
    for step in range(5):
        probe.read([probe.initial()], step=step)
    probe.read([probe.initial()], final=True)
    probe.close()
    reads = [json.loads(line) for line in lines_of(tmp_path) if '"kind":"read"' in line]
    assert [number for number, read in enumerate(reads) if "vector" in read] == written


def test_gradient_marks_one_slot_at_head_and_tail_and_the_one_that_all_share():
    probe = Probe.detached(workers=3, steps=4, task="worker:2")
    gradient = probe.gradient(1)
    assert np.flatnonzero(gradient).tolist() == [9, 13, 23]
    assert gradient[[9, 13, 23]].tolist() == [UNIT, -7 / 8 * 13 / 16 * UNIT, UNIT]
    assert [probe.gradient(step)[13] for step in (0, 2)] == [10 / 16 * UNIT, 8 / 16 * UNIT]
    assert np.flatnonzero(probe.initial()).tolist() == [12]


@pytest.mark.parametrize("step", [-1, 4, 1000, None, "1", 1.0, 2**200, np.zeros(3)])
def test_gradient_of_no_step_is_zero(step):
    probe = Probe.detached(workers=3, steps=4)
    assert probe.gradient(step).tolist() == [0.0] * probe.slots
    assert [g.tolist() for g in probe.gradients(step, [1, 2])] == [[0.0] * probe.slots] * 2


def test_wrong_sizes_are_slips_and_leave_no_trace(tmp_path):
    probe = Probe(spec(tmp_path), task="worker:0", folder=str(tmp_path))
    good = probe.initial()
    probe.read([good, np.zeros(3)])
    probe.read([])
    probe.read([good, good], [1, 2], shards=[0, 1])
    probe.read([good])
    probe.read([good, good], [1])
    probe.read([good, good], [1, 2], shards=[0])
    probe.read([good, good], [1, 2], shards=[1, 0])
    probe.close()
    reads = [json.loads(line) for line in lines_of(tmp_path) if '"kind":"read"' in line]
    assert len(reads) == 1
    assert reads[0]["nonce"] == [float(good[10])] * 2  # had the first attempt been decoded, this would be missing
    assert slips_in(tmp_path) == [("read", "size", None), ("read", "no values", None), *[("read", "size", None)] * 4]


def test_second_probe_of_a_task_never_overwrites_the_first(tmp_path):
    values = spec(tmp_path)
    probe = Probe(values, task="worker:0", folder=str(tmp_path))
    with pytest.raises(FileExistsError):
        Probe(values, task="worker:0", folder=str(tmp_path))
    probe.close()
    probe.read([probe.initial()])  # closed: nothing is recorded, nothing raises
    assert [json.loads(line)["kind"] for line in lines_of(tmp_path)] == ["start", "end"]


@pytest.mark.parametrize(("mark", "absent"), [(None, ["worker:1"]), ("", []), ("dead\n", ["worker:1"])])
def test_waiting_for_all_names_who_is_not_there(tmp_path, mark, absent):
    probe = Probe(spec(tmp_path), task="worker:0", folder=str(tmp_path))
    if mark is not None:
        (tmp_path / "done" / "worker-1").write_text(mark)
    assert probe.wait_for_all() == absent
    probe.read([probe.initial()], final=True)
    probe.close()
    final = json.loads(lines_of(tmp_path)[-2])
    assert (final["final"], final["absent"], final["step"]) == (True, absent, 5)


def test_without_an_environment_it_says_how_to_start(monkeypatch):
    monkeypatch.delenv("PSCONFORM_SPEC", raising=False)
    with pytest.raises(RuntimeError, match="psconform run"):
        Probe.from_env()


@pytest.mark.engine
def test_the_file_alone_is_enough(tmp_path):
    # a trainer's container may have numpy and this one file, and nothing else of psconform
    (tmp_path / "probe.py").write_text(Path(probe_module.__file__).read_text())
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import probe; "
        "p = probe.Probe.detached(workers=1, steps=2); p.read([p.initial()]); p.push(0); p.ack(0); "
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'psconform', 'msgspec', 'pydantic'}))"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
