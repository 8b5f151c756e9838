"""The reference trainer survives: whatever is killed and comes back, each gradient is applied exactly once."""

from __future__ import annotations

import json

import pytest

from .recovering import Job, Tasks, free_port

pytestmark = pytest.mark.nightly
BOTH = pytest.mark.parametrize("update", ["async", "sync"])
SOON = {"CALL_TIMEOUT_S": "25"}
"""Who stays away is given up within this: a start on a busy machine takes several seconds."""


@pytest.fixture(scope="module")
def tasks():
    tasks = Tasks()
    yield tasks
    tasks.close()


@pytest.fixture
def cluster(tasks, tmp_path):
    return lambda **options: Job(tasks, tmp_path, **options)


def trained(job, task, steps):
    return lambda: job.count(task, "ack") >= steps


@BOTH
@pytest.mark.parametrize(
    "victims",
    [("worker:1",), ("worker:0",), ("ps:0",), ("ps:0", "ps:1"), ("worker:0", "ps:1"), ("worker:0", "ps:0", "ps:1")],
    ids=" ".join,
)
def test_killed_tasks_come_back(cluster, update, victims):
    with cluster(update=update) as job:
        job.until(trained(job, "worker:1", 15))
        job.again(*victims)
        job.finish()
        lost = any(task.startswith("ps") for task in victims)
        assert job.count("worker:0", "restore") == lost
        for worker in ("worker:0", "worker:1"):
            assert job.count(worker, "resume") == (lost or worker in victims)


@BOTH
def test_all_tasks_at_once_and_again(cluster, update):
    with cluster(update=update) as job:
        for done in (5, 25):
            job.until(trained(job, "worker:1", done))
            job.again(*job.tasks)
            job.until(lambda done=done: job.count("worker:1", "resume") > (done > 5))
        job.finish()


@BOTH
@pytest.mark.parametrize(("seconds", "least", "most"), [(0.001, 15, 41), (1000.0, 2, 2)])
def test_checkpoints_by_time(cluster, update, seconds, least, most):
    """One after each step that takes longer than that; else the first and the last."""
    with cluster(update=update, every=0, checkpoint_seconds=seconds) as job:
        job.until(trained(job, "worker:1", 15))
        job.again("ps:1")
        job.finish()
        names = {event["name"] for event in job.events("worker:0") if event["kind"] == "checkpoint"}
        steps = {int(name.split("-")[1]) for name in names}  # in async the others may go on after the chief's last
        assert least <= len({step for step in steps if step <= job.steps}) <= most


@pytest.mark.parametrize("options", [{}, {"batches": {"worker:0": 5}}], ids=["done", "dry"])
@pytest.mark.parametrize("every", [10, "100ms"])
def test_checkpoints_go_on_when_the_chief_has_no_more_to_train(judge, every, options):
    slow = {"worker:1": 0.05}
    cluster = {"layout": "ps=1,worker=2", "update": "async", "steps": 80, "slow": slow, "checkpoint_every": every}
    run = judge("reference", kill="ps:0@worker:1@70", **cluster, **options)
    assert run.exit_code == 0, run.explain()
    # begun with every ten steps of worker:1, or every two, and durable some steps later
    assert run.verdicts["R3"].stats["sent_again"] <= 30, run.explain()


def test_the_last_checkpoint_holds_everything_whatever_a_chief_that_came_back_could_not_read(judge):
    """It has trained its own steps, and its newest checkpoint, made after them, is damaged when it is started again."""
    cluster = {"layout": "ps=1,worker=2", "update": "async", "steps": 60, "slow": {"worker:1": 0.05}}
    faults = 'fault = [{kind = "truncate", at = "worker:1@40"}, {kind = "kill", task = "worker:0", at = "worker:1@42", '
    run = judge("reference", faults=f'{faults}restart_after = "0s"}}]', checkpoint_every=5, **cluster)
    assert run.exit_code == 0, run.explain()
    from psconform.reference_impl.recovery.checkpoints import Store

    newest = Store(run.folder / "checkpoints").newest()
    assert newest is not None
    assert newest.applied == (60, 60)


def test_a_second_chief_is_refused_wherever_it_serves(cluster):
    with cluster(update="async", strikes=[{"task": "worker:1", "phase": "before-push", "step": 20}]) as job:
        job.strike()
        first, address = job.processes["worker:0"], job.cluster["worker"][0]
        job.cluster["worker"][0] = f"127.0.0.1:{free_port(job.locks)}"
        job.start("worker:0")
        job.ended("worker:0")
        assert job.status("worker:0") == 1
        assert "cannot serve as worker:0: " in job.log("worker:0").splitlines()[-1]
        assert "Traceback" not in job.log("worker:0")
        job.cluster["worker"][0] = address
        job.processes["worker:0"], job.incarnations["worker:0"] = first, 0
        job.release()
        job.finish()


