"""Update rules: what a trainer may do with a gradient, and the constants that trainer and judge have in common.

The rules, with g the gradient (in sync that of a round), t the number of this update of a ps from 1, and

    rate = learning rate                                        schedule constant
    rate = learning rate x 0.5^((t - 1) // HALVE_EVERY)         schedule halving

    sgd         theta <- theta - rate g
    momentum    a <- MOMENTUM a + g;  theta <- theta - rate a   as TensorFlow's MomentumOptimizer
    adam        m <- BETA_1 m + (1 - BETA_1) g,  v <- BETA_2 v + (1 - BETA_2) g^2,
                theta <- theta - rate sqrt(1 - BETA_2^t) / (1 - BETA_1^t) m / (sqrt(v) + EPSILON)

Adam is that of Kingma and Ba (2015), in the form at the end of their section 2, as Keras and TensorFlow have it; the
constants are Keras' defaults. a, m and v are the **moments** (TensorFlow calls them slots, a word that is taken here);
they begin at zero.
"""

from __future__ import annotations

OPTIMIZERS = ("sgd", "momentum", "adam")
SCHEDULES = ("constant", "halving")
MOMENTS: dict[str, tuple[str, ...]] = {"sgd": (), "momentum": ("momentum",), "adam": ("m", "v")}
"""Names of what an optimizer keeps beside each parameter."""
MOMENTUM = 0.9
BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-7
HALVE_EVERY = 50
"""Updates between two halvings of the learning rate: rounds in sync, gradients in async."""
