"""What the log of a task says: the error that it names last, and where it hangs."""

from __future__ import annotations

import re
from dataclasses import dataclass

MARK = "psconform: training does not move; stacks of this process:"
UNTIL = "(most recent call first):\n"
"""In the log from when on there is a stack."""
MOST = 4
"""Frames that are shown, the innermost."""
LINES = 6
"""Lines of a block that are kept, the last ones."""
LONGEST = 200
"""Lines at the end of a log in which an error is looked for: a traceback may be long."""
SURVIVED = 20
"""A task that goes on to log more lines than that has survived the error."""
LENGTH = 300
"""Characters of a line that are kept."""
LOOKED_AT = 1 << 18
"""Bytes at the end of a log in which all that is looked for."""
PROBE = "/psconform/probe.py"
"""How the path of the probe ends, whose own frames say nothing of the target."""
NOISE = re.compile(
    r"oneDNN|cuInit|absl::InitializeLog|cpu_feature_guard|cuda drivers|NUMA node|TensorRT|Unable to register cu|"
    r"already (been )?registered|OUT_OF_RANGE|^I\d{4} |: I tensorflow/"
)
"""What TensorFlow logs on a healthy day, and in words of errors; what it calls information is none."""
_TRACEBACK = "Traceback (most recent call last):"
_FATAL = re.compile(
    r"^F\d{4}[ \d]|: F tensorflow/|\] Check failed|Fatal Python error|^terminate called|^panic: |^fatal error: |"
    r"^thread '.*' panicked|^Exception in thread |Segmentation fault|^\*\*\* (Abort|SIG)|^Aborted\b"
)
"""How the message begins with which a process is aborted: glog and TensorFlow, CPython, C++, Go, Rust, the JVM."""
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):$", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)


@dataclass(frozen=True)
class LastError:
    """The last error of a log: the line that names it, and the lines of its block, that one among them.

    Without a block it is the last line, whatever that says.
    """

    line: str = ""
    block: tuple[str, ...] = ()


def last_error(log: str) -> LastError:
    """The last Python traceback or fatal message of a log, else its last line; known noise is left out."""
    lines = [line.rstrip() for line in split(log)[0].splitlines() if line.strip()]
    heard = [line for line in lines if not NOISE.search(line)]
    last = LastError(heard[-1][:LENGTH] if heard else "")
    for number in range(len(lines) - 1, max(-1, len(lines) - 1 - LONGEST), -1):
        if _TRACEBACK in lines[number]:
            found, after = _traceback(lines[number:])
            return found if after <= SURVIVED else last
        if _FATAL.search(lines[number]) and len(lines) - number <= LINES + SURVIVED:
            said = [line for line in lines[number : number + LINES] if line == lines[number] or line[0].isspace()]
            what = " ".join(line.strip() for line in said[1:2] if line.lstrip().startswith("what():"))
            return _kept(f"{lines[number]} {what}".strip(), said)
    return last


def _traceback(lines: list[str]) -> tuple[LastError, int]:
    """Of lines that begin with a traceback: the exception, with the innermost frames; and how many lines follow."""
    before = lines[0].index(_TRACEBACK)  # a prefix of the logger; a time in it is as long in each line
    bare = [line[before:] if not before or len(line) > before else line for line in lines]
    end = next((at for at, line in enumerate(bare) if at and line and not line[0].isspace()), len(bare) - 1)
    return _kept(bare[end], bare[1 : end + 1]), sum(not NOISE.search(line) for line in lines[end + 1 :])


def _kept(line: str, block: list[str]) -> LastError:
    return LastError(line[:LENGTH], tuple(line[:LENGTH] for line in block[-LINES:]))


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
