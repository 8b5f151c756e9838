"""The keeper: a small process that starts tasks, reports their end, and kills them all when psconform is gone.

Run as ``python -m psconform.launchers.keeper FOLDER [MODULE ...]``. The folder is deleted when psconform is gone. The
modules are imported once, and tasks with an entry point are forked from this warm process (importing TensorFlow costs
seconds, a fork milliseconds). Other tasks are started cold. Requests arrive as JSON lines on standard input, reports
leave as JSON lines on standard output:

    {"start": id, "argv": [...], "env": {...}, "entry": "mod:fn" or "", "log": path, "cwd": path,
     "remains": [path with {pid}, ...],                       (files to delete when it has ended)
     "record": path}                                          (its event file)
                                                              -> {"started": id, "pid": n} or {"failed": id, "why": ..}
    {"signal": id, "number": n}                               (to every process of the task: task_processes.py)
    {"scratch": path or URL, "on": true}                      (to be deleted when psconform is gone; false: no more;
                                                               "mount:PATH": to be unmounted; "docker:SOCKET:OWNER":
                                                               containers and networks of that owner)
    {"stop": [id, ...], "grace": seconds}                     -> SIGTERM, then SIGKILL; ends as exits, and after them
                                                                 {"stopped": true}: no descendant is left
                                                              -> {"exit": id, "status": n}

Standard input is the lifeline: psconform holds its other end, so when it closes (exit, crash, SIGKILL) the keeper
kills every descendant and ends. Should the keeper itself be killed, the kernel kills the tasks (PR_SET_PDEATHSIG).
Standard library only: it must start in a moment.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, NoReturn

from ..files import open_regular
from .task_processes import TaskProcesses, signal_all

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
MOUNT = "mount:"
"""What stands before a folder that is to be unmounted."""
CONTAINERS = "docker:"
"""What stands before the socket of a Docker engine and the owner of containers and networks."""


def _prctl(option: int, value: int) -> None:
    # Linux only; elsewhere the lifeline alone must do.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def children_of(pid: int) -> list[int]:
    """Direct children of a process, from /proc; empty where there is no /proc."""
    found = []
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{name}/children", encoding="ascii") as file:
                found += [int(child) for child in file.read().split()]
    return found


class Keeper:
    """State of the keeper: which process is which task."""

    def __init__(self, folder: str) -> None:
        self.tasks: dict[int, str] = {}  # pid -> id
        self.processes: dict[int, TaskProcesses] = {}  # by pid, too
        self.told: set[int] = set()  # pids of tasks that have been sent a signal that ends them
        self.remains: dict[int, list[str]] = {}  # pid -> files that it leaves behind
        self.deadline: float | None = None  # when stopping tasks are killed
        self.stopping: set[str] | None = None  # tasks that a stop is about; None: there is no stop going on
        self.scratch = {folder}  # folders, URLs and mounts to delete if psconform goes away
        self.buffer = b""
        self.out = os.dup(1)
        os.dup2(2, 1)  # what a module prints when it is imported is no report

    def report(self, **message: Any) -> None:
        """Write one line to psconform; if it is gone, the lifeline will tell."""
        with contextlib.suppress(OSError):
            os.write(self.out, json.dumps(message).encode() + b"\n")

    def start(self, request: dict[str, Any]) -> None:
        """Fork a task; what goes wrong before it is the task (its log, its directory, exec) comes back in a pipe."""
        keeper = os.getpid()
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            _become(request, writer, keeper)
        os.close(writer)
        why = b""
        while chunk := os.read(reader, 4096):  # closed by exec or before the entry point: it can be signalled then
            why += chunk
        os.close(reader)
        if why:
            os.waitpid(pid, 0)
            self.report(failed=request["start"], why=why.decode(errors="replace"))
            return
        self.tasks[pid] = request["start"]
        self.processes[pid] = TaskProcesses.started(keeper, pid, request["env"], request["record"])
        self.remains[pid] = [path.replace("{pid}", str(pid)) for path in request["remains"]]
        self.report(started=request["start"], pid=pid)

    def stop(self, ids: list[str], grace: float) -> None:
        """SIGTERM to the tasks; those still there after ``grace`` seconds are killed."""
        self.stopping = set(ids)
        self.deadline = time.monotonic() + grace
        self.signal_tasks(ids, signal.SIGTERM)
        self.settle()

    def settle(self) -> None:
        """Once the last task of a stop has ended: end what tasks have orphaned (daemons, which left the group)."""
        if self.stopping is None or self.tasks:
            return
        kill_descendants()
        self.stopping = self.deadline = None
        self.report(stopped=True)

    def signal_tasks(self, ids: list[str], number: int) -> None:
        """Signal all processes of these tasks."""
        pids = [pid for pid, task in self.tasks.items() if task in ids]
        if number in (signal.SIGTERM, signal.SIGKILL):
            self.told.update(pids)
        signal_all([self.processes[pid] for pid in pids], number)

    def reap(self) -> None:
        """Collect ended children; whatever they left behind in their process group goes with them.

        Of a task that was sent a signal to end, whatever it left behind anywhere.
        """
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            task = self.tasks.pop(pid, None)
            if task is not None:
                with contextlib.suppress(OSError):
                    os.killpg(pid, signal.SIGKILL)
                processes = self.processes.pop(pid)
                if pid in self.told:
                    self.told.discard(pid)
                    signal_all([processes], signal.SIGKILL)
                self.clear_up(pid)
                self.report(exit=task, status=os.waitstatus_to_exitcode(status))

    def clear_up(self, *pids: int) -> None:
        """Delete what these processes, which have ended, have left behind."""
        for pid in pids:
            for path in self.remains.pop(pid, ()):
                with contextlib.suppress(OSError):
                    os.unlink(path)

    def tick(self) -> None:
        """Kill what outlived its grace."""
        if self.deadline is not None and time.monotonic() >= self.deadline:
            self.signal_tasks(list(self.stopping or ()), signal.SIGKILL)
            self.deadline = None

    def serve(self, wake: int) -> None:
        """Answer requests until the lifeline closes."""
        while True:
            wait = None if self.deadline is None else max(0.0, self.deadline - time.monotonic())
            ready, _, _ = select.select([0, wake], [], [], wait)
            if wake in ready:
                os.read(wake, 4096)
            self.reap()
            self.settle()
            self.tick()
            if 0 in ready:
                data = os.read(0, 65536)
                if not data:
                    return
                *lines, self.buffer = (self.buffer + data).split(b"\n")
                for line in lines:
                    self.answer(json.loads(line))

    def answer(self, request: dict[str, Any]) -> None:
        """Carry out one request."""
        if "start" in request:
            self.start(request)
        elif "signal" in request:
            self.signal_tasks([request["signal"]], request["number"])
        elif "stop" in request:
            self.stop(request["stop"], request["grace"])
        elif "scratch" in request:
            (self.scratch.add if request["on"] else self.scratch.discard)(request["scratch"])


def kill_descendants() -> None:
    """SIGKILL everything below this process. As a subreaper it inherits what tasks have orphaned, so none escapes."""
    for _ in range(200):
        victims = children_of(os.getpid())
        if not victims:
            return
        for pid in victims:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
            # grandchildren come to us once their parent is dead, and are found in the next round
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.005)


def _become(request: dict[str, Any], errors: int, keeper: int) -> NoReturn:
    """In the child: turn into the task; never returns."""
    try:
        os.setsid()
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != keeper:
            os._exit(127)  # the keeper was killed before the kernel knew what to do then
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        with open_regular(request["log"], flags=os.O_WRONLY | os.O_CREAT | os.O_APPEND) as log:
            null = os.open(os.devnull, os.O_RDONLY)
            for source, stream in ((null, 0), (log.fileno(), 1), (log.fileno(), 2)):
                os.dup2(source, stream)
            os.close(null)
        os.chdir(request["cwd"])
        if not request["entry"]:
            os.execvpe(request["argv"][0], request["argv"], request["env"])
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as a Python that starts cold has them
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.clear()
        os.environ.update(request["env"])
        os.closerange(3, errors)
        os.close(errors)
    except BaseException as error:
        os.write(errors, f"{type(error).__name__}: {error}".encode())
        os._exit(127)
    _call(request["entry"], request["argv"])


def _call(entry: str, argv: list[str]) -> NoReturn:
    import atexit
    import random
    import tempfile
    import traceback

    random.seed()  # or every fork would draw the same
    tempfile.tempdir = None  # whatever a module that was imported has found before TMPDIR was the task's
    status = 1
    sys.argv = list(argv)
    try:
        module, _, function = entry.partition(":")
        status = int(getattr(importlib.import_module(module), function)(argv[1:]) or 0)
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            sys.stderr.write(error.code + "\n")
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()  # os._exit skips them, and a probe closes its record there
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status & 0xFF)


def main(folder: str, modules: list[str]) -> int:
    """Import the modules, say ready, serve until the lifeline closes; then delete the folder, too."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # Ctrl-C is psconform's to handle; the lifeline ends the keeper
    keeper = Keeper(folder)
    began = time.monotonic()
    importing = threading.Event()
    importing.set()
    watch = threading.Thread(target=_watch_import, args=(keeper, importing), daemon=True)
    if modules:
        watch.start()
    try:
        with _quietly():
            for module in modules:
                importlib.import_module(module)
    except Exception as error:
        keeper.report(broken=f"{type(error).__name__}: {error}")
        return 1
    importing.clear()
    if modules:
        watch.join()  # forks come from a keeper without threads of its own
    # Or the first collection in each fork writes to all that was imported, and so copies it: a third of its CPU time.
    gc.freeze()
    wake, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    keeper.report(ready=True, import_s=round(time.monotonic() - began, 3))
    try:
        keeper.serve(wake)
    finally:
        kill_descendants()
        keeper.clear_up(*keeper.remains)
        for place in keeper.scratch:
            delete(place)
    return 0


