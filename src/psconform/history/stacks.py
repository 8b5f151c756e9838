"""Stacks that a task has written to its log (CPython's faulthandler): where it hangs, in one line."""

from __future__ import annotations

import re

MARK = "psconform: training does not move; stacks of this process:"
UNTIL = b"(most recent call first):\n"
"""In the log from when on there is a stack."""
MOST = 4
"""Frames that are shown, the innermost."""
PROBE = "/psconform/probe.py"
"""How the path of the probe ends, whose own frames say nothing of the target."""
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):$", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)


def split(log: str) -> tuple[str, str]:
    """What the task itself logged, and the stack of its main thread: ``wait (threading.py:324) < ...``; or empty."""
    own, _, dump = log.rpartition(MARK) if MARK in log else (log, "", "")
    threads = _THREAD.split(dump)
    # the newest thread comes first, so the main one is the last
    frames = _FRAME.findall(threads[-1])
    probe = [number for number, (path, _, _) in enumerate(frames) if path.endswith(PROBE)]
    frames = frames[probe[-1] if probe else 0 :]  # what it does in there, and below, is nothing of the target's
    shown = [f"{name} ({path.rpartition('/')[2]}:{line})" for path, line, name in frames[:MOST]]
    return own, " < ".join(shown + (["..."] if len(frames) > MOST else []))
