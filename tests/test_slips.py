"""Calls of the probe that make no sense: none raises into the trainer, each is recorded, none makes a false valid."""

from __future__ import annotations

import json
import logging
import os
import re
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psconform.claims import Claims
from psconform.errors import Malformed
from psconform.history.manifest import Manifest, Workload
from psconform.history.slips import COSTS, Cost
from psconform.layout import Layout
from psconform.probe import MOST_SLIPS, Probe, Slip
from psconform.report.text import explain
from psconform.runner.progress import Records
from psconform.runner.verdicts import judge_folder

from . import bugs
from .simulate import Trainer
from .stories import Story


class Remote:
    """A value that is fetched when it is looked at, over a connection that breaks."""

    def __array__(self, *_, **__):
        raise ConnectionResetError("by peer")


def slips_in(folder: Path, name="worker-0"):
    """(call, what, step) of the slips in a record."""
    events = map(json.loads, (folder / "events" / f"{name}.jsonl").read_text().splitlines())
    return [(e["call"], e["what"], e.get("step")) for e in events if e["kind"] == "slip"]


@pytest.mark.parametrize(
    ("misuse", "slip"),
    [
        (lambda p: p.ack(0), ("ack", "ack without push", 0)),
        (lambda p: [p.push(0), p.ack(0, attempt=1)], ("ack", "ack without push", 0)),
        (lambda p: [p.push(0), p.ack(0), p.ack(0)], ("ack", "ack again", 0)),
        (lambda p: [p.push(0), p.ack(0), p.ack(0, "failed")], ("ack", "ack changed", 0)),
        (lambda p: [p.push(0), p.ack(0, "ok", [1]), p.ack(0, "ok", [2])], ("ack", "ack changed", 0)),
        (lambda p: [p.push(0), p.ack(0, "okay")], ("ack", "no outcome", 0)),
        (lambda p: [p.push(0), p.push(0, attempt=3)], ("push", "push out of order", 0)),
        (lambda p: p.push(4), ("push", "range", 4)),
        (lambda p: p.push(0.5), ("push", "argument", None)),
        (lambda p: p.push(), ("push", "argument", None)),
        (lambda p: [p.wait_for_all(), p.push(0)], ("push", "push after done", 0)),
        (lambda p: [p.push(0), p.ack(0, "unknown"), p.push(0), p.wait_for_all()], ("wait_for_all", "no ack", 0)),
        (lambda p: [p.push(1), p.ack(1), p.wait_for_all(), p.ack(1)], ("ack", "ack after done", 1)),
        (lambda p: [p.wait_for_all(), p.read([p.initial()])], ("read", "read after done", None)),
        (lambda p: p.read([p.initial()], final=True), ("read", "final before done", None)),
        (lambda p: p.read([p.initial()], step=5), ("read", "range", 5)),
        (lambda p: p.read([p.initial()], [2**60]), ("read", "range", None)),
        (lambda p: p.read(["x"]), ("read", "argument", None)),
        (lambda p: p.read([Remote()]), ("read", "argument", None)),  # an OSError that is none of the record's
        (lambda p: p.gradient(4), ("gradient", "range", 4)),
        (lambda p: p.resume(-1), ("resume", "range", None)),
        (lambda p: p.goes_without(9, 0), ("goes_without", "range", 0)),
        (lambda p: p.initialised([np.zeros(2)]), ("initialised", "size", None)),
        (lambda p: p.checkpoint("\ud800", [[1]]), ("checkpoint", "argument", None)),
        (lambda p: setattr(p, "epoch", -1), ("set_epoch", "range", None)),
        (lambda p: p.at([], 1), ("at", "argument", 1)),
        (lambda p: p.update(0, None), ("update", "no outcome", 0)),
        (lambda p: p.devices(3), ("devices", "argument", None)),
        (lambda p: p.state("rng", object()), ("state", "argument", None)),
        (lambda p: p.state("\ud800", [1]), ("state", "argument", None)),
        (lambda p: [p.push(0, work=-1), p.ack(0)], ("push", "no work", 0)),
        (lambda p: p.update(0, work="x"), ("update", "no work", 0)),
        (lambda p: [p.push(0, work=7, of=7), p.ack(0)], ("push", "no work", 0)),
        (lambda p: p.update(0, work=0, of=0), ("update", "no work", 0)),
    ],
)
def test_misuse_is_a_slip_in_the_record(probe, tmp_path, misuse, slip):
    misuse(probe)
    probe.close()
    assert slips_in(tmp_path) == [slip]


def test_a_loop_of_slips_does_not_fill_the_disk(probe, tmp_path):
    for _ in range(3 * MOST_SLIPS):
        probe.ack(0)
        probe.push(9)
    probe.close()
    assert len(slips_in(tmp_path)) == 2 * MOST_SLIPS


