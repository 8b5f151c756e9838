"""Trainers that hang, crash, end too early or never report, as real processes, in calibration and in the run."""

from __future__ import annotations

import pytest

from psconform.errors import BadInput, PsconformError
from psconform.runner.replay import stored_plan

from .memory import memory_cgroup
from .waits import only_one_is_killed

pytestmark = pytest.mark.engine

TRAINER = """
import os, signal, sys, threading, time

how, when, cgroup = {how!r}, {when!r}, {cgroup!r}

flag = os.path.join(os.path.dirname(__file__), "flag")

def serve():
    while not (how == "the ps crashes" and os.path.exists(flag)):
        time.sleep(0.02)
        if how == "the ps never starts":
            raise KeyError("no such port")
        if how == "crash" and os.path.exists(flag):
            os.remove(flag)
            sys.exit(0)
    os.remove(flag)
    raise KeyError("no such variable")

if sys.argv[1] == "ps":
    serve()
if how == "import":
    import no_such_module
if how == "silent":
    sys.exit(0)
if how == "killed at once":
    os.kill(os.getpid(), signal.SIGKILL)
if how == "late" or (how == "one is silent" and os.environ["PSCONFORM_TASK"] == "worker:1"):
    time.sleep(1 if how == "late" else 1000)
from psconform.probe import Probe
probe = Probe.from_env()
here = when == ("calibration" if probe.steps == 3 else "run")
theta = probe.initial()
probe.initialised([theta])
if how == "the ps never starts":
    serve = threading.Event().wait()
if how == "dies":
    signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGSEGV))
for step in range(probe.steps):
    probe.read([theta])
    gradient = probe.gradient(step)
    if here and step == 2:
        if how == "hang":
            threading.Event().wait()
        elif how == "the ps crashes":
            open(flag, "w").close()
            while os.path.exists(flag):
                time.sleep(0.02)
            time.sleep(1)
        elif how == "closes":
            probe.close()
            raise KeyError("no such variable")
        elif how == "panic":
            sys.stderr.write("panic: cannot save\\n\\t" + os.strerror(28) + "\\n")
            sys.exit(2)
        elif how in ("crash", "one is silent"):
            sys.stderr.write("retry: timed out, once more\\n")
            raise KeyError("no such variable")
        elif how == "exit 0":
            sys.exit(0)
        elif how == "os._exit(0)":
            os._exit(0)
        elif how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        elif how == "shell":
            sys.exit(137)
        elif how == "disk":
            raise OSError(28, os.strerror(28))
        elif cgroup:
            with open(cgroup, "w") as file:
                file.write(str(os.getpid()))
            kept = [bytearray(b"x") * 2**20 for _ in range(256 if how == "allocates" else 1)]
    probe.push(step)
    theta -= 0.5 * gradient * (0 if here and how == "lost" and step == 0 else 1)
    theta -= 0.5 * gradient * (1 if here and how == "doubled" and step == 0 else 0)
    probe.ack(step, "ok")
probe.wait_for_all()
if how == "no final read" and probe.steps > 3:
    raise KeyError("no such variable")
probe.read([theta], final=True)
probe.close()
if how == "crash":
    open(flag, "w").close()
if how == "saves":
    time.sleep(3)
if how == "lingers" and here:
    threading.Event().wait()
if how == "cannot save" and probe.steps > 3:
    raise KeyError("no such file")
"""


@pytest.fixture
def run(judge, tmp_path):
    def judged(how, when="run", *, cgroup="", ps_exits=False, **options):
        source = TRAINER.format(how=how, when=when, cgroup=str(cgroup))
        (tmp_path / "train.py").write_text(source, encoding="utf-8")
        command = 'command = ["{python}", "{here}/train.py", "{job}"]'
        text = f'name = "odd"\ntf_config = false\n[jobs.ps]\n{command}\n[jobs.worker]\n{command}\n'
        text = text.replace("[jobs.worker]", f"exits = {str(ps_exits).lower()}\n[jobs.worker]")
        (tmp_path / "target.toml").write_text(f"{text}[claims.async]\n", encoding="utf-8")
        options = {"layout": "ps=1,worker=1", "update": "async", "steps": 9, "patience_s": 1.0, **options}
        return judge(tmp_path / "target.toml", **options)

    return judged


