"""Stragglers (--slow) and the step times that every run reports."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psconform.api import check
from psconform.errors import BadInput
from psconform.history.decode import Answers
from psconform.history.events import Ack, Push, Read, Start
from psconform.history.reader import EventFile, column
from psconform.layout import Layout
from psconform.options import Options
from psconform.report.text import explain
from psconform.runner.figures import quantile
from psconform.runner.figures import time_worker as time_columns
from psconform.runner.plan import make_plan
from psconform.runner.stragglers import MAX_S, parse_slow
from psconform.times import spell

from .simulate import Trainer

TARGET = Path(__file__).parent / "socket_ps" / "target.toml"
LAYOUT = Layout(ps=1, workers=3)
MS = 1_000_000


def parse(slow, patience_s=100.0):
    return parse_slow(slow, layout=LAYOUT, patience_s=patience_s)


@pytest.mark.parametrize(
    ("slow", "means"),
    [
        ((), ()),
        ("worker:1=50ms", (("worker:1", 0.05),)),
        ([" worker:2 = 250us", "worker:0=1.5s"], (("worker:0", 1.5), ("worker:2", 0.00025))),
        ({"worker:1": 0.05}, (("worker:1", 0.05),)),
        ({"worker:1": "0.05s", "worker:0": 0}, (("worker:0", 0.0), ("worker:1", 0.05))),
        ("worker:0=60s", (("worker:0", 60.0),)),
    ],
)
def test_spellings(slow, means):
    assert parse(slow) == means


@given(st.floats(min_value=0, max_value=MAX_S, allow_nan=False))
def test_a_time_written_out_and_read_back_is_the_same_to_the_last_bit(seconds):
    assert parse(f"worker:1={spell(seconds)}") == (("worker:1", abs(seconds)),)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (0.05, "50ms"), (60.0, "60s"), (1.5, "1.5s"), (2.5e-4, "250us"), (1e-7, "0.1us")]
)
def test_times_are_written_as_people_write_them(seconds, text):
    assert spell(seconds) == text


@pytest.mark.parametrize(
    ("slow", "says"),
    [
        ("worker:1", ["TASK=TIME", "'worker:1'"]),
        ("=50ms", ["job:index", "''"]),
        ("worker=50ms", ["job:index", "'worker'"]),
        ("ps:0=50ms", ["only workers", "'ps:0'", "worker:0, worker:1, worker:2"]),
        ("worker:3=50ms", ["ps=1,worker=3", "'worker:3'", "worker:0, worker:1, worker:2"]),
        ("worker:1=50", ["unit", "'50'", "us, ms, s"]),
        ("worker:1=50 minutes", ["unit", "'50 minutes'"]),
        ("worker:1=fast", ["unit", "'fast'"]),
        ("worker:1=ms", ["unit", "'ms'"]),
        ("worker:1=-1ms", ["worker:1", "between 0 and 60 s", "'-1ms'"]),
        ("worker:1=61s", ["worker:1", "between 0 and 60 s", "'61s'"]),
        ("worker:1=nans", ["between 0 and 60 s", "'nans'"]),
        ("worker:1=infs", ["between 0 and 60 s", "'infs'"]),
        (["worker:1=1s", "worker:1=2s"], ["worker:1 twice"]),
        ({"worker:1": True}, ["unit", "True"]),
        ({"worker:1": None}, ["unit"]),
        ({1: 0.5}, ["job:index", "'1'"]),
        ([0.5], ["TASK=TIME", "0.5"]),
        (0.5, ["TASK=TIME", "0.5"]),
    ],
)
def test_what_cannot_be_meant_is_refused(slow, says):
    with pytest.raises(BadInput) as caught:
        parse(slow)
    assert [word for word in ["--slow", *says] if word not in str(caught.value)] == [], str(caught.value)


def test_a_straggler_must_not_look_stalled():
    with pytest.raises(BadInput, match=r"--slow: worker:1 would be taken for stalled after 20 s.*--patience"):
        parse("worker:1=30s", patience_s=20.0)


def test_the_repeat_line_has_it_and_makes_the_same_plan(tmp_path):
    slow = {"worker:2": 0.00125, "worker:0": 30.0}
    plan = make_plan(Options(out=tmp_path, layout="ps=1,worker=3", update="async", slow=slow, patience_s=90.5))
    words = shlex.split(plan.repeat)
    said = ["--slow", "worker:0=30s", "--slow", "worker:2=1.25ms", "--patience", "90.5"]
    assert words[words.index("--slow") :][: len(said)] == said
    spelled = [words[i + 1] for i, word in enumerate(words) if word == "--slow"]
    assert parse(spelled) == plan.workload.slow


def events(*told):
    """One event for each (kind, milliseconds, fields)."""
    return [kind(seq=i, mono_ns=at * MS, crc="", **fields) for i, (kind, at, fields) in enumerate(told)]


def step(number, start, end, outcome="ok"):
    """A step of a worker: read and push at ``start``, acknowledged at ``end`` (milliseconds)."""
    what = {"step": number}
    return [(Read, start, what), (Push, start, what), (Ack, end, {**what, "outcome": outcome})]


def time_worker(task, events):
    """As the events of a file become columns."""
    names = {"schema": 1, "run": "r", "task": task, "incarnation": 0, "boot": "", "pid": 1}
    first = Start(seq=0, mono_ns=0, crc="", **names)
    answers = Answers(EventFile(Path("none"), first, events), steps=10)
    reads = [event for event in events if isinstance(event, Read)]
    return time_columns(task, answers.pushes(column(reads, "seq")), column(reads, "mono_ns"))


def test_step_times_are_from_acknowledgement_to_acknowledgement_without_the_first():
    told = [*step(0, 0, 500), *step(1, 505, 510), *step(2, 511, 520), *step(3, 521, 560)]
    timing = time_worker("worker:1", events(*told))
    assert (timing.task, timing.steps) == ("worker:1", 3)
    assert (timing.median_ms, timing.p95_ms, timing.max_ms) == (10.0, 40.0, 40.0)
    assert timing.updates_per_s == 50.0


def test_a_single_step_is_timed_from_its_read():
    timing = time_worker("worker:0", events(*step(0, 100, 120)))
    assert (timing.steps, timing.median_ms, timing.updates_per_s) == (1, 20.0, 50.0)


def test_only_accepted_gradients_are_updates_and_an_attempt_more_is_no_step_more():
    again = [(Push, 22, {"step": 2, "attempt": 1}), (Ack, 30, {"step": 2, "attempt": 1, "outcome": "ok"})]
    told = [*step(0, 0, 10), *step(1, 11, 20, "failed"), *step(2, 21, 22, "unknown"), *again]
    timing = time_worker("worker:0", events(*told))
    assert (timing.steps, timing.median_ms, timing.updates_per_s) == (2, 10.0, 50.0)


def test_without_acknowledgement_there_is_no_time():
    assert time_worker("worker:0", events(*step(0, 0, 10)[:2])) is None
    assert time_worker("worker:0", []) is None


def test_quantile_is_one_of_the_values():
    assert [quantile(range(1, n + 1), 0.95) for n in (1, 2, 19, 20, 21, 100)] == [1, 2, 19, 19, 20, 95]
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0


@pytest.mark.parametrize(("workers", "rows"), [(1, 1), (8, 8), (10, 8)])
def test_the_table_shows_the_slowest_of_many_workers(tmp_path, workers, rows):
    judged = Trainer(workers=workers).judge(tmp_path / "run")
    text = explain(judged)
    shown = [line.split() for line in text.splitlines() if line.startswith("  worker:")]
    assert len(shown) == rows
    slowest = sorted((worker.median_ms for worker in judged.timing.workers), reverse=True)[:rows]
    assert sorted((float(words[1]) for words in shown), reverse=True) == [round(ms, 1) for ms in slowest]
    assert ("and 2 faster workers" in text) is (workers == 10)


def test_no_steps_no_table(tmp_path):
    class Silent(Trainer):
        def outcome(self, worker, step, attempt):
            return None

    judged = Silent().judge(tmp_path / "run")
    assert judged.as_dict()["timing"] == {"workers": [], "updates_per_s": 0}
    assert "updates/s" not in explain(judged)


@pytest.mark.engine
@pytest.mark.parametrize(("update", "others"), [("sync", "wait"), ("async", "go on")])
def test_a_straggler_slows_its_round_in_sync_and_only_itself_in_async(judge, update, others):
    run = judge(TARGET, layout="ps=1,worker=3", update=update, steps=8, slow={"worker:1": 0.3})
    assert run.valid, run.explain()
    content = json.loads((run.folder / "verdicts.json").read_text(encoding="utf-8"))
    assert content["slow"] == {"worker:1": 0.3}
    times = {worker["task"]: worker["median_ms"] for worker in content["timing"]["workers"]}
    assert list(times) == ["worker:0", "worker:1", "worker:2"]
    assert times["worker:1"] >= 300
    assert (min(times["worker:0"], times["worker:2"]) > 270) is (others == "wait"), times
    assert check(run.folder).as_dict()["timing"] == content["timing"]
    assert "slow by 300ms" in run.explain()
    assert "updates/s" in run.explain()


@pytest.mark.engine
def test_the_others_wait_for_a_straggler_at_the_end_longer_than_their_patience(judge):
    # a patience that a cold start on a busy machine stays within, and a straggler that is longer behind than that
    run = judge(TARGET, layout="ps=1,worker=2", update="async", steps=6, slow="worker:1=1s", patience_s=4.0)
    assert run.valid, run.explain()
