"""How tests wait: for conditions. A time is only there to end a test that would hang, tenfold of what it takes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

HANG_S = 200.0


def until(condition, *, seconds=HANG_S):
    """Wait until the condition gives something true, and return it."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.01)
    return found


def within_a_second(condition):
    """Wait until the condition gives something true, for a second of this thread's own CPU time at most.

    It never sleeps, so on an idle machine that is a second. Where others want the CPU too, it gets its share of it, as
    each process that the condition is about does, and the second lasts longer for all of them.
    """
    began, deadline = time.thread_time(), time.monotonic() + HANG_S
    while not (found := condition()):
        assert time.thread_time() - began < 1.0, "not within a second of CPU time"
        assert time.monotonic() < deadline, f"not within {HANG_S} s"
    return found


@contextlib.contextmanager
def only_one(what=""):
    """No two tests of this user at once that do this."""
    with Path(f"/tmp/psconform-tests-{os.getuid()}{what}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def only_one_cleans():
    """``psconform clean`` ends what others have left, all of it."""
    return only_one()


def only_one_is_killed():
    """The machine counts what the OOM killer ends, and does not say whose process that was."""
    return only_one("-killed")
