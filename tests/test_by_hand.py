"""The reference trainer by hand, one process per task, from TF_CONFIG, as a TensorFlow user would start it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time

import pytest

COMMAND = [sys.executable, "-m", "psconform.reference_impl"]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(**extra):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PSCONFORM", "TF_CONFIG"))}
    return {**clean, **extra}


def begin(command, cluster, job, index):
    """One task of a cluster, as a process whose output is kept."""
    env = environment(TF_CONFIG=json.dumps({"cluster": cluster, "task": {"type": job, "index": index}}))
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("update", "replication"), [("sync", "between-graph"), ("async", "between-graph"), ("sync", "in-graph")]
)
def test_every_task_ends_cleanly(update, replication):
    cluster = {"ps": [f"127.0.0.1:{free_port()}"], "worker": [f"127.0.0.1:{free_port()}" for _ in range(2)]}
    tasks = [("ps", 0), ("worker", 1), ("worker", 0)]
    processes = []
    for job, index in tasks:
        command = [*COMMAND, "--update", update, "--replication", replication, "--steps", "7"]
        processes.append(begin(command, cluster, job, index))
    try:
        outputs = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0, 0], outputs
    for (job, index), output in zip(tasks, outputs, strict=True):
        assert f"{job}:{index} ends" in output
        if job == "worker" and (index == 0 or replication == "between-graph"):
            assert f"worker:{index} trained 7 steps" in output
            assert update == "async" or "versions [7]" in output


CLOSES = """
import tensorflow as tf
def forgotten(session):
    if not session._closed and session.sess_str:  # a target: it is no session of this process alone
        print("a session is closed", flush=True)
