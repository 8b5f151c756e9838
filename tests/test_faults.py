"""Process faults: how they are spelled, where they strike, and what a run with them leaves behind."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import socket
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psconform.api import check
from psconform.errors import BadInput
from psconform.faults.cli_syntax import parse_faults
from psconform.faults.control import Control
from psconform.faults.fault import When
from psconform.layout import Layout
from psconform.options import Options
from psconform.probe import CONTROL, Probe
from psconform.runner.plan import make_plan

from .waits import until

TARGET = Path(__file__).parent / "socket_ps" / "target.toml"
LAYOUT = Layout(ps=2, workers=3)


def parsed(kill=(), stop=(), restart_after="1s", layout=LAYOUT):
    return parse_faults(kill=kill, stop=stop, restart_after=restart_after, layout=layout, steps=50)


@pytest.mark.parametrize(
    ("text", "when", "where"),
    [
        ("ps:0@20", When("before-push", 20), "worker"),
        ("worker:1@35", When("before-push", 35), "worker:1"),
        ("worker:1@after-push:35", When("after-push", 35), "worker:1"),
        ("worker:0@checkpointing", When("checkpointing"), "worker:0"),
        ("worker:0@checkpointing:40", When("checkpointing", 40), "worker:0"),
        ("ps:1@1.5s", When(after_s=1.5), "worker"),
    ],
)
def test_kill(text, when, where):
    (fault,) = parsed([text])
    assert (fault.kind, str(fault), fault.when, fault.where, fault.restart_after_s) == ("kill", text, when, where, 1.0)


def test_stop():
    fault, other = parsed(stop=["worker:0@10..15", "ps:0@1s..2500ms"])
    assert (fault.when.step, fault.until.step, str(fault)) == (10, 15, "worker:0@10..15")
    assert [strike["task"] for strike in fault.strikes] == ["worker:0", "worker"]
    assert (other.when.after_s, other.until.after_s, str(other)) == (1.0, 2.5, "ps:0@1s..2.5s")
    assert other.strikes == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"kill": ["worker:1"]}, "--kill: must be TASK@WHEN"),
        ({"kill": ["worker:9@3"]}, "--kill: layout ps=2,worker=3 has no such task"),
        ({"kill": ["worker@3"]}, "--kill: must be job:index"),
        ({"kill": ["worker:1@50"]}, "--kill: there are 50 steps, 0 to 49"),
        ({"kill": ["worker:1@3..5"]}, "--kill: must be like"),
        ({"kill": ["worker:1@after-push"]}, "needs a step, such as after-push:35"),
        ({"kill": ["worker:1@checkpointing:x"]}, "must be PHASE:STEP"),
        ({"kill": ["worker:1@soon!"]}, "the time must be a number with its unit"),
        ({"kill": ["worker:1@-3s"]}, "the time must be between 0 and 3600 s"),
        ({"kill": ["worker:1@9999999s"]}, "the time must be between 0 and 3600 s"),
        ({"kill": ["worker:1@3", "worker:1@3"]}, "--kill: is given twice"),
        ({"kill": [3]}, "--kill: must be text"),
        ({"stop": ["worker:1@3"]}, "--stop: must be like worker:0@10..15"),
        ({"stop": ["worker:1@5..3"]}, "--stop: must end after it begins"),
        ({"stop": ["worker:1@5..3s"]}, "from a step to a step, or from a time to a time"),
        ({"stop": ["worker:1@5..50"]}, "--stop: there are 50 steps"),
        ({"stop": ["worker:0@20..checkpointing"]}, "--stop: must end at a step or a time"),
        ({"stop": ["worker:0@20..sent:30"]}, "--stop: must end at a step or a time"),
        ({"kill": ["worker:1@3"], "restart_after": "soon"}, "--restart-after: the time must be a number"),
        ({"kill": ["worker:1@3"], "restart_after": "1e999999999999s"}, "--restart-after: the time must be a number"),
        ({"kill": ["worker:1@3"], "restart_after": "-1s"}, "--restart-after: must be never, or between 0"),
    ],
)
def test_bad_faults(options, says):
    with pytest.raises(BadInput, match=re.escape(says)):
        parsed(**options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"layout": "ps=0,worker=2", "kill": ["worker:1@3"]}, "--layout: replicas of .* so none can be started again"),
        ({"layout": "ps=1,worker=3", "quorum": 2, "kill": ["worker:1@3"]}, "--kill: excludes --quorum"),
        ({"replication": "in-graph", "stop": ["worker:1@3..5"]}, "--stop: needs --replication between-graph"),
        ({"checkpoint_every": -1}, "--checkpoint-every: must be between 0"),
        ({"checkpoint_every": True}, "--checkpoint-every: must be between 0"),
        ({"checkpoint_every": "0s"}, "--checkpoint-every: the time must be more than 0"),
        ({"checkpoint_every": "soon"}, "--checkpoint-every: the time must be a number with its unit"),
        ({"layout": "ps=0,worker=2", "checkpoint_every": "2s"}, "--checkpoint-every: replicas.* checkpoints, got '2s'"),
        ({"layout": "ps=0,worker=2", "checkpoint_every": 5}, "--checkpoint-every: replicas of target"),
        ({"checkpoint_every": "9" * 5000}, "--checkpoint-every: the time must be a number with its unit"),
        ({"kill": ["worker:1@after-pusch:35"]}, "--kill: unknown phase, got 'after-pusch'.*mean 'after-push'"),
        ({"kill": ["ps:0@typo"]}, "--kill: unknown phase, got 'typo'; valid: .*checkpointing"),
        ({"kill": ["worker:1@checkpointing"]}, "--kill: checkpointing is said by worker:0, got 'worker:1@checkp"),
        (
            {"faults": 'fault = [{kind = "kill", task = "ps:0", at = "typo"}]'},
            "--faults: fault 1: unknown phase, got 'typo'; valid: .*checkpointing",
        ),
        (
            {
                "faults": 'fault = [{kind = "stop", task = "ps:0", at = 3, until = 5}, '
                '{kind = "throttle", task = "ps:0", at = 4, until = 7}]'
            },
            "--faults: fault 2: would end stop ps:0@3..5, or the other way round",
        ),
        ({"faults": 'faults = [{kind = "kill"}]'}, r"--faults: is no file, and no plan: one begins with \[\[fault\]\]"),
    ],
)
def test_faults_that_a_layout_cannot_have(tmp_path, options, says):
    with pytest.raises(BadInput, match=says):
        make_plan(Options(out=tmp_path, **options))


def test_the_command_that_repeats_a_run_has_its_faults(tmp_path):
    faults = {"kill": ["ps:0@20", "worker:1@after-push:35"], "stop": ["worker:0@10..15"], "restart_after": "200ms"}
    plan = make_plan(Options(out=tmp_path, checkpoint_every=25, **faults))
    words = shlex.split(plan.repeat)
    for option, value in (("--kill", "ps:0@20"), ("--stop", "worker:0@10..15"), ("--restart-after", "200ms")):
        assert value in [words[i + 1] for i, word in enumerate(words) if word == option]
    assert words[words.index("--checkpoint-every") + 1] == "25"
    assert make_plan(Options(out=tmp_path)).checkpoint_every == 0  # a good day costs nothing
    words = shlex.split(make_plan(Options(out=tmp_path, checkpoint_every=0, kill=["ps:0@20"])).repeat)
    assert words[words.index("--checkpoint-every") + 1] == "0"
    for every in ("1.5s", "25", 25):
        words = shlex.split(make_plan(Options(out=tmp_path, checkpoint_every=every)).repeat)
        assert words[words.index("--checkpoint-every") + 1] == str(every)


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ({}, 0),
        ({"kill": ["worker:1@3"], "restart_after": "65s"}, 65),
        ({"kill": ["worker:1@3"], "restart_after": "never"}, 0),
        ({"stop": ["ps:0@1s..71s", "worker:1@3..5"]}, 70),
        ({"kill": ["ps:0@3", "worker:1@3"], "restart_after": "65s", "drop_after": "5s"}, 135),  # one after the other
        ({"drop_after": "70s"}, 70),
    ],
)
def test_whoever_is_away_for_a_declared_time_is_waited_for_that_long(tmp_path, options, seconds):
    assert make_plan(Options(out=tmp_path, **options)).outage_s == seconds


@given(st.floats(0, 3600, allow_nan=False), st.integers(0, 49))
def test_what_is_spelled_is_read_back(seconds, step):
    for when in (When(after_s=seconds), When("before-push", step), When("after-push", step), When("restoring")):
        assert When.parse(str(when), place="--kill") == when


def probe_at(tmp_path, control, monkeypatch, strikes, task="worker:1"):
    monkeypatch.setenv(CONTROL, control.told(str))
    (tmp_path / "events").mkdir(exist_ok=True)
    spec = {"workers": 2, "steps": 9, "run": "r", "unit": 840.0, "strikes": strikes}
    return Probe(spec, task=task, folder=str(tmp_path))


@pytest.mark.parametrize("path", [None, "control"])
def test_a_probe_waits_where_a_fault_strikes_and_nowhere_else(tmp_path, monkeypatch, path):
    with Control(path and tmp_path / path) as control:
        strikes = [{"task": "worker:1", "phase": "before-push", "step": 3}]
        probe = probe_at(tmp_path, control, monkeypatch, strikes)
        for step in range(3):
            probe.push(step)
            probe.ack(step)
        assert control.arrivals() == []
        thread = threading.Thread(target=probe.push, args=(3,))
        thread.start()
        found = until(control.arrivals)
        assert (found[0].task, found[0].phase, found[0].step) == ("worker:1", "before-push", 3)
        assert thread.is_alive()
        assert '"push","seq":7' not in (tmp_path / "events" / "worker-1.jsonl").read_text()
        found[0].release()
        thread.join(10)
        assert not thread.is_alive()


def test_a_probe_goes_on_when_psconform_is_gone(tmp_path, monkeypatch):
    with Control() as control:
        probe = probe_at(tmp_path, control, monkeypatch, [{"task": "worker", "phase": "before-push", "step": 0}])
        thread = threading.Thread(target=probe.push, args=(0,))
        thread.start()
        found = until(control.arrivals)
        found[0].line.close()
        thread.join(10)
        assert not thread.is_alive()


@pytest.mark.parametrize("said", [b"", b"x\n", b"[]\n", b'{"task": 1, "phase": "a", "step": 0}\n', b"{" * 2000])
def test_whoever_is_no_probe_is_hung_up_on(said):
    with Control() as control:
        host, _, port = control.address.rpartition(":")
        with socket.create_connection((host, int(port))) as line:
            line.sendall(said)
            line.shutdown(socket.SHUT_WR)
            line.settimeout(0.05)
            while True:
                assert control.arrivals() == []
                try:
                    if not line.recv(1):
                        break
                except TimeoutError:
                    continue
                except ConnectionError:
                    break


def events(run, name="psconform-0"):
    lines = (run.folder / "events" / f"{name}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.engine
def test_a_worker_that_was_stopped_goes_on(judge):
    run = judge(TARGET, layout="ps=1,worker=2", update="async", steps=30, stop=["worker:1@10..20"])
    assert run.valid, run.explain()
    on, off = (event for event in events(run) if event["kind"] == "fault")
    assert (on["on"], on["of"], on["evidence"]) == (True, "worker:1", "the process is stopped (state T)")
    assert (off["on"], off["evidence"]) == (False, "it goes on")
    pushes = [event for event in events(run, "worker-1") if event["kind"] == "push"]
    assert len(pushes) == 30
    # it was held at the step itself, and went on from there
    assert [e["step"] for e in pushes if e["mono_ns"] < on["mono_ns"]] == list(range(10))
    assert check(run.folder).verdicts == run.verdicts


@pytest.mark.engine
def test_a_task_that_ended_while_it_was_stopped_was_not_healed(judge):
    options = {"stop": ["worker:1@0s..6s"], "kill": ["worker:1@2s"], "restart_after": "never"}
    run = judge(TARGET, layout="ps=1,worker=2", update="async", steps=30, slow="worker:1=100ms", **options)
    assert (
        "fault stop worker:1 at the start, until 6 s after the start did not heal: worker:1 ended while it was stopped"
        in run.explain()
    )
    assert [e["fault"] for e in events(run) if e["kind"] == "fault"] == ["stop", "kill"]
    assert not run.valid


@pytest.mark.engine
def test_times_count_from_when_all_tasks_have_been_started(judge, tmp_path):
    """A ps that takes two seconds until it listens is not stopped meanwhile."""
    shutil.copytree(TARGET.parent, tmp_path / "late")
    late = tmp_path / "late" / "target.toml"
    text = late.read_text()
    begin = 'command = ["{python}"'
    slowly = 'command = ["sh", "-c", "sleep 2; exec \\"$@\\"", "sh", "{python}"'
    assert text.index(begin) < text.index("[jobs.worker]")
    late.write_text(text.replace(begin, slowly, 1))
    run = judge(
        late, layout="ps=1,worker=2", update="async", steps=30, stop="ps:0@500ms..2500ms", slow="worker:1=100ms"
    )
    assert run.valid, run.explain()
    on, off = (event for event in events(run) if event["kind"] == "fault")
    assert 1.8e9 < off["mono_ns"] - on["mono_ns"] < 20e9
    started = next(event["mono_ns"] for event in events(run, "worker-1"))
    assert on["mono_ns"] > started - 1e9, "it was stopped before the workers were started"


@pytest.mark.engine
def test_a_trainer_that_starts_over_doubles_what_it_had_pushed(judge):
    run = judge(TARGET, layout="ps=2,worker=2", update="async", steps=20, kill=["worker:1@8"], restart_after="0s")
    assert {"R1", "R2"} <= set(run.violated), run.explain()
    (line,) = run.verdicts["R1"].witness  # step 8 was struck before it was sent
    begins = "the gradients of worker:1, steps 0 to 7, (ok) were applied 2 times to ps:0 and ps:1 (8 gradients)"
    assert line.startswith(f"{begins}: worker:1 came back and began again at step 0")
    assert {path.name for path in (run.folder / "events").iterdir()} >= {"worker-1.jsonl", "worker-1.1.jsonl"}


@pytest.mark.engine
def test_killed_with_the_answer_in_hand(judge):
    run = judge(
        TARGET, layout="ps=1,worker=1", update="async", steps=9, kill="worker:0@after-push:4", restart_after="0s"
    )
    first = [(event["kind"], event.get("step")) for event in events(run, "worker-0")]
    assert first[-2:] == [("read", 4), ("push", 4)]
    assert any("steps 0 to 4," in line and "applied 2" in line for line in run.verdicts["R1"].witness)


@pytest.mark.engine
def test_a_fault_that_never_strikes_is_named(judge):
    run = judge(TARGET, layout="ps=1,worker=2", update="async", steps=9, kill=["worker:1@restoring"])
    assert not run.valid
    assert not run.violated
    assert "started again after 1 s was never injected: training did not get there" in run.explain()


@pytest.mark.engine
def test_a_task_that_never_comes_back_is_no_hang_of_the_others(judge, tmp_path):
    text = TARGET.read_text(encoding="utf-8").replace("{here}", str(TARGET.parent))
    (tmp_path / "target.toml").write_text(text.replace("[claims.sync]", '[claims.sync]\nliveness = "progress"'))
    options = {"layout": "ps=1,worker=2", "steps": 20, "restart_after": "never", "patience_s": 1.5}
    run = judge(tmp_path / "target.toml", kill=["worker:1@8"], **options)
    assert not run.valid
    assert not run.violated
    assert run.verdicts["L1"].reason == "kill worker:1 at its step 8 was not healed, so nobody owes progress"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"padding": -1}, "--padding: must be between 0 and 25000000"),
        ({"padding": 30_000_000}, "--padding: must be between 0 and 25000000"),
        ({"padding": 1.5}, "--padding: must be a whole number"),
        ({"padding": 9, "workload": "quadratic"}, "--padding: needs --workload ledger"),
        ({"padding": 9, "layout": "ps=0,worker=2"}, "--padding: needs a ps"),
    ],
)
def test_padding_that_cannot_be(tmp_path, options, says):
    with pytest.raises(BadInput, match=says):
        make_plan(Options(out=tmp_path, **options))


@pytest.mark.engine
@pytest.mark.parametrize("update", ["sync", "async"])
def test_padding_makes_the_parameters_larger_and_changes_no_verdict(judge, update):
    run = judge(TARGET, layout="ps=2,worker=2", update=update, steps=12, padding=1000)
    assert run.valid, run.explain()
    plain = judge(TARGET, layout="ps=2,worker=2", update=update, steps=12)
    assert {v.guarantee: v.status for v in run.verdicts.values()} == {
        v.guarantee: v.status for v in plain.verdicts.values()
    }
    assert check(run.folder).verdicts == run.verdicts


def test_padding_lies_between_head_and_tail(tmp_path):
    (tmp_path / "events").mkdir()
    probe = Probe({"workers": 2, "steps": 3, "run": "r", "unit": 840.0, "padding": 100}, task="worker:1")
    assert probe.slots == 2 * 6 + 2 + 100
    gradient = probe.gradient(2)
    assert gradient.nonzero()[0].tolist() == [5, 7, probe.slots - 1]
    assert probe.initial().nonzero()[0].tolist() == [6]