def test_a_push_out_of_order_is_recorded_as_the_next(probe, tmp_path):
    probe.push(0, 7)
    probe.ack(0)
    probe.close()
    kinds = [json.loads(line)["kind"] for line in (tmp_path / "events" / "worker-0.jsonl").read_text().splitlines()]
    assert kinds == ["start", "push", "slip", "ack", "end"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_passes(probe, error):
    class Values:
        def __len__(self):
            raise error

    with pytest.raises(error):
        probe.read(Values())


def test_what_the_trainer_asks_for_a_rollback_raises_is_its_own(tmp_path):
    for part in ("events", "vectors", "done"):
        (tmp_path / part).mkdir()
    spec = {"run": "r", "workers": 2, "steps": 4, "unit": 840.0, "wait_s": 1}
    probe = Probe(spec, task="worker:0", folder=str(tmp_path))

    def gives_up():
        raise ValueError("gave up")

    with pytest.raises(ValueError, match="gave up"):
        probe.wait_for_all(gives_up)
    probe.close()


def test_a_final_read_after_a_resume_has_to_wait_again(probe, tmp_path):
    probe.wait_for_all()
    probe.resume(2)
    probe.read([probe.initial()], final=True)
    probe.close()
    assert slips_in(tmp_path) == [("read", "final before done", None)]


class Slipping(Trainer):
    """Makes a call when worker:1 is done with step 3."""

    def __init__(self, call, **options):
        super().__init__(**options)
        self.call = call

    def before(self, worker, step):
        if (worker, step) == (1, 4):
            self.call(self.probes[1])


def test_a_harmless_slip_is_shown_and_costs_nothing(tmp_path):
    judged = Slipping(lambda p: p.ack(3, "ok", [4]), shards=(0,)).judge(tmp_path / "run")
    assert judged.exit_code == 0
    assert "note: worker:1: double acknowledgement (probe.ack, step 3)" in explain(judged)
    said = {"task": "worker:1", "call": "ack", "what": "ack again", "number": 1, "steps": [3]}
    assert json.loads(json.dumps(judged.as_dict()["slips"])) == [said]


def test_a_slip_that_costs_something_is_the_reason(tmp_path):
    judged = Slipping(lambda p: [p.ack(3, "failed"), p.ack(2, "failed")]).judge(tmp_path / "run")
    reason = "worker:1: 2 x second acknowledgement, other than the first (probe.ack, step 3, 2)"
    assert judged.history.gaps == (reason,)
    assert {v.status for v in judged.verdicts} == {"unknown", "not judged"}
    assert all(reason in v.reason for v in judged.verdicts if v.status == "unknown")
    assert reason in explain(judged)


def test_a_push_that_was_a_slip_may_have_been_sent(tmp_path):
    def slips_once(probe):
        def push(step, attempt):
            del probe.push
            probe.push(None, attempt)

        probe.push = push

    judged = Slipping(slips_once).judge(tmp_path / "run")
    assert {v.status for v in judged.verdicts} == {"unknown", "not judged"}  # it shows, and is no phantom
    assert not any("no end event" in gap for gap in judged.history.gaps)


def test_refused_attempts_beside_a_slip_are_not_all(tmp_path):
    judged = Slipping(lambda p: [p.push(4), p.ack(4, "failed"), p.push("4")]).judge(tmp_path / "run")
    assert judged.history.workers[1].ended is False


def test_a_slip_of_the_first_incarnation_counts_too(tmp_path):
    story = Story(tmp_path / "run")
    story.step(1, 2)
    story.probes[1].push(None)
    story.kill("worker:1")
    story.back(1)
    judged = story.finish()
    assert not judged.history.workers[1].ended
    assert any("argument that the probe cannot use" in gap for gap in judged.history.gaps)


def test_slips_are_no_progress(probe, tmp_path):
    paths = [tmp_path / "events" / "worker-0.jsonl"]
    records = Records()
    assert records.look(paths)
    probe.ack(0)
    assert not records.look(paths)


@pytest.mark.parametrize("what", Slip)
def test_every_slip_has_a_cost(what):
    assert COSTS[what][0] in Cost


def test_a_full_disk_stops_the_record_and_not_the_training(tmp_path, monkeypatch):
    written, whole = [], os.write

    def write(fd, data):
        if b'"kind":' not in data:
            return whole(fd, data)
        written.append(data)
        return whole(fd, data[: len(data) // 2]) if len(written) == 40 else whole(fd, data)

    monkeypatch.setattr(os, "write", write)
    judged = Trainer().judge(tmp_path / "run")
    assert judged.exit_code == 2
    assert any("has no end event" in gap for gap in judged.history.gaps)


@pytest.mark.parametrize("part", ["events", "vectors"])
def test_a_record_that_cannot_be_opened_is_no_error_of_the_trainer(tmp_path, part, monkeypatch):
    opened = os.open

    def refused(path, *args, **named):
        if Path(path).parent.name == part and "worker-1" in Path(path).name:
            raise PermissionError(13, "no")
        return opened(path, *args, **named)

    monkeypatch.setattr(os, "open", refused)
    assert judge_folder(Trainer().run(tmp_path / "run")).exit_code == 2


PLAIN = [None, True, -1, 0, 1, 2, 3, 5, 6, 2**60, 10**400, 1.5, float("nan"), "ok", "3", "\ud800", b"x", [], [1], {}]
ARRAYS = [np.int8(3), np.float16(1), np.uint64(2**63), np.zeros(3), np.array(2), np.array([None]), np.array("x")]
ODD = st.sampled_from([*PLAIN, *ARRAYS, object()])
WIDE = st.lists(
    st.sampled_from([np.zeros(26, np.float64), np.full(26, np.inf), np.zeros(26, complex), None]), max_size=3
)
STEP, OUTCOME = st.integers(-1, 7) | ODD, st.sampled_from(["ok", "failed", "unknown"]) | ODD
COUNTS = st.none() | st.lists(st.integers(0, 9), max_size=3) | ODD
CALLS = st.one_of(
    st.tuples(st.just("push"), st.tuples(STEP) | st.tuples(STEP, STEP)),
    st.tuples(st.sampled_from(["ack", "update"]), st.tuples(STEP, OUTCOME, COUNTS) | st.tuples(STEP)),
    st.tuples(st.just("read"), st.tuples(WIDE | ODD, COUNTS)),
    st.tuples(st.sampled_from(["gradient", "gradients", "samples", "initial", "resume"]), st.tuples(STEP)),
    st.tuples(st.sampled_from(["used", "at", "goes_without", "checkpoint", "state"]), st.tuples(STEP, COUNTS)),
    st.tuples(st.sampled_from(["initialised", "residual", "devices", "restored"]), st.tuples(WIDE | ODD)),
    st.tuples(st.sampled_from(["wait_for_all", "close", "push", "read", "ack"]), st.tuples()),
)
DRAWN = st.dictionaries(
    st.tuples(st.integers(0, 1), st.integers(0, 6)), st.lists(CALLS, min_size=1, max_size=4), min_size=1, max_size=3
)
"""By worker and step, what it calls before it reads for that step; 6: before it waits for all."""
TOGETHER = re.compile(r"workers read different numbers|another worker's record|has a residual of")
"""What only the records of several workers, or reads that come later, show to be wrong."""


def drawn_calls(server, update, calls, folder):
    """Judge a trainer that also makes these calls: the exit code, "refused", and whether a slip cost the record."""

    class Drawn(server):
        def before(self, worker, step):
            for name, args in calls.get((worker, step), ()):
                getattr(self.probes[worker], name)(*args)

        def finish(self, worker):
            self.before(worker, self.steps)

    run = Drawn(update=update, steps=6).run(folder)
    try:
        judged = judge_folder(run)
    except Malformed as error:
        if not TOGETHER.search(str(error)):
            raise
        return "refused", True
    cost = {slip.cost for slip in judged.history.slips} - {Cost.NOTHING}
    return judged.exit_code, bool(cost)


def never_valid_but_well(server, update, calls):
    logging.disable()
    try:
        with tempfile.TemporaryDirectory() as folder:
            code, cost = drawn_calls(server, update, calls, Path(folder) / "run")
    finally:
        logging.disable(logging.NOTSET)
    assert code != 0 or (server is Trainer and not cost)


SERVERS = st.sampled_from([Trainer, Trainer, bugs.Dropped, bugs.Twice, bugs.LostTail])
drawn = given(SERVERS, st.sampled_from(["sync", "async"]), DRAWN)


@settings(max_examples=200, deadline=None)
@drawn
def test_drawn_calls_never_raise_and_never_make_a_false_valid(server, update, calls):
    never_valid_but_well(server, update, calls)


@pytest.mark.nightly
@settings(max_examples=10_000, deadline=None)
@drawn
def test_ten_thousand_drawn_calls_never_raise_and_never_make_a_false_valid(server, update, calls):
    never_valid_but_well(server, update, calls)


def test_a_task_may_initialise_some_of_the_variables(tmp_path):
    """As each ps does of a trainer in which they do it themselves."""
    for part in ("events", "vectors", "done"):
        (tmp_path / part).mkdir()
    manifest = Manifest(
        run="r",
        created="",
        target="t",
        source="t",
        layout=Layout(ps=2, workers=1),
        claims=Claims(),
        workload=Workload(name="quadratic", steps=3, unit=1.0, learning_rate=0.1),
    )
    probe = Probe(manifest.spec, task="ps:0", folder=str(tmp_path))
    probe.initialised([probe.initial(0)])
    probe.close()
    kinds = [json.loads(line)["kind"] for line in (tmp_path / "events" / "ps-0.jsonl").read_text().splitlines()]
    assert kinds == ["start", "init", "end"]
