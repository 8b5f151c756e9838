"""All-reduce in a full mesh: each rank dials those before it, sends its gradient to all others and adds up what it gets.
BUG=short-read: one recv for each message. On a socket with a timeout MSG_WAITALL does not wait for all of it, so what comes
in pieces is cut short, and the rest is taken for the next message.
BUG=goes-on: whoever is not heard for half a second is left out of the round, and its gradient is thrown away when it comes."""
import os, socket, struct, sys
import numpy as np
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from lib import dial
from psconform.probe import Probe
index, hosts, listen = int(sys.argv[1]), sys.argv[2].split(","), sys.argv[3]
bug = os.environ.get("BUG", "")
probe = Probe.from_env()
size = 4 * (1 + probe.slots)
host, port = listen.rsplit(":", 1)
server = socket.create_server((host, int(port)))
peers = {rank: dial(hosts[rank]) for rank in range(index)}
for s in peers.values(): s.sendall(struct.pack("!i", index))
while len(peers) < len(hosts) - 1:
    s, _ = server.accept()
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peers[struct.unpack("!i", s.recv(4, socket.MSG_WAITALL))[0]] = s
for s in peers.values(): s.settimeout(60)
rest = {rank: b"" for rank in peers}  # of a message that has not come whole


def receive(rank, step):
    """The gradient of a rank in a round, or None."""
    s = peers[rank]
    if bug == "short-read": return np.frombuffer(s.recv(size, socket.MSG_WAITALL).ljust(size, b"\0"), np.float32)[1:]
    if bug == "goes-on" and step >= 0: s.settimeout(0.5)
    while True:
        while len(rest[rank]) < size:
            try: more = s.recv(size - len(rest[rank]))
            except TimeoutError:
                if bug == "goes-on": return None
                raise
            if not more: raise ConnectionError(f"worker:{rank} has closed its connection")
            rest[rank] += more
        message, rest[rank] = np.frombuffer(rest[rank], np.float32), b""
        if message[0] == step: return message[1:]
        if bug != "goes-on": raise RuntimeError(f"worker:{rank} is in round {message[0]}, not {step}")


def gather(step, values):
    message = np.concatenate([[step], values]).astype(np.float32)
    for s in peers.values(): s.sendall(message.tobytes())
    found = {rank: receive(rank, step) for rank in sorted(peers)} | {index: values}
    return [found[rank] for rank in sorted(found) if found[rank] is not None]


theta = probe.initial(0)
if index: theta = np.zeros_like(theta)
theta = gather(-1, theta)[0]
if index == 0: probe.initialised([theta])
for step in range(probe.steps):
    probe.read([theta])
    gradient = probe.gradients(step, [theta])[0]
    probe.push(step)
    theta = (theta - sum(gather(step, gradient)) / np.float32(len(hosts))).astype(np.float32)
    probe.ack(step, "ok")
probe.wait_for_all()
probe.read([theta], final=True)
probe.close()
