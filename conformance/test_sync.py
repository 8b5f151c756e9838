"""Synchronous training: full barrier, one contributor set, release together, reduction, exactly once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from psconform.plugin import suite_settings

from .drawn import SOME, Example, Judge, anywhere, examples, must_hold, needs

pytestmark = needs("sync")


@suite_settings(quick=2, ci=8, nightly=150)
@given(example=examples("sync"))
def test_every_round_takes_one_gradient_from_each_worker(judge: Judge, example: Example) -> None:
    """S1, S3, S4, S5, A6, A7, I1, I2, R1, R2, C3 over drawn layouts, reductions and lengths."""
    must_hold(judge, example)


@anywhere
@suite_settings(quick=1, ci=6, nightly=80)
@given(example=examples("sync", reads=st.integers(2, 4), steps=st.integers(2, 30)))
def test_reading_again_within_a_round_shows_the_same_round(judge: Judge, example: Example) -> None:
    """More reads per step: whenever a worker looks between two of its pushes, it sees one and the same version."""
    run = must_hold(judge, example)
    assert run.as_dict()["gradients"] == {"ok": example.steps * example.workers}


@anywhere
@suite_settings(quick=1, ci=3, nightly=40)
@given(example=examples("sync", steps=st.integers(1, 2)))
def test_the_first_round_is_as_good_as_the_hundredth(judge: Judge, example: Example) -> None:
    """One or two steps: the barrier must hold from the first round on, while workers are still joining."""
    must_hold(judge, example)


@suite_settings(quick=1, ci=3, nightly=40)
@given(example=examples("sync", ps=(1, 2), workers=SOME, steps=st.integers(150, 300)))
def test_long_runs(judge: Judge, example: Example) -> None:
    """Hundreds of rounds: rare interleavings of pushes, commits and reads get their chance."""
    must_hold(judge, example)
