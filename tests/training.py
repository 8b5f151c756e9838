"""Distributed training simulated in one process, in float32 as a trainer computes it: the figures of the workloads."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from psconform.models import Batches, Data, Model, Vector
from psconform.workloads.serial import Rule, Trajectory, serial_training, union_gradient


def rate_of(schedule, updates):
    """The formulas of docs/targets.md."""
    match schedule:
        case "halving":
            return 0.5 ** (updates // 50)
        case "warm-up":
            return (updates + 1) / 10 if updates < 10 else 1.0
        case "cosine":
            return 0.5 + 0.5 * math.cos(math.pi / 50 * (updates % 50))
    return 1.0


def update32(rule, moments, gradient, updates):
    """What an update takes from the parameters, and the moments after it, in float32 as a trainer computes it."""
    f = np.float32
    rate = rule.learning_rate * rate_of(rule.schedule, updates)
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


def serial_sgd(
    model: Model,
    data: Data | None,
    batches: Batches | None,
    *,
    start: Vector,
    steps: int,
    learning_rate: float,
) -> Trajectory:
    """Parameters of serial SGD before step 0, 1, ..., and after the last: float64[steps + 1, size]."""
    return delayed_sgd(model, data, batches, start=start, steps=steps, learning_rate=learning_rate, delay=0)


def delayed_sgd(
    model: Model,
    data: Data | None,
    batches: Batches | None,
    *,
    start: Vector,
    steps: int,
    learning_rate: float,
    delay: int,
) -> Trajectory:
    """Like `serial_sgd`, but each gradient is taken at the parameters of ``delay`` steps ago.

    x[k+1] = x[k] - learning_rate * gradient(x[max(0, k - delay)]; union batch of step k).
    """
    rule = Rule(learning_rate=learning_rate)
    gradient = union_gradient(model, data, batches)
    return serial_training(model, gradient, start=start, steps=steps, rule=rule, delay=delay)


def drift(reads: Sequence[Vector], path: Trajectory) -> NDArray[np.float64]:
    """Relative distance |reads[k] - path[k]| / |path[k]| (Euclidean) for every k, float64[steps + 1].

    NaN counts as inf. Raises ValueError if they do not have the same length.
    """
    if len(reads) != len(path):
        raise ValueError(f"{len(reads)} reads, but the path has {len(path)} points")
    return _relative(np.asarray(reads, np.float64) - path, path)


def step_errors(
    model: Model,
    data: Data | None,
    batches: Batches | None,
    *,
    reads: Sequence[Vector],
    learning_rate: float,
) -> NDArray[np.float64]:
    """How far each step of a run is from the serial step taken where the run stood: float64[len(reads) - 1].

    |reads[k+1] - (reads[k] - learning_rate * union gradient(reads[k]))| / |reads[k]|, in float64: nothing accumulates.
    """
    return errors_of_steps(model, data, batches, reads=reads, rule=Rule(learning_rate=learning_rate))


def errors_of_steps(
    model: Model,
    data: Data | None,
    batches: Batches | None,
    *,
    reads: Sequence[Vector],
    rule: Rule,
) -> NDArray[np.float64]:
    """Like `step_errors`, with any update rule: its moments are those of the gradients where the run stood."""
    path, moments = np.asarray(reads, np.float64), rule.begin(model.size)
    expected, gradient = np.empty_like(path[1:]), union_gradient(model, data, batches)
    with np.errstate(over="ignore", invalid="ignore"):
        for step, theta in enumerate(path[:-1]):
            change, moments = rule.update(moments, gradient(theta, step), step)
            expected[step] = theta - change
    return _relative(path[1:] - expected, path[:-1])


def _relative(difference: Trajectory, path: Trajectory) -> NDArray[np.float64]:
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        result = np.linalg.norm(difference, axis=1) / np.linalg.norm(path, axis=1)
    return np.where(np.isnan(result), np.where(difference.any(axis=1), np.inf, 0.0), result)


def rate_sync(*, mu: float, L: float, learning_rate: float) -> float:
    """Factor by which the distance to the optimum shrinks per step without delay: max |1 - lr h| over h in mu..L.

    Source: Boyd, Vandenberghe, Convex Optimization, 9.3; Nesterov, Introductory Lectures on Convex Optimization, 1.2.3.
    """
    return max(abs(1 - learning_rate * mu), abs(1 - learning_rate * L))


def largest_stable_rate(*, curvature: float, delay: int) -> float:
    """The learning rate from which a fixed delay makes gradient descent diverge: 2 sin(pi / (2 (2 d + 1))) / h.

    Source: Levin, May 1976, A note on difference-delay equations. 2 / h at d = 0, 1 / h at d = 1, about
    pi / (2 d h) beyond.
    """
    return 2 * math.sin(math.pi / (2 * (2 * delay + 1))) / curvature
