"""Does asynchronous training end where serial training ends (C2)? A test of equivalence, its size fixed in advance.

A test that fails to find a difference proves nothing: it passes whenever it is too small. TOST (two one-sided tests,
Schuirmann 1987) turns it round: equivalence has to be shown, against a margin of what would matter. Runs are paired by
seed: same initial parameters, same batches, once asynchronous with N workers, once serial (`serial_sgd` with
``Batches(workers=1)`` of the same batch size: the same number of updates of the same size, none of them stale).

Measured by simulation (tests/training.py) on the digits, 4 workers in random order, mean staleness 3, batches of 16, 10
epochs, learning rate 0.1, 80 seeds, the asynchronous run in float32: the difference of test accuracy, asynchronous
minus serial, has mean -0.0003 and standard deviation 0.0054 for `Softmax` (serial accuracy 0.93), 0.0003 and 0.0044 for
`Mlp` (0.96). With 2 workers, a learning rate of 0.2 or one worker at a quarter of the speed the mean stays within
0.002, the standard deviation within 0.006.
So `ACCURACY`: 8 pairs, margin 0.02 (9 of 450 test digits). Resampled, all of 20,000 such tests of healthy runs passed.
Gradients that are all 50 updates old cost 0.24 (`Softmax`) and 0.86 (`Mlp`): 90 % intervals [-0.257, -0.222] and
[-0.863, -0.847], different. So do 30 (0.07 and 0.86); 20 is found for `Mlp` and undecided for `Softmax`; 12 is
equivalent for both: the test says whether it trains, the ledger says how stale it was.

The textbook's mitigations, on the excess of the training loss over serial (`Mlp`, 16 workers, 2 epochs, 8 seeds):

    learning rate 0.8, 0.4, 0.2, 0.1 at batch 16                          20.5    0.80   0.048  0.008
    batch 32, 16, 8, 4 with the learning rate in proportion 0.8 ... 0.1   7.9     0.80   0.044  0.006
    batch 64, 32, 16, 8, 4 alone, learning rate 0.2                       0.25    0.054  0.048  0.044  0.073

A smaller batch *alone* helps as long as the excess comes from few and large updates; at learning rate 0.4 it makes it
worse (16, 8, 4: 1.0, 2.6, 5.4 after 3 epochs). For `Softmax` staleness costs nothing at batch 16 and learning rates of
0.1 to 0.8: the excess is negative (-0.014 to -0.047, 8 and 16 workers), because staleness acts like momentum
(Mitliagkas et al. 2016) until it makes training unstable.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Outcome = Literal["equivalent", "different", "undecided"]


@dataclass(frozen=True, kw_only=True)
class Equivalence:
    """What came out of an `EquivalenceTest`.

    Attributes:
        outcome: ``equivalent`` the interval lies inside the margin; ``different`` it lies wholly outside;
            ``undecided`` neither is shown.
        mean: mean difference.
        low, high: confidence interval of the mean at 1 - 2 x level (90 %).
        p: the larger of the two one-sided p values against "not equivalent"; equivalent means p < level.
    """

    outcome: Outcome
    mean: float
    low: float
    high: float
    p: float


@dataclass(frozen=True, kw_only=True)
class EquivalenceTest:
    """TOST on ``n`` paired differences against +-``margin``, each one-sided t test at ``level``.

    ``n`` belongs to the test: looking after each pair and stopping when it passes (peeking) would make its level a
    fiction. The t test assumes differences that are about normal; at n = 8 and differences of accuracies that is so.

    Raises ValueError for n below 2, a margin that is not positive, a level outside 0 to 0.5.
    """

    n: int
    margin: float
    level: float = 0.05

    def __post_init__(self) -> None:
        """Check the parameters."""
        if self.n < 2:
            raise ValueError(f"n must be at least 2, got {self.n}")
        if not 0 < self.margin < math.inf:
            raise ValueError(f"margin must be positive, got {self.margin}")
        if not 0 < self.level < 0.5:
            raise ValueError(f"level must be between 0 and 0.5, got {self.level}")

    def judge(self, differences: Sequence[float]) -> Equivalence:
        """The result for ``n`` differences; ValueError for another number of them, or one that is not finite."""
        values = [float(value) for value in differences]
        if len(values) != self.n:
            raise ValueError(f"this test is for {self.n} pairs, fixed in advance, got {len(values)}")
        for index, value in enumerate(values):
            if not math.isfinite(value):
                raise ValueError(
                    f"difference {index} is {value}: compare accuracies, or judge divergence by itself (C3)"
                )
        mean = math.fsum(values) / self.n
        error = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (self.n - 1) / self.n)
        reach = t_quantile(1 - self.level, self.n - 1) * error
        low, high = mean - reach, mean + reach
        room = self.margin - abs(mean)  # to the nearer end of the margin: the harder of the two tests
        if error > 0:
            p = 1 - t_cdf(room / error, self.n - 1)
        else:
            p = 0.0 if room > 0 else 1.0
        outcome: Outcome = "undecided"
        if -self.margin < low and high < self.margin:
            outcome = "equivalent"
        elif high < -self.margin or low > self.margin:
            outcome = "different"
        return Equivalence(outcome=outcome, mean=mean, low=low, high=high, p=p)


ACCURACY = EquivalenceTest(n=8, margin=0.02)
"""For the test accuracy on the digits; the module's docstring has the figures behind it."""


def t_cdf(t: float, freedom: int) -> float:
    """P(T <= t) for Student's t with a whole number of degrees of freedom; ValueError below 1.

    The finite sums of Abramowitz and Stegun, 26.7.3 and 26.7.4: exact, and no need for scipy.
    """
    if freedom < 1:
        raise ValueError(f"degrees of freedom must be at least 1, got {freedom}")
    angle = math.atan(t / math.sqrt(freedom))
    cosine2 = math.cos(angle) ** 2
    odd = freedom % 2
    term, total = 1.0, 0.0
    for k in range(freedom // 2):
        total += term
        # odd: 2/3, 4/5, ...; even: 1/2, 3/4, ...
        term *= cosine2 * (2 * k + 1 + odd) / (2 * k + 2 + odd)
    if odd:
        inside = 2 / math.pi * (angle + math.sin(angle) * math.cos(angle) * total)
    else:
        inside = math.sin(angle) * total
    return (1 + inside) / 2


def t_quantile(probability: float, freedom: int) -> float:
    """The t with P(T <= t) = probability, by bisection; ValueError for a probability that is not within 0 to 1."""
    if not 0 < probability < 1:
        raise ValueError(f"probability must be between 0 and 1, got {probability}")
    if probability < 0.5:
        return -t_quantile(1 - probability, freedom)
    low, high = 0.0, 1.0
    while t_cdf(high, freedom) < probability:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (middle, high) if t_cdf(middle, freedom) < probability else (low, middle)
    return high
