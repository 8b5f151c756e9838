"""Simulated trainers in other modes than the usual two, healthy ones and such as break what the mode promises."""

from __future__ import annotations

import numpy as np

from .bugs import WHEN, WHO
from .simulate import Trainer


class Quorum(Trainer):
    """The first R gradients computed at the current version complete a round, and server 0 decides which they are.

    After as many rounds as a worker has steps, everything is late.
    """

    level = ("barrier", "r-of-n")

    def __init__(self, *, workers=3, quorum=2, **options):
        super().__init__(workers=workers, quorum=quorum, **options)
        self.at = dict.fromkeys(range(workers), -1)  # version of the last read, by worker
        self.taken = {}

    def quorum(self):
        return self.layout.quorum

    def waits_for(self, worker, step):
        return min(self.at[worker] + 1, self.steps)

    def is_late(self, worker, step):
        return self.at[worker] != self.version[0] or self.version[0] == self.steps

    def _pull(self):
        while True:
            values, versions = yield from super()._pull()
            if len(set(versions)) == 1:
                return values, versions

    def view(self, worker, step, values, versions):
        self.at[worker] = versions[0]
        return values, versions

    def push(self, worker, step, gradient, attempt):
        self.taken[worker] = not self.is_late(worker, step)
        if not self.taken[worker]:
            yield False
            return list(self.version)
        return (yield from super().push(worker, step, gradient, attempt))

    def outcome(self, worker, step, attempt):
        return "ok" if self.taken[worker] else "failed"


class StopsHalfWay(Quorum):
    """Training ends after half of the rounds, and every record is closed."""

    def _schedule(self):
        self.steps //= 2
        super()._schedule()


class LateApplied(Quorum):
    """A late gradient is taken into the round that is open when all servers have caught up."""

    def push(self, worker, step, gradient, attempt):
        if self.is_late(worker, step) and self.version[0] < self.steps:
            while len(set(self.version)) > 1 or any(self.arrived):
                yield True
            if self.version[0] < self.steps:
                self.at[worker] = self.version[0]
        return (yield from super().push(worker, step, gradient, attempt))


class LateAppliedUnversioned(LateApplied):
    """... and nobody names the version."""

    def told(self, worker, step, versions):
        return None


class LateAppliedAndDenied(LateApplied):
    """... and the worker is told that it was refused."""

    def push(self, worker, step, gradient, attempt):
        self.refused = self.is_late(worker, step)
        return (yield from super().push(worker, step, gradient, attempt))

    def outcome(self, worker, step, attempt):
        return "failed" if self.refused else super().outcome(worker, step, attempt)


class QuorumMinusOne(Quorum):
    def quorum(self):
        return self.layout.quorum - 1


class QuorumCountsGradients(Quorum):
    """The versions that it reports count gradients."""

    def view(self, worker, step, values, versions):
        values, versions = super().view(worker, step, values, versions)
        return values, [version * self.layout.quorum for version in versions]

    def told(self, worker, step, versions):
        return [version * self.layout.quorum for version in versions]


class QuorumTorn(Quorum):
    """At one step a worker is shown the last variable as it was at its read before."""

    last = None

    def view(self, worker, step, values, versions):
        values, versions = super().view(worker, step, values, versions)
        before, self.last = (self.last, (values, versions)) if worker == WHO else (None, self.last)
        if before is not None and step == WHEN:
            return [*values[:-1], before[0][-1]], [*versions[:-1], before[1][-1]]
        return values, versions


class QuorumLost(Quorum):
    """One accepted gradient is not in its round."""

    def weight(self, worker, step, variable, attempt):
        return 0.0 if np.sum(self.version) == 0 and not any(self.arrived) else 1.0


