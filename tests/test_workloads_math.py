"""Serial SGD, rates, bounds and the equivalence test: what real training is judged against, and the figures claimed."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psconform.models import Batches, Mlp, Quadratic, Softmax
from psconform.workloads import digits, rates, serial
from psconform.workloads.equivalence import ACCURACY, EquivalenceTest, t_cdf, t_quantile

from .tiers import first
from .training import async_sgd, delayed_sgd, drift, largest_stable_rate, rate_sync, serial_sgd, step_errors, sync_sgd

CLASSIFIERS = [Softmax(), Mlp()]
both = pytest.mark.parametrize("model", CLASSIFIERS, ids=["softmax", "mlp"])


@pytest.fixture(scope="module")
def data():
    return digits.load()


# --- C1: serial SGD and its tolerance


def test_serial_sgd_on_a_quadratic_is_the_closed_form():
    model = Quadratic(size=4, mu=0.1, L=1)
    start = model.initial(2)
    path = serial_sgd(model, None, None, start=start, steps=50, learning_rate=0.7)
    assert path.dtype == np.float64
    assert path.shape == (51, 4)
    factors = (1 - 0.7 * model.curvature) ** np.arange(51)[:, None]
    np.testing.assert_allclose(path - model.optimum, factors * (start.astype(float) - model.optimum), atol=1e-12)


def test_delayed_gradients_are_that_many_steps_old():
    model = Quadratic(size=3, seed=1)
    path = delayed_sgd(model, None, None, start=model.initial(0), steps=9, learning_rate=0.3, delay=4)
    for step in range(9):
        expected = path[step] - 0.3 * model.gradient(path[max(0, step - 4)])
        np.testing.assert_array_equal(path[step + 1], expected)


@pytest.mark.parametrize("wrong", [{"steps": -1, "delay": 0}, {"steps": 1, "delay": -2}])
def test_steps_and_delays_cannot_be_negative(wrong):
    with pytest.raises(ValueError, match="got"):
        delayed_sgd(Quadratic(), None, None, start=Quadratic().initial(0), learning_rate=1, **wrong)


@both
@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("learning_rate", [0.1, 1.0])
def test_sync_float32_stays_within_the_drift_tolerance(model, workers, learning_rate, data):
    batches = Batches(samples=1347, workers=workers, batch=64 // workers, seed=3)
    options = {"start": model.initial(3), "steps": 120, "learning_rate": learning_rate}
    path = serial_sgd(model, data, batches, **options)
    reads = sync_sgd(model, data, batches, **options, order=np.random.default_rng(0))
    off = drift(reads, path)
    assert off[0] == 0
    assert (off[1:] < serial.drift_tolerance(120)[1:] / 5).all(), "the margin that the docstring claims"
    errors = step_errors(model, data, batches, reads=reads, learning_rate=learning_rate)
    assert errors.max() < serial.STEP_ERROR / 5


@both
@pytest.mark.parametrize("learning_rate", [0.1, 1.0])
def test_one_lost_gradient_of_one_of_four_workers_shows(model, learning_rate, data):
    batches = Batches(samples=1347, workers=4, batch=16, seed=3)
    options = {"start": model.initial(3), "steps": 100, "learning_rate": learning_rate}
    path = serial_sgd(model, data, batches, **options)
    reads = sync_sgd(model, data, batches, **options, lost=(2, 30))
    late = drift(reads, path) > serial.drift_tolerance(100)
    assert np.flatnonzero(late)[0] == 31
    assert late[31:].all()
    errors = step_errors(model, data, batches, reads=reads, learning_rate=learning_rate)
    assert np.flatnonzero(errors > serial.STEP_ERROR).tolist() == [30]


def test_unequal_batches_without_their_weights_show(data, monkeypatch):
    """S5: the last step of an epoch has batches of 17, 17, 17 and 16."""
    model, batches = Softmax(), Batches(samples=1347, workers=4, batch=16)
    assert batches.sizes(20).tolist() == [17, 17, 17, 16]
    options = {"start": model.initial(0), "steps": 30, "learning_rate": 0.5}
    path = serial_sgd(model, data, batches, **options)
    monkeypatch.setattr(Batches, "weights", lambda self, step: np.ones(self.workers))
    reads = sync_sgd(model, data, batches, **options)
    errors = step_errors(model, data, batches, reads=reads, learning_rate=0.5)
    assert np.flatnonzero(errors > serial.STEP_ERROR).tolist() == [20]
    assert (drift(reads, path) > serial.drift_tolerance(30)).any()


def test_where_training_is_unstable_only_the_single_steps_can_be_judged(data):
    model, batches = Mlp(), Batches(samples=1347, workers=4, batch=16)
    options = {"start": model.initial(0), "steps": 200, "learning_rate": 2.0}
    reads = sync_sgd(model, data, batches, **options)
    path = serial_sgd(model, data, batches, **options)
    assert (drift(reads, path) > serial.drift_tolerance(200)).any()
    assert step_errors(model, data, batches, reads=reads, learning_rate=2.0).max() < serial.STEP_ERROR


def test_nan_is_infinitely_far_and_lengths_must_agree():
    path = np.ones((3, 2))
    assert drift(np.array([[1, 1], [np.nan, 1], [1, 1]], np.float32), path).tolist() == [0, np.inf, 0]
    with pytest.raises(ValueError, match="2 reads, but the path has 3 points"):
        drift(path[:2], path)


# --- rates on the quadratic


def simulate(a, delays, *, dtype=np.float64):
    """x[k+1] = x[k] - a x[k - d[k]] from x[0] = 1, |x| for every k; a delay reaches back to x[0] at most."""
    path = [dtype(1)]
    for k, delay in enumerate(delays):
        path.append(path[-1] - dtype(a) * path[max(0, k - delay)])
    return np.abs(np.array(path))


def test_rate_without_delay():
    assert rate_sync(mu=0.1, L=1, learning_rate=1) == pytest.approx(0.9)
    assert rate_sync(mu=0.1, L=1, learning_rate=1.95) == pytest.approx(0.95)
    assert rate_sync(mu=1, L=9, learning_rate=2 / 10) == pytest.approx(0.8)  # the best: (kappa - 1) / (kappa + 1)
    assert rates.rate_delayed(curvature=0.5, learning_rate=0.4, delay=0) == pytest.approx(0.8)


@pytest.mark.parametrize("delay", [1, 2, 5, 50])
@pytest.mark.parametrize("share", [0.05, 0.5, 0.95, 1.05])
def test_rate_with_a_fixed_delay_is_that_of_the_simulation(delay, share):
    a = share * largest_stable_rate(curvature=1, delay=delay)
    length = 400 * (delay + 1)
    path = simulate(a, [delay] * length)
    window = 60 * (delay + 1)  # longer than an oscillation: compare the crests
    crests = path[length - 2 * window : length - window].max(), path[length - window :].max()
    rate = rates.rate_delayed(curvature=1, learning_rate=a, delay=delay)
    if crests[1] > 1e-290:
        assert (crests[1] / crests[0]) ** (1 / window) == pytest.approx(rate, rel=2e-3)
    assert (rate > 1) == (share > 1)


def test_largest_stable_rate():
    assert largest_stable_rate(curvature=4, delay=0) == pytest.approx(0.5)
    assert largest_stable_rate(curvature=1, delay=1) == pytest.approx(1)
    for delay in range(60):
        a = largest_stable_rate(curvature=2, delay=delay)
        assert rates.rate_delayed(curvature=2, learning_rate=a, delay=delay) == pytest.approx(1, abs=1e-9)
    with pytest.raises(ValueError, match="got -1"):
        rates.rate_delayed(curvature=1, delay=-1, learning_rate=1)


def delayed_run(model, start, learning_rate, choose, updates, dtype):
    """Distances to the optimum, [updates + 1, size]; ``choose(k, path)`` gives a delay for every coordinate."""
    path = [start.astype(dtype)]
    for k in range(updates):
        delays = np.minimum(choose(k, path), k)
        old = np.array([path[k - d][i] for i, d in enumerate(delays)], dtype)
        path.append(path[-1] - dtype(learning_rate) * model.gradient(old))
    return np.abs(np.array(path, np.float64) - model.optimum)


@settings(max_examples=100, deadline=None)
@given(
    delay=st.integers(0, 6),
    share=st.floats(0.01, 0.98),
    seed=st.integers(0, 1000),
    kind=st.sampled_from(["random", "oldest", "extreme", "greedy", "periodic"]),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_no_order_of_updates_breaks_the_bound(delay, share, seed, kind, dtype):
    model = Quadratic(size=6, mu=0.02, L=1, seed=seed)
    learning_rate = share / delay if delay else 2 * share
    random, start = np.random.default_rng(seed), model.initial(seed)

    def choose(k, path):
        if kind == "greedy":  # the delay that takes each coordinate farthest from the optimum in the next update
            recent = np.array(path[-1 - delay :][::-1], np.float64) - model.optimum
            after = np.abs(recent[0] - learning_rate * model.curvature * recent)
            return after.argmax(axis=0)
        if kind == "periodic":  # the fresh gradient now and then: the sawtooth that staleness proofs call the worst
            return np.full(6, k % (delay + 1))
        if kind == "extreme":
            return random.choice([0, delay], 6)
        return random.integers(0, delay + 1, 6) if kind == "random" else np.full(6, delay)

    chosen = []

    def note(k, path):
        chosen.append(np.minimum(np.broadcast_to(choose(k, path), 6), k))
        return chosen[-1]

    distances = delayed_run(model, start, learning_rate, note, 150, dtype)
    delays = np.array(chosen, np.int64)
    for updates in (0, 1, 40, 150):
        for at in range(6):
            options = {"delays": delays[:updates, at], "coordinates": slice(at, at + 1)}
            bound = rates.measured_bound(model, start=start, learning_rate=learning_rate, **options)
            assert distances[updates, at] <= bound[0]


def test_the_bound_says_something_and_float32_needs_its_rounding():
    model = Quadratic(size=6, mu=0.1, L=1)
    start, delays, options = model.initial(0), np.arange(6000) % 4, {"learning_rate": 0.1, "coordinates": slice(0, 6)}
    first = np.abs(start.astype(float) - model.optimum)
    bound = rates.measured_bound(model, start=start, delays=delays, **options)
    assert (bound < 1e-3 * first).all()
    distances = delayed_run(model, start, 0.1, lambda k, _: np.full(6, min(k, k % 4)), 6000, np.float32)
    assert (distances[-1] <= bound).all()
    assert distances[-1].max() > 1e-12, "without rounding nothing would be left"


def test_one_gradient_that_is_very_late_costs_little():
    model, delays = Quadratic(size=6, mu=0.1, L=1), np.ones(600, np.int64)
    delays[100] = 80  # 0.05 x 1 x 80 > 1: no rate holds for a delay of 80 in each update
    options = {"start": model.initial(0), "learning_rate": 0.05, "coordinates": slice(0, 6)}
    late = rates.measured_bound(model, delays=delays, **options)
    first = np.abs(model.initial(0).astype(float) - model.optimum)
    assert (late < 0.1 * first).all()
    assert (rates.measured_bound(model, delays=np.full(600, 80), **options) > first).any(), "it must promise nothing"
    assert simulate(0.5, [4] * 200)[-10:].max() > 1e3


@pytest.mark.parametrize(
    ("freedom", "p95", "p975", "p995"),
    [
        (1, 6.3138, 12.7062, 63.6567),
        (2, 2.9200, 4.3027, 9.9248),
        (5, 2.0150, 2.5706, 4.0321),
        (7, 1.8946, 2.3646, 3.4995),
        (10, 1.8125, 2.2281, 3.1693),
        (30, 1.6973, 2.0423, 2.7500),
    ],
)
def test_quantiles_are_those_of_the_tables(freedom, p95, p975, p995):
    for probability, value in ((0.95, p95), (0.975, p975), (0.995, p995)):
        assert t_quantile(probability, freedom) == pytest.approx(value, abs=6e-5)
        assert t_quantile(1 - probability, freedom) == pytest.approx(-value, abs=6e-5)
        assert t_cdf(t_quantile(probability, freedom), freedom) == pytest.approx(probability, abs=1e-12)


def test_t_approaches_the_normal_distribution():
    assert t_cdf(1.0, 100_000) == pytest.approx((1 + math.erf(math.sqrt(0.5))) / 2, abs=1e-5)
    assert t_cdf(0, 3) == 0.5
    with pytest.raises(ValueError, match="got 0"):
        t_cdf(1, 0)
    for wrong in (0, 1, math.nan):
        with pytest.raises(ValueError, match="probability"):
            t_quantile(wrong, 3)


def test_a_worked_example():
    """By hand: mean 0.0025, s = sqrt(6.75e-4 / 3) = 0.015, error 0.0075, t(0.95, 3) = 2.35336: 0.0025 -+ 0.01765."""
    result = EquivalenceTest(n=4, margin=0.021).judge([0.01, -0.01, 0.02, -0.01])
    assert (result.mean, result.low, result.high) == pytest.approx((0.0025, -0.01515, 0.02015), abs=1e-6)
    assert result.outcome == "equivalent"
    assert result.p == pytest.approx(1 - t_cdf(0.0185 / 0.0075, 3))
    assert EquivalenceTest(n=4, margin=0.02).judge([0.01, -0.01, 0.02, -0.01]).outcome == "undecided"


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=12), st.floats(0.001, 0.5))
def test_interval_and_p_value_say_the_same(differences, margin):
    result = EquivalenceTest(n=len(differences), margin=margin).judge(differences)
    if abs(result.p - 0.05) > 1e-9:
        assert (result.outcome == "equivalent") == (result.p < 0.05)
    mirrored = EquivalenceTest(n=len(differences), margin=margin).judge([-d for d in differences])
    assert (mirrored.outcome, mirrored.low) == (result.outcome, pytest.approx(-result.high))


@pytest.mark.parametrize(
    ("differences", "outcome"),
    [([0.0, 0.0], "equivalent"), ([0.1, 0.1], "different"), ([-0.1, -0.1], "different"), ([0.05, 0.05], "undecided")],
)
def test_differences_without_spread(differences, outcome):
    assert EquivalenceTest(n=2, margin=0.05).judge(differences).outcome == outcome


def test_at_the_margin_it_says_equivalent_as_often_as_its_level():
    random, test = np.random.RandomState(0), EquivalenceTest(n=8, margin=1)
    outcomes = [test.judge(random.normal(1, 0.3, 8)).outcome for _ in range(2000)]
    assert 0.035 < outcomes.count("equivalent") / 2000 < 0.065
    assert 0.035 < outcomes.count("different") / 2000 < 0.065


@pytest.mark.parametrize(
    ("options", "named"),
    [({"n": 1}, "n must be at least 2, got 1"), ({"margin": 0}, "got 0"), ({"level": 0.5}, "got 0.5")],
)
def test_a_test_that_cannot_be_is_refused(options, named):
    with pytest.raises(ValueError, match=named):
        EquivalenceTest(**{"n": 8, "margin": 0.02} | options)


def test_no_peeking_and_no_nan():
    with pytest.raises(ValueError, match="for 8 pairs, fixed in advance, got 7"):
        ACCURACY.judge([0.0] * 7)
    with pytest.raises(ValueError, match="difference 2 is nan"):
        ACCURACY.judge([0.0, 0.0, math.nan, *[0.0] * 5])


@functools.cache
def serial_end(model, batch, updates, learning_rate, seed):
    batches = Batches(samples=1347, workers=1, batch=batch, seed=seed)
    options = {"start": model.initial(seed), "steps": updates, "learning_rate": learning_rate}
    return serial_sgd(model, digits.load(), batches, **options)[-1]


def final_pair(model, data, *, workers, batch, epochs, learning_rate, seed, delay=None):
    """Final parameters of an asynchronous run (or of one whose gradients are ``delay`` old) and of the serial one."""
    many = Batches(samples=1347, workers=workers, batch=batch, seed=seed)
    steps = epochs * many.steps_per_epoch
    alone = serial_end(model, batch, workers * steps, learning_rate, seed)
    options = {"start": model.initial(seed), "learning_rate": learning_rate}
    if delay is not None:
        one = Batches(samples=1347, workers=1, batch=batch, seed=seed)
        return delayed_sgd(model, data, one, **options, steps=workers * steps, delay=delay)[-1], alone
    theta, staleness = async_sgd(model, data, many, **options, steps=steps, seed=seed)
    assert workers / 2 < staleness.mean() < workers  # N - 1, less at the start, which counts where steps are few
    return theta, alone


@pytest.mark.parametrize("model", first(CLASSIFIERS), ids=["softmax", "mlp"])
@pytest.mark.parametrize(("delay", "outcome"), [(None, "equivalent"), (50, "different")])
def test_healthy_async_is_equivalent_and_gradients_50_updates_old_are_not(model, delay, outcome, data):
    differences = []
    for seed in range(ACCURACY.n):
        pair = final_pair(model, data, workers=4, batch=16, epochs=10, learning_rate=0.1, seed=seed, delay=delay)
        trained, alone = (model.accuracy(theta, data.test_x, data.test_y) for theta in pair)
        assert alone > 0.9
        differences.append(trained - alone)
    result = ACCURACY.judge(differences)
    assert result.outcome == outcome
    assert abs(result.mean) < 0.005 if outcome == "equivalent" else result.high < -0.2


def test_a_smaller_rate_or_smaller_batches_in_proportion_shrink_the_excess_loss(data):
    def excess(learning_rate, batch):
        total = 0.0
        for seed in range(4):
            pair = final_pair(Mlp(), data, workers=16, batch=batch, epochs=2, learning_rate=learning_rate, seed=seed)
            trained, alone = (Mlp().loss(theta, data.train_x, data.train_y) for theta in pair)
            total += (trained - alone) / 4
        return total

    by_rate = [excess(rate, 16) for rate in (0.8, 0.4, 0.2)]
    assert by_rate[0] > 3 * by_rate[1] > 3 * by_rate[2]
    by_batch = [excess(0.8, 32), by_rate[1], excess(0.2, 8)]
    assert by_batch[0] > 3 * by_batch[1] > 3 * by_batch[2]
