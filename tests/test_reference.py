"""The reference trainer's own promise: a push is applied wholly or not at all, and once, even if it is cut off."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "cut_off.py"


@pytest.mark.psconform
@pytest.mark.parametrize(("update", "workers"), [("async", 2), ("sync", 1), ("sync", 3)])
def test_a_call_that_is_cut_off_is_applied_wholly_or_not_at_all(update, workers):
    command = [sys.executable, str(SCRIPT), update, str(workers), "15"]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, start_new_session=True, **pipes) as process:
        try:
            out, err = process.communicate(timeout=300)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, err[-4000:]
    cuts = [int(line) for line in out.split()]
    assert len(cuts) == workers
    assert sum(cuts) > 0, "nothing was cut off"
