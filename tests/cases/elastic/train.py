"""All-reduce in an elastic job: a rank that is started again alone gets its state from a peer, as with state.sync() of Elastic
Horovod, while the others wait for it. Each rank sends its gradient of a round to all others, and again to one that does not
answer; with the gradients of all it makes the round by itself, so that it may be a round ahead of another. A rank that comes back
takes the newest state. The process before may have sent its gradient of a round to some ranks and not to all: then that one is
sent to all, and none is computed anew.
BUG=initial: a rank that comes back begins with initial parameters.
BUG=older: its peers hand it the parameters of two rounds before.
BUG=half: it gets the first half of the parameters.
BUG=skip: it adds nothing to the round that is open, and goes on with the next one.
BUG=twice: its last gradient is still in its buffer, and is sent again with the next one.
BUG=no-average: it does not get what is kept beside the parameters (as the statistics of a batch normalisation).
BUG=forgets: what the process before has sent to some ranks is not sent to the others, which wait for it."""
import collections, os, sys, threading, time
import numpy as np
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from lib import dial, recv, send, serve
from psconform.probe import Probe
index, hosts, listen = int(sys.argv[1]), sys.argv[2].split(","), sys.argv[3]
bug = os.environ.get("BUG", "")
probe = Probe.from_env()
ranks, links = range(len(hosts)), {}
peers = [rank for rank in ranks if rank != index]
changed = threading.Condition()
step, theta, average = 0, None, np.zeros(2)
before = collections.deque(maxlen=3)  # the parameters of the last rounds
rounds = {}  # by round and rank, gradients; those of a round are kept until the next one is made
lives = collections.Counter()  # by rank, which process of it has asked for the state


def take(now, values, beside):
    global step, theta, average
    step, theta, average = now, values, beside
    before.append(theta)
    changed.notify_all()


def answer(message):
    kind, rank, life, body = message
    with changed:
        if kind == "initial" and theta is None and not probe.incarnation: take(0, body, average)
        if kind == "gradient" and life >= lives[rank]: rounds.setdefault(body[0], {})[rank] = body[1]
        if kind == "join":
            if theta is None: return None
            lives[rank] = life  # what is still under way of the process before is not taken any more
            values = before[0] if bug == "older" else theta
            return step, values, average, {number: dict(held) for number, held in rounds.items()}
        changed.notify_all()
        return True


def call(rank, kind, body):
    """The answer of a rank, which is called until it answers: it may be on its way back."""
    while True:
        try:
            if rank not in links: links[rank] = dial(hosts[rank], seconds=2)
            send(links[rank], (kind, index, probe.incarnation, body))
            if (found := recv(links[rank])) is not None: return found
        except (OSError, EOFError): links.pop(rank, None)
        time.sleep(0.02)


def complete(number):
    """Makes a round of the gradients of all ranks."""
    with changed:
        while len(rounds[number]) < len(hosts): changed.wait(60)
        total = sum(rounds[number][rank] for rank in ranks)
        rounds.pop(number - 1, None)
        seen = 0.9 * average + 0.1 * np.array([np.abs(total).sum(), number])
        take(number + 1, (theta - total / np.float32(len(hosts))).astype(np.float32), seen)


def rejoin():
    found = [call(rank, "join", None) for rank in peers]
    now, values, beside, _ = max(found, key=lambda handed: handed[0])
    half = len(values) // 2
    if bug == "initial": values = probe.initial(0)
    if bug == "half": values = np.concatenate([values[:half], np.zeros(len(values) - half, np.float32)])
    if bug == "no-average": beside = np.zeros(2)
    with changed:
        take(now, values, beside)
        for *_, handed in found:
            for number, held in handed.items(): rounds[number] = held | rounds.get(number, {})
        sent = {number: held[index] for number, held in rounds.items() if index in held}
    for number in range(now - 1, now + 2):
        if number not in sent or bug == "forgets": continue
        for rank in peers: call(rank, "gradient", (number, sent[number]))
        if number == step: complete(number)
    if bug == "skip":
        with changed: rounds.setdefault(step, {})[index] = np.zeros_like(theta)
        for rank in peers: call(rank, "gradient", (step, rounds[step][index]))
        complete(step)
    probe.resume(step)
    return sent.get(step - 1)


threading.Thread(target=serve, args=(listen, answer), daemon=True).start()
last = None
if probe.incarnation: last = rejoin()
elif index == 0:
    with changed: take(0, probe.initial(0), average)
    probe.initialised([theta])
    for rank in peers: call(rank, "initial", theta)
with changed:
    while theta is None: changed.wait(60)
first = step if probe.incarnation else None
while step < probe.steps:
    now = step
    probe.read([theta])
    probe.state("average", average)
    gradient = probe.gradients(now, [theta])[0]
    if bug == "twice" and now == first and last is not None: gradient = gradient + last
    probe.push(now)
    with changed: rounds.setdefault(now, {})[index] = gradient
    for rank in peers:
        call(rank, "gradient", (now, gradient))
        if rank == peers[0]: probe.at("half-sent", now)
    complete(now)
    probe.ack(now, "ok")
probe.wait_for_all()
probe.read([theta], final=True)
probe.close()
