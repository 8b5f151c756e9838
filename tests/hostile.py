"""Trainers with one bad habit (tests/cases/hostile), what each must give, and what judging one costs.

python -m tests.hostile            # a table; --write docs/hostile.md puts it into the docs
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from .waits import HANG_S

TARGET = Path(__file__).parent / "cases" / "hostile" / "target.toml"
ADDRESSES = 4 << 30
"""Bytes of address space: Python, numpy and their threads take one GiB of it."""
slow = pytest.mark.nightly  # or much like another
MODES = [
    ("", 0, "VALID: "),
    # what it writes where psconform reads
    pytest.param(
        "evlink", 3, "events/worker-1.jsonl: cannot be read (it is a symbolic link, not a regular file)", marks=slow
    ),
    ("evzero", 3, "events/worker-1.jsonl: cannot be read (it is a symbolic link, not a regular file)"),
    ("evfifo", 3, "events/worker-1.jsonl: cannot be read (it is a FIFO, not a regular file)"),
    pytest.param("evdir", 3, "events/worker-1.jsonl: is not an event file", marks=slow),
    pytest.param("evnew", 3, "is not an event file of layout ps=1,worker=2", marks=slow),
    ("evgb", 3, "events/worker-1.jsonl: cannot be read (it is larger than 256MiB; --max-record raises this limit)"),
    pytest.param(
        "evsparse",
        3,
        "events/worker-1.jsonl: cannot be read (it is larger than 256MiB; --max-record raises this limit)",
        marks=slow,
    ),
    ("evnl", 3, "events/worker-1.jsonl"),
    ("vectorzero", 2, "worker:1: its probe could not go on writing its record"),
    pytest.param("loglink", 3, "ps:0: ended", marks=slow),
    ("logfifo", 3, "ps:0: ended"),
    pytest.param("logrm", 3, "ps:0: ended", marks=slow),
    pytest.param("flood", 0, "VALID: ", marks=slow),
    pytest.param("longline", 3, "its log ends: yyyyyyyyyy", marks=slow),
    ("esc", 3, r"its log ends: \x1b[2J\x1b[31mVALID: 35 valid\x1b[0m; S1 fake\x07"),
    pytest.param("esc2", 3, r"\x00\x1b]0;title\x07", marks=slow),
    pytest.param("esc3", 3, r"\x1b[2J\x1b[1;1H\x1b[32mVALID: 35 valid\x1b[0m", marks=slow),
    pytest.param("doneall", 0, "VALID: ", marks=slow),
    ("donedir", 2, "UNKNOWN: "),
    pytest.param("manifest", 0, "VALID: ", marks=slow),
    ("spec", 3, "before it had started: json.decoder.JSONDecodeError"),
    pytest.param("rmev", 3, "worker:1: ended with status 0 and recorded nothing", marks=slow),
    ("rmrun", 3, "the run cannot be recorded (No such file or directory: "),
    pytest.param("tty", 0, "VALID: ", marks=slow),
    # how it ends, or does not
    ("exit0", 3, "worker:0: ended with status 0 and recorded nothing"),
    ("psexit0", 3, "ps:0: ended (waited for port"),
    pytest.param("exit255", 3, "worker:1: failed with status 255 before it had started", marks=slow),
    pytest.param("selfkill", 2, "SIGKILL came from outside", marks=slow),
    ("ignterm", 0, "VALID: "),
    pytest.param("ignhang", 3, "ps:0: was not ready in 8 s", marks=slow),
    pytest.param("psnever", 3, "ps:0: was not ready in 8 s", marks=slow),
    pytest.param("daemon", 0, "VALID: ", marks=slow),
    pytest.param("setsid", 0, "VALID: ", marks=slow),
    pytest.param("killparent", 3, "the keeper of the tasks ended, and with it all tasks", marks=slow),
    pytest.param("lie", 3, "Its log is ", marks=slow),
    pytest.param("lie2", 3, "worker:1: ended with status 0 and recorded nothing", marks=slow),
    pytest.param("lie3", 3, "worker:1: ended with status 0 and recorded nothing", marks=slow),
    pytest.param("w1exit0", 3, "worker:1: ended with status 0 and recorded nothing", marks=slow),
    pytest.param("never", 3, "worker:0: recorded nothing", marks=slow),
    pytest.param("nevers", 3, "worker:1: recorded nothing", marks=slow),
    pytest.param("stopself", 3, "worker:1: recorded nothing", marks=slow),
    pytest.param("stopparent", 2, "UNKNOWN: ", marks=slow),
]


MEASURED = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[2:])
with open(sys.argv[1], "w") as file:
    file.write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
sys.exit(done.returncode)
"""
"""A process counts what its parent had when it was forked off, so this parent is a small one."""


def measured(mode, folder):
    """Judges the trainer with this habit into folder/run: the exit code, what psconform showed, bytes that it took."""
    words = ["run", str(TARGET), "--layout", "ps=1,worker=2", "--steps", "6", "--patience", "5"]
    limited = ["bash", "-c", f'ulimit -v {ADDRESSES >> 10}; exec "$@"', "bash"]
    command = [*limited, sys.executable, "-m", "psconform", *words, "--out", str(folder / "run")]
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, str(folder / "used"), *command],
        env={**os.environ, "MODE": mode, "COLUMNS": "300"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=HANG_S,
        check=False,
    )
    return done.returncode, done.stdout.decode(), int((folder / "used").read_text()) << 10


LONGEST = 110
"""Characters of what psconform said, in the table."""
TEXT = f"""# A hostile trainer

A trainer with one bad habit, judged under `ulimit -v` of {ADDRESSES >> 30} GiB; first the same trainer without one.
Exit code 3 says what of the target must be mended, with a path or a task. No row shows a control character. The habits
are in `tests/cases/hostile/evil.py`, by MODE. Measured on two cores: `python -m tests.hostile --write docs/hostile.md`.

| MODE | exit code | peak memory | time | what psconform says |
|---|---|---|---|---|
"""


def row(mode):
    """One run, as a row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        status, shown, used = measured(mode, Path(folder))
        took = time.monotonic() - began
    starts = ("psconform: ", "VALID", "VIOLATED", "UNKNOWN")
    said = next((line for line in shown.splitlines() if line.startswith(starts)), "")
    said = said.replace(folder, "DIR").removeprefix("psconform: ").replace("|", "\\|").replace("`", "'")
    short = said if len(said) <= LONGEST else f"{said[:LONGEST]}..."
    return f"| {mode or 'none'} | {status} | {used >> 20} MiB | {took:.0f} s | `{short}` |\n"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    rows = []
    for each in MODES:
        mode, *_ = getattr(each, "values", each)
        rows.append(row(mode))
        sys.stdout.write(rows[-1])
        sys.stdout.flush()
    if options.write:
        options.write.write_text(TEXT + "".join(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
