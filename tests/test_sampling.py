"""R5: samples that a trainer draws itself, each in the way of some library."""

from __future__ import annotations

import numpy as np
import pytest

from .simulate import Trainer
from .tiers import first

SAMPLES = 1347


class Draws(Trainer):
    """Each worker has a stream of samples, in batches of ``size``."""

    size = 48

    def stream(self, worker, epoch):
        raise NotImplementedError

    def batches(self, worker):
        for epoch in range(99):
            ids = self.stream(worker, epoch)
            for at in range(0, len(ids), self.size):
                yield ids[at : at + self.size]

    def compute(self, worker, step, values):
        self.loaders = getattr(self, "loaders", None) or [self.batches(n) for n in range(self.workers)]
        return np.stack(self.probes[worker].gradients(step, values, next(self.loaders[worker])))


def shuffled(epoch, number=SAMPLES):
    return np.random.default_rng(epoch).permutation(number)


class Padded(Draws):
    """torch.utils.data.DistributedSampler."""

    level = ("sampling", "padded")

    def stream(self, worker, epoch):
        ids = self.order(epoch)
        return np.concatenate([ids, ids[: -SAMPLES % self.workers]])[worker :: self.workers]

    def order(self, epoch):
        return shuffled(epoch)


class NotShuffled(Padded):
    def order(self, epoch):
        return np.arange(SAMPLES)


class NotToldOfEpochs(Padded):
    def order(self, epoch):
        return shuffled(0)


class EvenBatches(Padded):
    """accelerate's even_batches: as many whole batches for each."""

    def stream(self, worker, epoch):
        ids, whole = self.order(epoch), self.workers * self.size
        ids = np.concatenate([ids, ids[: -SAMPLES % whole]]).reshape(-1, self.workers, self.size)
        return ids[:, worker].reshape(-1)


class LastHasTheRest(Draws):
    def stream(self, worker, epoch):
        least = SAMPLES // self.workers
        return shuffled(epoch)[worker * least : (worker + 1) * least if worker < self.workers - 1 else SAMPLES]


class Clients(Draws):
    """Each has samples of its own, of which it knows the number."""

    def stream(self, worker, epoch):
        bounds = [0, 299, 748, 1347] if self.workers == 3 else [0, 500, 1347]
        mine = np.arange(*bounds[worker : worker + 2])
        return mine[shuffled(epoch, len(mine))]


