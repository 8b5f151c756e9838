"""What another package may add: one file, and the entry points in its metadata; nothing of psconform is edited."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from psconform.faults.kinds import Kind, register

from .recorded_runs import RECORDED, unpack

pytestmark = pytest.mark.engine
SOCKETS = Path(__file__).parent / "socket_ps" / "target.toml"

CHECK = '''
"""Nobody pushes step 3."""

import numpy as np

from psconform.checks import check
from psconform.verdict import valid, violated


@check("X1", "no third step", dimension="barrier", updates=("sync",))
def no_third_step(history):
    """X1: no worker ever pushes its gradient of step 3.

    Assumes: nothing.
    """
    pushed = [str(worker) for worker in history.workers if np.any(worker.pushes.step == 3)]
    return violated(f"{name} pushed step 3" for name in pushed) if pushed else valid("no third step")
'''
FAULT = '''
"""A task that is stopped, by a signal that it cannot see."""

import os
import signal

from psconform.faults.injectors import OfTask
from psconform.faults.kinds import PROCESS, Amount, Kind, register


class Hiccup(OfTask):
    def inject(self):
        self._processes.signal(self._task, signal.SIGSTOP)

    def evidence(self):
        return "it has the hiccups" if self._processes.state(self._task) == "T" else ""

    def heal(self):
        self._processes.signal(self._task, signal.SIGCONT)

    def healed(self):
        return "" if self._processes.state(self._task) == "T" else "they are gone"


register(
    Kind(
        name="hiccup",
        of=PROCESS,
        about="it stops for a moment",
        evidence="it is stopped",
        injector=Hiccup,
        lasts=True,
        amounts={"loud": Amount("decibels", 40, 0, 100, drawn=(50,))},
        needs=lambda: os.environ.get("NO_AIR", ""),
    )
)
'''
WORKLOAD = '''
"""A robust loss with a known optimum, in place of a quadratic one."""

import numpy as np

from psconform.probe import workload
from psconform.trained import Trained


class PseudoHuber:
    """sum of sqrt(1 + (theta - 1)^2) - 1."""

    size = 60

    def initial(self, seed):
        return np.random.RandomState(seed).standard_normal(self.size).astype(np.float32)

    def loss(self, theta, x, y):
        return float(np.sum(np.sqrt(1 + (theta.astype(np.float64) - 1) ** 2) - 1))

    def gradient(self, theta, x, y):
        return (theta - 1) / np.sqrt(1 + (theta - 1) ** 2)


@workload
class Robust(Trained):
    name = "robust"
    about = "a robust loss with a known optimum"
    learning_rates = {"sgd": 0.05}

    @classmethod
    def model_of(cls, spec):
        return PseudoHuber()
'''
TARGET = '''
"""The small trainer over sockets."""

from dataclasses import replace

from psconform.claims import DEFAULTS
from psconform.targets.target import Job, Ready, Target

WORDS = ("--job={job}", "--index={index}", "--ps={ps_hosts}", "--update={update}", "--reduction={reduction}")
COMMAND = ("{python}", "PROGRAM", *WORDS)
TARGET = Target(
    name="sockets",
    about="a trainer of a hundred lines over sockets",
    jobs={"ps": Job(COMMAND, ready=Ready(port=True), exits=False), "worker": Job(COMMAND)},
    claims={"sync": DEFAULTS["sync"], "async": DEFAULTS["async"]},
    tf_config=False,
)
'''.replace("PROGRAM", str(SOCKETS.parent / "socket_ps.py"))
LAUNCHER = '''
"""Tasks as processes that are nice to others."""

from dataclasses import replace

from psconform.launchers.local import LocalLauncher


class NiceLauncher(LocalLauncher):
    name, about = "nice", "a process with a low priority for each task"

    def start(self, task, command, **more):
        return super().start(task, replace(command, argv=("nice", "-n", "5", *command.argv), entry=""), **more)
'''
TWICE = CHECK.replace('"X1"', '"S1"')


@pytest.fixture
def added(tmp_path):
    """Writes a package with one file, whose entry points it has in its metadata; returns a way to run psconform."""

    def write(text, group, value="extra"):
        assert len(text.strip().splitlines()) <= 60
        (tmp_path / "extra.py").write_text(text, encoding="utf-8")
        metadata = tmp_path / "extra-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: extra\nVersion: 1.0\n", encoding="utf-8")
        (metadata / "entry_points.txt").write_text(f"[{group}]\nextra = {value}\n", encoding="utf-8")

    def psconform(*arguments, **more):
        path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
        command = [sys.executable, "-m", "psconform", *arguments]
        return subprocess.run(
            command, env={**os.environ, "PYTHONPATH": path, **more}, capture_output=True, text=True, check=False
        )

    return write, psconform


def test_a_check_is_listed_and_judges(added, tmp_path):
    write, psconform = added
    unpack(RECORDED / "healthy-ledger-sync.tar.xz", tmp_path / "run")
    assert psconform("check", str(tmp_path / "run")).returncode == 0
    write(CHECK, "psconform.checks")
    listed = psconform("list", "checks", "--json")
    assert '"X1"' in listed.stdout
    assert "no worker ever pushes its gradient of step 3" in listed.stdout
    judged = psconform("check", str(tmp_path / "run"))
    assert judged.returncode == 1, judged.stderr
    assert "worker:0 pushed step 3" in judged.stdout + judged.stderr


@pytest.mark.parametrize(
    ("text", "value", "says"),
    [
        (TWICE, "extra", "check S1 is declared already, by psconform.checks.synchronous"),
        (CHECK, "missing", "No module named 'missing'"),
        ("import nonsense", "extra", "No module named 'nonsense'"),
    ],
)
def test_a_check_that_cannot_be_loaded_is_named(added, text, value, says):
    write, psconform = added
    write(text, "psconform.checks", value)
    listed = psconform("list", "checks")
    assert listed.returncode == 3
    assert "entry point extra of psconform.checks: cannot be loaded: " in listed.stderr
    assert says in listed.stderr
    assert "Traceback" not in listed.stderr


def test_a_kind_of_nothing_that_faults_can_be_of_is_refused():
    with pytest.raises(ValueError, match="fault kind storm is of 'weather'; valid: process, network"):
        register(Kind(name="storm", of="weather", about="it rains", evidence="it is wet"))


PLAN = """
[[fault]]
kind = "hiccup"
task = "worker:1"
at = 8
for = "200ms"
"""


def test_a_kind_of_fault_is_listed_parsed_injected_and_heals(added, tmp_path):
    write, psconform = added
    write(FAULT, "psconform.faults")
    assert "it stops for a moment" in psconform("list", "faults", "--json").stdout
    (tmp_path / "plan.toml").write_text(PLAN, encoding="utf-8")
    job = ["run", str(SOCKETS), "--layout", "ps=1,worker=2", "--steps", "20"]
    run = psconform(*job, "--faults", str(tmp_path / "plan.toml"), "--out", str(tmp_path / "run"))
    assert run.returncode == 0, run.stdout + run.stderr
    assert (
        "fault: hiccup worker:1 at its step 8, loud=40, for 200 ms: it has the hiccups, then they are gone"
        in run.stdout
    )
    bad = psconform(*job, "--faults", PLAN + "loud = 101")
    assert (bad.returncode, "loud: must be between 0 and 100, got 101" in bad.stderr) == (3, True)
    lacks = psconform(*job, "--faults", PLAN, NO_AIR="air")
    assert lacks.returncode > 2
    assert "fault hiccup needs air" in lacks.stderr


def test_it_is_drawn(added, tmp_path):
    write, psconform = added
    write(FAULT, "psconform.faults")
    job = ["run", str(SOCKETS), "--layout", "ps=1,worker=2", "--steps", "40", "--out", str(tmp_path / "run")]
    run = psconform(*job, "--faults", "random:hiccup", "--seed", "3")
    assert run.returncode == 0, run.stdout + run.stderr
    assert 'kind = "hiccup"' in (tmp_path / "run" / "faults.toml").read_text(encoding="utf-8")
    assert "it has the hiccups" in run.stdout


@pytest.mark.tensorflow
def test_a_workload_is_listed_trained_by_the_reference_and_judged(added, tmp_path):
    write, psconform = added
    write(WORKLOAD, "psconform.workloads")
    assert "a robust loss with a known optimum" in psconform("list", "workloads").stdout
    command = ["run", "--workload", "robust", "--layout", "ps=1,worker=2", "--steps", "30"]
    wrong = psconform(*command, "--condition", "3")
    assert (wrong.returncode, "--condition: needs --workload quadratic" in wrong.stderr) == (3, True)
    run = psconform(*command, "--out", str(tmp_path / "run"))
    assert run.returncode == 0, run.stdout + run.stderr
    assert "learning-rate 0.05" in run.stdout
    assert psconform("check", str(tmp_path / "run")).returncode == 0
    text = WORKLOAD.replace("return (theta - 1)", "return 1.01 * (theta - 1)")  # not what was trained
    (tmp_path / "extra.py").write_text(text, encoding="utf-8")
    judged = psconform("check", str(tmp_path / "run"), "--json")
    assert judged.returncode == 1, judged.stderr
    assert {v["guarantee"] for v in json.loads(judged.stdout)["verdicts"] if v["status"] == "violated"} == {"C1"}


def test_a_workload_that_cannot_be_loaded_is_named(added):
    write, psconform = added
    write("import nonsense", "psconform.workloads")
    listed = psconform("list", "workloads")
    assert listed.returncode == 3
    assert "entry points psconform.workloads: ModuleNotFoundError: No module named 'nonsense'" in listed.stderr
    assert "Traceback" not in listed.stderr


def test_a_target_is_listed_and_judged(added, tmp_path):
    write, psconform = added
    write(TARGET, "psconform.targets", "extra:TARGET")
    assert "a trainer of a hundred lines over sockets" in psconform("list", "targets").stdout
    command = ["run", "sockets", "--layout", "ps=1,worker=2", "--steps", "20"]
    run = psconform(*command, "--out", str(tmp_path / "run"))
    assert run.returncode == 0, run.stdout + run.stderr
    assert "psconform run sockets" in run.stdout  # run again
    replayed = psconform("replay", str(tmp_path / "run"), "--times", "1", "--out", str(tmp_path / "again"))
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    (tmp_path / "extra.py").write_text(TARGET.replace("*WORDS)", '*WORDS, "--drop")'), encoding="utf-8")
    dropped = psconform(*command)
    assert dropped.returncode == 1, dropped.stdout + dropped.stderr
    refused = psconform(*command, "--quorum", "1")
    assert (refused.returncode, "target sockets has no such option" in refused.stderr) == (3, True)


@pytest.mark.parametrize(
    ("text", "value", "says"),
    [
        ("TARGET = 1", "extra:TARGET", "must be a psconform.targets.target.Target, got 'extra:TARGET'"),
        (TARGET.replace('"sockets"', '"reference"'), "extra:TARGET", "has the name of another target, got 'reference'"),
        ("import nonsense", "extra:TARGET", "cannot be loaded: ModuleNotFoundError"),
    ],
)
def test_a_target_that_cannot_be_is_named(added, text, value, says):
    write, psconform = added
    write(text, "psconform.targets", value)
    for command in (("list", "targets"), ("run", "sockets")):
        refused = psconform(*command)
        assert refused.returncode == 3
        assert f"entry point extra of psconform.targets: {says}" in refused.stderr
        assert "Traceback" not in refused.stderr


def test_a_launcher_is_listed_and_starts_tasks(added, tmp_path):
    write, psconform = added
    job = ["run", str(SOCKETS), "--layout", "ps=1,worker=2", "--steps", "20", "--launcher", "nice"]
    unknown = psconform(*job)
    assert unknown.returncode == 3
    assert "--launcher: unknown launcher, got 'nice'; valid: process, docker" in unknown.stderr
    write(LAUNCHER, "psconform.launchers", "extra:NiceLauncher")
    assert "a process with a low priority for each task" in psconform("list", "launchers").stdout
    run = psconform(*job, "--stop", "worker:1@8..12", "--out", str(tmp_path / "run"))
    assert run.returncode == 0, run.stdout + run.stderr
    assert "--launcher nice" in run.stdout  # run again
    assert json.loads((tmp_path / "run" / "manifest.json").read_text(encoding="utf-8"))["launcher"] == "nice"
    replayed = psconform("replay", str(tmp_path / "run"), "--out", str(tmp_path / "again"))
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr


@pytest.mark.parametrize(
    ("text", "value", "says"),
    [
        ("LAUNCHER = 1", "extra:LAUNCHER", "must be a class like psconform.launchers.local.LocalLauncher, with a name"),
        (LAUNCHER.replace('"nice", "a', '"docker", "a'), "extra:NiceLauncher", "has the name of another launcher"),
        ("import nonsense", "extra:NiceLauncher", "cannot be loaded: ModuleNotFoundError"),
    ],
)
def test_a_launcher_that_cannot_be_is_named(added, text, value, says):
    write, psconform = added
    write(text, "psconform.launchers", value)
    refused = psconform("list", "launchers")
    assert refused.returncode == 3
    assert f"entry point extra of psconform.launchers: {says}" in refused.stderr
    assert "Traceback" not in refused.stderr
