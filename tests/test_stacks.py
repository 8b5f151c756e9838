"""What is told of the stack of a task that hangs."""

from __future__ import annotations

import pytest

from psconform.history.stacks import MARK, split

HEAD = "Current thread 0x00007f0000000001 (most recent call first):\n"


def dump(*frames):
    lines = [f'  File "{path}", line {line} in {name}\n' for path, line, name in frames]
    return f"own words\n{MARK}\n{HEAD}" + "".join(lines)


TARGET = [("/home/me/train.py", 30, "steps"), ("/home/me/train.py", 79, "train"), ("/home/me/train.py", 98, "<module>")]


@pytest.mark.parametrize(
    ("inner", "shown"),
    [
        ([], "steps (train.py:30) < train (train.py:79) < <module> (train.py:98)"),
        (
            [
                ("/usr/lib/python3.11/socket.py", 232, "__init__"),
                ("/usr/lib/python3.11/socket.py", 831, "create_connection"),
                ("/venv/psconform/probe.py", 475, "at"),
                ("/venv/psconform/probe.py", 530, "push"),
            ],
            "push (probe.py:530) < steps (train.py:30) < train (train.py:79) < <module> (train.py:98)",
        ),
        (
            [("/usr/lib/a.py", number, "f") for number in (1, 2, 3)],
            "f (a.py:1) < f (a.py:2) < f (a.py:3) < steps (train.py:30) < ...",
        ),
    ],
)
def test_the_innermost_frames_and_none_below_the_probe(inner, shown):
    own, stack = split(dump(*inner, *TARGET))
    assert stack == shown
    assert own == "own words\n"


def test_a_log_without_a_stack():
    assert split("own words\n") == ("own words\n", "")
