"""Local processes: psconform's side of the keeper."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from ..errors import PsconformError, Unavailable
from ..layout import Command, Task
from .launcher import PROCESS, Ended, Pods
from .remains import namespace
from .task_processes import TaskProcesses

OWNER = "PSCONFORM_OWNER"
"""Environment variable in every keeper and task: the mark of the psconform that owns it (for clean-up)."""
TEMPORARY = "psconform-tasks-"
"""What the name of a temporary folder begins with; after it comes the owner, with a dash for a colon."""
CLOSE_S = 5.0
REMAINS = ".remains"
"""A file in it: process id, its start and a path in each line, which is to be deleted when that process has ended."""
SHARED = Path("/dev/shm")
"""Where such files may lie."""
HERE = "127.0.0.1,localhost"
"""Hosts that no proxy is asked for."""


class LocalLauncher:
    """Starts tasks as processes on this machine, under one keeper; a `Launcher`.

    Args:
        preload: modules that the keeper imports once; tasks with an entry point are forked from it. None: tasks are
            started cold, by their argv.

    Raises:
        PsconformError: the keeper cannot start (a module to preload is missing).
    """

    name, about = PROCESS, "a process of this machine for each task"
    control: Path | None = None
    pods: Pods | None = None
    python = sys.executable
    inherited: Mapping[str, str] = os.environ
    others = False

    def __init__(self, preload: tuple[str, ...] | None = None) -> None:
        self.warm = preload is not None
        began = time.monotonic()
        # What is killed deletes nothing; TensorFlow leaves the source of each function that it has translated.
        self.temporary = temporary_folder()
        self._keeper = subprocess.Popen(
            [sys.executable, "-m", "psconform.launchers.keeper", str(self.temporary), *(preload or ())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ, OWNER: owner_mark()},
            start_new_session=True,
        )
        self._reports: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._started: dict[str, int] = {}
        self._processes: dict[str, TaskProcesses] = {}
        self._running: dict[str, Task] = {}
        self._keys: dict[Task, str] = {}  # of its latest start
        self._seconds: set[str] = set()  # keys of processes that run beside the one of their task
        self._ended: list[Ended] = []
        self._stopped = self._lost = False
        self._locks: list[socket.socket] = []
        self._generation = 0
        try:
            ready = self._expect("ready", timeout=120.0)
        except BaseException:
            self.close()
            raise
        self.import_s, self.ready_s = float(ready["import_s"]), time.monotonic() - began

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, task: Task, command: Command, *, log: Path, second: bool = False) -> int:
        """Start one task, with the environment of psconform, too; returns its process id. See `Launcher.start`."""
        key = f"{self._generation}/{task}/{len(self._started)}"
        if second:
            self._seconds.add(key)
        else:
            self._keys[task] = key
        forked = self.warm and bool(command.entry)
        environment = {
            **os.environ,
            **direct(os.environ),
            "TMPDIR": str(self.temporary),
            **command.env,
            **command.visible,
            OWNER: owner_mark(),
        }
        self._send(
            start=key,
            argv=list(command.argv[2:] if forked else command.argv),
            entry=command.entry if forked else "",
            env=environment,
            log=str(log),
            cwd=command.cwd or str(log.parent),
            remains=list(command.remains),
            record=command.record,
        )
        self._running[key] = task
        while key not in self._started:
            report = self._reports.get()
            if report.get("failed") == key:
                del self._running[key]
                raise Unavailable(f"{task} cannot be started: {report['why']} ({' '.join(command.argv)})")
            self._take(report)
        pid = self._started[key]
        self._processes[key] = TaskProcesses.started(self._keeper.pid, pid, environment, command.record)
        if command.remains:  # the keeper deletes them; this is for when it is killed
            born = process_start(pid)
            with (self.temporary / REMAINS).open("a", encoding="utf-8") as file:
                file.writelines(f"{pid} {born} {path.replace('{pid}', str(pid))}\n" for path in command.remains)
        return pid

    def begin(self, run: str, tasks: Sequence[Task], folder: Path) -> None:
        """A run begins: forget the one before, its ports and names."""
        del run, tasks, folder
        self.stop_all(grace=0.0)

    def named(self, address: str) -> str:
        """Processes have one address for good."""
        return address

    def seen(self, path: Path) -> str:
        """Processes see the paths that psconform sees."""
        return str(path)

    def scratch(self, place: Path | str, *, mine: bool = True) -> None:
        """Have the keeper delete a folder, or a URL, or unmount ``mount:FOLDER``, should psconform go away.

        ``mine=False``: not any more.
        """
        self._send(scratch=str(place), on=mine)

    def poll(self, timeout: float) -> list[Ended]:
        with contextlib.suppress(queue.Empty):
            self._take(self._reports.get(block=not self._ended, timeout=timeout))
            while True:
                self._take(self._reports.get_nowait())
        ended, self._ended = self._ended, []
        return ended

    @property
    def running(self) -> tuple[Task, ...]:
        return tuple(task for key, task in self._running.items() if key not in self._seconds)

    def signal(self, task: Task, number: int) -> None:
        self._send(signal=self._keys.get(task, ""), number=number)

    def ask(self, task: Task, pid: int, number: int) -> bool:
        processes = self._processes.get(self._keys.get(task, ""))
        try:
            if processes is None or pid not in processes.states():
                return False
            os.kill(pid, number)
        except OSError:
            return False
        return True

    def state(self, task: Task) -> str:
        key = self._keys.get(task, "")
        state = process_state(self._started.get(key, 0))
        if state != "T":
            return state
        return next((other for other in self._processes[key].states().values() if other != "T"), "T")

    def whose(self, group: int) -> str:
        own = [key for key, pid in self._started.items() if pid == group]
        own = own or [key for key, processes in self._processes.items() if group in processes.states()]
        return own[0].split("/")[1] if own else ""

    def state_of(self, pid: int) -> str:
        return process_state(pid) if pid in self._started.values() else ""

    def kill_second(self, pid: int) -> None:
        for key in self._running.keys() & self._seconds:
            if self._started.get(key) == pid:
                self._send(signal=key, number=signal.SIGKILL)

    def stop_all(self, *, grace: float = 0.3) -> list[Ended]:
        """End every task: SIGTERM, after ``grace`` seconds SIGKILL. Returns when all are gone."""
        ended: list[Ended] = []
        self._stopped = False
        self._send(stop=list(self._running), grace=grace)
        deadline = time.monotonic() + grace + 10.0
        while not self._stopped:
            ended += self.poll(0.5)
            if not self._stopped and time.monotonic() > deadline:
                raise PsconformError(f"tasks could not be ended: {', '.join(map(str, self._running.values()))}")
        ended += self.poll(0.0)
        empty(self.temporary)
        self._generation += 1
        self._started.clear()
        self._processes.clear()
        self._keys.clear()
        self._seconds.clear()
        for lock in self._locks:
            lock.close()
        self._locks.clear()
        return ended

    def address(self, dialler: Task | None, listener: Task) -> str:
        """A fresh ``host:port`` for ``listener``; on this launcher every dialler uses the same one.

        The port lies below the range from which the kernel takes ports for outgoing connections, and is marked as
        taken by an abstract socket that dies with psconform, so that two runs never pick the same.
        """
        del dialler, listener
        low = _ephemeral_low()
        high = low if low > 12000 else 60000  # an unusual kernel setting: then a collision is possible, if unlikely
        for _ in range(2000):
            port = 10000 + int.from_bytes(os.urandom(4), "little") % (high - 10000)
            lock = claim(port)
            if lock is not None:
                self._locks.append(lock)
                return f"127.0.0.1:{port}"
        raise Unavailable(f"no free port between 10000 and {high}")

    def close(self, *, within_s: float = CLOSE_S) -> None:
        """Stop the tasks and the keeper, which has so long to delete what it was told of."""
        with contextlib.suppress(PsconformError, OSError):
            if self._keeper.poll() is None and self._running:
                self.stop_all()
        if self._keeper.stdin:
            with contextlib.suppress(OSError):
                self._keeper.stdin.close()
        try:
            self._keeper.wait(within_s)
        except subprocess.TimeoutExpired:
            self._keeper.kill()
            self._keeper.wait()
        self._reader.join()
        remove_remains(self.temporary)
        shutil.rmtree(self.temporary, ignore_errors=True)
        if self._keeper.stdout:
            self._keeper.stdout.close()
        for lock in self._locks:
            lock.close()

    def _send(self, **request: Any) -> None:
        assert self._keeper.stdin is not None
        if self._lost:  # its end of the pipe may be open for a moment longer
            raise PsconformError("the keeper of the tasks is gone")
        try:
            self._keeper.stdin.write(json.dumps(request).encode() + b"\n")
            self._keeper.stdin.flush()
        except OSError as error:
            raise PsconformError(f"the keeper of the tasks is gone ({error})") from None

    def _read(self) -> None:
        assert self._keeper.stdout is not None
        for line in self._keeper.stdout:
            with contextlib.suppress(ValueError):  # a task's stray output is no report
                self._reports.put(json.loads(line))
        self._reports.put({"closed": True})

    def _take(self, report: dict[str, Any]) -> None:
        if "started" in report:
            self._started[report["started"]] = int(report["pid"])
        elif "exit" in report and (task := self._running.pop(report["exit"], None)) is not None:
            key = report["exit"]
            self._ended.append(Ended(task, int(report["status"]), self._started.get(key, 0), key in self._seconds))
        elif "stopped" in report:
            self._stopped = True
        self._check_alive(report)

    def _expect(self, key: str, *, timeout: float) -> dict[str, Any]:
        try:
            report = self._reports.get(timeout=timeout)
        except queue.Empty:
            self._keeper.kill()
            raise PsconformError(f"the keeper of the tasks was not ready within {timeout:.0f} s") from None
        if "broken" in report:
            raise Unavailable(f"cannot import what the target needs: {report['broken']}")
        self._check_alive(report)
        return report

    def _check_alive(self, report: dict[str, Any]) -> None:
        if report.get("closed"):
            for key in self._running:  # the kernel has killed the tasks, but not what they had started
                with contextlib.suppress(OSError, KeyError):
                    os.killpg(self._started[key], signal.SIGKILL)
            self._running.clear()
            self._lost = True
            raise Unavailable(
                "the keeper of the tasks ended, and with it all tasks: did a task kill its parent process?"
            )


def empty(folder: Path) -> None:
    """Delete what a folder holds, as far as that goes."""
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    path.unlink()


def owner_mark() -> str:
    """``pid:start time:namespace`` of this process: unlike a pid alone, never true of a later process, nor of one that
    is counted elsewhere (a psconform in a container, say)."""
    return f"{os.getpid()}:{process_start(os.getpid())}:{namespace()}"


def temporary_folder() -> Path:
    """A new one, which ``psconform clean`` deletes should this process not come to that."""
    return Path(tempfile.mkdtemp(prefix=f"{TEMPORARY}{owner_mark().replace(':', '-')}-"))


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """One that is gone afterwards."""
    folder = temporary_folder()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_remains(temporary: Path) -> list[Path]:
    """Delete what tasks that have ended have left in shared memory, as noted in their temporary folder; returns that.

    Only files of one's own: whoever may write to that folder could name any.
    """
    removed = []
    try:
        lines = (temporary / REMAINS).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    for line in lines:
        pid, _, rest = line.partition(" ")
        born, _, name = rest.partition(" ")
        path = Path(name)
        with contextlib.suppress(OSError):
            ended = pid.isdecimal() and (not born or process_start(int(pid)) != born)
            if ended and path.parent == SHARED and path.lstat().st_uid == os.getuid():
                path.unlink()
                removed.append(path)
    return removed


def process_start(pid: int) -> str:
    """Start time of a process in clock ticks since boot, empty if it is gone, a zombie, or /proc is missing."""
    fields = _stat(pid)
    return "" if fields[0] in "ZX" else fields[19]


def process_state(pid: int) -> str:
    """State letter of a process, empty if it is gone, a zombie, or /proc is missing."""
    state = _stat(pid)[0]
    return "" if state in "ZX" else state


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat after the name; as of a dead process if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].decode().split()
    except OSError:
        return ["X"]


def _ephemeral_low() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return 32768


def claim(port: int) -> socket.socket | None:
    """Mark a port as taken, for as long as the socket that is returned is open; None if it is taken already."""
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if sys.platform == "linux":
            lock.bind(f"\0psconform-port-{port}")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
    except OSError:
        lock.close()
        return None
    return lock


def direct(environ: Mapping[str, str]) -> dict[str, str]:
    """What keeps a task from asking the HTTP proxy of its user for another task: gRPC would, on loopback, too."""
    names = ("no_proxy", "NO_PROXY")
    given = next((environ[name] for name in names if environ.get(name)), "")
    return dict.fromkeys(names, ",".join(filter(None, (given, HERE))))
