"""How fast gradient descent converges on a `Quadratic`, with fresh gradients and with stale ones.

On f(x) = h x^2 / 2 one update with a gradient that is d updates old is x[k+1] = x[k] - a x[k-d], a = learning rate x h.
Each coordinate of the `Quadratic` is such a problem of its own, whatever the delays of the other coordinates.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ..models import Quadratic, Vector


def rate_sync(*, mu: float, L: float, learning_rate: float) -> float:
    """Factor by which the distance to the optimum shrinks per step without delay: max |1 - lr h| over h in mu..L.

    Source: Boyd, Vandenberghe, Convex Optimization, 9.3; Nesterov, Introductory Lectures on Convex Optimization, 1.2.3.
    """
    return max(abs(1 - learning_rate * mu), abs(1 - learning_rate * L))


def rate_delayed(*, curvature: float, learning_rate: float, delay: int) -> float:
    """Asymptotic factor per update if every gradient is exactly ``delay`` updates old; above 1 it diverges.

    The largest modulus of a root of z^(d+1) - z^d + lr h = 0. A small delay makes a slowly converging coordinate
    slightly *faster* (staleness acts like momentum: Mitliagkas et al. 2016, Asynchrony begets momentum).
    """
    polynomial = np.zeros(_delay(delay) + 2)
    polynomial[0] = 1
    polynomial[1] -= 1
    polynomial[-1] += learning_rate * curvature
    return float(np.abs(np.roots(polynomial)).max())


def largest_stable_rate(*, curvature: float, delay: int) -> float:
    """The learning rate from which a fixed delay makes gradient descent diverge: 2 sin(pi / (2 (2 d + 1))) / h.

    Source: Levin, May 1976, A note on difference-delay equations. 2 / h at d = 0, 1 / h at d = 1, about
    pi / (2 d h) beyond.
    """
    return 2 * math.sin(math.pi / (2 * (2 * _delay(delay) + 1))) / curvature


def delayed_bound(
    model: Quadratic,
    *,
    start: Vector,
    learning_rate: float,
    max_delay: int,
    updates: int,
) -> NDArray[np.float64]:
    """A bound that no order of updates can break: |theta[k] - theta*| per coordinate, float64[updates + 1, size].

    Holds for *any* delays from 0 to ``max_delay`` (tau), different at each update and on each shard, in float32. With
    a = lr h, V[k] = |x[k] - x*| and e for the rounding of one update,

        x[k-d] - x[k] = a (x[k-d-d'] + ...): d terms from x[k-2 tau] to x[k-1], and d roundings, so
        x[k+1] = (1 - a) x[k] - a^2 (at most tau terms) + roundings, and
        V[k+1] <= |1 - a| V[k] + a^2 tau max(V[k-2 tau] ... V[k]) + e (1 + a tau),

    from which V[k] <= (|1 - a| + a^2 tau)^(k / (2 tau + 1)) V[0] + e (1 + a tau) / (1 - |1 - a| - a^2 tau) by the
    lemma of Feyzmahdavian, Aytekin, Johansson 2014 (A delayed proximal gradient method with linear convergence rate):
    V[t+1] <= p V[t] + q max(V[t-T] ... V[t]) + r with p + q < 1 gives V[t] <= (p + q)^(t / (T+1)) V[0] + r / (1-p-q).

    Raises ValueError unless |1 - a| + a^2 tau < 1 for all coordinates, which for tau > 0 says lr x L x tau < 1.
    """
    a = learning_rate * model.curvature
    kept, old = np.abs(1 - a), a * a * _delay(max_delay)
    if not (kept + old < 1).all():
        product = f"learning rate x L x max_delay = {learning_rate * model.L * max_delay:g}"
        raise ValueError(
            f"no bound holds for any order of updates: {product}, and it must be below 1 (2 without delay)"
        )
    first = np.abs(start.astype(np.float64) - model.optimum)
    # Half a unit in the last place of theta for the subtraction; the relative errors of the update's few operations are
    # within 20 of them, times the distance.
    rounding = 2.0**-24 * (np.abs(model.optimum) + 20 * first)
    floor = rounding * (1 + a * max_delay) / (1 - kept - old)
    exponents = np.arange(updates + 1)[:, None] / (2 * max_delay + 1)
    result: NDArray[np.float64] = (kept + old) ** exponents * first + floor
    return result


def _delay(delay: int) -> int:
    if delay < 0:
        raise ValueError(f"delay must be at least 0, got {delay}")
    return delay
