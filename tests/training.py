"""Distributed training simulated in one process, in float32 as a trainer computes it: the figures of the workloads."""

from __future__ import annotations

import numpy as np

from psconform.models import Batches


def sync_sgd(model, data, batches: Batches, *, start, steps, learning_rate, order=None, lost=None):
    """Parameters after each step, float32[steps + 1, size]: weighted gradients, their mean, the update in float32.

    ``order`` (a random Generator) shuffles the order in which gradients are added up; ``lost`` = (worker, step) leaves
    one gradient out.
    """
    path = [np.array(start, np.float32)]
    for step in range(steps):
        total, weights = np.zeros(model.size, np.float32), batches.weights(step)
        for worker in order.permutation(batches.workers) if order is not None else range(batches.workers):
            _, ids = batches.of(worker, step)
            gradient = model.gradient(path[-1], data.train_x[ids], data.train_y[ids]) * np.float32(weights[worker])
            if (worker, step) != lost:
                total += gradient
        path.append(path[-1] - np.float32(learning_rate) * (total / np.float32(batches.workers)))
    return np.array(path)


def async_sgd(model, data, batches: Batches, *, start, steps, learning_rate, seed, speeds=None):
    """(final parameters, staleness of each update): workers push in random order what they computed at their last read.

    The next worker to push is drawn in proportion to ``speeds`` (default: equal), so the mean staleness of N equal
    workers is N - 1 (A2).
    """
    random = np.random.default_rng(seed)
    theta = np.array(start, np.float32)
    speed = np.ones(batches.workers) if speeds is None else np.array(speeds, float)
    reads, read_at = [theta.copy() for _ in speed], np.zeros(batches.workers, int)
    done, staleness = np.zeros(batches.workers, int), []
    for version in range(batches.workers * steps):
        share = np.where(done < steps, speed, 0)
        worker = int(random.choice(batches.workers, p=share / share.sum()))
        _, ids = batches.of(worker, int(done[worker]))
        with np.errstate(over="ignore", invalid="ignore"):
            gradient = model.gradient(reads[worker], data.train_x[ids], data.train_y[ids])
            theta = theta - np.float32(learning_rate) * gradient
        staleness.append(version - read_at[worker])
        reads[worker], read_at[worker] = theta, version + 1
        done[worker] += 1
    return theta, np.array(staleness)
