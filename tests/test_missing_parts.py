"""What a machine lacks: doctor, lists and the run that needs it say the same, and name the command that brings it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys

import pytest

from psconform import doctor
from psconform.cli import main
from psconform.faults import disk_faults, faketime
from psconform.faults.kinds import kinds
from psconform.launchers.engine import engine
from psconform.parts import (
    COMPOSE,
    DOCKER,
    DOCKER_SDK,
    FAKETIME,
    FUSE,
    SCIKIT_LEARN,
    TENSORFLOW,
    TOXIPROXY,
    Missing,
    Part,
)
from psconform.parts import _requirements as requirements
from psconform.targets.compose import compose

from .tiers import first


def hide(*modules):
    def lacks(monkeypatch, _):
        for name in modules:
            monkeypatch.setitem(sys.modules, name, None)

    return lacks


def no_engine(monkeypatch, folder):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{folder}/docker.sock")


def no_device(monkeypatch, folder):
    monkeypatch.setattr(disk_faults, "DEVICE", folder / "fuse")


def no_library(monkeypatch, folder):
    monkeypatch.setattr(faketime, "FOLDERS", (str(folder),))
    monkeypatch.setattr(faketime, "PACKAGE", "no_such_package")


def no_proxy(monkeypatch, _):
    monkeypatch.setenv("TOXIPROXY_URL", "http://127.0.0.1:9")


def no_compose(monkeypatch, folder):
    (folder / "compose.yaml").write_text("services: {}")
    monkeypatch.setenv("PATH", str(folder))


FAULTS = {
    "full.toml": 'fault = [{kind = "full", at = 5, for = "1s"}]',
    "clock.toml": 'fault = [{kind = "clock", task = "worker:1", at = 5, until = 9}]',
}
RUNS = {
    TENSORFLOW: (hide("tensorflow"), []),
    SCIKIT_LEARN: (hide("sklearn"), ["--workload", "digits"]),
    DOCKER: (no_engine, ["--launcher", "docker"]),
    DOCKER_SDK: (hide("docker"), ["--launcher", "docker"]),
    COMPOSE: (no_compose, ["compose:compose.yaml"]),
    FUSE: (no_device, ["--faults", "full.toml"]),
    FAKETIME: (no_library, ["--faults", "clock.toml"]),
    TOXIPROXY: (no_proxy, ["--faults", "random:stall"]),
}
"""Of parts: what hides one, and options of a run that takes it."""


@pytest.fixture
def fresh():
    """What has been found before is looked for again, and what is hidden is not remembered."""
    before = signal.getsignal(signal.SIGTERM)
    caches = (engine, compose)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()
    signal.signal(signal.SIGTERM, before)


def examined(part: Part) -> doctor.Finding:
    """As `psconform doctor` finds it."""
    return doctor._find(part, doctor.LOOKS[part])


@pytest.mark.engine
@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("part", RUNS, ids=lambda part: part.name)
def test_a_run_that_takes_a_missing_part_ends_with_what_doctor_says(monkeypatch, tmp_path, capfd, part):
    hidden, options = RUNS[part]
    monkeypatch.chdir(tmp_path)
    hidden(monkeypatch, tmp_path)
    for name, plan in FAULTS.items():
        (tmp_path / name).write_text(plan)
    monkeypatch.setattr(sys, "argv", ["psconform", "run", *options])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capfd.readouterr()
    *before, line = err.splitlines()
    assert len(before) == (part is TOXIPROXY), "only Toxiproxy may be set up by the run itself"
    assert (ended.value.code, out) == (3, "")
    if part in (TENSORFLOW, SCIKIT_LEARN):  # only their modules are hidden, and doctor looks for packages
        expected = str(Missing(part, "not installed"))
    else:
        expected = examined(DOCKER if part is DOCKER_SDK else part).advice
    assert f"so {part.needed_for} cannot be used; fix: " in expected
    assert line.endswith(expected)
    assert line.removesuffix(expected) in ("psconform: ", *(f"psconform: fault {name} needs " for name in kinds()))
    assert not (tmp_path / "psconform-runs").exists()


@pytest.mark.engine
@pytest.mark.usefixtures("fresh")
def test_doctor_counts_the_kinds_of_faults_that_are_lost(monkeypatch, tmp_path):
    no_engine(monkeypatch, tmp_path)
    found = examined(DOCKER)
    assert set(found.faults) == {name for name, kind in kinds().items() if kind.in_containers}
    assert set(examined(FUSE).faults) == {name for name, kind in kinds().items() if kind.mounts}


def test_pip_installs_what_psconform_asks_for_by_name():
    """psconform is on no package index, so its extras are no command."""
    for part in doctor.LOOKS:
        assert "psconform[" not in part.command
        assert part.command.isprintable()
    assert f"{sys.executable} -m pip install" in TENSORFLOW.command
    assert requirements()["tensorflow"].startswith("tensorflow>=")
    assert f"'{requirements()['tensorflow']}'" in TENSORFLOW.command


@pytest.mark.engine
@pytest.mark.parametrize("columns", first(["60", "80", "160"]))
def test_doctor_and_lists_fit_the_terminal_and_say_a_reason_once(monkeypatch, tmp_path, columns):
    no_engine(monkeypatch, tmp_path)
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("TOXIPROXY_URL", "http://127.0.0.1:9")
    doctor_said, faults_said = (_printed(*words) for words in (["doctor"], ["list", "faults"]))
    fixes = [line.strip() for line in doctor_said.splitlines() if line.startswith("    fix: ")]
    assert {"fix: unset DOCKER_HOST", "fix: unset TOXIPROXY_URL"} <= set(fixes)
    for text in (doctor_said, faults_said):
        lines = [line for line in text.splitlines() if "fix:" not in line]
        assert max(len(line) for line in lines if " " in line.strip()) <= int(columns)
    # this machine may lack other parts, too
    reasons = dict(re.findall(r"^(\[\d\]) (\w+):", faults_said, flags=re.MULTILINE))
    assert len({*reasons.values()}) == len(reasons)
    (number,) = [number for number, part in reasons.items() if part == TOXIPROXY.name]
    assert faults_said.count(number) == 1 + len([kind for kind in kinds().values() if kind.of == "network"])


def _printed(*words: str) -> str:
    command = [sys.executable, "-m", "psconform", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
