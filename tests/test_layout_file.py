"""Layouts in files, and layouts with GPUs: what they say, and what is refused before anything starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from psconform.errors import BadInput, PsconformError
from psconform.launchers.blueprint import Resources
from psconform.launchers.gpus import gpus, lacking
from psconform.layout import Layout, Task
from psconform.options import Options
from psconform.runner.container_setup import need_gpus
from psconform.runner.folder import new_folder, new_manifest
from psconform.runner.layout_file import FILE, layout_text, read_layout
from psconform.runner.plan import make_plan
from psconform.runner.replay import stored_plan

LAYOUTS = sorted((Path(__file__).parents[1] / "docker" / "layouts").glob("*.toml"))
SMALL = "[ps]\ncount = 1\n[worker]\ncount = 2\n"
NVIDIA = {"Runtimes": {"nvidia": {}, "runc": {}}}


def written(tmp_path, text):
    path = tmp_path / "layout.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_examples_are_the_three_that_are_documented():
    said = {path.stem: read_layout(path).text for path in LAYOUTS}
    gpu = {"gpu": "ps=2,worker=4,gpus=1", "gpu-towers": "ps=1,worker=2,gpus=2"}
    assert said == {"cpu": "ps=1,worker=2", **gpu}
    assert dict(read_layout(LAYOUTS[0]).limits)["worker"] == Resources(cpus=1.0, memory=2 << 30, shared_memory=64 << 20)


@pytest.mark.parametrize("path", LAYOUTS, ids=lambda path: path.stem)
def test_what_is_kept_of_a_file_says_the_same(path, tmp_path):
    file = read_layout(path)
    assert read_layout(written(tmp_path, layout_text(Layout.parse(file.text), file.limits))) == file


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[ps", "is not TOML"),
        ("[ps]\ncount = 1\n", "worker: is missing"),
        ("[worker]\ncount = 1\n[ps]\n", "ps.count: is missing"),
        (SMALL + "cpu = 2\n", "worker: unknown field, got 'cpu'"),
        (SMALL.replace("[worker]", "gpus = 1\n[worker]"), "ps: unknown field, got 'gpus'"),
        (SMALL + "[master]\ncount = 1\n", "top level: unknown field, got 'master'"),
        (SMALL + 'memory = "2GB"\n', "worker.memory: must be a whole number with its unit"),
        (SMALL + 'memory = "1KiB"\n', "worker.memory: must be at least 6MiB, got '1KiB'"),
        (SMALL + "cpus = 0.001\n", "worker.cpus: must be at least 0.01, or 0: all that there are, got 0.001"),
        (SMALL + "cpus = -1.0\n", "worker.cpus: Input should be greater than or equal to 0, got -1.0"),
        (SMALL + "gpus = 17\n", "worker.gpus: Input should be less than or equal to 16, got 17"),
        (SMALL.replace("2", '"2"'), "worker.count: Input should be a valid integer, got '2'"),
    ],
)
def test_a_file_that_is_wrong_is_named_with_its_place(text, said, tmp_path):
    path = written(tmp_path, text)
    with pytest.raises(BadInput) as refused:
        make_plan(Options(out=tmp_path / "run", layout=str(path)))
    assert str(path) in str(refused.value)
    assert said in str(refused.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(BadInput, match=r"--layout: cannot be read \(No such file"):
        make_plan(Options(out=tmp_path, layout=str(tmp_path / "no.toml")))


def test_processes_are_not_limited(tmp_path):
    with pytest.raises(BadInput, match="limits memory of a worker, and processes are not limited"):
        make_plan(Options(out=tmp_path, layout=str(written(tmp_path, SMALL + 'memory = "1GiB"\n'))))
    plan = make_plan(Options(out=tmp_path, layout=str(written(tmp_path, SMALL))))
    assert plan.layout.text == "ps=1,worker=2"


def test_a_quota_that_would_change_nothing_is_refused(tmp_path):
    """What its own limit does to a task would count as the fault's."""
    path = tmp_path / "layout.toml"
    path.write_text("[ps]\ncount = 1\n[worker]\ncount = 2\ncpus = 0.4\n")
    fault = '[[fault]]\nkind = "cpu-quota"\ntask = "worker:1"\nat = 5\nfor = "1s"\npercent = {}\n'
    options = {"layout": str(path), "launcher": "docker", "out": tmp_path / "run"}
    with pytest.raises(BadInput, match="fault 1: percent: must be less than what its layout leaves it, got 40"):
        make_plan(Options(faults=fault.format(40), **options))
    make_plan(Options(faults=fault.format(39), **options))
    make_plan(Options(faults=fault.format(40).replace("worker:1", "ps:0"), **options))
    path.write_text(path.read_text().replace("0.4", "0.07"))
    with pytest.raises(BadInput, match="got 7"):
        make_plan(Options(faults=fault.format(7), **options))
    for seed in range(40):  # nobody has said those percents
        plan = make_plan(Options(faults="random:cpu-quota", seed=seed, **options))
        assert all(("percent", 5) in fault.amounts for fault in plan.faults if str(fault.task) == "worker:1")


