"""Calibration: what one gradient leaves behind, and a likely cause wherever it is no constant."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from psconform.errors import BadInput
from psconform.history.manifest import Manifest
from psconform.history.reasons import FailedAfterEnd, NoEnd, NoProgress, TaskFailed
from psconform.probe import UNIT
from psconform.runner.calibrate import SCALES, STEPS, NotLinear, finished, rate_from

from .simulate import Trainer

RATE = 0.05


def trained(update, *, variables=1, start=0.0, nonce=12345.0):
    """Reads before each step and after the last; ``update(theta, gradient, step, variable, state)`` changes theta."""
    cells = 2 * STEPS + 1
    thetas = [np.full(cells, start, np.float64) for _ in range(variables)]
    for theta in thetas:
        theta[STEPS] = nonce
    states: list[dict] = [{} for _ in thetas]
    reads = [np.array(thetas, np.float32)]
    for step, scale in enumerate(SCALES):
        gradient = np.zeros(cells)
        gradient[step] = gradient[STEPS + 1 + step] = UNIT * scale
        for variable, theta in enumerate(thetas):
            update(theta, gradient, step, variable, states[variable])
        reads.append(np.array(thetas, np.float32))
    return reads


def sgd(theta, gradient, step, variable, state):
    theta -= RATE * gradient


def ascent(theta, gradient, step, variable, state):
    theta += RATE * gradient


def nothing(theta, gradient, step, variable, state):
    pass


def momentum(theta, gradient, step, variable, state):
    state["m"] = 0.9 * state.get("m", 0.0) + gradient
    theta -= RATE * state["m"]


def adam(theta, gradient, step, variable, state):
    state["m"] = 0.9 * state.get("m", 0.0) + 0.1 * gradient
    state["v"] = 0.999 * state.get("v", 0.0) + 0.001 * gradient**2
    corrected = np.sqrt(state["v"] / (1 - 0.999 ** (step + 1))) + 1e-8
    theta -= RATE * (state["m"] / (1 - 0.9 ** (step + 1))) / corrected


def adagrad(theta, gradient, step, variable, state):
    state["v"] = state.get("v", 0.0) + gradient**2
    theta -= RATE * gradient / (np.sqrt(state["v"]) + 1e-8)


def clip_by_norm(theta, gradient, step, variable, state):
    theta -= RATE * gradient * min(1.0, 1000.0 / np.linalg.norm(gradient))


def clip_by_value(theta, gradient, step, variable, state):
    theta -= RATE * np.clip(gradient, -4 * UNIT, 4 * UNIT)  # bites at the third step only


def decay(theta, gradient, step, variable, state):
    theta -= RATE * (gradient + 0.01 * theta)


def rising(theta, gradient, step, variable, state):
    theta -= RATE * (step + 1) * gradient


def falling(theta, gradient, step, variable, state):
    theta -= RATE * 0.9**step * gradient


def per_variable(theta, gradient, step, variable, state):
    theta -= RATE * (variable + 1) * gradient


def head_only(theta, gradient, step, variable, state):
    theta[:STEPS] -= RATE * gradient[:STEPS]


def explodes(theta, gradient, step, variable, state):
    theta -= gradient * np.inf if step == 2 else gradient


@pytest.mark.parametrize("variables", [1, 2, 3])
@pytest.mark.parametrize("factor", [1e-6, 1 / 7, 1.0, 30.0])
def test_plain_sgd_gives_its_rate(variables, factor):
    def update(theta, gradient, step, variable, state):
        theta -= factor * gradient

    assert rate_from(trained(update, variables=variables), target="t") == pytest.approx(factor, rel=1e-6)


def test_a_gradient_lost_on_the_way_is_left_to_the_run():
    def update(theta, gradient, step, variable, state):
        theta -= RATE * gradient * (step != 1)

    assert rate_from(trained(update), target="t") == pytest.approx(RATE, rel=1e-6)


@pytest.mark.parametrize(
    ("update", "variables", "cause"),
    [
        (nothing, 1, "no gradient ever reached the parameters"),
        (ascent, 1, "gradient ascent"),
        (momentum, 2, "momentum"),
        (adam, 1, "like Adam"),
        (adagrad, 1, "clipping, normalisation or an adaptive optimizer"),
        (clip_by_norm, 1, "clipping, normalisation or an adaptive optimizer"),
        (clip_by_value, 2, "clipping, normalisation or an adaptive optimizer"),
        (decay, 1, "weight decay"),
        (rising, 1, "a schedule"),
        (falling, 1, "a schedule"),
        (per_variable, 2, "variables have different learning rates: [0.05, 0.1]"),
        (per_variable, 3, "variables have different learning rates: [0.05, 0.1, 0.15]"),
        (head_only, 1, "only a part of a variable"),
    ],
)
def test_what_is_no_ledger_is_refused_with_its_likely_cause(update, variables, cause):
    with pytest.raises(NotLinear) as caught:
        rate_from(trained(update, variables=variables), target="mine")
    text = str(caught.value)
    assert text.startswith("target mine: is not plain SGD: ")
    assert cause in text
    assert text.endswith(". Only linear updates make a ledger")
    assert isinstance(caught.value, BadInput)


def test_parameters_that_explode_are_refused():
    with np.errstate(invalid="ignore"), pytest.raises(NotLinear, match="not finite"):
        rate_from(trained(explodes), target="t")


def test_parameters_that_do_not_start_at_zero_are_refused():
    with pytest.raises(NotLinear, match="do not start at zero: initialise every variable with probe"):
        rate_from(trained(sgd, start=0.3), target="t")


def test_decay_without_gradients_shows_in_the_nonce():
    def update(theta, gradient, step, variable, state):
        theta -= RATE * gradient
        theta[STEPS] *= 0.99

    with pytest.raises(NotLinear, match="parameters without a gradient change"):
        rate_from(trained(update), target="t")


@pytest.mark.parametrize("shape", [(1, 9), (2, 7)])
def test_parameters_that_change_shape_are_refused(shape):
    reads = trained(sgd)
    with pytest.raises(NotLinear, match="change shape"):
        rate_from([*reads[:2], np.zeros(shape, np.float32), *reads[3:]], target="t")


class Quits(Trainer):
    """worker:1 takes two of its steps, and ends in order."""

    def ends(self, worker, step):
        return "quits" if (worker, step) == (1, 2) else ""


class OneEvent(Trainer):
    one_event = True


@pytest.mark.parametrize(
    ("trainer", "reason", "done"),
    [
        (Trainer, None, True),
        (OneEvent, None, True),
        (Trainer, FailedAfterEnd("worker:0", 1), True),
        (Trainer, TaskFailed("worker:0", 1), False),
        (Trainer, NoProgress(60.0), False),
        (Trainer, NoEnd(("ps:0",), 60.0), False),
        (Quits, None, False),
    ],
)
def test_a_calibration_has_finished_once_all_have_ended_and_taken_their_steps(tmp_path, trainer, reason, done):
    """Otherwise it is judged in the place of the run."""
    folder = trainer(update="async", steps=STEPS).run(tmp_path / "run")
    manifest = Manifest.read(folder)
    manifest.reasons = [reason] if reason else []
    assert finished(folder, manifest) is done


@pytest.mark.parametrize(("dynamic", "quorum", "done"), [(True, 0, True), (False, 1, True), (False, 0, False)])
def test_a_worker_may_take_fewer_where_the_job_says_so(tmp_path, dynamic, quorum, done):
    folder = Quits(update="async", steps=STEPS).run(tmp_path / "run")
    manifest = Manifest.read(folder)
    manifest.dynamic_work = dynamic
    manifest.layout = dataclasses.replace(manifest.layout, update="sync", quorum=quorum)
    assert finished(folder, manifest) is done


@pytest.mark.parametrize("times", [(0, 1, 1), (2, 1, 1), (1, 0, 1), (1, 1, 2)])
def test_one_gradient_that_is_lost_or_doubled_leaves_the_rate(times):
    """The run that follows tells whether that happens again."""

    def update(theta, gradient, step, variable, state):
        theta -= RATE * times[step] * gradient

    assert rate_from(trained(update), target="it") == pytest.approx(RATE)
