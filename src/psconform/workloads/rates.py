"""How fast gradient descent converges on a `Quadratic`, with fresh gradients and with stale ones.

On f(x) = h x^2 / 2 one update with a gradient that is d updates old is x[k+1] = x[k] - a x[k-d], a = learning rate x h.
Each coordinate of the `Quadratic` is such a problem of its own, whatever the delays of the other coordinates.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..models import Quadratic, Vector


def rate_delayed(*, curvature: float, learning_rate: float, delay: int) -> float:
    """Asymptotic factor per update if every gradient is exactly ``delay`` updates old; above 1 it diverges.

    The largest modulus of a root of z^(d+1) - z^d + lr h = 0. A small delay makes a slowly converging coordinate
    slightly *faster* (staleness acts like momentum: Mitliagkas et al. 2016, Asynchrony begets momentum).
    """
    if delay < 0:
        raise ValueError(f"delay must be at least 0, got {delay}")
    polynomial = np.zeros(delay + 2)
    polynomial[0] = 1
    polynomial[1] -= 1
    polynomial[-1] += learning_rate * curvature
    return float(np.abs(np.roots(polynomial)).max())


def measured_bound(
    model: Quadratic, *, start: Vector, learning_rate: float, delays: NDArray[np.int64], coordinates: slice
) -> NDArray[np.float64]:
    """A bound for the delays that were measured: |theta[K] - theta*| after K updates, float64[coordinates].

    ``delays`` [K] is how many updates old the gradient of each was, on the shard that holds these coordinates. With
    a = lr h, V[k] = |x[k] - x*|, e for the rounding of one update in float32, and d, d' the delays of updates k and j,

        x[k-d] - x[k] = a (sum of x[j-d'] - x*, j from k-d to k-1) and d roundings, so
        V[k+1] <= |1 - a| V[k] + a (a (sum of V[j-d']) + d e) + e,

    which is computed from V[0] on. With one delay for all, the largest, this is the step that Feyzmahdavian, Aytekin,
    Johansson 2014 (A delayed proximal gradient method with linear convergence rate) make a rate of, if lr x L x delay
    < 1; with those measured, a gradient that was very late once costs what it costs, and not a factor at each update.
    It holds whatever the delays are; above V[0] it promises nothing.
    """
    a = learning_rate * model.curvature[coordinates]
    optimum = np.abs(model.optimum.astype(np.float64)[coordinates])
    first = np.abs(start.astype(np.float64)[coordinates] - model.optimum.astype(np.float64)[coordinates])
    bounds = np.empty((len(delays) + 1, len(first)))
    sums = np.zeros((len(delays) + 1, len(first)))  # of the bounds at which the gradients before each update were taken
    bounds[0] = first
    with np.errstate(over="ignore", invalid="ignore"):
        # half a unit in the last place for the subtraction, and the update's few operations: within 20 of them, times V
        for k, delay in enumerate(np.minimum(delays, np.arange(len(delays))).tolist()):
            rounding = 2.0**-24 * (optimum + 20 * np.maximum(first, bounds[k]))
            moved = a * (sums[k] - sums[k - delay]) + delay * rounding
            bounds[k + 1] = np.abs(1 - a) * bounds[k] + a * moved + rounding
            sums[k + 1] = sums[k] + bounds[k - delay]
    last: NDArray[np.float64] = bounds[-1]
    return np.where(np.isnan(last), np.inf, last)
