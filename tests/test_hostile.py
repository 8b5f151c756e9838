"""Targets that harm psconform: bounded memory, disk and time, a true exit code, no control character shown."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from psconform.api import judge
from psconform.errors import BadInput
from psconform.plugin import REQUIRE_ALL

from .hostile import MODES, measured
from .waits import HANG_S

SOCKETS = Path(__file__).parent / "socket_ps" / "target.toml"
MEMORY = 400 << 20
"""Bytes that psconform may really take; without a hostile target it takes 60 MiB."""
SHOWN = 8192
"""Characters on standard output and error together."""

pytestmark = pytest.mark.engine


@pytest.mark.parametrize(("mode", "status", "says"), MODES)
def test_a_hostile_target(mode, status, says, tmp_path):
    ended, shown, used = measured(mode, tmp_path)
    assert says in shown
    assert ended == status, shown
    assert len(shown) < SHOWN
    assert all(each.isprintable() or each == "\n" for each in shown)
    assert "please report this" not in shown
    assert used < MEMORY
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
    assert "unknown for that reason: S1, S3, S4, S5, S6, A6, A7, I1, I2, R1, R2, L0, C3" in check
    assert done.stdout.endswith("exit code 2\n")


def test_a_task_of_a_folder_that_is_gone_is_not_blamed(tmp_path):
    """It goes when all tasks have ended, so that none of them is seen to have recorded anything."""

    def goes(progress):
        if not progress.what and {progress.tasks.get(name) for name in ("worker:0", "worker:1")} == {"ended"}:
            shutil.rmtree(tmp_path / "run", ignore_errors=True)

    with pytest.raises(BadInput, match=r"the run cannot be recorded \(No such file or directory: "):
        judge(SOCKETS, layout="ps=1,worker=2", steps=6, out=tmp_path / "run", notify=goes)