@BOTH
def test_each_task_in_turn(cluster, update):
    """Deaths that do not wait for the recovery from the one before."""
    with cluster(update=update, ps=2, workers=3) as job:
        for task in ("worker:2", "ps:1", "worker:0", "ps:0", "worker:1"):
            job.until(lambda: job.count("worker:0", "push") > 5)
            job.again(task)
        job.finish()


@BOTH
@pytest.mark.parametrize("task", ["worker:1", "worker:0", "ps:0"])
def test_stopped_tasks_go_on(cluster, update, task):
    with cluster(update=update) as job:
        job.until(trained(job, "worker:1", 12))
        with job.stopped(task):
            # long enough for others to come to their deadlines, where they depend on it
            others = [worker for worker in ("worker:0", "worker:1") if worker != task]
            job.settle(others)
        job.finish()
        assert job.count("worker:0", "restore") == 0


@BOTH
@pytest.mark.parametrize(
    ("phase", "step", "victims"),
    [
        ("initialising", None, ("worker:0",)),
        ("initialising", None, ("worker:0", "ps:0")),
        ("checkpointing", 20, ("worker:0",)),
        ("checkpointing", 20, ("worker:0", "ps:0", "ps:1")),
        ("checkpointing", 40, ("ps:1",)),  # the final one
        ("before-push", 39, ("ps:0",)),
        ("after-push", 0, ("worker:0",)),
    ],
)
def test_struck_at_a_phase(cluster, update, phase, step, victims):
    every = 0 if step == 40 else 10  # or in async another one may be made first, once worker:0 has trained
    with cluster(update=update, every=every, strikes=[{"task": "worker:0", "phase": phase, "step": step}]) as job:
        job.strike()
        job.again(*victims)
        job.release()
        job.finish()
        # checkpoint 0 is on disk before anything is on the servers: nothing is drawn twice
        assert job.count("worker:0", "init") == 1


@BOTH
def test_killed_while_restoring(cluster, update):
    """Half of the servers are restored when the chief dies: its successor restores them all, in a new epoch."""
    with cluster(update=update, strikes=[{"task": "worker:0", "phase": "restoring", "step": None}]) as job:
        job.until(trained(job, "worker:1", 15))
        job.again("ps:0")
        job.strike()
        job.again("worker:0")
        job.release()
        job.finish()
        assert [event["epoch"] for event in job.events("worker:0") if event["kind"] == "restore"] == [2]


