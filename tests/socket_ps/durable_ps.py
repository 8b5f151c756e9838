"""The parameter server of sockets with recovery: its state is on disk, and a worker that lost a connection asks again.

A ps writes all it has, twice, before it answers a push, so that nothing acknowledged is lost with it, nor with one of
the two files. It counts the gradients of each worker, so that one that is sent again is not applied again. A message
is (operation, worker, step) and, for a push, float32[slots]; the answer is (number, accepted) and, for a read,
float32[slots]. Operations: hello (number: gradients of that worker so far), read and push (number: version).
"""

import argparse
import contextlib
import io
import socket
import socketserver
import struct
import sys
import threading
import time
import zlib
from pathlib import Path

import numpy as np

from psconform.probe import Probe

HEAD, ANSWER, LEARNING_RATE, AGAIN_S = struct.Struct("!cii"), struct.Struct("!i?"), 0.5, 0.02


class State:
    """What a ps has: parameters, the sum of an open round, how many rounds or updates, gradients of each worker."""

    def __init__(self, probe, options):
        self.probe, self.sync, self.every, self.pushes = probe, options.update == "sync", options.every, 0
        self.share = probe.workers if options.reduction == "mean" else 1
        # nothing is kept where nothing is to be recovered
        self.files = [Path(probe.checkpoints, f"ps-{probe.index}.{copy}") for copy in "ab" if probe.checkpoints]
        if found := [arrays for arrays in map(read, self.files) if arrays]:
            self.theta, self.pending, self.version, self.received = max(found, key=lambda arrays: arrays[3].sum())
            return
        self.theta, self.version, self.received = probe.initial(probe.index), 0, np.zeros(probe.workers, int)
        self.pending = np.zeros_like(self.theta)
        probe.initialised([self.theta])
        self.save()

    def save(self):
        for file in self.files:
            while not written(file, [self.theta, self.pending, self.version, self.received]):
                time.sleep(AGAIN_S)

    def push(self, worker, step, gradient):
        """Take a gradient, unless it is here already; says whether it was fit to be applied."""
        fit = bool(np.isfinite(gradient).all())
        if step < self.received[worker]:
            return fit
        self.received[worker] += 1
        self.pending += gradient if fit else 0
        due = [count for count, most in zip(self.received, self.probe.due, strict=True) if most > self.version]
        if not self.sync or min(due) > self.version:
            self.theta -= LEARNING_RATE * (self.pending / self.share if self.sync else self.pending)
            self.pending, self.version = np.zeros_like(self.theta), self.version + 1
        self.pushes += 1
        if self.pushes % self.every == 0:
            self.save()
        return fit


def written(file, arrays):
    """Write a file and read it back; whether that could be done."""
    packed = io.BytesIO()
    np.savez(packed, *arrays)
    data = zlib.crc32(packed.getvalue()).to_bytes(4, "big") + packed.getvalue()
    try:
        file.with_suffix(".new").write_bytes(data)
        file.with_suffix(".new").replace(file)
        return file.read_bytes() == data
    except OSError as error:
        sys.stderr.write(f"{file.name}: {error.strerror}\n")
        return False


def read(file):
    """What a file holds; nothing if it is not there, or damaged."""
    while True:
        try:
            data = file.read_bytes()
            break
        except FileNotFoundError:
            return []
        except OSError:
            time.sleep(AGAIN_S)
    if zlib.crc32(data[4:]) != int.from_bytes(data[:4], "big"):
        sys.stderr.write(f"{file.name} is damaged\n")
        return []
    with np.load(io.BytesIO(data[4:])) as arrays:
        return [arrays[name] for name in arrays.files]


def serve(probe, address, options):
    changed = threading.Condition()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self):
            with contextlib.suppress(OSError):  # who has asked is gone
                self.answer()

        def answer(self):
            while len(head := self.rfile.read(HEAD.size)) == HEAD.size:
                operation, worker, step = HEAD.unpack(head)
                payload = self.rfile.read(state.theta.nbytes) if operation == b"p" else b""
                with changed:
                    if operation == b"h":
                        reply = ANSWER.pack(state.received[worker], True)
                    elif operation == b"r":
                        while state.sync and state.version < step:
                            changed.wait()
                        reply = ANSWER.pack(state.version, True) + state.theta.tobytes()
                    elif len(payload) < state.theta.nbytes:
                        return  # it was cut off
                    else:
                        fit = state.push(worker, step, np.frombuffer(payload, np.float32))
                        changed.notify_all()
                        reply = ANSWER.pack(state.version, fit)
                self.wfile.write(reply)

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address, daemon_threads = True, True

    host, port = address.split(":")
    with Server((host, int(port)), Handler, bind_and_activate=False) as server:
        server.server_bind()  # or another process has the address, and the files with it
        state = State(probe, options)
        server.server_activate()
        server.serve_forever()


class Shard:
    """A ps as a worker knows it: what has had no answer is asked again, on a new connection."""

    def __init__(self, worker, address):
        self.worker, self.address, self.line = worker, address, None

    def send(self, *question):
        self.question = question
        with contextlib.suppress(OSError):
            self._ask()

    def answer(self):
        """(number, accepted, parameters) in answer to what was sent last."""
        while True:
            with contextlib.suppress(OSError, struct.error):  # half an answer is none
                if self.line is None:
                    self._ask()
                number, accepted = ANSWER.unpack(self.line.read(ANSWER.size))
                theta = np.frombuffer(self.line.read(self.question[3]), np.float32)
                if theta.nbytes == self.question[3]:
                    return number, accepted, theta
            self._hang_up()
            time.sleep(AGAIN_S)

    def _ask(self):
        operation, step, payload, _ = self.question
        if self.line is None:
            host, port = self.address.split(":")
            with socket.create_connection((host, int(port))) as connection:
                self.line = connection.makefile("rwb")
        try:
            self.line.write(HEAD.pack(operation, self.worker, step) + payload)
            self.line.flush()
        except OSError:
            self._hang_up()
            raise

    def _hang_up(self):
        if self.line is not None:
            with contextlib.suppress(OSError):
                self.line.close()
        self.line = None


def train(probe, hosts):
    shards = [Shard(probe.index, host) for host in hosts]

    def call(operation, step, payloads=(), size=0):
        # to all, then from all: a round is open on every server at once
        for shard, payload in zip(shards, payloads or [b""] * len(shards), strict=True):
            shard.send(operation, step, payload, size)
        return zip(*(shard.answer() for shard in shards), strict=True)

    first = min(next(call(b"h", 0)))
    if probe.incarnation:
        probe.resume(first)
    for step in range(first, probe.due[probe.index]):
        versions, _, values = call(b"r", step, size=4 * probe.slots)
        probe.read(values, versions)
        gradients = [gradient.tobytes() for gradient in probe.gradients(step, values)]
        probe.push(step)
        versions, accepted, _ = call(b"p", step, gradients)
        probe.ack(step, "ok" if all(accepted) else "failed", versions)
    probe.wait_for_all()
    versions, _, values = call(b"r", max(probe.due), size=4 * probe.slots)
    probe.read(values, versions, final=True)
    probe.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("job", "index", "ps", "update", "reduction"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--every", type=int, default=1, help="a deliberate bug if not 1: the state is kept so rarely")
    options = parser.parse_args()
    hosts, probe = options.ps.split(","), Probe.from_env()
    serve(probe, hosts[int(options.index)], options) if options.job == "ps" else train(probe, hosts)
