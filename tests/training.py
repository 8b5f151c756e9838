"""Distributed training simulated in one process, in float32 as a trainer computes it: the figures of the workloads."""

from __future__ import annotations

import numpy as np

from psconform.models import Batches
from psconform.optimizers import HALVE_EVERY


def update32(rule, moments, gradient, updates):
    """What an update takes from the parameters, and the moments after it, in float32 as a trainer computes it."""
    f = np.float32
    rate = rule.learning_rate * (0.5 ** (updates // HALVE_EVERY) if rule.schedule == "halving" else 1)
    if rule.optimizer == "adam":
        t = updates + 1
        m = f(0.9) * moments[0] + f(0.1) * gradient
        v = f(0.999) * moments[1] + f(0.001) * (gradient * gradient)
        factor = f(rate * np.sqrt(1 - 0.999**t) / (1 - 0.9**t))
        return factor * m / (np.sqrt(v) + f(1e-7)), np.stack([m, v])
    if rule.optimizer == "momentum":
        moments = f(0.9) * moments + gradient
        gradient = moments[0]
    return f(rate) * gradient, moments


def sync_training(model, data, batches: Batches, *, start, steps, rule, order):
    """Like `sync_sgd`, with any update rule."""
    path, moments = [np.array(start, np.float32)], rule.begin(model.size).astype(np.float32)
    for step in range(steps):
        total, weights = np.zeros(model.size, np.float32), batches.weights(step)
        for worker in order.permutation(batches.workers):
            _, ids = batches.of(worker, step)
            x, y = (None, None) if data is None else (data.train_x[ids], data.train_y[ids])
            total += model.gradient(path[-1], x, y) * np.float32(weights[worker] if data is not None else 1)
        change, moments = update32(rule, moments, total / np.float32(batches.workers), step)
        path.append(path[-1] - change)
    return np.array(path)


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