@pytest.mark.parametrize("when", ["calibration", "run"])
@pytest.mark.parametrize(
    ("how", "witness"),
    [
        ("hang", "it is in wait (threading.py"),
        ("crash", "worker:0 failed with status 1: KeyError: 'no such variable'"),
        ("exit 0", "worker:0 ended with status 0 after 2 of "),
        ("os._exit(0)", "worker:0 ended with status 0 after 2 of "),
    ],
)
def test_training_that_does_not_complete(run, how, when, witness):
    judged = run(how, when)
    assert judged.violated == ("L0",), judged.explain()
    assert any(witness in line for line in judged.verdicts["L0"].witness), judged.explain()
    assert judged.exit_code == 1
    assert "valid" not in {verdict.status for verdict in judged.verdicts.values()}
    assert (judged.folder / "logs" / "worker-0.log").exists()


def test_a_worker_that_does_not_end_after_it_has_closed_its_record(run):
    judged = run("lingers")
    assert judged.violated == ("L0",), judged.explain()
    assert judged.verdicts["L0"].witness[0].startswith("worker:0 did not end within 1"), judged.explain()
    assert judged.verdicts["R1"].status == "valid", "training was over"


@pytest.mark.parametrize("when", ["calibration", "run"])
@pytest.mark.parametrize(
    ("how", "cause"),
    [
        ("killed", "SIGKILL came from outside"),
        ("shell", "SIGKILL came from outside"),
        ("disk", "a disk was full"),
        ("panic", "a disk was full"),
    ],
)
def test_what_the_trainer_is_not_to_blame_for(run, how, when, cause):
    with only_one_is_killed():
        judged = run(how, when)
    assert (judged.violated, judged.exit_code) == ((), 2), judged.explain()
    assert cause in judged.verdicts["L0"].reason


@pytest.mark.parametrize("when", ["calibration", "run"])
def test_the_oom_killer(run, when):
    """The kernel ends a worker that allocates more than its memory cgroup may have; with less than that all is well."""
    with only_one_is_killed(), memory_cgroup(64 << 20) as cgroup:
        judged = run("allocates", when, cgroup=cgroup, patience_s=60.0)
        healthy = run("fits", when, cgroup=cgroup, patience_s=60.0)
    assert (judged.violated, judged.exit_code) == ((), 2), judged.explain()
    assert judged.verdicts["L0"].status == "unknown"
    assert judged.verdicts["L0"].reason == "worker:0 was ended by signal 9: the OOM killer ended it"
    assert "valid" not in {verdict.status for verdict in judged.verdicts.values()}
    assert healthy.valid, healthy.explain()


@pytest.mark.parametrize("how", ["closes", "no final read"])
def test_who_fails_once_it_has_closed_its_record_or_is_done_has_not_completed(run, how):
    """Only who has done both had nothing left to train."""
    judged = run(how)
    assert judged.violated == ("L0",), judged.explain()
    assert any(
        "worker:0 failed with status 1: KeyError: 'no such variable'" in line for line in judged.verdicts["L0"].witness
    )


def test_who_fails_once_it_has_done_both_has_completed(run):
    """It may not have saved its model; nothing of the record is missing."""
    judged = run("cannot save")
    assert judged.valid, judged.explain()
    assert "worker:0 failed with status 1 after it had closed its record" in judged.explain()


def test_a_ps_that_fails_while_others_train(run):
    """Once a gradient was acknowledged it is no set-up any more."""
    judged = run("the ps crashes")
    assert judged.violated == ("L0",), judged.explain()
    assert any(
        "ps:0 failed with status 1: KeyError: 'no such variable'" in line for line in judged.verdicts["L0"].witness
    )


def test_a_ps_that_fails_before_anybody_trains_is_the_set_up(run):
    """Of the worker, which waits for it, there is nothing to say."""
    with pytest.raises(BadInput, match="ps:0: failed with status 1 before it had started: KeyError: 'no such port'"):
        run("the ps never starts")


def test_it_is_who_is_silent_that_has_not_started(run, monkeypatch):
    """worker:0 has crashed, and worker:1 never started its probe."""
    monkeypatch.setattr("psconform.runner.execute.START_PATIENCE_S", 5.0)
    with pytest.raises(BadInput, match="worker:1: recorded nothing"):
        run("one is silent", layout="ps=1,worker=2")


def test_a_ps_that_waits_for_a_worker_that_has_crashed_is_not_late(run):
    """It ends by itself, once it has had every worker's goodbye."""
    judged = run("crash", ps_exits=True)
    assert judged.violated == ("L0",), judged.explain()
    assert "did not end" not in judged.explain()


