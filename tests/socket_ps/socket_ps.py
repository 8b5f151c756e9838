"""A parameter server from scratch, sockets and numpy: a target that is nobody's in particular.

A message is (operation, step) and, for a push, float32[slots]; the answer is (version, accepted) and, for a read,
float32[slots]. Sync: a read of step s waits for round s, a round takes one gradient from each worker.
"""

import argparse
import socket
import socketserver
import struct
import threading

import numpy as np

from psconform.probe import Probe

HEAD, ANSWER, LEARNING_RATE = struct.Struct("!ci"), struct.Struct("!i?"), 0.5


def serve(probe, address, options):
    theta, version, arrived, changed = probe.initial(probe.index), 0, 0, threading.Condition()
    pending = np.zeros_like(theta)
    probe.initialised([theta])
    sync, share = options.update == "sync", probe.workers if options.reduction == "mean" else 1

    class Handler(socketserver.StreamRequestHandler):
        def handle(self):
            nonlocal version, arrived
            while head := self.rfile.read(HEAD.size):
                operation, step = HEAD.unpack(head)
                gradient = np.frombuffer(self.rfile.read(theta.nbytes), np.float32) if operation == b"p" else None
                with changed:
                    if gradient is None:
                        while sync and version < step:
                            changed.wait()
                        reply = ANSWER.pack(version, True) + theta.tobytes()
                    else:
                        if options.drop and step == 3:
                            gradient = 0 * gradient
                        if sync:
                            pending[:] += gradient
                            arrived += 1
                        if not sync or arrived == probe.workers:
                            theta[:] -= LEARNING_RATE * (pending / share if sync else gradient)
                            pending[:], arrived, version = 0, 0, version + 1
                            changed.notify_all()
                        reply = ANSWER.pack(version, True)
                self.wfile.write(reply)

    host, port = address.split(":")
    socketserver.ThreadingTCPServer.daemon_threads = True
    socketserver.ThreadingTCPServer((host, int(port)), Handler).serve_forever()


def train(probe, hosts):
    servers = [socket.create_connection(host.split(":")).makefile("rwb") for host in hosts]

    def call(operation, step, payloads=(), size=0):
        # to all, then from all: a round is open on every server at once
        for server, payload in zip(servers, payloads or [b""] * len(servers), strict=True):
            server.write(HEAD.pack(operation, step) + payload)
            server.flush()
        heads, bodies = zip(*((ANSWER.unpack(s.read(ANSWER.size)), s.read(size)) for s in servers), strict=True)
        return [np.frombuffer(body, np.float32) for body in bodies], [version for version, _ in heads]

    for step in range(probe.steps):
        values, versions = call(b"r", step, size=4 * probe.slots)
        probe.read(values, versions)
        gradients = [gradient.tobytes() for gradient in probe.gradients(step, values)]
        probe.push(step)
        probe.ack(step, "ok", call(b"p", step, gradients)[1])
    probe.wait_for_all()
    probe.read(*call(b"r", probe.steps, size=4 * probe.slots), final=True)
    probe.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("job", "index", "ps", "update", "reduction"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--listen", default="", help="host:port, if not the one that the others are told")
    parser.add_argument("--drop", action="store_true", help="a deliberate bug: lose every gradient of step 3")
    options = parser.parse_args()
    hosts, probe = options.ps.split(","), Probe.from_env()
    serve(probe, options.listen or hosts[int(options.index)], options) if options.job == "ps" else train(probe, hosts)
