"""L1 on real processes: a worker that was stopped and goes on, but training does not."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "socket_ps"
pytestmark = pytest.mark.engine

BACK = """import signal
import time


def steps_of(probe):
    back = threading.Event()
    signal.signal(signal.SIGCONT, lambda *_: back.set())
    for step in range(probe.steps):
        yield step
        while back.is_set():
            {stuck}


def serve("""
HANGS = "threading.Event().wait()"
GOES_ROUND = "probe.push(step), probe.ack(step, 'unknown'), time.sleep(0.05)"


def _target(tmp_path, stuck, *, more=""):
    source = (HERE / "socket_ps.py").read_text(encoding="utf-8")
    for old, new in (("def serve(", BACK.format(stuck=stuck)), ("in range(probe.steps)", "in steps_of(probe)")):
        assert old in source
        source = source.replace(old, new, 1) if old == "def serve(" else new.join(source.rsplit(old, 1))
    (tmp_path / "socket_ps.py").write_text(more + source, encoding="utf-8")
    text = (HERE / "target.toml").read_text(encoding="utf-8")
    text = text.replace('barrier = "full"', 'barrier = "full"\nliveness = "progress"')
    (tmp_path / "target.toml").write_text(text, encoding="utf-8")
    return tmp_path / "target.toml"


@pytest.mark.parametrize(
    ("stuck", "where"),
    [
        (HANGS, r"it is in wait \(threading\.py:\d+\).* < steps_of \(socket_ps\.py:\d+\)"),
        (GOES_ROUND, r"it is in .*steps_of"),
    ],
)
def test_a_hang_and_a_task_that_goes_round_in_circles(judge, tmp_path, stuck, where):
    run = judge(_target(tmp_path, stuck), update="sync", steps=20, stop="worker:1@5..9", patience_s=10.0)
    assert run.verdicts["L1"].status == "violated", run.explain()
    witness = run.verdicts["L1"].witness
    assert "stop worker:1 at its step 5" in witness[0]
    assert any(re.search(f"^worker:1 recorded .*{where}", line) for line in witness), witness
    assert any(line.startswith("worker:0 ") and "it is in " in line for line in witness), witness
    assert "no task made progress for 10 s" in run.explain()  # more only where a step has taken a second


def test_a_trainer_that_has_a_use_for_the_signal_is_not_asked(judge, tmp_path):
    mine = "import signal\nsignal.signal(signal.SIGUSR2, lambda *_: print('mine'))\n"
    run = judge(_target(tmp_path, HANGS, more=mine), update="sync", steps=20, stop="worker:1@5..9", patience_s=3.0)
    assert run.verdicts["L1"].status == "violated", run.explain()
    assert not any("it is in" in line for line in run.verdicts["L1"].witness)
    assert "mine" not in (run.folder / "logs" / "worker-1.log").read_text(encoding="utf-8")


def test_it_is_no_hang_if_training_goes_on(judge, tmp_path):
    run = judge(_target(tmp_path, "back.clear()"), update="sync", steps=20, stop="worker:1@5..9", patience_s=3.0)
    assert run.valid, run.explain()
    assert run.verdicts["L1"].status == "valid"
    start = json.loads((run.folder / "events" / "worker-1.jsonl").read_bytes().split(b"\n")[0])
    assert start["stacks"] is True


LONE = """
import sys, time
from psconform.probe import Probe
if sys.argv[1] == "ps":
    time.sleep(1000)
probe = Probe.from_env()
theta = probe.initial()
probe.initialised([theta])
for step in range(probe.steps):
    probe.read([theta])
    gradient = probe.gradient(step)
    probe.push(step)
    if step == 0 and probe.steps > 3:  # calibration has three
        probe.ack(step, "unknown")
        time.sleep(2.5)
        probe.push(step)
    theta -= 0.5 * gradient
    probe.ack(step, "ok")
probe.wait_for_all()
probe.read([theta], final=True)
probe.close()
"""


def _lone(tmp_path, source):
    (tmp_path / "lone.py").write_text(source, encoding="utf-8")
    command = 'command = ["{python}", "{here}/lone.py", "{job}"]'
    text = f'name = "lone"\ntf_config = false\n[jobs.ps]\n{command}\nexits = false\n[jobs.worker]\n{command}\n'
    (tmp_path / "target.toml").write_text(text + '[claims.async]\ndelivery = "exactly-once"\n', encoding="utf-8")
    return tmp_path / "target.toml"


def test_a_first_call_that_is_cut_off_is_no_acknowledgement_yet(judge, tmp_path):
    """Until there is one, a busy machine is given longer than --patience."""
    run = judge(_lone(tmp_path, LONE), layout="ps=1,worker=1", update="async", steps=9, patience_s=1.0)
    assert run.valid, run.explain()


@pytest.mark.parametrize("slow", ["probe = Probe", "theta = probe.initial"])
def test_a_process_that_is_started_again_may_take_its_time_to_come_up(judge, tmp_path, slow):
    """That time is the machine's, until it has recorded something: then it is its own."""
    late = 'if __import__("os").environ["PSCONFORM_INCARNATION"] != "0":\n    time.sleep(2.5)\n'
    target = _lone(tmp_path, LONE.replace("time.sleep(2.5)", "pass").replace(slow, late + slow))
    run = judge(
        target, layout="ps=1,worker=1", update="async", steps=9, kill="worker:0@4", restart_after="0s", patience_s=1.0
    )
    assert run.as_dict()["status"] == ("finished" if slow == "probe = Probe" else "stalled"), run.explain()


def test_a_hang_after_a_violation_is_not_waited_for(judge, tmp_path):
    """The ps loses every gradient of step 3, and worker:1 hangs some steps later."""
    target = _target(tmp_path, HANGS)
    text = target.read_text(encoding="utf-8")
    target.write_text(text.replace('"--reduction={reduction}"]\nready', '"--reduction={reduction}", "--drop"]\nready'))
    run = judge(target, update="sync", steps=20, stop="worker:1@5..9")
    assert (run.exit_code, run.violated) == (1, ("S1",)), run.explain()
    assert run.verdicts["L1"].status == "not judged"
    assert "ended after 10 s without progress: S1 was already violated" in run.explain()
    manifest = json.loads((run.folder / "manifest.json").read_text())
    assert manifest["status"] == "decided"
    assert manifest["times_s"]["ended"] < 40, "60 s is the patience"
