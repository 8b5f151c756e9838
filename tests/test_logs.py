"""What the log of a task says: where it hangs, and the error that it names last."""

from __future__ import annotations

import pytest

from psconform.history.logs import LENGTH, LINES, MARK, last_error, split

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


TRACEBACK = """Traceback (most recent call last):
  File "/home/me/train.py", line 3, in <module>
    train()
  File "/home/me/train.py", line 2, in train
    raise ConnectionError("lost ps:0")
ConnectionError: lost ps:0
"""
CHAINED = f"""{TRACEBACK}
During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/home/me/train.py", line 9, in <module>
    raise RuntimeError("gave up") from None
RuntimeError: gave up
and what it says goes on here
"""
NOISY = "2026-01-01 I tensorflow/core/util/port.cc:153] oneDNN custom operations are on. You may see an error\n"


@pytest.mark.parametrize(
    ("log", "line", "block"),
    [
        ("", "", False),
        ("starting\nlost ps:0\n", "lost ps:0", False),
        (f"lost ps:0\n{NOISY}", "lost ps:0", False),
        (f"starting\n{TRACEBACK}", "ConnectionError: lost ps:0", True),
        (f"{TRACEBACK}closing\nbye\n", "ConnectionError: lost ps:0", True),
        (TRACEBACK + "step done\n" * 20, "ConnectionError: lost ps:0", True),
        (TRACEBACK + "step done\n" * 21, "step done", False),  # that error was survived
        (TRACEBACK + NOISY * 20 + "closing\n", "ConnectionError: lost ps:0", True),
        (CHAINED, "RuntimeError: gave up", True),
        ("\n".join(f"[w1] {line}" for line in TRACEBACK.splitlines()), "ConnectionError: lost ps:0", True),
        (f"{TRACEBACK}Fatal Python error: Aborted\n\nCurrent thread 0x1:\n", "Fatal Python error: Aborted", True),
        (
            "terminate called after throwing an instance of 'std::runtime_error'\n  what():  lost ps:0\n",
            "terminate called after throwing an instance of 'std::runtime_error' what():  lost ps:0",
            True,
        ),
        (
            "F0000 00:00:17.5 12 a.cc:9] Check failed: ok\n*** later\n",
            "F0000 00:00:17.5 12 a.cc:9] Check failed: ok",
            True,
        ),
        ("Aborted connection 12\n" + "step done\n" * 30, "step done", False),
        ("\n".join(TRACEBACK.splitlines()[:3]), "    train()", True),  # it was killed while it wrote that
        (TRACEBACK.replace("lost ps:0", "OUT_OF_RANGE"), "ConnectionError: OUT_OF_RANGE", True),
        (
            "\n".join(f"12:00:{i:02} {t}" for i, t in enumerate(TRACEBACK.splitlines())),
            "ConnectionError: lost ps:0",
            True,
        ),
        ("panic: lost ps:0\n\tgoroutine 1\n", "panic: lost ps:0", True),
    ],
)
def test_the_last_error_of_a_log(log, line, block):
    found = last_error(log)
    assert (found.line, bool(found.block)) == (line, block)
    assert not block or any(found.line.startswith(kept) for kept in found.block)
    assert len(found.block) <= LINES


def test_the_block_ends_with_the_exception():
    """What a task logs after it is not of it."""
    assert last_error(f"starting\n{TRACEBACK}closing\n").block == tuple(TRACEBACK.splitlines()[1:])


def test_a_long_line_and_a_long_log_are_cut():
    long = last_error(TRACEBACK.replace("lost ps:0", "x" * 10_000))
    assert {len(line) for line in long.block if "x" * 100 in line} == {LENGTH}
    assert len(last_error("x" * 10_000).line) == LENGTH
    assert last_error(TRACEBACK + "  deep\n" * 5000).block == ()
