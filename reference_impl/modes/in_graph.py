"""In-graph replication: one client, on worker:0, owns all steps; the other workers are bare servers that compute.

The client builds one graph with a tower per worker, each on that worker's device, and runs all of them in one call per
step: every tower pushes its gradient through the same ops of a ps as a worker between-graph does, waits for the
round and reads. The waits do not block one another: an op that waits for a lock or a queue holds no thread. Each tower
keeps the record of its worker, and all that comes before a push, reading and computing, is done for all at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from psconform.layout import Task
from psconform.probe import Probe

from ..cluster import CALL_TIMEOUT_S, GONE, Cluster, Tensor, new_server, session_config, tf, tf1
from ..ps import Row
from ..worker import Values
from .full_ps import FullConfig, FullShard
from .full_worker import FullWorker

if TYPE_CHECKING:
    from .model_parallel import Slice


def serve_tower(cluster: Cluster, index: int) -> None:
    """Be the bare server ``worker:index``: compute for the client until it says goodbye."""
    task = Task("worker", index)
    server = new_server(cluster, task)
    with tf.Graph().as_default():
        goodbye = _goodbyes(index).dequeue()
        with tf1.Session(server.target, config=session_config(task, to_ps=False)) as session:
            session.run(goodbye)


def _goodbyes(index: int) -> Any:
    """The queue on ``worker:index`` by which it learns that training is over."""
    with tf.device(f"/job:worker/task:{index}/device:CPU:0"):
        return tf1.FIFOQueue(-1, [tf.int32], shapes=[[]], shared_name=f"goodbye_worker_{index}")


class Tower(FullWorker):
    """One worker's part of the client's graph, and its record; with a ``part`` it computes a slice of the model."""

    def __init__(self, probe: Probe, config: FullConfig, shards: list[FullShard], part: Slice | None = None) -> None:
        self.part = part
        self._own(probe, config, shards)
        self._build()

    def _build(self) -> None:
        super()._build()
        with self.device():  # what a tower reads comes to its own worker
            self._push_pull = [tf.identity(row) for row in self._push_pull]
            self._read = [tf.identity(row) for row in self._read]

    def bind(self, session: Any) -> None:
        """Take part in the client's session."""
        self.session = session
        self._bind()

    @property
    def ops(self) -> tuple[list[Tensor], list[Tensor]]:
        """What one push of this tower fetches, a row per shard, and what it must be fed."""
        return self._push_pull, [*(self._theta if self._needs_theta else ()), *self._x]

    def _gradients(self) -> list[Tensor]:
        if self.part is None:
            return super()._gradients()
        self._theta = self.part.theta
        self._x = [tf1.placeholder(tf.float32, [len(message) - self.config.slots]) for message in self._sent]
        return self.part.messages(self, self._x)

    def _inputs(self) -> list[Tensor]:
        """Fed: the tower may live in another process, which has no function of this one."""
        return [tf1.placeholder(tf.float32, message.shape) for message in self._sent]

    def prepare(self, step: int) -> Values:
        """Read, compute, record the push that follows; returns what is fed."""
        for _ in range(self.probe.reads):
            values, versions = self.read(step)
            self.probe.read(values, versions, step=step)
        feeds = self.computed(step, values)
        self.probe.push(step)
        return feeds

    def computed(self, step: int, values: Values) -> Values:
        """What is sent to each shard, behind the values that it is taken at if the graph needs them.

        Of a slice only what follows its gradient, which the graph computes.
        """
        if self.part is not None:
            self.probe.used(step, self.probe.samples(step))
            for message in self._sent:
                message[-2:] = step, step + 1
            return [*self.part.at(values), *(message[self.config.slots :] for message in self._sent)]
        return [*self._written(values, self.gradients(step, values), step, self.awaits(step)), *self._sent]

    def answered(self, step: int, rows: list[Row]) -> None:
        """Record the acknowledgement that these rows, one per shard, are; in sync the round is then complete."""
        rows = self.pulled = self._settled(rows, step + 1)
        accepted = all(shard.has(row, self.index, step) for shard, row in zip(self.shards, rows, strict=True))
        outcome = self.outcome(step, "ok" if accepted else "failed", self._refused(rows))
        self.probe.ack(step, outcome, self._versions(rows))


class InGraph:
    """The client: towers on all workers, their graph, the session, and the training loop."""

    def __init__(self, cluster: Cluster, probes: Sequence[Probe], config: FullConfig) -> None:
        self.config, task = config, Task("worker", 0)
        reach = session_config(task, to_ps=True, to_workers=True)
        self.server = new_server(cluster, task, reach)
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.shards = [FullShard(i, config) for i in range(len(cluster["ps"]))]
            self.towers = self._towers(probes)
            self._ends = [_goodbyes(i).enqueue(i) for i in range(1, config.workers)]
            self.session = tf1.Session(self.server.target, config=reach)
            for tower in self.towers:
                tower.bind(self.session)
            self._run = self.bound()

    @property
    def seen(self) -> list[int]:
        """Version of each shard at the last read."""
        return self.towers[0].seen

    def _towers(self, probes: Sequence[Probe]) -> Sequence[Tower]:
        return [Tower(probe, self.config, self.shards) for probe in probes]

    def inputs(self) -> list[Tensor]:
        """What all towers are fed together, behind what each is fed."""
        return []

    def together(self, step: int) -> list[Any]:
        """The values of ``inputs`` at this step."""
        del step
        return []

    def bound(self) -> Callable[..., list[Row]]:
        """All pushes of a step as one call, rows tower by tower."""
        ops = [tower.ops for tower in self.towers]
        fetches = [row for rows, _ in ops for row in rows]
        feeds = [*(feed for _, fed in ops for feed in fed), *self.inputs()]
        call = self.session.make_callable(fetches, feed_list=feeds, accept_options=True)
        return partial(call, options=tf1.RunOptions(timeout_in_ms=int(CALL_TIMEOUT_S * 1000)))

    def train(self) -> None:
        """Initialise, train all steps, read once more, say goodbye to every task."""
        self.towers[0].join()
        with ThreadPoolExecutor(len(self.towers)) as pool:
            for step in range(self.config.steps):
                # together, so that a slow worker does not delay the computing of the others
                feeds = list(pool.map(partial(_prepare, step), self.towers))
                rows = self._run(*(feed for fed in feeds for feed in fed), *self.together(step))
                each = len(self.shards)
                for i, tower in enumerate(self.towers):
                    tower.answered(step, list(rows[i * each : (i + 1) * each]))
            list(pool.map(Tower.finish, self.towers))
        self.leave()

    def leave(self) -> None:
        """Say goodbye, as every worker, to one task after another: the last goodbye ends it, perhaps unanswered."""
        partings = [*zip(*(tower.goodbye for tower in self.towers), strict=True), *([end] for end in self._ends)]
        for ops in partings:
            with suppress(*GONE):
                self.session.run(list(ops))
        for tower in self.towers:
            tower.probe.close()


def _prepare(step: int, tower: Tower) -> Values:
    return tower.prepare(step)
