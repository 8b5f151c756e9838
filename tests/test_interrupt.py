"""psconform or its tasks die in the middle of a run: nothing survives, and what was recorded can be read."""

import contextlib
import gc
import json
import signal
import subprocess
import sys
import time

import psutil
import pytest

from psconform.api import judge
from psconform.runner.session import Session

from .tiers import every
from .waits import HANG_S, until, within_a_second

pytestmark = pytest.mark.engine

TRAINER = """
import os, sys, time
from pathlib import Path
if sys.argv[1] == "ps":
    time.sleep(1000)
from psconform.probe import Probe
here, spec = Path(__file__).parent, Path(os.environ["PSCONFORM_SPEC"])
quiet = ".calibration-" in spec.parent.name or spec.parent.name == "0001"  # of a series, only the second run strikes

def reached(moment):
    if not quiet:
        (here / moment).write_text(f"{os.getpid()} {os.getppid()}\\n")
        if sys.argv[2] == moment:
            os.kill(os.getpid(), 9)

reached("start")
probe = Probe.from_env()
theta = probe.initial()
reached("created")
probe.initialised([theta])
for step in range(probe.steps):
    probe.read([theta])
    if step == 1:
        reached("read")
    gradient = probe.gradient(step)
    probe.push(step)
    if step == 2:
        reached("pushed")
    theta -= 0.5 * gradient
    if step == 3:
        reached("applied")
    probe.ack(step, "ok")
    if not quiet and step > 5:
        reached("going")
        time.sleep(float(sys.argv[3]))
probe.wait_for_all()
reached("done")
probe.read([theta], final=True)
reached("final")
probe.close()
reached("closed")
"""
TARGET = """
name = "alone"
tf_config = false
[jobs.ps]
command = ["{python}", "{here}/trainer.py", "ps"]
exits = false
[jobs.worker]
command = ["{python}", "{here}/trainer.py", "worker", "MOMENT", "PAUSE"]
[claims.async]
delivery = "exactly-once"
"""


def below(pid, word):
    """Processes that one has started, and those have, with this in their command line; others may end meanwhile."""
    found = set()
    for process in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if word in " ".join(process.cmdline()):
                found.add(process)
    return found


def gone(process):
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() == psutil.STATUS_ZOMBIE
    return True


def command(folder, *arguments, moment="never", pause=0.0):
    (folder / "trainer.py").write_text(TRAINER)
    (folder / "target.toml").write_text(TARGET.replace("MOMENT", moment).replace("PAUSE", str(pause)))
    return [sys.executable, "-m", "psconform.cli", *arguments]


RUN = ("run", "target.toml", "--layout", "ps=2,worker=1", "--update", "async", "--steps", "20", "--out", "out")


