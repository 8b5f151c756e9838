"""Update rules: what a trainer may do with a gradient, and the constants that trainer and judge have in common.

The rules, with g the gradient (in sync that of a round), t the number of this update of a ps from 1, and

    rate = learning rate                                        schedule constant
    rate = learning rate x 0.5^((t - 1) // HALVE_EVERY)         schedule halving
    rate = learning rate x min(1, t / WARM_UP)                  schedule warm-up
    rate = learning rate x (1 + cos(pi ((t - 1) mod COSINE_PERIOD) / COSINE_PERIOD)) / 2    schedule cosine

    sgd         theta <- theta - rate g
    momentum    a <- MOMENTUM a + g;  theta <- theta - rate a   as TensorFlow's MomentumOptimizer
    adam        m <- BETA_1 m + (1 - BETA_1) g,  v <- BETA_2 v + (1 - BETA_2) g^2,
                theta <- theta - rate sqrt(1 - BETA_2^t) / (1 - BETA_1^t) m / (sqrt(v) + EPSILON)

Adam is that of Kingma and Ba (2015), in the form at the end of their section 2, as Keras and TensorFlow have it; the
constants are Keras' defaults. The warm-up is the linear one of Goyal et al. (2017); the cosine that of Loshchilov and
Hutter (2017), with warm restarts. a, m and v are the **moments** (TensorFlow calls them slots, a word that is taken
here); they begin at zero.
"""

from __future__ import annotations

from collections.abc import Callable
from math import cos, pi
from typing import Any

import numpy as np
from numpy.typing import NDArray

OPTIMIZERS = ("sgd", "momentum", "adam")
MOMENTS: dict[str, tuple[str, ...]] = {"sgd": (), "momentum": ("momentum",), "adam": ("m", "v")}
"""Names of what an optimizer keeps beside each parameter."""
MOMENTUM = 0.9
BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-7
HALVE_EVERY = 50
"""Updates between two halvings of the learning rate: rounds in sync, gradients in async."""
WARM_UP, COSINE_PERIOD = 10, 50
"""Updates until the whole learning rate, and between two restarts of the cosine."""
SCHEDULES: dict[str, Callable[[int], float]] = {
    "constant": lambda updates: 1.0,
    "halving": lambda updates: 0.5 ** (updates // HALVE_EVERY),
    "warm-up": lambda updates: min(1.0, (updates + 1) / WARM_UP),
    "cosine": lambda updates: (1 + cos(pi * (updates % COSINE_PERIOD) / COSINE_PERIOD)) / 2,
}
"""The factor of the learning rate after so many updates."""
CLIP_WHEN = ("before", "after")
"""Whether the gradient of each worker is clipped, before they are averaged, or that of a round, after it."""


def clipped(gradient: NDArray[Any], norm: float) -> NDArray[Any]:
    """The gradient of all variables, or one of this Euclidean norm and its direction if it is longer; in its dtype.

    Clipping by global norm is from Pascanu et al. (2013); tf.clip_by_global_norm and torch's clip_grad_norm_ do it.
    One that is not finite stays as it is; so does any with the norm 0, which stands for no clipping.
    """
    size = float(np.linalg.norm(gradient))
    return gradient * (norm / size) if norm and norm < size < np.inf else gradient
