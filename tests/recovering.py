"""A cluster of the reference trainer whose tasks are killed and started again; for test_recovery_reference.py."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

from psconform.launchers.local import claim

LIMIT_S = 120.0


def free_port(locks):
    """A port below the range of ephemeral ones, and marked as taken: it is free when a task that was killed is back."""
    for port in range(20000 + os.getpid() % 8000, 32000):
        if lock := claim(port):
            locks.append(lock)
            return port
    raise OSError("no free port")


def _close(line):
    """Unread, what the task has said would make the kernel reset its connection."""
    with line:
        line.recv(4096)


class Tasks:
    """Starts processes by forking one that has imported TensorFlow; they end with it."""

    def __init__(self):
        command = [sys.executable, str(Path(__file__).parent / "fork_server.py")]
        self._server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def start(self, env, argv, log):
        return self._ask({"env": env, "argv": argv, "log": str(log)})

    def poll(self, pid):
        """Exit status, or None while it runs."""
        return self._ask({"poll": pid})

    def close(self):
        self._server.stdin.close()
        self._server.wait()
        self._server.stdout.close()

    def _ask(self, request):
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        return json.loads(self._server.stdout.readline())


class Job:
    """Tasks by name, their processes, and their run folder."""

    def __init__(
        self,
        tasks: Tasks,
        folder: Path,
        *,
        update,
        steps=40,
        every=10,
        ps=2,
        workers=2,
        environment=(),
        defect="",
        options=(),
        **spec,
    ):
        self.server = tasks
        self.locks: list[socket.socket] = []
        addresses = {
            job: [f"127.0.0.1:{free_port(self.locks)}" for _ in range(n)]
            for job, n in (("ps", ps), ("worker", workers))
        }
        self.folder, self.cluster, self.steps = folder, addresses, steps
        reduction = ["--reduction", "sum"] if update == "sync" else []
        self.argv = ["--update", update, *reduction, *(["--defect", defect] if defect else []), *options]
        self.environment = dict(environment)
        self.control = socket.create_server(("127.0.0.1", 0)) if "strikes" in spec else None
        self._struck: socket.socket | None = None
        for part in ("events", "vectors", "done", "logs"):
            (folder / part).mkdir()
        fields = {
            "run": "r",
            "workload": "ledger",
            "workers": workers,
            "update": update,
            "variables": ps,
            "steps": steps,
            "unit": 840.0,
            "wait_s": float(self.environment.get("CALL_TIMEOUT_S", 60)),
            "vector_every": 0,
        }
        fields |= {"checkpoints": str(folder / "checkpoints"), "checkpoint_every": every, **spec}
        (folder / "spec.json").write_text(json.dumps(fields))
        self.processes: dict[str, int] = {}
        self.incarnations: dict[str, int] = {}
        self.tasks = [*(f"ps:{i}" for i in range(ps)), *(f"worker:{i}" for i in range(workers))]

    def __enter__(self):
        for task in self.tasks:
            self.start(task)
        return self

    def __exit__(self, *_):
        self.kill(*self.processes)
        if self._struck is not None:
            self._struck.close()
        for lock in self.locks:
            lock.close()
        if self.control is not None:
            with suppress(OSError):
                self.control.shutdown(socket.SHUT_RDWR)
            self.control.close()

    def start(self, task):
        """Start a task, or start it again."""
        job, _, index = task.partition(":")
        incarnation = self.incarnations[task] = self.incarnations.get(task, -1) + 1
        place = {"cluster": self.cluster, "task": {"type": job, "index": int(index)}}
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("PSCONFORM", "TF_CONFIG"))}
        if self.control is not None:
            clean["PSCONFORM_CONTROL"] = f"127.0.0.1:{self.control.getsockname()[1]}"
        env = {**clean, "TF_CONFIG": json.dumps(place), "PSCONFORM_SPEC": str(self.folder / "spec.json")}
        env |= {"PSCONFORM_INCARNATION": str(incarnation), **self.environment}
        log = self.folder / "logs" / f"{job}-{index}.{incarnation}.log"
        self.processes[task] = self.server.start(env, self.argv, log)

    def status(self, task):
        """Exit status, or None while it runs."""
        return self.server.poll(self.processes[task])

    def signal(self, number, *tasks):
        for task in tasks:
            if self.status(task) is None:
                os.kill(self.processes[task], number)

    def strike(self):
        """Wait until a task is at a phase at which it is to be struck; it waits there for ``release``."""
        assert self.control is not None
        self.control.settimeout(0.01)
        arrived = []

        def accept():
            with suppress(TimeoutError):
                arrived.append(self.control.accept()[0])
            return arrived

        self.until(accept)
        self._struck = arrived[0]

    def release(self):
        """Let the task go on, if it still lives, and whoever comes to this phase again."""
        _close(self._struck)
        self.control.settimeout(None)
        threading.Thread(target=self._wave_on, args=(self.control,), daemon=True).start()

    @staticmethod
    def _wave_on(control):
        with suppress(OSError):  # shut down at the end
            while True:
                _close(control.accept()[0])

    @contextmanager
    def stopped(self, task):
        """SIGSTOP, and SIGCONT after it."""
        self.signal(signal.SIGSTOP, task)
        try:
            yield
        finally:
            self.signal(signal.SIGCONT, task)

    def settle(self, workers):
        """Wait until these workers have trained as far as they can without a task that is stopped."""

        def counts():
            return [len(self.events(worker)) for worker in workers]

        quiet, since = counts(), time.monotonic()
        while time.monotonic() < since + 4.0:  # two deadlines of a call
            if counts() != quiet:
                quiet, since = counts(), time.monotonic()
            time.sleep(0.05)

    def ended(self, *tasks):
        """Wait until these have ended, however they do."""
        deadline = time.monotonic() + LIMIT_S
        while any(self.status(task) is None for task in tasks):
            assert time.monotonic() < deadline, self.log(*self.tasks)
            time.sleep(0.002)

    def kill(self, *tasks):
        """SIGKILL, and wait until they are gone."""
        self.signal(signal.SIGKILL, *tasks)
        while any(self.status(task) is None for task in tasks):
            time.sleep(0.001)

    def again(self, *tasks):
        """Kill tasks and start them again."""
        self.kill(*tasks)
        for task in tasks:
            self.start(task)

    def events(self, task, incarnation=None):
        """What a task has recorded so far: all its incarnations, or one of them."""
        job, _, index = task.partition(":")
        found = []
        wanted = range(self.incarnations[task] + 1) if incarnation is None else [incarnation]
        for n in wanted:
            path = self.folder / "events" / f"{job}-{index}{f'.{n}' if n else ''}.jsonl"
            text = path.read_text() if path.exists() else ""
            found += [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("}\n")]
        return found

    def count(self, task, kind):
        return sum(event["kind"] == kind for event in self.events(task))

    def until(self, condition):
        """Wait for something that the tasks write; fails with their logs if one of them ends in error, or in time."""
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            ended = {task: self.status(task) for task in self.processes}
            broken = {task: status for task, status in ended.items() if status not in (None, 0)}
            assert not broken, f"ended with these exit statuses: {broken}\n{self.log(*broken)}"
            assert time.monotonic() < deadline, self.log(*self.tasks)
            time.sleep(0.002)

    def log(self, *tasks):
        lines = []
        for task in tasks:
            for path in sorted((self.folder / "logs").glob(f"{task.replace(':', '-')}.*")):
                lines += [f"--- {path.name}", *path.read_text(errors="replace").splitlines()[-25:]]
        return "\n".join(lines)

    def finish(self):
        """Wait for all tasks; each has ended with 0, and every gradient shows exactly once in every final read."""
        self.until(lambda: all(self.status(task) is not None for task in self.processes))
        codes = {task: self.status(task) for task in self.processes}
        assert set(codes.values()) == {0}, f"{codes}\n{self.log(*self.tasks)}"
        workers, ps = self.cluster["worker"], self.cluster["ps"]
        for index in range(len(workers)):
            # one that is killed when it has left has nothing to do any more: the record before has its final read
            records = [self.events(f"worker:{index}", n) for n in range(self.incarnations[f"worker:{index}"] + 1)]
            events = next((record for record in reversed(records) if any(e.get("final") for e in record)), [])
            odd = {}
            for event in events:
                if event["kind"] == "read":
                    for variable, worker, step, head, tail in event.get("odd", ()):
                        odd[variable, worker, step] = (head, tail)
            final = [event for event in events if event["kind"] == "read" and event.get("final")]
            assert final, f"worker:{index} has no final read\n{self.log(*self.tasks)}"
            assert final[-1]["clock"] == [[self.steps] * len(workers)] * len(ps)
            assert final[-1]["absent"] == []
            assert {pair for pair in odd.values() if pair != (None, None)} == set(), odd
        inits = [event for i in range(len(workers)) for event in self.events(f"worker:{i}") if event["kind"] == "init"]
        assert len(inits) == 1