tf.compat.v1.Session.__del__ = forgotten
from psconform.reference_impl.__main__ import main
main()
"""


@pytest.mark.nightly
@pytest.mark.parametrize(
    "options", [[], ["--replication", "in-graph"], ["--checkpoint-dir", "checkpoints"]], ids=" ".join
)
def test_no_task_closes_a_session(options, tmp_path):
    """It would ask every ps, and wait for good for one that has ended."""
    cluster = {"ps": [f"127.0.0.1:{free_port()}"], "worker": [f"127.0.0.1:{free_port()}" for _ in range(2)]}
    processes = []
    for job, index in (("ps", 0), ("worker", 1), ("worker", 0)):
        env = environment(TF_CONFIG=json.dumps({"cluster": cluster, "task": {"type": job, "index": index}}))
        command = [sys.executable, "-c", CLOSES, *options, "--steps", "3"]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        processes.append(subprocess.Popen(command, env=env, cwd=tmp_path, **streams))
    try:
        outputs = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0, 0], outputs
    assert "worker:0 trained 3 steps" in outputs[2]
    assert not any("a session is closed" in output for output in outputs[1:]), outputs


@pytest.mark.nightly
@pytest.mark.parametrize("update", ["sync", "async"])
def test_a_task_comes_back_by_hand(update, tmp_path):
    """With --checkpoint-dir; without psconform nobody but the servers knows who has trained what."""
    cluster = {"ps": [f"127.0.0.1:{free_port()}"], "worker": [f"127.0.0.1:{free_port()}" for _ in range(2)]}
    command = [*COMMAND, "--update", update, "--steps", "400", "--checkpoint-dir", str(tmp_path)]
    command += ["--checkpoint-every", "2", "--keep", "2"]
    tasks = [("ps", 0), ("worker", 0), ("worker", 1)]
    processes = {task: begin(command, cluster, *task) for task in tasks}
    deadline = time.monotonic() + 120
    try:
        while not (tmp_path / "step-4-epoch-0.json").exists() and time.monotonic() < deadline:
            time.sleep(0.001)
        for task in (("ps", 0), ("worker", 1)):
            processes[task].kill()
            processes[task].communicate()
            processes[task] = begin(command, cluster, *task)
        outputs = [process.communicate(timeout=120)[0] for process in processes.values()]
    finally:
        for process in processes.values():
            process.kill()
    assert [process.returncode for process in processes.values()] == [0, 0, 0], outputs
    assert "restored step-" in outputs[1]
    import tensorflow as tf
    from psconform.reference_impl.recovery.checkpoints import Store

    newest = tf.train.load_checkpoint(str(tmp_path / Store(tmp_path).names()[0]))
    assert newest.get_tensor("applied").tolist() == [400, 400]


@pytest.mark.nightly
def test_a_worker_joins_a_running_async_job(tmp_path):
    """Nobody waits for it before it comes, and all that it trains is applied when it has."""
    cluster = {"ps": [f"127.0.0.1:{free_port()}"], "worker": [f"127.0.0.1:{free_port()}" for _ in range(2)]}
    command = [*COMMAND, "--update", "async", "--steps", "500", "--checkpoint-dir", str(tmp_path)]
    command += ["--checkpoint-every", "10", "--keep", "2"]
    processes = [begin(command, cluster, "ps", 0), begin(command, cluster, "worker", 0)]
    deadline = time.monotonic() + 120
    try:
        while not (tmp_path / "step-10-epoch-0.json").exists() and time.monotonic() < deadline:
            time.sleep(0.001)
        assert (tmp_path / "step-10-epoch-0.json").exists(), "worker:0 does not train before worker:1 has come"
        processes.append(begin(command, cluster, "worker", 1))
        outputs = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0, 0], outputs
    import tensorflow as tf
    from psconform.reference_impl.recovery.checkpoints import Store

    newest = tf.train.load_checkpoint(str(tmp_path / Store(tmp_path).names()[0]))
    assert newest.get_tensor("applied").tolist() == [500, 500]


@pytest.mark.engine
def test_help_shows_how():
    done = subprocess.run([*COMMAND, "--help"], capture_output=True, text=True, env=environment(), check=True)
    assert "TF_CONFIG=" in done.stdout


@pytest.mark.engine
@pytest.mark.parametrize(
    ("tf_config", "says"),
    [
        (None, "TF_CONFIG: lacks 'TF_CONFIG'"),
        ("{", "TF_CONFIG: Expecting"),
        (
            '{"cluster": {"ps": ["a:1"], "worker": []}, "task": {"type": "worker", "index": 0}}',
            "TF_CONFIG: no task worker:0",
        ),
        ('{"cluster": {"ps": ["a:1"]}, "task": {"type": "chief", "index": 0}}', "TF_CONFIG: no task chief:0"),
    ],
)
def test_bad_cluster_is_one_line(tf_config, says):
    env = environment(**({} if tf_config is None else {"TF_CONFIG": tf_config}))
    done = subprocess.run(COMMAND, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(says)
    assert done.stderr.count("\n") == 1


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--defect", "no-fence"], "--defect: no-fence is a defect of recovery: give --checkpoint-dir\n"),
        (
            ["--defect", "drop-gradient", "--optimizer", "adam"],
            "--defect: drop-gradient needs --optimizer sgd and --schedule constant, without --clip-norm\n",
        ),
        (
            ["--defect", "drop-gradient", "--checkpoint-dir", "{folder}"],
            "--defect: drop-gradient has no recovery: leave out --checkpoint-dir\n",
        ),
    ],
)
def test_a_defect_of_recovery_goes_with_checkpoints(tmp_path, options, says):
    cluster = {"ps": [f"127.0.0.1:{free_port()}"], "worker": [f"127.0.0.1:{free_port()}"]}
    env = environment(TF_CONFIG=json.dumps({"cluster": cluster, "task": {"type": "ps", "index": 0}}))
    command = [*COMMAND, *(option.format(folder=tmp_path) for option in options)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False, timeout=120)
    assert done.returncode == 1
    assert done.stderr.splitlines(keepends=True)[-1].startswith(says)
