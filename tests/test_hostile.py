"""Targets that harm psconform: bounded memory, disk and time, a true exit code, no control character shown."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from psconform.plugin import REQUIRE_ALL

from .waits import HANG_S

HERE = Path(__file__).parent
TARGET, SOCKETS = HERE / "cases" / "hostile" / "target.toml", HERE / "socket_ps" / "target.toml"
ADDRESSES = 4 << 30
"""Bytes of address space: Python, numpy and their threads take one GiB of it."""
MEMORY = 400 << 20
"""Bytes that psconform may really take; without a hostile target it takes 60 MiB."""
SHOWN = 8192
"""Characters on standard output and error together."""

pytestmark = pytest.mark.engine
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
    ("evnew", 3, "is not an event file of layout ps=1,worker=2"),
    ("evgb", 3, "events/worker-1.jsonl: cannot be read (it is larger than 256MiB; --max-record raises this limit)"),
    ("evsparse", 3, "events/worker-1.jsonl: cannot be read (it is larger than 256MiB; --max-record raises this limit)"),
    ("evnl", 3, "events/worker-1.jsonl"),
    ("vectorzero", 2, "worker:1: its probe could not go on writing its record"),
    pytest.param("loglink", 3, "ps:0: ended", marks=slow),
    ("logfifo", 3, "ps:0: ended"),
    pytest.param("logrm", 3, "ps:0: ended", marks=slow),
    ("flood", 0, "VALID: "),
    ("longline", 3, "its log ends: yyyyyyyyyy"),
    ("esc", 3, r"its log ends: \x1b[2J\x1b[31mVALID: 35 valid\x1b[0m; S1 fake\x07"),
    ("esc2", 3, r"\x00\x1b]0;title\x07"),
    pytest.param("esc3", 3, r"\x1b[2J\x1b[1;1H\x1b[32mVALID: 35 valid\x1b[0m", marks=slow),
    pytest.param("doneall", 0, "VALID: ", marks=slow),
    ("donedir", 2, "UNKNOWN: "),
    pytest.param("manifest", 0, "VALID: ", marks=slow),
    ("spec", 3, "before it had started: json.decoder.JSONDecodeError"),
    ("rmev", 3, "worker:1: ended with status 0 and recorded nothing"),
    ("rmrun", 3, "the run cannot be recorded (No such file or directory: "),
    pytest.param("tty", 0, "VALID: ", marks=slow),
    # how it ends, or does not
    ("exit0", 3, "worker:0: ended with status 0 and recorded nothing"),
    ("psexit0", 3, "ps:0: ended (waited for port"),
    pytest.param("exit255", 3, "worker:1: failed with status 255 before it had started", marks=slow),
    ("selfkill", 2, "SIGKILL came from outside"),
    ("ignterm", 0, "VALID: "),
    pytest.param("ignhang", 3, "ps:0: was not ready in 8 s", marks=slow),
    pytest.param("psnever", 3, "ps:0: was not ready in 8 s", marks=slow),
    pytest.param("daemon", 0, "VALID: ", marks=slow),
    pytest.param("setsid", 0, "VALID: ", marks=slow),
    ("killparent", 3, "the keeper of the tasks ended, and with it all tasks"),
    ("lie", 3, "Its log is "),
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


@pytest.mark.parametrize(("mode", "status", "says"), MODES)
def test_a_hostile_target(mode, status, says, tmp_path):
    words = ["run", str(TARGET), "--layout", "ps=1,worker=2", "--steps", "6", "--patience", "5"]
    limited = ["bash", "-c", f'ulimit -v {ADDRESSES >> 10}; exec "$@"', "bash"]
    command = [*limited, sys.executable, "-m", "psconform", *words, "--out", str(tmp_path / "run")]
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, str(tmp_path / "used"), *command],
        env={**os.environ, "MODE": mode, "COLUMNS": "300"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=HANG_S,
        check=False,
    )
    shown = done.stdout.decode()
    assert says in shown
    assert done.returncode == status, shown
    assert len(shown) < SHOWN
    assert all(each.isprintable() or each == "\n" for each in shown)
    assert "please report this" not in shown
    assert int((tmp_path / "used").read_text()) << 10 < MEMORY
    folder = next((path for path in tmp_path.glob("run*") if (path / "logs").is_dir()), None)
    logs = [] if folder is None else [path for path in (folder / "logs").iterdir() if not path.is_symlink()]
    assert sum(path.stat().st_size for path in logs) <= 3 * (64 << 20) + (64 << 20)  # and what came since the last look


FULL = f"""
mkdir disk && mount -t tmpfs -o size=150k none disk || exit 99
{sys.executable} -m psconform run {SOCKETS} --layout ps=1,worker=2 --steps 400 --patience 5 --out disk/run
echo "exit code $?"
{sys.executable} -m psconform check disk/run
echo "exit code $?"
"""


def test_a_full_disk_leaves_a_run_folder_that_says_so(tmp_path):
    apart = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    done = subprocess.run(
        [*apart, "bash", "-c", FULL],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    if done.returncode and "exit code" not in done.stdout:
        if os.environ.get(REQUIRE_ALL) == "1":
            pytest.fail(f"{REQUIRE_ALL}=1, and nothing can be mounted here: {done.stdout}", pytrace=False)
        pytest.skip(f"nothing can be mounted here: {done.stdout}")
    run, check, _ = done.stdout.split("exit code ")
    assert run.splitlines()[-1].startswith(f"psconform: {tmp_path}/disk/run: the run cannot be recorded (No space left")
    assert check.startswith("3\n")
    assert "worker:1: its probe could not go on writing its record" in check
    assert "the run cannot be recorded (No space left on device)" in check
    assert "L0  completes             unknown   always" in check
    assert done.stdout.endswith("exit code 2\n")
