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
    ("trainer", "says"), [(NotToldOfEpochs, "in the order of epoch 0"), (OverlapByOne, "both use")]
)
def test_a_broken_sampler_is_named(tmp_path, trainer, says):
    run = judged(trainer, tmp_path / "run", workers=3)
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
