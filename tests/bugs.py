"""Trainers that break one promise each, by overriding one thing that the healthy one does."""

from __future__ import annotations

import numpy as np

from .simulate import Trainer

WHO, WHEN = 1, 3
"""The worker and the step that a bug of a single gradient strikes."""


class Weighted(Trainer):
    """One gradient counts ``factor`` times."""

    factor = 0.0

    def weight(self, worker, step, variable, attempt):
        return self.factor if (worker, step) == (WHO, WHEN) else 1.0


class Dropped(Weighted):
    pass


class Twice(Weighted):
    factor = 2.0


class Half(Weighted):
    factor = 0.5


class Upwards(Weighted):
    factor = -1.0


class Poisoned(Weighted):
    """A NaN gradient poisons every slot."""

    factor = float("nan")


class DroppedMost(Dropped):
    level = ("delivery", "at-most-once")


class TwiceMost(Twice):
    level = ("delivery", "at-most-once")


class LostOnOneShard(Trainer):
    def weight(self, worker, step, variable, attempt):
        return 0.0 if (worker, step, variable) == (WHO, WHEN, 1) else 1.0


class LostTail(Trainer):
    """The tail of one gradient never arrives."""

    def push(self, worker, step, gradient, attempt):
        if (worker, step) == (WHO, WHEN):
            gradient[gradient.size // 2 :] = 0
        return super().push(worker, step, gradient, attempt)


class AllTwice(Trainer):
    def weight(self, worker, step, variable, attempt):
        return 2.0


class AllTwiceMost(AllTwice):
    level = ("delivery", "at-most-once")


class AllTwiceNoReduction(AllTwice):
    """Synchronous, without a claimed reduction: nobody has promised any weight."""

    level = ("reduction", "none")


class AllThirds(Trainer):
    """A factor that is no round number in decimal, as a mean that nobody declared."""

    def weight(self, worker, step, variable, attempt):
        return 1 / 3


class AllTiny(Trainer):
    def weight(self, worker, step, variable, attempt):
        return 1e-6


class SumNotMean(Trainer):
    def share(self):
        return 1


class WrongN(Trainer):
    def share(self):
        return self.workers + 1


class EarlyCommit(Trainer):
    def quorum(self):
        return self.workers - 1


class RunAhead(Trainer):
    """One worker does not wait for the round to be committed."""

    def waits_for(self, worker, step):
        return step - 1 if worker == WHO and 0 < step < self.steps else step


class Sees(Trainer):
    """A worker sees a mix of what it read now and what it read before, at one step."""

    at = WHEN

    def run(self, folder):
        self.last = {}
        return super().run(folder)

    def view(self, worker, step, values, versions):
        before = self.last.get(worker)
        self.last[worker] = values, versions
        if worker == WHO and step == (self.at if self.at >= 0 else self.steps) and before is not None:
            return self.mix(*before, [value.copy() for value in values], versions)
        return values, versions

    def mix(self, values_then, versions_then, values, versions):
        return values_then, versions_then


class Stale(Sees):
    pass


class TornAcrossShards(Sees):
    def mix(self, values_then, versions_then, values, versions):
        return [*values[:-1], values_then[-1]], [*versions[:-1], versions_then[-1]]


class TornWithinVariable(Sees):
    """The tail of the first variable is that of the read before."""

    def mix(self, values_then, versions_then, values, versions):
        half = values[0].size // 2
        values[0][half + 1 :] = values_then[0][half + 1 :]
        return values, versions


class TornFinal(TornWithinVariable):
    at = -1


class VersionsDown(Sees):
    def mix(self, values_then, versions_then, values, versions):
        return values, [version - 1 for version in versions_then]


class ForgetsOthers(Sees):
    """The last variable lacks, of all workers but this one, what was not yet there at the read before."""

    def mix(self, values_then, versions_then, values, versions):
        mine = slice(WHO * self.steps, (WHO + 1) * self.steps)
        keep = np.zeros(values[-1].size, np.bool_)
        keep[mine] = keep[values[-1].size // 2 + 1 :][mine] = True
        values[-1] = np.where(keep, values[-1], values_then[-1])
        return values, versions


class ForgetsOthersPerVariable(ForgetsOthers):
    level = ("read_atomicity", "per-variable")


class StaleFinal(ForgetsOthers):
    """In its final read a worker lacks what the others did last."""

    at = -1


class Snapshot(Trainer):
    """Claims more than asynchronous shards can keep."""

    level = ("read_atomicity", "snapshot")


class Reinitialised(Trainer):
    """A worker initialises again, every variable from ``start`` on."""

    start = 0

    def before(self, worker, step):
        if (worker, step) == (WHO, WHEN):
            fresh = [self.probes[worker].initial() for _ in self.shards]
            self.theta[self.start :] = fresh[self.start :]
            self.probes[worker].initialised(fresh[self.start :])


class ReinitialisedOne(Reinitialised):
    start = 1


class InitialisedByWorker(Trainer):
    def initialise(self):
        self.probes[WHO].initialised(self.theta)


class InitialisedNotByChief(InitialisedByWorker):
    level = ("init", "by-chief")


class InitialisedByNobody(Trainer):
    def initialise(self):
        self.probes[0].initialised([self.probes[0].initial() for _ in self.shards])


class NoInitialRecorded(Trainer):
    def initialise(self):
        pass


class HalfRecorded(Trainer):
    """Of two initialisers only one keeps a record, as when a ps has no probe."""

    def initialise(self):
        self.probes[0].initialised(self.theta[:1])


class NoNonces(Trainer):
    def initialise(self):
        for theta in self.theta:
            theta[:] = 0


class NonceInOne(Trainer):
    """Only the first variable is initialised with probe.initial()."""

    def initialise(self):
        for theta in self.theta[1:]:
            theta[:] = 0


class NeverInitialised(Trainer):
    """The chief says that it has initialised everything; the second variable never shows it."""

    def initialise(self):
        super().initialise()
        self.theta[1][:] = 0


class ReadsTooEarly(Trainer):
    def view(self, worker, step, values, versions):
        return ([0 * value for value in values], versions) if (worker, step) == (WHO, 0) else (values, versions)


class Quits(Trainer):
    """A worker ends in good order in the middle."""

    how = "quits"

    def ends(self, worker, step):
        return self.how if (worker, step) == (WHO, WHEN) else ""


class Killed(Quits):
    how = "killed"


class Phantom(Quits):
    """... and its next gradient, never pushed, shows in the parameters."""

    def before(self, worker, step):
        if (worker, step) == (WHO, WHEN):
            self.theta[0] -= self.probes[worker].gradient(step)


class PhantomOfKilled(Phantom):
    """Its record is cut short: nobody knows whether it was pushed."""

    how = "killed"


class FailedButApplied(Trainer):
    def outcome(self, worker, step, attempt):
        return "failed" if (worker, step) == (WHO, WHEN) else "ok"


class FailedNotApplied(FailedButApplied):
    def push(self, worker, step, gradient, attempt):
        if (worker, step) == (WHO, WHEN):
            return list(self.version)
        return (yield from super().push(worker, step, gradient, attempt))


class NeverTold(Trainer):
    """One push is applied and not acknowledged."""

    def outcome(self, worker, step, attempt):
        return None if (worker, step) == (WHO, WHEN) else "ok"


class NeverToldNotApplied(NeverTold, Dropped):
    pass


class NeverToldTwice(NeverTold, Twice):
    pass


class OutOfOrder(NeverTold):
    """That push is applied only after two later ones of the same worker."""

    def push(self, worker, step, gradient, attempt):
        if (worker, step) == (WHO, WHEN):
            self.late = gradient
            return list(self.version)
        if (worker, step) == (WHO, WHEN + 2):
            yield from super().push(worker, step, self.late, attempt)
        return (yield from super().push(worker, step, gradient, attempt))


class SentTwice(Trainer):
    """One gradient is sent again because nobody answered, and counts both times."""

    level = ("delivery", "at-least-once")

    def attempts(self, worker, step):
        return 2 if (worker, step) == (WHO, WHEN) else 1

    def outcome(self, worker, step, attempt):
        return "ok" if attempt == self.attempts(worker, step) - 1 else "unknown"


class SentTwiceExactly(SentTwice):
    level = ()


class SentTwiceAppliedOnce(SentTwiceExactly):
    """The server knows a gradient that it has seen before."""

    def push(self, worker, step, gradient, attempt):
        if attempt:
            yield False
            return list(self.version)
        return (yield from super().push(worker, step, gradient, attempt))


class SentTwiceAppliedThrice(SentTwice):
    def weight(self, worker, step, variable, attempt):
        return 2.0 if attempt else 1.0


class VersionGivenTwice(Trainer):
    def told(self, worker, step, versions):
        return [v + 1 for v in versions] if (worker, step) == (WHO, WHEN) else versions


class VersionSkipped(Trainer):
    def before(self, worker, step):
        if (worker, step) == (WHO, WHEN):
            self.version = [version + 1 for version in self.version]


class VersionTooLow(Trainer):
    """An acknowledgement names the version that was read, as if nothing had been applied."""

    def told(self, worker, step, versions):
        return [0 for _ in versions] if step == 0 and min(versions) == 1 else versions


class VersionTooHigh(Trainer):
    """Acknowledgements name the version that comes next."""

    def told(self, worker, step, versions):
        return [version + 1 for version in versions]


class NoFinal(Trainer):
    final = False


class ReadsOnlyInTheEnd(Trainer):
    def reads(self, worker, step):
        return 0


class ReadsEveryOther(Trainer):
    def reads(self, worker, step):
        return (step + 1) % 2