@BOTH
def test_a_damaged_checkpoint_is_passed_over(cluster, update):
    with cluster(update=update) as job:
        job.until(lambda: job.count("worker:0", "checkpoint") >= 3)
        job.kill(*job.tasks)
        names = sorted((job.folder / "checkpoints").glob("step-*.json"), key=lambda path: int(path.stem.split("-")[1]))
        data = names[-1].with_suffix(".data-00000-of-00001")
        content = bytearray(data.read_bytes())
        content[len(content) // 2] ^= 1
        data.write_bytes(content)
        for task in job.tasks:
            job.start(task)
        job.finish()
        restored = [event["name"] for event in job.events("worker:0") if event["kind"] == "restore"]
        assert restored == [names[-2].stem]


@BOTH
def test_a_disk_that_takes_no_checkpoint_is_named(cluster, update):
    """The chief ends with one line that says so."""
    with cluster(update=update) as job:
        job.until(trained(job, "worker:0", 1))
        folder = job.folder / "checkpoints"
        folder.rename(job.folder / "elsewhere")
        folder.write_text("no folder")
        job.ended("worker:0")
        assert job.status("worker:0") == 1
        assert "worker:0 ends: checkpoint step-" in job.log("worker:0").splitlines()[-1]
        assert f"cannot be written to {folder}" in job.log("worker:0").splitlines()[-1]


@BOTH
@pytest.mark.parametrize("defect", ["", "ack-early"])
def test_a_push_that_is_not_answered_in_time_is_sent_once_more_and_counts_once(cluster, update, defect):
    """On a busy machine any push may be; that ack-early ends then, too, is not the mistake that it is made for."""
    with cluster(update=update, steps=30, defect=defect, environment={"ROUND_PATIENCE_S": "0.003"}) as job:
        job.finish()
        pushes = [job.count(f"worker:{index}", "push") for index in range(2)]
        assert defect or sum(pushes) > 2 * job.steps  # some were not answered in time, nor had they arrived


@BOTH
def test_a_ps_that_stays_away_is_named(cluster, update):
    with cluster(update=update, environment=SOON) as job:
        job.until(trained(job, "worker:1", 5))
        job.kill("ps:1")
        job.ended("worker:0", "worker:1")
        for worker in ("worker:0", "worker:1"):
            assert job.status(worker) == 1
            line = job.log(worker).splitlines()[-1]
            assert f"{worker} ends: no answer for 25 s from ps:1 on {job.cluster['ps'][1]}" in line
            assert "Traceback" not in job.log(worker)


def test_a_worker_that_stays_away_is_named(cluster):
    with cluster(update="sync", environment=SOON) as job:
        job.until(trained(job, "worker:1", 5))
        job.kill("worker:1")
        job.ended("worker:0")
        assert job.status("worker:0") == 1
        assert "from worker:1" in job.log("worker:0").splitlines()[-1]
        assert "Traceback" not in job.log("worker:0")


def test_a_worker_that_is_dropped_again_before_it_sees_that_it_was_let_in_says_once_more_that_it_is_back(cluster):
    """It looks less often than the job waits for it, as if each look took so long (found by benchmarks/survival.py)."""
    slow, environment = {"worker:0": 0.02}, {"POLL_S": "1.5", **SOON}
    with cluster(update="sync", steps=150, options=["--drop-after", "0.5"], slow=slow, environment=environment) as job:
        job.until(trained(job, "worker:0", 15))
        job.again("worker:1")
        job.until(lambda: all(job.status(task) is not None for task in job.processes))
        assert {job.status(task) for task in job.processes} == {0}, job.log(*job.tasks)
        last = [event for event in job.events("worker:0") if event.get("final")]
        assert last[-1]["absent"] == [], job.log(*job.tasks)


def test_a_task_that_is_there_already_is_refused(cluster):
    with cluster(update="async", strikes=[{"task": "worker:0", "phase": "before-push", "step": 20}]) as job:
        job.strike()
        for task in ("worker:1", "ps:0"):
            first = job.processes[task]
            job.start(task)
            job.ended(task)
            assert job.status(task) == 1
            address = job.cluster[task[:-2]][int(task[-1])]
            assert f"cannot serve as {task} on {address}" in job.log(task).splitlines()[-1]
            assert "Traceback" not in job.log(task)
            job.processes[task] = first
            job.incarnations[task] = 0
        job.release()
        job.finish()


@BOTH
def test_a_checkpoint_of_another_job_is_refused(cluster, update):
    """It has another shape, so nothing of it can be restored; no epoch is begun for it."""
    with cluster(update=update) as job:
        job.until(lambda: job.count("worker:0", "checkpoint") >= 2)
        job.kill(*job.tasks)
        before = sorted(path.name for path in (job.folder / "checkpoints").glob("epoch-*"))
        spec = json.loads((job.folder / "spec.json").read_text())
        (job.folder / "spec.json").write_text(json.dumps(spec | {"steps": 41}))
        for task in job.tasks:
            job.start(task)
        job.ended("worker:0")
        assert job.status("worker:0") == 1
        assert "is of another job: of 2 workers, 2 ps with" in job.log("worker:0").splitlines()[-1]
        assert sorted(path.name for path in (job.folder / "checkpoints").glob("epoch-*")) == before


def test_without_an_interval_only_the_first_and_the_last_checkpoint_are_written(cluster):
    with cluster(update="sync", every=0) as job:
        job.until(trained(job, "worker:1", 15))
        job.again("ps:0")
        job.finish()
        names = [event["name"] for event in job.events("worker:0") if event["kind"] == "checkpoint"]
        assert names == ["step-0-epoch-0", "step-40-epoch-1"]


@BOTH
def test_moments_are_none_of_another_optimizer(cluster, update):
    with cluster(update=update) as job:
        job.until(lambda: job.count("worker:0", "checkpoint") >= 2)
        job.kill(*job.tasks)
        job.argv += ["--optimizer", "momentum"]
        for task in job.tasks:
            job.start(task)
        job.ended("worker:0")
        assert job.status("worker:0") == 1
        said = "is of another optimizer: its moments are none, here they are momentum"
        assert said in job.log("worker:0").splitlines()[-1]


def test_finished_training_is_not_begun_again(cluster):
    with cluster(update="async", steps=10) as job:
        job.finish()
        pushed = job.count("worker:0", "push")  # more than 10 if one was not answered in time
        steps = {event["step"] for event in job.events("worker:0") if event["kind"] == "push"}
        assert steps == set(range(10))
        for task in job.tasks:
            job.start(task)
        job.until(lambda: all(job.status(task) == 0 for task in job.tasks))
        assert job.count("worker:0", "push") == pushed