class LoaderDrops(Padded):
    level = ("sampling", "drop-last")

    def stream(self, worker, epoch):
        ids = shuffled(epoch)[: SAMPLES // self.workers * self.workers][worker :: self.workers]
        return ids[: len(ids) // self.size * self.size]


class UnevenBatches(Draws):
    """accelerate without even_batches: batch b is of worker b modulo their number, and the last one is short."""

    def stream(self, worker, epoch):
        ids, size = shuffled(epoch), self.size
        batches = [ids[at : at + size] for at in range(0, SAMPLES, size)]
        return np.concatenate(batches[worker :: self.workers])


class Blocks(Draws):
    """A block of each epoch's order for each worker."""

    def stream(self, worker, epoch):
        return shuffled(epoch)[worker * SAMPLES // self.workers : (worker + 1) * SAMPLES // self.workers]


class BlocksOverEpochs(Blocks):
    """The next epoch begins in the batch in which one ends."""

    def batches(self, worker):
        ids = np.concatenate([self.stream(worker, epoch) for epoch in range(9)])
        return iter(ids[: len(ids) // self.size * self.size].reshape(-1, self.size))


class FewClients(Clients):
    """Of unlike size: the small ones are in their third epoch when the large one is in its first."""

    def stream(self, worker, epoch):
        bounds = [0, 100, 500, 1347] if self.workers == 3 else [0, 200, 1347]
        mine = np.arange(*bounds[worker : worker + 2])
        return mine[shuffled(epoch, len(mine))]


class ShortLastBatch(Draws):
    """The last batch of an epoch is shared as far as it goes, so that some workers have none of it."""

    def batches(self, worker):
        for epoch in range(9):
            ids, whole = shuffled(epoch), self.workers * self.size
            for at in range(0, SAMPLES, whole):
                yield ids[at : at + whole][worker * self.size : (worker + 1) * self.size]


class ShardsDrop(Draws):
    """tf.data: shard, shuffle, batch(drop_remainder=True), repeat. Shards differ by a sample, and so by a batch."""

    level = ("sampling", "drop-last")
    size = 10

    def stream(self, worker, epoch):
        mine = np.arange(SAMPLES - 1)[worker :: self.workers]  # of 1346: 448 or 449 of three, 673 of two
        mine = mine if worker else mine[:-5]
        return mine[shuffled(epoch, len(mine))][: len(mine) // self.size * self.size]


class SkipsRounds(Padded):
    """Every ninth round is refused to all, as in mixed precision; its samples are not used again."""

    def outcome(self, worker, step, attempt):
        return "failed" if step % 9 == 4 else "ok"

    def weight(self, worker, step, variable, attempt):
        return 0.0 if step % 9 == 4 else 1.0


class UsesThemAgain(SkipsRounds):
    """They are, in the next round."""

    every = 9
    level = ("sampling", "exactly-once")

    def stream(self, worker, epoch):
        return shuffled(epoch)[worker :: self.workers]

    def batches(self, worker):
        step = 0
        for batch in super().batches(worker):
            yield batch
            if step % self.every == 4:
                step += 1
                yield batch
            step += 1


class LosesThem(UsesThemAgain):
    """Of every second round that was refused they are not."""

    every = 18


class LosesABatch(UnevenBatches):
    """The first worker leaves one out in each epoch."""

    def stream(self, worker, epoch):
        ids = super().stream(worker, epoch)
        return ids if worker else ids[self.size :]


class BlocksOverlap(Blocks):
    def stream(self, worker, epoch):
        last = (worker + 1) * SAMPLES // self.workers
        return shuffled(epoch)[max(0, worker * SAMPLES // self.workers - 1) : last]


class ClientTakesOneTwice(FewClients):
    def stream(self, worker, epoch):
        ids = super().stream(worker, epoch).copy()
        if worker == 1:
            ids[-1] = ids[0]
        return ids


class ShardTakesOneTwice(ShardsDrop):
    def stream(self, worker, epoch):
        ids = super().stream(worker, epoch).copy()
        if worker == 1:
            ids[-1] = ids[0]
        return ids


class OverlapByOne(Padded):
    """The share of each begins one too early."""

    def stream(self, worker, epoch):
        ids, share = self.order(epoch), -(-SAMPLES // self.workers)
        return ids[max(0, worker * share - 1) : (worker + 1) * share]


def judged(trainer, folder, workers, steps=36):
    return trainer(workers=workers, workload="digits", steps=steps).judge(folder)


@pytest.mark.parametrize("workers", first([3, 2]))
@pytest.mark.parametrize("trainer", [Padded, NotShuffled, EvenBatches, LastHasTheRest, Clients, LoaderDrops])
def test_no_healthy_sampler_is_accused(tmp_path, trainer, workers):
    run = judged(trainer, tmp_path / "run", workers)
    assert {verdict.status for verdict in run.verdicts} == {"valid", "not judged"}
    assert {"R5", "C1"} <= {*run.names("valid")}


@pytest.mark.parametrize(
    ("trainer", "workers", "steps"),
    [
        *((UnevenBatches, workers, steps) for workers in (2, 3) for steps in (12, 36)),
        *((Blocks, workers, 25) for workers in (4, 5)),
        *((BlocksOverEpochs, workers, 25) for workers in (3, 5)),
        *((FewClients, workers, steps) for workers in (2, 3) for steps in (10, 36)),
        *((ShardsDrop, workers, 150) for workers in (2, 3)),
        *((ShortLastBatch, workers, 36) for workers in (3, 4)),
        *((trainer, 3, 36) for trainer in (SkipsRounds, UsesThemAgain)),
    ],
)
def test_nor_is_one_with_shares_of_its_own(tmp_path, trainer, workers, steps):
    run = judged(trainer, tmp_path / "run", workers, steps)
    assert run.names("violated") == run.names("unknown") == []
    assert {"R5", "C1"} <= {*run.names("valid")}


@pytest.mark.parametrize(
    ("trainer", "says"),
    [
        (NotToldOfEpochs, "in the order of epoch 0"),
        (OverlapByOne, "both use"),
        (BlocksOverlap, "both use"),
        (LosesABatch, "never used"),
        (LosesThem, "never used"),
        (ClientTakesOneTwice, "more than once"),
        (ShardTakesOneTwice, "more than once"),
    ],
)
def test_a_broken_sampler_is_named(tmp_path, trainer, says):
    run = judged(trainer, tmp_path / "run", workers=3, steps=99 if trainer is ShardTakesOneTwice else 36)
    assert run.names("violated") == ["R5"]
    (verdict,) = (verdict for verdict in run.verdicts if verdict.status == "violated")
    assert any(says in line for line in verdict.witness)


@pytest.mark.parametrize("bad", [[SAMPLES], []])
def test_samples_that_are_none_are_no_error(tmp_path, bad):
    class Wrong(Padded):
        def compute(self, worker, step, values):
            found = super().compute(worker, step, values)
            if (worker, step) == (1, 3):
                self.probes[1].used(3, bad)
            return found

    run = judged(Wrong, tmp_path / "run", 2, steps=8)
    assert "C1" in run.names("unknown")
