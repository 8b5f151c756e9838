"""Asynchronous parameter servers over sockets, in four styles; each ps logs what it applies, for an oracle.

fragile: a broken connection ends the task, with a traceback. retry: the state is in memory, and a worker that lost a
connection sends the same gradient again. forget: the same, but it goes on without that gradient. checkpoint: the state
is on disk before a push is answered, and a gradient that is there already is not applied again.

With a bug it loses, or doubles, the gradients of step 3.
"""

import argparse
import os
import pickle
import socket
import socketserver
import struct
import threading
import time
from pathlib import Path

import numpy as np

from psconform.probe import Probe

LEARNING_RATE, AGAIN_S = 0.5, 0.05
BUGS = {"loses": 0, "doubles": 2}
BUGGY = 3


def send(line, message):
    data = pickle.dumps(message)
    line.sendall(struct.pack("!I", len(data)) + data)


def receive(line):
    def exactly(size):
        data = b""
        while len(data) < size:
            if not (more := line.recv(size - len(data))):
                raise ConnectionError("connection closed")
            data += more
        return data

    return pickle.loads(exactly(struct.unpack("!I", exactly(4))[0]))


class State:
    """Parameters, and which gradients are in them."""

    def __init__(self, probe, style, bug):
        self.lock, self.probe, self.durable = threading.Lock(), probe, style == "checkpoint"
        self.buggy = BUGS.get(bug, 1)
        folder = Path(os.environ["PSCONFORM_SPEC"]).parent
        self.log = os.open(folder / f"applied-{probe.index}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.file = folder / f"state-{probe.index}"
        if self.durable and self.file.exists():
            self.theta, self.applied, self.version = pickle.loads(self.file.read_bytes())
            return
        self.theta, self.applied, self.version = probe.initial(), [], 0
        probe.initialised([self.theta])
        os.write(self.log, b"start\n")

    def count(self, worker):
        return sum(each == worker for each, _ in self.applied)

    def answer(self, operation, worker, step, gradient):
        with self.lock:
            if operation == "count":
                return self.count(worker)
            if operation == "push" and not (self.durable and step < self.count(worker)):
                for _ in range(self.buggy if step == BUGGY else 1):
                    self.theta = self.theta - LEARNING_RATE * gradient
                self.applied.append((worker, step))
                self.version += 1
                if self.durable:
                    new = self.file.with_suffix(".new")
                    new.write_bytes(pickle.dumps((self.theta, self.applied, self.version)))
                    new.replace(self.file)
                os.write(self.log, b"%d %d\n" % (worker, step))
            return self.theta.astype(np.float32), self.version


def serve(probe, address, style, bug):
    class Handler(socketserver.BaseRequestHandler):
        def handle(self):
            try:
                while True:
                    send(self.request, state.answer(*receive(self.request)))
            except OSError:
                if style == "fragile" and not list(Path(os.environ["PSCONFORM_SPEC"]).parent.glob("done/*")):
                    raise

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address, daemon_threads = True, True

    host, port = address.split(":")
    server = Server((host, int(port)), Handler, bind_and_activate=False)
    server.server_bind()  # another process that has the address has the state, too
    state = State(probe, style, bug)
    server.server_activate()
    server.serve_forever()


class Shard:
    def __init__(self, probe, address, style):
        self.probe, self.address, self.style, self.line = probe, address, style, None
        self.cut_off = lambda: None

    def __call__(self, operation, step, gradient=None):
        while True:
            try:
                if self.line is None:
                    host, port = self.address.split(":")
                    self.line = socket.create_connection((host, int(port)))
                send(self.line, (operation, self.probe.index, step, gradient))
                return receive(self.line)
            except OSError:
                if self.style == "fragile":
                    raise
                self.line = None
                time.sleep(AGAIN_S)
                if operation == "push":
                    if self.style == "forget":
                        return None, None
                    self.cut_off()


def train(probe, hosts, style):
    shards = [Shard(probe, host, style) for host in hosts]

    def read(step):
        values, versions = zip(*(shard("pull", step) for shard in shards), strict=True)
        return values, versions

    first = 0
    if probe.incarnation and style == "checkpoint":
        first = min(shard("count", 0) for shard in shards)
        probe.resume(first)
    for step in range(first, probe.steps):
        probe.read(*read(step))
        gradient = probe.gradient(step)

        def again(step=step):
            probe.ack(step, "unknown")
            probe.push(step)

        probe.push(step)
        versions = []
        for shard in shards:
            shard.cut_off = again
            versions.append(shard("push", step, gradient)[1])
        if None in versions:
            probe.ack(step, "unknown")
        else:
            probe.ack(step, "ok", versions)
    probe.wait_for_all()
    probe.read(*read(probe.steps), final=True)
    probe.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("job", "index", "ps", "style"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--bug", default="", choices=("", *BUGS))
    options = parser.parse_args()
    hosts, probe = options.ps.split(","), Probe.from_env()
    if options.job == "ps":
        serve(probe, hosts[int(options.index)], options.style, options.bug)
    else:
        train(probe, hosts, options.style)