def test_a_calibration_that_did_not_complete_keeps_the_plan_and_is_not_replayed(run):
    plan = '[[fault]]\nkind = "stop"\ntask = "worker:0"\nat = 2\nfor = "100ms"\n'
    judged = run("crash", "calibration", faults=plan)
    assert judged.violated == ("L0",), judged.explain()
    assert f"--faults {judged.folder}/faults.toml" in judged.repeat
    assert 'task = "worker:0"' in (judged.folder / "faults.toml").read_text(encoding="utf-8")
    with pytest.raises(BadInput, match="is a calibration that did not complete"):
        stored_plan(judged.folder, out=judged.folder.with_name("again"))


@pytest.mark.parametrize("how", ["import", "silent"])
def test_a_task_that_ends_before_its_probe_starts_is_the_set_up(run, how):
    with pytest.raises(BadInput) as caught:
        run(how)
    said = str(caught.value)
    assert caught.value.exit_code == 3
    assert "worker-0.log" in said
    wanted = "ModuleNotFoundError: No module named 'no_such_module'" if how == "import" else "Does its trainer use"
    assert wanted in said


def test_who_is_killed_before_it_starts_is_no_set_up(run):
    """Neither is the trainer to blame."""
    with only_one_is_killed():
        judged = run("killed at once")
    assert (judged.violated, judged.exit_code) == ((), 2), judged.explain()
    assert "SIGKILL came from outside" in judged.verdicts["L0"].reason


def test_who_is_killed_by_a_fault_before_it_starts_is_no_set_up(run):
    """Its probe may not have started by then."""
    judged = run("late", kill="worker:0@0s", restart_after="never")
    assert (judged.violated, judged.exit_code) == ((), 2), judged.explain()
    assert "1 of 1 faults observed" in judged.explain()
    assert (judged.folder / "done" / "worker-0").exists()


def test_a_task_that_dies_of_another_signal_than_was_sent(run, tmp_path):
    """It got SIGTERM and ended by SIGSEGV: that the fault took effect was not observed, nor that it did not."""
    (tmp_path / "plan.toml").write_text('fault = [{kind = "term", task = "worker:0", at = 2}]', encoding="utf-8")
    judged = run("dies", faults=tmp_path / "plan.toml")
    assert "was injected and not observed, and then training ended by an error" in judged.verdicts["L1"].reason
    assert (judged.violated, judged.exit_code) == ((), 2), judged.explain()
    assert judged.verdicts["L0"].reason == "needs a run without faults"


@pytest.mark.parametrize("how", ["", "saves"])
def test_the_healthy_one(run, how):
    judged = run(how)
    assert judged.valid, judged.explain()
    assert judged.verdicts["L0"].status == "valid"


@pytest.mark.parametrize(("how", "times"), [("lost", "R1"), ("doubled", "R1")])
def test_a_first_gradient_that_is_lost_or_doubled_gets_a_verdict(run, how, times):
    assert run(how, "calibration").valid  # of one calibration nothing follows for the run
    judged = run(how)
    assert times in judged.violated, judged.explain()


def test_both_and_the_run_is_judged_by_the_right_rate(judge, tmp_path):
    source = TRAINER.format(how="doubled", when="run", cgroup="").replace("here = when == ", "here = True or ")
    (tmp_path / "train.py").write_text(source, encoding="utf-8")
    command = 'command = ["{python}", "{here}/train.py", "{job}"]'
    text = f'name = "odd"\ntf_config = false\n[jobs.ps]\n{command}\nexits = false\n[jobs.worker]\n{command}\n'
    (tmp_path / "target.toml").write_text(f"{text}[claims.async]\n", encoding="utf-8")
    judged = judge(tmp_path / "target.toml", layout="ps=1,worker=1", update="async", steps=9)
    assert "the gradient of worker:0, step 0" in judged.explain()
    assert "R1" in judged.violated, judged.explain()


def test_a_ps_that_is_not_ready_is_the_set_up(judge, tmp_path):
    text = (
        'name = "odd"\ntf_config = false\n[jobs.ps]\ncommand = ["sh", "-c", "echo no; exit 7"]\nready = {port = true}\n'
    )
    text += '[jobs.worker]\ncommand = ["true"]\n[claims.async]\n'
    (tmp_path / "target.toml").write_text(text, encoding="utf-8")
    with pytest.raises(
        PsconformError, match=r"ps:0: ended .*its log ends: no\. The whole log is .*ps-0\.log"
    ) as caught:
        judge(tmp_path / "target.toml", layout="ps=1,worker=1", update="async")
    assert caught.value.exit_code == 3
