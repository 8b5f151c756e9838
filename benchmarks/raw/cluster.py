"""A measured cluster: its processes, told how many steps to train, and what they took."""

from __future__ import annotations

import multiprocessing
import os
import socket
import statistics
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

import psutil

PATIENCE_S = 120.0


class Segment(NamedTuple):
    """What one segment of steps showed."""

    steps_per_s: float
    """Of each worker, mean over the workers."""
    worker_us: float
    """CPU time of one worker per step."""
    ps_us: float
    """CPU time of one ps per step of all workers."""
    cpu_us: float
    """CPU time of all tasks per step of all workers."""


def prepare() -> None:
    """Have the fork server import TensorFlow once, for all tasks of all clusters."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    multiprocessing.get_context("forkserver").set_forkserver_preload(["raw.tasks"])


class Cluster:
    """The tasks of one side on one layout, ready to train; to be killed at the end."""

    def __init__(self, side: str, *, ps: int, workers: int, update: str, slots: int) -> None:
        from .tasks import be

        context = multiprocessing.get_context("forkserver")
        hosts = {job: [f"127.0.0.1:{_port()}" for _ in range(n)] for job, n in (("ps", ps), ("worker", workers))}
        self._ps = ps
        self._processes: list[BaseProcess] = []
        self._pipes: list[Connection] = []
        for task in [f"{job}:{i}" for job, addresses in hosts.items() for i in range(len(addresses))]:
            here, there = context.Pipe() if task.startswith("worker") else (None, None)
            process = context.Process(target=be, args=(side, task, hosts, update, slots, there), daemon=True)
            process.start()
            self._processes.append(process)
            if here is not None and there is not None:
                there.close()
                self._pipes.append(here)

    def ready(self) -> None:
        """Wait until every worker has joined."""
        self._collect()

    def train(self, count: int) -> Segment:
        """Train ``count`` steps on each worker."""
        before = self._cpu()
        for pipe in self._pipes:
            pipe.send(count)
        rate = statistics.fmean(count / seconds for seconds in self._collect())
        spent = [(now - then) / count * 1e6 for now, then in zip(self._cpu(), before, strict=True)]
        return Segment(rate, statistics.fmean(spent[self._ps :]), statistics.fmean(spent[: self._ps]), sum(spent))

    def kill(self) -> None:
        """End all tasks, whatever they do."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()

    def _collect(self) -> list[float]:
        for pipe in self._pipes:
            if not pipe.poll(PATIENCE_S):
                raise TimeoutError(f"a worker did not answer within {PATIENCE_S:.0f} s")
        return [float(pipe.recv()) for pipe in self._pipes]

    def _cpu(self) -> list[float]:
        times = [psutil.Process(process.pid).cpu_times() for process in self._processes]
        return [time.user + time.system for time in times]


def _port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
