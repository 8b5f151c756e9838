"""The file system over the folder for checkpoints: what it passes on, what it refuses, and that none is left behind."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest

from psconform.errors import PsconformError
from psconform.faults import disk_faults
from psconform.faults.checkpoint_faults import newest_checkpoint
from psconform.faults.disk_faults import TRANSFERS
from psconform.faults.fault import FOLDER, Fault, When
from psconform.faults.kinds import check_available, kinds
from psconform.launchers.cleanup import mounts
from psconform.launchers.local import OWNER, owner_mark
from psconform.parts import FUSE, Missing
from psconform.plugin import need
from psconform.runner.fault_setup import mounted

from .test_interrupt import RUN, below, command
from .test_interrupt import gone as is_gone
from .waits import HANG_S, only_one_cleans, until

pytestmark = pytest.mark.engine

LASTING = [name for name, kind in kinds().items() if kind.mounts]
TASK = {OWNER: owner_mark()}
"""What makes a process one of the target's."""


@pytest.fixture
def folder(tmp_path):
    need("fuse")
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    return folder.resolve()


@pytest.fixture
def disk(folder):
    with mounted(folder, whose=lambda group: "worker:0" if group else "") as disk:
        yield disk


def run(folder, script, *, env=TASK):
    """What a task prints that does this in the folder."""
    done = subprocess.run(
        [sys.executable, "-c", f"import errno, os, sys, time\nfrom pathlib import Path\n{script}"],
        cwd=folder,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert not done.stderr, done.stderr
    return done.stdout.strip()


def tried(script):
    """The same, and it prints the name of the error, or what it took in milliseconds."""
    return f"""
began = time.monotonic()
try:
    {script}
except OSError as error:
    print(errno.errorcode[error.errno])
else:
    print(round(1000 * (time.monotonic() - began)))
"""


def breaks(kind, disk, said=()):
    fault = Fault(kind=kind, region=FOLDER, when=When(), lasts_s=1.0, amounts=said or kinds()[kind].usual)
    return kinds()[kind].injector(fault, SimpleNamespace(mounted=lambda _: disk))


EVERYTHING = """
os.mkdir("sub")
a = Path("sub/a")
a.write_bytes(b"x" * 300_000)
with a.open("r+b") as file:
    file.seek(299_999)
    file.write(b"end")
    file.flush()
    os.fsync(file.fileno())
    assert os.fstat(file.fileno()).st_size == 300_002
    file.truncate(10)
with a.open("ab") as file:
    file.write(b"more")
assert a.read_bytes() == b"x" * 10 + b"more"
os.truncate(a, 12)
os.utime(a, ns=(1_500_000_000, 2_500_000_000))
assert a.stat().st_mtime_ns == 2_500_000_000
a.touch()
assert abs(a.stat().st_mtime - time.time()) < 100
a.chmod(0o640)
assert a.stat().st_mode & 0o777 == 0o640
a.rename("sub/b")
os.link("sub/b", "sub/c")
os.symlink("b", "sub/d")
assert os.readlink("sub/d") == "b" and Path("sub/d").read_bytes() == b"x" * 10 + b"mo"
assert sorted(os.listdir("sub")) == ["b", "c", "d"]
Path("sub/c").unlink()
with open("sub/e", "w+b") as file:
    file.write(b"gone")
    os.unlink("sub/e")
    file.seek(0)
    assert file.read() == b"gone"
os.unlink("sub/d")
descriptor = os.open(".", os.O_RDONLY)
os.fsync(descriptor)
os.posix_fallocate(os.open("long", os.O_RDWR | os.O_CREAT), 0, 5000)
os.mkdir("empty")
os.rmdir("empty")
assert os.statvfs(".").f_bavail > 0
try:
    os.rmdir("sub")
except OSError as error:
    print(errno.errorcode[error.errno], os.path.getsize("long"))
"""


def test_it_passes_everything_on_and_the_files_are_there_when_it_is_gone(folder):
    with mounted(folder, whose=lambda group: "") as disk:
        assert folder in mounts()
        assert run(folder, EVERYTHING) == "ENOTEMPTY 5000"
        kept = folder / "lock"
        with kept.open("w") as one, kept.open("w") as other:
            fcntl.flock(one, fcntl.LOCK_EX)
            with pytest.raises(BlockingIOError):
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert sorted(os.listdir(disk.below)) == ["lock", "long", "sub"]
    assert folder not in mounts()
    assert sorted(path.name for path in folder.rglob("*")) == ["b", "lock", "long", "sub"]
    assert (folder / "sub" / "b").read_bytes() == b"x" * 10 + b"mo"
    assert (folder / "sub" / "b").stat().st_mode & 0o777 == 0o640


REFUSALS = {
    "full": (
        "ENOSPC",
        ["Path('new').touch()", "Path('old').write_bytes(b'x')", "os.mkdir('d')", "os.symlink('a', 'b')"],
    ),
    "read-only": (
        "EROFS",
        [
            "Path('new').touch()",
            "open('old', 'r+b')",
            "os.unlink('old')",
            "os.rename('old', 'new')",
            "os.mkdir('d')",
            "os.truncate('old', 1)",
            "os.chmod('old', 0o600)",
            "os.utime('old')",
        ],
    ),
    "unreadable": ("EIO", ["open('old').read()", "open('old', 'r+b')"]),
}
ALLOWED = {
    "full": ["open('old').read()", "os.truncate('other', 1)", "os.rename('other', 'another')", "os.unlink('another')"],
    "read-only": ["open('old').read()", "os.listdir('.')", "os.stat('old')"],
    "unreadable": ["Path('new').write_bytes(b'x')", "os.listdir('.')", "os.stat('old')", "os.unlink('other')"],
}


@pytest.mark.parametrize("kind", REFUSALS)
def test_what_is_refused_and_what_is_not(folder, disk, kind):
    expected, refused = REFUSALS[kind]
    for name in ("old", "other"):
        (folder / name).write_bytes(b"some bytes")
    fault = breaks(kind, disk)
    fault.inject()
    assert [run(folder, tried(script)) for script in refused] == [expected] * len(refused)
    for script in ALLOWED[kind]:
        assert run(folder, tried(script)).isdecimal(), script
    assert fault.evidence().startswith("worker:0: ")
    assert f"failed with {expected}, and " in fault.evidence()
    fault.heal()
    assert fault.healed() == ""
    assert fault.gone() == "the file system has let go of it, and nothing has been asked for since"
    run(folder, "Path('new').write_bytes(b'x'); Path('new').read_bytes()")
    assert fault.healed().startswith("worker:0: ")
    assert fault.healed().endswith(" succeeded")
    assert fault.gone() == ""


def test_an_open_file_is_broken_too(folder, disk):
    full, unreadable = breaks("full", disk), breaks("unreadable", disk)
    ready, go = folder.parent / "ready", folder.parent / "go"
    script = f"""
file = open("a", "w+b", buffering=0)
file.write(b"x")
Path({str(ready)!r}).touch()
while not Path({str(go)!r}).exists():
    time.sleep(0.01)
found = []
for act in (lambda: file.write(b"y"), lambda: (file.seek(1_000_000), file.read(1)), lambda: os.fsync(file.fileno())):
    try:
        act()
        found.append("ok")
    except OSError as error:
        found.append(errno.errorcode[error.errno])
print(*found)
"""
    with subprocess.Popen(
        [sys.executable, "-c", f"import errno, os, time\nfrom pathlib import Path\n{script}"],
        cwd=folder,
        env={**os.environ, **TASK},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        while not ready.exists():
            assert process.poll() is None
            time.sleep(0.01)
        full.inject()
        unreadable.inject()
        go.touch()
        assert process.communicate(timeout=HANG_S)[0].split() == ["ENOSPC", "ok", "ok"]  # nothing is read past the end
    assert "write of a failed with ENOSPC" in full.evidence()
    assert unreadable.evidence() == ""


def test_a_slow_disk_delays_and_its_end_ends_the_delays(folder, disk):
    fault = breaks("slow-disk", disk, (("ms", 2000),))
    fault.inject()
    took = int(run(folder, tried("Path('a').write_bytes(b'x')")))
    assert took >= 2000
    assert "worker:0: write of a was delayed by 20" in fault.evidence()
    fault.heal()
    assert fault.gone()
    assert run(folder, tried("Path('a').write_bytes(b'x')")).isdecimal()  # not delayed, or it were not healed
    assert fault.healed() == "worker:0: write of a succeeded"
    disk.tell("for good", (TRANSFERS,), ms=3_600_000)
    script = "file = open('b', 'wb', buffering=0); print('writes', flush=True); file.write(b'x'); print('done')"
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=folder, env={**os.environ, **TASK}, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "writes\n"
        disk.forget("for good")
        assert process.communicate(timeout=HANG_S)[0] == "done\n"


def test_others_are_neither_disturbed_nor_counted(folder, disk):
    fault = breaks("read-only", disk)
    fault.inject()
    (folder / "mine").write_bytes(b"x")
    assert run(folder, tried("Path('of another').write_bytes(b'x')"), env={OWNER: "1:1"}).isdecimal()
    assert fault.evidence() == ""
    assert run(folder, tried("Path('new').touch()")) == "EROFS"
    assert fault.evidence() == "worker:0: create of new failed with EROFS"


def test_faults_overlap_and_the_end_of_one_heals_no_other(folder, disk):
    full, frozen = breaks("full", disk), breaks("read-only", disk)
    for fault in (full, frozen):
        fault.inject()
    assert run(folder, tried("Path('new').touch()")) == "ENOSPC"
    assert full.evidence()
    assert not frozen.evidence(), "nothing has failed by it"
    full.heal()
    assert run(folder, tried("Path('new').touch()")) == "EROFS"
    assert "EROFS" in frozen.evidence()
    assert full.healed() == ""
    assert full.gone() != ""
    frozen.heal()
    assert run(folder, tried("Path('new').touch()")).isdecimal()
    assert full.healed()
    assert frozen.healed()


def test_the_newest_checkpoint_is_found_below_the_mount(folder, disk):
    (folder / "step-20.data").write_bytes(bytes(1000))
    found = newest_checkpoint(disk.below)
    assert found is not None
    found.write_bytes(bytes(500))
    assert len((folder / "step-20.data").read_bytes()) == 500


def test_a_file_system_that_ends_is_an_error(folder):
    with contextlib.suppress(PsconformError), mounted(folder, whose=lambda group: "") as disk:
        fault = breaks("full", disk)
        fault.inject()
        (process,) = below(os.getpid(), "psconform.faults.fuse_server")
        process.kill()
        with pytest.raises(PsconformError, match=r"the file system over .* has ended; it said last: "):
            wait_for_ever(fault.evidence)
    assert folder not in mounts()


def wait_for_ever(look):
    deadline = time.monotonic() + HANG_S
    while time.monotonic() < deadline:
        look()


HOLDS = """
import sys, time
from pathlib import Path
from psconform.runner.fault_setup import mounted
with mounted(Path(sys.argv[1]), whose=lambda group: ""):
    print("mounted", flush=True)
    time.sleep(1000)
"""


def gone(folder):
    until(lambda: folder not in mounts())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_psconform_that_goes_away_leaves_no_mount(folder, number):
    words = [sys.executable, "-c", HOLDS, str(folder)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout.readline() == "mounted\n"
        (folder / "a").write_bytes(b"x")
        process.send_signal(number)
        process.wait(HANG_S)
    gone(folder)
    assert (folder / "a").read_bytes() == b"x"


@pytest.mark.psconform_needs("fuse")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_ended_leaves_no_mount(tmp_path, number):
    (tmp_path / "plan.toml").write_text('[[fault]]\nkind = "full"\nat = "0s"\nfor = "1000s"\n')
    words = command(tmp_path, *RUN, "--faults", "plan.toml", pause=1000.0)
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    folder = tmp_path.resolve() / "out" / "checkpoints"
    with subprocess.Popen(words, cwd=tmp_path, start_new_session=True, **pipes) as process:
        try:
            until((tmp_path / "going").exists)
            assert folder in mounts()
            below = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(number)
            process.wait(HANG_S)
        finally:
            process.kill()
    gone(folder)
    until(lambda: all(map(is_gone, below)))
    assert list(folder.iterdir()) == []


def test_clean_finds_what_a_killed_keeper_has_left(folder):
    words = [sys.executable, "-c", HOLDS, str(folder)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout.readline() == "mounted\n"
        (keeper,) = psutil.Process(process.pid).children()
        words = [sys.executable, "-m", "psconform.cli", "clean"]
        with only_one_cleans():
            assert f"unmounted {folder}" not in subprocess.check_output(words, text=True)  # its psconform runs
        keeper.kill()
        process.kill()
        process.wait(HANG_S)
    with only_one_cleans():
        subprocess.check_call(words, stdout=subprocess.DEVNULL)  # another test may have done so a moment before
    assert folder not in mounts()


@pytest.mark.parametrize("kind", LASTING)
def test_what_is_missing_is_said_in_one_line(monkeypatch, tmp_path, kind):
    (tmp_path / "device").touch()
    monkeypatch.setattr(disk_faults, "library", lambda: "libfuse3.so.3")
    monkeypatch.setattr(disk_faults, "DEVICE", tmp_path / "device")
    monkeypatch.setattr(disk_faults, "leave", lambda: None)
    assert kinds()[kind].lacks == ""
    check_available([kind], proxies=False)
    for name, broken, said in (
        ("library", lambda: "", "apt-get install -y fuse3"),
        ("DEVICE", tmp_path / "fuse", "modprobe fuse"),
        ("leave", lambda: Missing(FUSE, "there is no fusermount3"), "there is no fusermount3"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(disk_faults, name, broken)
            assert said in kinds()[kind].lacks
            with pytest.raises(PsconformError, match=f"fault {kind} needs fuse: ") as error:
                check_available([kind], proxies=False)
            assert said in str(error.value)


@pytest.mark.parametrize(
    ("user", "capabilities", "kept", "mode", "command"),
    [
        (0, "000001ffffffffff", 0, None, ""),
        (0, "00000000a80425fb", 0, None, "docker run --device /dev/fuse --cap-add SYS_ADMIN"),  # a container's root
        (1000, "0000000000000000", 0, 0o4755, ""),
        (1000, "0000000000000000", 0, None, "sudo apt-get install -y fuse3"),
        (1000, "0000000000000000", 0, 0o755, "sudo chmod u+s {program}"),
        (1000, "0000000000000000", 1, 0o4755, f"{disk_faults.IN_A_CONTAINER} --security-opt no-new-privileges=false"),
    ],
)
def test_who_may_mount(monkeypatch, tmp_path, user, capabilities, kept, mode, command):
    status, program = tmp_path / "status", tmp_path / "fusermount3"
    status.write_text(f"Name:\tpython\nCapEff:\t{capabilities}\nNoNewPrivs:\t{kept}\n")
    monkeypatch.setattr(disk_faults, "STATUS", status)
    monkeypatch.setattr(disk_faults.os, "geteuid", lambda: user)
    monkeypatch.setenv("PATH", str(tmp_path))
    if mode is not None:
        program.touch()
        program.chmod(mode)
    lack = disk_faults.leave()
    assert (lack.command if lack else "") == command.format(program=program)


def test_a_run_without_the_library_is_refused_in_one_line(tmp_path):
    plan = tmp_path / "plan.toml"
    plan.write_text('[[fault]]\nkind = "full"\nat = 5\nfor = "1s"\n')
    hide = "import sys, importlib.util as util\nfind = util.find_spec\n"
    hide += "util.find_spec = lambda name, *rest: None if name == 'mfusepy' else find(name, *rest)"
    words = f"{hide}\nfrom psconform.__main__ import main\nsys.argv = ['psconform', *sys.argv[1:]]\nmain()"
    arguments = ["run", "--faults", str(plan), "--out", str(tmp_path / "out")]
    done = subprocess.run([sys.executable, "-c", words, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    said = "psconform: fault full needs fuse: there is no Python module mfusepy, so faults of the disk that last cannot"
    (line,) = done.stderr.splitlines()
    assert line.startswith(said)
    assert line.endswith(" -m pip install 'mfusepy>=3'")
    assert not (tmp_path / "out").exists()


def test_doctor_and_the_list_say_what_is_there():
    words = [sys.executable, "-m", "psconform.cli", "doctor", "--json"]
    (fuse,) = (part for part in json.loads(subprocess.check_output(words)) if part["name"] == "fuse")
    assert fuse["found"] == (disk_faults.lacks() is None)
    assert ("libfuse" in fuse["version"], fuse["advice"]) == (fuse["found"], str(disk_faults.lacks() or ""))
