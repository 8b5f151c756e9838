"""Trainers whose servers apply updates in another order than they say, and such as only look like it."""

from __future__ import annotations

import numpy as np

from . import bugs
from .bugs import WHEN, WHO
from .simulate import Trainer


class _CleanPlain(Trainer):
    """Only the decayed run has the bug, so that nothing but the decayed ledger can tell."""

    plain = Trainer


class HoldsBack(Trainer):
    """The first server queues one gradient, counts it as applied, and applies it after a later one."""

    def __init__(self, **options):
        super().__init__(**options)
        self.held = None  # worker, step, gradient
        self.struck = False

    def holds(self, worker, step):
        return False

    def releases(self, worker, step):
        return False

    def push(self, worker, step, gradient, attempt):
        versions = []
        for server in self.servers:
            mine = [variable for variable, shard in enumerate(self.shards) if shard == server]
            late = server == 0 and self.held is not None and self.releases(worker, step)
            if server == 0 and self.held is not None and not late and self.held[0] == worker:
                self._let_go(mine)  # in order, and the one that comes now takes its place
                self.struck = False
            if server == 0 and not self.struck and self.holds(worker, step):
                self.held, self.struck = (worker, step, gradient), True
            else:
                for variable in mine:
                    self.apply(variable, gradient)
            if late:
                self._let_go(mine)
            self.version[server] += 1
            versions.append(self.version[server])
            yield False
        return versions

    def _let_go(self, mine):
        for variable in mine:
            self.apply(variable, self.held[2])
        self.held = None


class OutOfOrder(HoldsBack):
    """... after the next one of the same worker."""

    def holds(self, worker, step):
        return (worker, step) == (WHO, WHEN)

    def releases(self, worker, step):
        return worker == WHO


class Swapped(HoldsBack):
    """... after the next one of another worker; strikes while others have gradients to come."""

    def holds(self, worker, step):
        return self.held is None and self.version[0] >= WHEN

    def releases(self, worker, step):
        return worker != self.held[0]


class NoPrefix(_CleanPlain):
    """One read lacks, in the first variable, an update that came before one that it shows."""

    def view(self, worker, step, values, versions):
        if (worker, step) == (WHO, WHEN):
            half = values[0].size // 2
            places = [w * self.steps + s for w, s in self.applied[0]]
            shown = [place for place in places if values[0][place]]
            gone = shown[-1 - self.workers if self.sync else -2]
            values[0][[gone, half + 1 + gone]] = 0
        return values, versions


class BeforeItsRead(Trainer):
    """One gradient changes places, in the first variable, with one that its worker had seen before it computed it."""

    def view(self, worker, step, values, versions):
        if (worker, step) == (WHO, WHEN):
            self.seen = [(w, s) for w, s in self.applied[0] if values[0][w * self.steps + s]]
        return values, versions

    def push(self, worker, step, gradient, attempt):
        versions = yield from super().push(worker, step, gradient, attempt)
        if (worker, step) == (WHO, WHEN):
            half = self.theta[0].size // 2
            one, other = (w * self.steps + s for w, s in ((worker, step), self.seen[-1]))
            for start in (0, half + 1):
                places = [start + one, start + other]
                self.theta[0][places] = self.theta[0][places[::-1]]
        return versions


class NextRound(_CleanPlain):
    """A gradient misses its round at the first server, and is in the next one."""

    def __init__(self, **options):
        super().__init__(**options)
        self.late = None

    def weight(self, worker, step, variable, attempt):
        return 0.0 if (worker, step, self.shards[variable]) == (WHO, WHEN, 0) else 1.0

    def push(self, worker, step, gradient, attempt):
        if (worker, step) == (WHO, WHEN):
            self.late = gradient
        if (worker, step) == (WHO, WHEN + 1):
            for variable, shard in enumerate(self.shards):
                self.pending[variable] += self.late if shard == 0 else 0
        return (yield from super().push(worker, step, gradient, attempt))


class NoDecayOnOneShard(Trainer):
    def decay(self, server):
        return 0.0 if server == 0 else super().decay(server)


class DecaysPerGradient(Trainer):
    """A sync server decays with each gradient of a round: seen from the ledger, rounds are missing."""

    def apply(self, variable, amount):
        for _ in range(self.workers - 1):
            super().apply(variable, 0 * amount)
        super().apply(variable, amount)


class TwoUpdates(Trainer):
    """One gradient is applied in two updates, one after the other."""

    def apply(self, variable, amount):
        super().apply(variable, amount)
        if (WHO, WHEN) in self.applied[variable][-self.workers if self.sync else -1 :]:
            super().apply(variable, amount)


class VersionGivenTwice(_CleanPlain, bugs.VersionGivenTwice):
    pass


class Twice(_CleanPlain, bugs.Twice):
    pass


class Half(_CleanPlain, bugs.Half):
    pass


class Dropped(_CleanPlain, bugs.Dropped):
    pass


class TwoUpdatesCleanPlain(_CleanPlain, TwoUpdates):
    pass


class TwoKinds(_CleanPlain):
    """Head and tail of one variable are one update apart."""

    def apply(self, variable, amount):
        super().apply(variable, amount)
        if sum(self.version) == 0:
            half = self.theta[variable].size // 2
            self.theta[variable][half + 1 :] *= np.float32(1 - self.decay(0))
