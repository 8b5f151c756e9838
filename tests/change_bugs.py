"""Trainers that change gradients on their way, on the dense ledger; and such as say so (error feedback)."""

from __future__ import annotations

import numpy as np

from .bugs import WHEN, WHO
from .simulate import Trainer


class Dense(Trainer):
    """Keeps its promises on the dense ledger."""

    workload = "dense-ledger"


class Changed(Dense):
    """Changes gradients on their way: ``change`` of one, or of all."""

    everywhere = False

    def sent(self, worker, step, gradient):
        struck = self.everywhere or (worker, step) == (WHO, WHEN)
        return np.asarray(self.change(gradient), np.float32) if struck else gradient

    def change(self, gradient):
        return gradient


class Lossy(Changed):
    def change(self, gradient):
        return 0 * gradient


class Flipped(Changed):
    def change(self, gradient):
        return -gradient


class Thrice(Changed):
    def change(self, gradient):
        return 3 * gradient


class Damped(Changed):
    def change(self, gradient):
        return 0.7 * gradient


class DampedAll(Damped):
    everywhere = True


class ClippedByNorm(Changed):
    everywhere = True

    def change(self, gradient):
        return gradient * min(1.0, 60_000 / np.linalg.norm(gradient))


class ClippedByValue(Changed):
    everywhere = True

    def change(self, gradient):
        return np.clip(gradient, -20_000, 20_000)


class SignsOnly(Changed):
    everywhere = True

    def change(self, gradient):
        return np.sign(gradient) * 100


class Topmost(Changed):
    """The ``k`` largest entries of all."""

    everywhere, k = True, 3

    def change(self, gradient):
        return np.where(np.abs(gradient) >= np.sort(np.abs(gradient))[-self.k], gradient, 0)


class RandomK(Changed):
    """Some entries, scaled so that the expectation is right."""

    def change(self, gradient):
        kept = np.flatnonzero(gradient)[[0, 3, 5]]
        return np.where(np.isin(np.arange(gradient.size), kept), gradient * 8 / 3, 0)


class InHalfPrecision(Changed):
    everywhere = True

    def change(self, gradient):
        return gradient.astype(np.float16)


class InBFloat16(Changed):
    """Cut off, not rounded to the nearest."""

    everywhere = True

    def change(self, gradient):
        return (gradient.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)


class InInt8(Changed):
    everywhere = True

    def change(self, gradient):
        grid = np.abs(gradient).max() / 127
        return np.rint(gradient / grid) * grid


class OneSignFlipped(Changed):
    def change(self, gradient):
        gradient[np.flatnonzero(gradient)[2]] *= -1
        return gradient


class FeedsBack(Dense):
    """Top-k with error feedback: what a worker does not send it keeps."""

    level = ("compression", "error-feedback")
    k = 4

    def sent(self, worker, step, gradient):
        kept = self.kept.setdefault(worker, np.zeros_like(gradient)) + gradient
        largest = np.argsort(np.abs(kept), kind="stable")[-self.k :]
        sent = np.zeros_like(kept)
        sent[largest] = kept[largest]
        self.kept[worker] = kept - sent
        return sent

    def run(self, folder):
        self.kept = {}
        return super().run(folder)

    def finish(self, worker):
        self.probes[worker].residual([self.kept[worker]] * len(self.shards))


class FeedsBackAny(FeedsBack):
    level = ("compression", "any")


class FeedsBackQuantised(FeedsBack):
    """Not sparse but rough: what rounding leaves comes with the next gradient."""

    def sent(self, worker, step, gradient):
        kept = self.kept.setdefault(worker, np.zeros_like(gradient)) + gradient
        sent = np.rint(kept / 1024) * np.float32(1024)
        self.kept[worker] = kept - sent
        return sent


class FeedsBackSecretly(FeedsBack):
    level = ()


class Forgets(FeedsBack):
    """... or forgets."""

    def sent(self, worker, step, gradient):
        sent = super().sent(worker, step, gradient)
        if worker == WHO:
            self.kept[worker][:] = 0
        return sent


class NoResidual(FeedsBack):
    def finish(self, worker):
        pass


class ResidualOfOthers(FeedsBack):
    def finish(self, worker):
        self.kept[worker] = self.kept[worker] + self.probes[1 - worker].gradient(0)
        super().finish(worker)


class LosesOne(FeedsBack):
    """What one push carried is lost at the server."""

    def weight(self, worker, step, variable, attempt):
        return 0.0 if (worker, step) == (WHO, WHEN) else 1.0
