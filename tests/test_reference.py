"""The reference trainer's own promise: a push is applied wholly or not at all, and once, even if it is cut off."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

SCRIPT = Path(__file__).parent / "cut_off.py"


@pytest.mark.nightly
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


@pytest.mark.tensorflow
@pytest.mark.parametrize("gone", [0, 1, 2])
def test_a_ps_that_has_gone_keeps_no_goodbye_from_the_others(gone):
    """The last goodbye ends a ps before it has answered. In one call for all, those of the others were taken back."""
    import tensorflow as tf
    from psconform.reference_impl.worker import Worker

    heard = []

    def run(goodbyes):
        assert isinstance(goodbyes, str), "more than one in a call"
        heard.append(goodbyes)
        if len(heard) == gone + 1:
            raise tf.errors.UnavailableError(None, None, "socket closed")

    closed = []
    probe = SimpleNamespace(close=lambda: closed.append(True))
    Worker.leave(SimpleNamespace(goodbye=["ps:0", "ps:1", "ps:2"], session=SimpleNamespace(run=run), probe=probe))
    assert heard == ["ps:0", "ps:1", "ps:2"]
    assert closed