class Bounded(Trainer):
    """Stale synchronous parallel: nobody reads before the slowest is within ``staleness`` steps."""

    level = ("staleness", "bounded")

    def __init__(self, *, workers=3, staleness=2, **options):
        super().__init__(update="async", workers=workers, staleness=staleness, **options)
        self.pushed = [0] * workers

    def waits_for(self, worker, step):
        return 0 if min(self.pushed) >= min(step, self.steps) - self.layout.staleness else 2**60

    def push(self, worker, step, gradient, attempt):
        versions = yield from super().push(worker, step, gradient, attempt)
        self.pushed[worker] += 1
        return versions


class Unbounded(Bounded):
    """One worker does not wait, while another is slow."""

    def waits_for(self, worker, step):
        if worker == WHO:
            return 0
        if worker == 0 and 0 < step <= self.pushed[WHO] < self.steps:
            return 2**60  # slow: goes on when the one that runs ahead is through
        return super().waits_for(worker, step)


class BoundedButStale(Bounded):
    """It waits, and is shown what was there several reads before."""

    def run(self, folder):
        self.kept = []
        return super().run(folder)

    def view(self, worker, step, values, versions):
        if worker == WHO:
            self.kept.append((values, versions))
            if step == 8:
                return self.kept[2]
        return values, versions


class BoundedBlind(Bounded):
    """Reads every other step only."""

    def reads(self, worker, step):
        return (step + 1) % 2


class Aware(Trainer):
    """The server divides a gradient by its staleness: the updates since the read that it was computed on."""

    level = ("rate", "staleness-aware")

    def __init__(self, *, workers=3, **options):
        super().__init__(update="async", workers=workers, rate="staleness-aware", **options)
        self.read_at = {}

    def view(self, worker, step, values, versions):
        self.read_at[worker] = versions
        return values, versions

    def weight(self, worker, step, variable, attempt):
        server = self.shards[variable]
        return 1 / max(1, self.version[server] - self.read_at[worker][server])


class AwareNot(Aware):
    """... as it says; in truth its rate is constant."""

    def weight(self, worker, step, variable, attempt):
        return 1.0


class AwareOffByOne(Aware):
    def weight(self, worker, step, variable, attempt):
        weight = super().weight(worker, step, variable, attempt)
        return 1 / (1 / weight + 1)


class AwareLost(Aware):
    def weight(self, worker, step, variable, attempt):
        return 0.0 if (worker, step) == (WHO, WHEN) else super().weight(worker, step, variable, attempt)


class AwareTwice(Aware):
    def weight(self, worker, step, variable, attempt):
        return 2.0 if (worker, step) == (WHO, WHEN) else super().weight(worker, step, variable, attempt)


class AwareOnOneShard(Aware):
    def weight(self, worker, step, variable, attempt):
        return 1.0 if variable else super().weight(worker, step, variable, attempt)


class Overflows(Trainer):
    """In every fifth round a gradient overflows, as in mixed precision: nothing is applied, and every worker knows."""

    every = 5

    def overflows(self, step):
        return step % self.every == self.every - 1

    def weight(self, worker, step, variable, attempt):
        return 0.0 if self.overflows(step) else 1.0

    def outcome(self, worker, step, attempt):
        return "failed" if self.overflows(step) else "ok"


class OverflowsOnOneShard(Overflows):
    """The other shards do not hear of it."""

    def weight(self, worker, step, variable, attempt):
        return 0.0 if self.overflows(step) and variable == 0 else 1.0


class OneWorkerIsNotTold(Overflows):
    """It believes in a step that was not taken."""

    def outcome(self, worker, step, attempt):
        return "failed" if self.overflows(step) and worker == 0 else "ok"


class OneWorkerSkips(OneWorkerIsNotTold):
    """The others take the step, without its gradient."""

    def weight(self, worker, step, variable, attempt):
        return 0.0 if self.overflows(step) and worker == 0 else 1.0


class NoneIsTold(Overflows):
    """The gradients are lost."""

    def outcome(self, worker, step, attempt):
        return "ok"


class TakesTheStep(Overflows):
    """Though every worker was refused."""

    def weight(self, worker, step, variable, attempt):
        return 1.0