def test_limits_come_back_with_a_replay(tmp_path):
    options = {"launcher": "docker", "emulate_gpus": True}
    layout = next(path for path in LAYOUTS if path.stem == "gpu-towers")
    plan = make_plan(Options(out=tmp_path / "run", layout=str(layout), **options))
    folder = new_folder(plan.out)
    new_manifest(folder, plan)
    again = stored_plan(folder, out=tmp_path / "again")
    assert again.containers == plan.containers
    assert again.layout == plan.layout
    assert f"--layout {plan.out / FILE} --update sync --emulate-gpus" in plan.repeat
    assert make_plan(Options(out=tmp_path, layout=str(plan.out / FILE), **options)).containers == plan.containers
    text = (folder / FILE).read_text(encoding="utf-8")
    (folder / FILE).write_text(text.replace("count = 1", "count = 3"), encoding="utf-8")
    with pytest.raises(BadInput, match="is not of the tasks that this run had, got 'ps=3,worker=2,gpus=2'"):
        stored_plan(folder, out=tmp_path / "again")
    (folder / FILE).unlink()
    with pytest.raises(BadInput, match=r"had tasks that were limited, and has no layout\.toml"):
        stored_plan(folder, out=tmp_path / "again")


def test_a_folder_that_containers_could_not_mount_is_refused(tmp_path):
    with pytest.raises(BadInput, match="--out: must have no colon in its path"):
        make_plan(Options(out=tmp_path / "a:b" / "run", launcher="docker"))
    make_plan(Options(out=tmp_path / "a:b" / "run"))
    (tmp_path / "loop").symlink_to("loop")
    make_plan(
        Options(out=tmp_path / "loop" / "run", launcher="docker")
    )  # that it cannot be made is said when it is made


def test_each_worker_has_gpus_of_its_own():
    layout = Layout.parse("ps=1,worker=2,gpus=2")
    assert [layout.gpus_of(task) for task in layout.tasks] == [(), (0, 1), (2, 3)]
    emulated = Layout.parse("ps=1,worker=2,gpus=2", emulated=True)
    assert emulated.gpus_of(Task("worker", 1)) == ()
    assert layout.text == emulated.text == "ps=1,worker=2,gpus=2"
    assert (layout.mode, emulated.mode) == ("sync mean, 2 GPU(s) each", "sync mean, 2 emulated GPU(s) each")


@pytest.mark.parametrize(
    ("layout", "options", "said"),
    [
        ("ps=1,worker=2", {"emulated": True}, "--emulate-gpus: needs --layout gpus=N"),
        ("ps=1,worker=2,gpus=99", {}, "a worker has between 0 and 16 GPUs"),
        ("ps=0,worker=2,gpus=1", {}, "gpus=N: needs a ps"),
        ("ps=1,worker=2,gpus=1", {"replication": "in-graph"}, "gpus=N: needs --replication between-graph"),
        ("ps=1,worker=2,gpu=1", {}, "unknown job, got 'gpu'; valid: ps, worker, gpus"),
    ],
)
def test_layouts_with_gpus_that_cannot_be(layout, options, said):
    with pytest.raises(BadInput) as refused:
        Layout.parse(layout, **options)
    assert said in str(refused.value)


def driver(folder, script):
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    tool.chmod(0o755)


@pytest.mark.engine
def test_what_a_layout_with_gpus_lacks_is_named(tmp_path, monkeypatch):
    """A program in the driver's place: there may be none here."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert lacking(2) == "this machine shows none: there is no nvidia-smi"
    driver(tmp_path, "echo broken >&2; exit 9")
    assert lacking(2) == "this machine shows none"
    driver(tmp_path, "echo NVIDIA H100; echo NVIDIA H100")
    assert gpus() == ("NVIDIA H100", "NVIDIA H100")
    assert lacking(4) == "this machine shows 2 of them"
    assert lacking(2) == lacking(2, info=NVIDIA) == lacking(2, info={"DiscoveredDevices": ["nvidia.com/gpu=0"]}) == ""
    assert "the Docker engine has no NVIDIA runtime (but runc)" in lacking(2, info={"Runtimes": {"runc": {}}})


@pytest.mark.engine
def test_a_layout_with_gpus_is_refused_before_anything_starts(tmp_path):
    """Whatever is on PATH, it is not a driver."""
    out = tmp_path / "run"
    command = [sys.executable, "-m", "psconform.cli", "run", "--layout", "ps=1,worker=2,gpus=2", "--out", str(out)]
    env = {**os.environ, "PATH": str(tmp_path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3
    assert "layout ps=1,worker=2,gpus=2 needs 4 GPU(s), and this machine shows none" in done.stderr
    assert "--emulate-gpus" in done.stderr
    assert not out.exists()
    need_gpus(Layout.parse("ps=1,worker=2,gpus=2", emulated=True), containers=False)
    need_gpus(Layout.parse("ps=1,worker=2"), containers=True)


def test_so_many_that_no_machine_has_them(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PsconformError, match=r"needs 1024 GPU\(s\)"):
        need_gpus(Layout.parse("ps=1,worker=64,gpus=16"), containers=False)
