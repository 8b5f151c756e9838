"""Asynchronous training: applied on arrival, exactly once, atomic and monotonic reads, staleness recorded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from psconform.plugin import suite_settings

from .drawn import MOST_WORKERS, Example, Judge, anywhere, examples, must_hold, needs

pytestmark = needs("async")


@suite_settings(quick=2, ci=8, nightly=150)
@given(example=examples("async"))
def test_every_gradient_is_applied_once_on_arrival(judge: Judge, example: Example) -> None:
    """A1, A2, A5, A6, A7, I1, I2, R1, R2, C3 over drawn layouts and lengths."""
    must_hold(judge, example)


@anywhere
@suite_settings(quick=1, ci=6, nightly=80)
@given(example=examples("async", reads=st.integers(1, 3), read_every=st.integers(1, 5)))
def test_read_patterns(judge: Judge, example: Example) -> None:
    """A worker that reads rarely, or several times before it pushes, sees no less of its own writes."""
    must_hold(judge, example)


@suite_settings(quick=1, ci=3, nightly=40)
@given(example=examples("async", workers=(MOST_WORKERS, MOST_WORKERS), ps=(1, 2), steps=st.integers(100, 200)))
def test_contention(judge: Judge, example: Example) -> None:
    """All workers there may be push to one or two servers as fast as they can: unlocked updates would get lost."""
    must_hold(judge, example)


@anywhere
@suite_settings(quick=1, ci=3, nightly=40)
@given(example=examples("async", steps=st.integers(1, 2)))
def test_first_updates(judge: Judge, example: Example) -> None:
    """One or two steps, while workers are still joining: nothing is lost before or during initialisation."""
    must_hold(judge, example)
