"""A parameter-server trainer in one file, judged by psconform. Standard library and numpy; see README.md beside it.

Each ps holds one variable. Workers reach it through a `multiprocessing` manager, which calls its methods in one thread
for each worker. Lines that are there for psconform say so in a comment at their end; all else is the trainer.
"""

import argparse
import threading
from collections.abc import Callable
from multiprocessing.managers import BaseManager

import numpy as np

from psconform.probe import Probe  # psconform

LEARNING_RATE = 0.5
PATIENCE = 30.0  # seconds that a ps waits for the gradients of a round


class ParameterServer:
    """One variable. Async: each gradient is applied at once; sync: the mean of one gradient from each worker."""

    def __init__(self, workers: int, update: str) -> None:
        self.workers, self.sync = workers, update == "sync"
        self.values = self.before = None  # now, and one round ago; replaced and never changed in place
        self.version = 0
        self.round = []  # gradients of the round that is open
        self.taken = [0] * workers  # of each worker: how many of its steps have arrived
        self.changed = threading.Condition()

    def initialise(self, values: np.ndarray) -> bool:
        """Take initial values, unless there are some; returns whether they were taken."""
        with self.changed:
            if self.values is not None:
                return False
            self.values = values
            self.changed.notify_all()
            return True

    def next_step(self, worker: int) -> int:
        """The step at which a worker that was started again goes on."""
        return self.taken[worker]

    def read(self, step: int) -> tuple[np.ndarray, int]:
        """The values, and how many updates they have had. Sync: those that the gradient of this step is computed at."""
        with self.changed:
            self.wait(lambda: self.values is not None)
            if self.sync and self.version > step:  # for a worker that died between two of its pushes
                return self.before, step
            return self.values, self.version

    def push(self, worker: int, step: int, gradient: np.ndarray) -> tuple[bool, int]:
        """Take a gradient, once even if it is sent again; returns whether it was accepted, and the version with it."""
        accepted = bool(np.isfinite(gradient).all())
        with self.changed:
            if step == self.taken[worker]:
                self.taken[worker] += 1
                self.round.append(gradient if accepted else np.zeros_like(gradient))
                if len(self.round) == (self.workers if self.sync else 1):
                    self.before = self.values
                    self.values = self.values - LEARNING_RATE * sum(self.round) / len(self.round)
                    self.version += 1
                    self.round.clear()
                    self.changed.notify_all()
            self.wait(lambda: not self.sync or self.version > step)  # the barrier
            return accepted, self.version

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until it holds; an error after a while, for a worker may be dead for good."""
        if not self.changed.wait_for(condition, PATIENCE):
            raise TimeoutError(f"round {self.version} has {len(self.round)} of {self.workers} gradients")


def serve(address: tuple[str, int], workers: int, update: str) -> None:
    server = ParameterServer(workers, update)
    BaseManager.register("parameter_server", callable=lambda: server)
    BaseManager(address, authkey=b"first").get_server().serve_forever()


def connect(address: tuple[str, int]) -> ParameterServer:
    BaseManager.register("parameter_server")
    manager = BaseManager(address, authkey=b"first")
    manager.connect()
    return manager.parameter_server()  # a proxy: its methods run in the ps


def pull(servers: list[ParameterServer], step: int) -> tuple[list[np.ndarray], list[int]]:
    """The variable of each ps, and the version of each."""
    answers = [server.read(step) for server in servers]
    return [values for values, _ in answers], [version for _, version in answers]


def push(servers: list[ParameterServer], worker: int, step: int, gradients: list[np.ndarray]) -> tuple[bool, list[int]]:
    """Send each ps its gradient; returns whether all accepted theirs, and the version of each."""
    answers = [server.push(worker, step, gradient) for server, gradient in zip(servers, gradients, strict=True)]
    return all(accepted for accepted, _ in answers), [version for _, version in answers]


def train(worker: int, addresses: list[tuple[str, int]]) -> None:
    probe = Probe.from_env()  # psconform: first, so that an error in what follows is on record
    servers = [connect(address) for address in addresses]

    if worker == 0:
        initial = [probe.initial(i) for i in range(len(servers))]  # psconform: in place of your initial values
        taken = [server.initialise(values) for server, values in zip(servers, initial, strict=True)]
        if all(taken):  # psconform: not if this worker was started again
            probe.initialised(initial)  # psconform
    first = min(server.next_step(worker) for server in servers)
    if first > 0:  # psconform: this worker was started again
        probe.resume(first)  # psconform

    # ---- your training loop ----
    for step in range(first, probe.steps):  # psconform: in place of your number of steps
        values, versions = pull(servers, step)
        probe.read(values, versions)  # psconform
        gradients = probe.gradients(step, values)  # psconform: in place of your backward pass
        probe.push(step)  # psconform
        accepted, versions = push(servers, worker, step, gradients)
        probe.ack(step, "ok" if accepted else "failed", versions)  # psconform
    # ----------------------------

    probe.wait_for_all()  # psconform: the last reads are to show everything
    probe.read(*pull(servers, probe.steps), final=True)  # psconform
    probe.close()  # psconform


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("job", "index", "ps", "workers", "update"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    index, workers = int(options.index), options.workers.count(",") + 1
    addresses = [(host, int(port)) for host, port in (each.split(":") for each in options.ps.split(","))]
    if options.job == "ps":
        serve(addresses[index], workers, options.update)
    else:
        train(index, addresses)


if __name__ == "__main__":
    main()
