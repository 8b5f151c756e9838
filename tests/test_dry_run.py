"""``--dry-run`` prints what would be started, and starts nothing; in the docker SDK's own words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from docker.types import DeviceRequest, HostConfig

from psconform.launchers.images import toxiproxy_image, trainer_image
from psconform.options import Options
from psconform.runner.dry_run import API, dry_run
from psconform.runner.plan import make_plan

LAYOUTS = Path(__file__).parents[1] / "docker" / "layouts"


def containers(tmp_path, layout, **options):
    """What would be created, by name without the run's."""
    plan = make_plan(Options(out=tmp_path / "run", layout=str(layout), launcher="docker", **options))
    parts = [part for part in dry_run(plan) if "container" in part]
    return {part["container"].removeprefix("psconform-RUN-"): part["create"] for part in parts}


@pytest.mark.parametrize("name", ["gpu", "gpu-towers"])
def test_every_worker_asks_for_gpus_of_its_own_and_nobody_else_for_any(name, tmp_path):
    """As the SDK puts it, so as the engine understands it."""
    made = containers(tmp_path, LAYOUTS / f"{name}.toml")
    asked = {task: said["host_config"].get("DeviceRequests") for task, said in made.items()}
    each = 2 if name == "gpu-towers" else 1
    workers = [task for task in made if task.startswith("worker") and not task.endswith("-pod")]
    assert len(workers) == (2 if name == "gpu-towers" else 4)
    for number, task in enumerate(workers):
        ids = [str(number * each + one) for one in range(each)]
        assert asked.pop(task) == [DeviceRequest(device_ids=ids, capabilities=[["gpu"]])]
    assert set(asked.values()) == {None}
    assert {made[task]["image"] for task in made} == {trainer_image(gpu=True)}


def test_emulated_gpus_are_asked_of_nobody(tmp_path):
    made = containers(tmp_path, LAYOUTS / "gpu-towers.toml", emulate_gpus=True)
    assert not any("DeviceRequests" in said["host_config"] for said in made.values())
    assert "--gpus=2" in made["worker-0"]["entrypoint"]
    assert "--emulate-gpus=1" in made["worker-0"]["entrypoint"]
    assert {said["image"] for said in made.values()} == {trainer_image()}


def test_limits_of_a_layout_are_those_of_its_tasks_not_of_their_helpers(tmp_path):
    made = containers(tmp_path, LAYOUTS / "cpu.toml")
    said = made["worker-1"]["host_config"]
    wanted = HostConfig(
        version=API,
        network_mode=said["NetworkMode"],
        cpu_period=100_000,
        cpu_quota=100_000,
        mem_limit="2g",
        memswap_limit="2g",
        shm_size="64m",
    )
    assert {key: said[key] for key in wanted} == wanted
    assert "CpuQuota" not in made["worker-1-pod"]["host_config"]


def test_with_faults_of_links_there_is_toxiproxy_and_others_are_behind_it(tmp_path):
    fault = 'fault = [{kind = "stall", links = "worker:1->ps:0", at = 5, for = "1s"}]'
    made = containers(tmp_path, "ps=1,worker=2", faults=fault)
    assert list(made) == [
        *("ps-0-pod", "worker-0-pod", "worker-1-pod"),
        *("toxiproxy-0-pod", "toxiproxy-0"),
        *("ps-0", "worker-0", "worker-1"),
    ]
    assert made["toxiproxy-0"]["image"] == toxiproxy_image()
    cluster = json.loads(made["worker-1"]["environment"]["TF_CONFIG"])["cluster"]
    assert cluster == {"ps": ["toxiproxy-0:PORT"], "worker": ["toxiproxy-0:PORT", "worker-1:2222"]}


def test_an_image_of_ones_own_is_for_tasks(tmp_path):
    made = containers(tmp_path, "ps=1,worker=2", image="registry.example/team/trainer:1.2")
    assert made["ps-0"]["image"] == "registry.example/team/trainer:1.2"
    assert made["ps-0-pod"]["image"] == trainer_image()


def test_processes_are_told_which_gpus_are_theirs(tmp_path):
    plan = make_plan(Options(out=tmp_path / "run", layout="ps=1,worker=2,gpus=2"))
    seen = {part["task"]: part["environment"]["CUDA_VISIBLE_DEVICES"] for part in dry_run(plan)}
    assert seen == {"ps:0": "-1", "worker:0": "0,1", "worker:1": "2,3"}


@pytest.mark.parametrize(("launcher", "where"), [("docker", "/psconform/shared"), ("process", "TEMPORARY")])
def test_a_clock_that_jumps_is_the_one_of_its_task(tmp_path, launcher, where):
    fault = 'fault = [{kind = "clock", task = "worker:1", at = 5, for = "1s"}]'
    plan = make_plan(Options(out=tmp_path / "run", layout="ps=1,worker=2", launcher=launcher, faults=fault))
    seen = {}
    for part in dry_run(plan):
        if "container" in part and not part["container"].endswith("-pod"):
            seen[part["container"].removeprefix("psconform-RUN-")] = part["create"]["environment"]
        elif "task" in part:
            seen[part["task"].replace(":", "-")] = part["environment"]
    jumps = {task: env["FAKETIME_TIMESTAMP_FILE"] for task, env in seen.items() if "FAKETIME_TIMESTAMP_FILE" in env}
    assert jumps == {"worker-1": f"{where}/clock-worker-1"}
    assert seen["worker-1"]["LD_PRELOAD"].startswith(f"{where}/libfaketime")


@pytest.mark.engine
def test_it_starts_nothing_and_needs_no_engine(tmp_path):
    command = [sys.executable, "-m", "psconform.cli", "run", "--layout", str(LAYOUTS / "gpu.toml"), "--launcher"]
    command += ["docker", "--dry-run", "--out", str(tmp_path / "run")]
    env = {**os.environ, "DOCKER_HOST": "unix:///nowhere", "PATH": str(tmp_path)}
    done = subprocess.run([*command, "--json"], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    parts = json.loads(done.stdout)
    assert parts[0]["network"] == "psconform-RUN"
    assert len(parts) == 1 + 2 * 6
    text = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False).stdout
    assert "container psconform-RUN-worker-3\n{" in text
    assert not list(tmp_path.iterdir())


@pytest.mark.engine
def test_of_many_runs_nothing_is_shown():
    command = [sys.executable, "-m", "psconform.cli", "run", "--dry-run", "--repeat", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3
    assert "--dry-run: shows one run" in done.stderr