@pytest.fixture
def running(tmp_path, ctrl_c):
    """psconform in the middle of a run, and all processes below it: keeper, two ps, a worker."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    words = command(tmp_path, *RUN, pause=1000.0)
    with subprocess.Popen(words, cwd=tmp_path, start_new_session=True, **pipes) as process:
        try:
            until((tmp_path / "going").exists)
            below = psutil.Process(process.pid).children(recursive=True)
            yield process, below
        finally:
            process.kill()
        within_a_second(lambda: all(map(gone, below)))


def check(folder):
    """Judge what is left offline; gives exit code and text."""
    words = [sys.executable, "-m", "psconform.cli", "check", str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.stderr == ""
    assert "Traceback" not in done.stdout
    return done.returncode, done.stdout


def test_the_trainer_is_valid_if_nothing_happens(tmp_path):
    words = command(tmp_path, *RUN)
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not list(tmp_path.glob("*.calibration*"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_ends_its_tasks_and_can_be_read(running, tmp_path, number):
    process, below = running
    assert len(below) == 4
    process.send_signal(number)
    within_a_second(lambda: all(map(gone, below)))
    out, err = process.communicate(timeout=HANG_S)
    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[-1] == "psconform: interrupted; all tasks have been ended"
    assert err.count("psconform:") == 1
    assert "Traceback" not in err
    status, text = check(tmp_path / "out")
    assert status == 2
    assert "the run is interrupted, not finished" in text


def test_an_interrupted_series_says_what_it_had(tmp_path):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    words = command(tmp_path, *RUN, "--repeat", "3", pause=1000.0)
    with subprocess.Popen(words, cwd=tmp_path, start_new_session=True, **pipes) as process:
        try:
            until((tmp_path / "going").exists)
            below = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=HANG_S)
        finally:
            process.kill()
    within_a_second(lambda: all(map(gone, below)))
    assert len(below) == 4
    assert process.returncode == 130
    assert "INTERRUPTED: 1 valid" in out
    assert "interrupted in: out/0002" in out
    assert err.splitlines()[-1] == "psconform: interrupted; all tasks have been ended"
    assert "Traceback" not in err
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["0001", "0002", "summary.json"]
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["interrupted"] == "out/0002"
    assert [check(tmp_path / "out" / name)[0] for name in ("0001", "0002")] == [0, 2]


def test_a_killed_psconform_leaves_no_task_and_a_record_that_can_be_read(running, tmp_path):
    process, below = running
    process.kill()
    within_a_second(lambda: all(map(gone, below)))
    status, text = check(tmp_path / "out")
    assert status == 2
    assert "the run is running, not finished" in text


def test_a_killed_keeper_is_one_clear_error(running, tmp_path):
    process, below = running
    (keeper,) = (child for child in below if child.ppid() == process.pid)
    keeper.kill()
    within_a_second(lambda: all(map(gone, below)))
    out, err = process.communicate(timeout=HANG_S)
    assert (process.returncode, out) == (3, "")
    assert err.splitlines()[-1].startswith("psconform: the keeper of the tasks ended, and with it all tasks: ")
    assert "Traceback" not in err
    status, text = check(tmp_path / "out")
    assert status == 2
    assert "the run is failed, not finished" in text


@pytest.mark.parametrize(
    "moment", every(4, ["start", "created", "read", "pushed", "applied", "going", "done", "final", "closed"])
)
def test_a_killed_worker_ends_the_run_and_leaves_it_unknown(tmp_path, moment):
    """Unless it had closed its record."""
    code = 0 if moment == "closed" else 2
    words = command(tmp_path, *RUN, moment=moment)
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert "worker:0 was ended by signal 9" in done.stdout
    assert not any(psutil.pid_exists(int(pid)) for pid in (tmp_path / moment).read_text().split())  # worker, keeper
    status, text = check(tmp_path / "out")
    assert (status, "worker:0 was ended by signal 9" in text) == (code, True)


def test_a_kill_during_calibration_leaves_no_folder(tmp_path):
    words = command(tmp_path, *RUN)
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            until(lambda: list(tmp_path.glob("out.calibration-*")))
            below = psutil.Process(process.pid).children(recursive=True)
        finally:
            process.kill()
    within_a_second(lambda: all(map(gone, below)))
    assert not list(tmp_path.glob("out*"))


def test_of_two_series_at_once_into_one_folder_one_is_refused(tmp_path):
    words, pipes = command(tmp_path, *RUN, "--repeat", "2"), {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    both = [subprocess.Popen(words, cwd=tmp_path, text=True, **pipes) for _ in range(2)]
    said = [process.communicate(timeout=HANG_S) for process in both]
    assert sorted(process.returncode for process in both) == [0, 3], said
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["exit_code"] == 0


@pytest.mark.parametrize("until_what", ["going", "closed"])
def test_a_psconform_that_was_stopped_and_continued_calls_no_run_stalled(tmp_path, until_what):
    """For longer than its patience: training went on meanwhile, or came to its end."""
    words = [*command(tmp_path, *RUN, pause=0.2), "--patience", "1"]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            until((tmp_path / "going").exists)
            process.send_signal(signal.SIGSTOP)
            began = time.monotonic()
            until((tmp_path / until_what).exists)
            until(lambda: time.monotonic() > began + 1.5)  # more than the patience
            process.send_signal(signal.SIGCONT)
            shown = process.communicate(timeout=HANG_S)
        finally:
            process.kill()
    assert process.returncode == 0, shown
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["status"] == "finished"


def test_judge_leaves_nothing_in_the_temporary_folder(tmp_path, monkeypatch):
    command(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    with Session() as session:
        run = judge(tmp_path / "target.toml", layout="ps=2,worker=1", update="async", steps=5, session=session)
    assert run.valid, run.explain()
    assert check(run.folder)[0] == 0
    assert list((tmp_path / "tmp").iterdir()) == [run.folder]
    del run
    gc.collect()
    assert not list((tmp_path / "tmp").iterdir())


def test_two_at_once_into_one_folder(tmp_path):
    """The second is refused, whenever it comes, and leaves what the first has written."""
    words, pipes = command(tmp_path, *RUN), {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    both = [subprocess.Popen(words, cwd=tmp_path, **pipes) for _ in range(2)]
    said = [process.communicate(timeout=HANG_S) for process in both]
    assert sorted(process.returncode for process in both) == [0, 3], said
    refused = said[[process.returncode for process in both].index(3)][1].splitlines()[-1]
    assert refused.startswith("psconform: --out: ")
    assert check(tmp_path / "out")[0] == 0
    assert not list(tmp_path.glob("*.calibration*"))
