"""Every layout of docker/layouts runs and is judged, its GPUs emulated; with real ones: tests/gpus."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from psconform.launchers.engine import engine
from psconform.options import Options
from psconform.runner.plan import make_plan
from psconform.runner.replay import stored_plan
from psconform.runner.session import Session
from psconform.runner.verdicts import judge_folder

LAYOUTS = sorted((Path(__file__).parents[2] / "docker" / "layouts").glob("*.toml"))


def limits_of(told):
    """Limits as the engine has them, of the containers of this process's run while it lasts."""
    api = engine()
    for said in api.containers(filters={"label": "psconform.part=task"}):
        if said["Labels"]["psconform.owner"].startswith(f"{os.getpid()}:"):
            host = api.inspect_container(said["Id"])["HostConfig"]
            told[said["Labels"]["psconform.task"]] = host["Memory"], host["CpuQuota"], host["ShmSize"]


@pytest.mark.parametrize("path", LAYOUTS, ids=lambda path: path.stem)
def test_a_layout_runs_and_is_judged(path, tmp_path, left_behind):
    emulate = path.stem != "cpu"
    options = {"layout": str(path), "launcher": "docker", "emulate_gpus": emulate, "steps": 20}
    plan = make_plan(Options(out=tmp_path / "run", **options))
    told = {}
    seen = threading.Event()

    def notify(progress):
        if progress.steps and not progress.what and not seen.is_set():
            seen.set()
            limits_of(told)

    with Session() as session:
        session.run(plan, notify=notify)
    judged = judge_folder(plan.out)
    assert judged.exit_code == 0, judged.verdicts
    assert not left_behind()
    assert set(told) == {str(task) for task in plan.layout.tasks}
    for job, of in plan.containers.limits:
        memory, quota, shared = told[f"{job}:0"]
        assert (memory, quota) == (of.memory, round(of.cpus * 100_000))
        assert shared == of.shared_memory or not of.shared_memory
    expected = [f"CPU:{number}" for number in range(plan.layout.gpus)] if emulate else None
    assert {worker: list(names) for worker, names in judged.history.devices.items()} == (
        dict.fromkeys(range(plan.layout.workers), expected) if emulate else {}
    )
    assert stored_plan(plan.out, out=tmp_path / "again").containers == plan.containers