def delete(place: str) -> None:
    """Delete a folder; or, of a URL, what it stands for (a proxy on a server that is not ours); or unmount."""
    if place.startswith(MOUNT):
        unmount(place.removeprefix(MOUNT))
        return
    if place.startswith(CONTAINERS):
        from .remains import remove_containers  # hardly ever needed, and this process must start in a moment

        path, _, owner = place.removeprefix(CONTAINERS).partition(":")
        with contextlib.suppress(OSError, ValueError):  # then psconform clean will, or say what cannot be deleted
            remove_containers(path, owner)
        return
    if not place.startswith("http://"):
        shutil.rmtree(place, ignore_errors=True)
        return
    import http.client  # hardly ever needed, too

    host, _, path = place.removeprefix("http://").partition("/")
    with contextlib.suppress(OSError, http.client.HTTPException):
        line = http.client.HTTPConnection(host, timeout=5)
        line.request("DELETE", f"/{path}")
        line.getresponse()
        line.close()


def unmount(folder: str) -> None:
    """Take a FUSE file system away from its folder, also one whose process has been killed, or is still in use."""
    import subprocess  # hardly ever needed, too

    for command in (["fusermount3", "-uz"], ["fusermount", "-uz"], ["umount", "-l"]):
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            if not subprocess.run([*command, "--", folder], capture_output=True, timeout=5, check=False).returncode:
                return


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Without what modules greet with on standard error (TensorFlow does); why an import fails, its exception says."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _watch_import(keeper: Keeper, importing: threading.Event) -> None:
    """End at once if psconform goes away while a long import runs: nothing has been started yet, but a folder made."""
    poll = select.poll()
    poll.register(0, 0)  # POLLHUP is always reported
    while importing.is_set():
        if any(flags & select.POLLHUP for _, flags in poll.poll(100)):
            for place in keeper.scratch:
                delete(place)
            os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
