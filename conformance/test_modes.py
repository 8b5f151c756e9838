"""Other ways to train: backup workers, bounded staleness, a staleness-aware rate, all-reduce, local steps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from psconform.plugin import suite_settings

from .drawn import NO_PS, SEVERAL, Example, Judge, anywhere, averages, examples, exchanges, must_hold, needs, takes

STEPS = st.integers(5, 80)


@anywhere
@needs("sync")
@takes("quorum")
@suite_settings(quick=1, ci=3, nightly=40)
@given(example=examples("sync", workers=SEVERAL, steps=STEPS, reads=st.integers(1, 3), quorum=st.integers(1, 2)))
def test_a_round_takes_the_first_r_gradients(judge: Judge, example: Example) -> None:
    """S2 in place of S1: late gradients leave no trace."""
    must_hold(judge, example)


@anywhere
@needs("async")
@takes("staleness")
@suite_settings(quick=1, ci=3, nightly=40)
@given(example=examples("async", workers=SEVERAL, steps=STEPS, staleness=st.integers(0, 4)))
def test_nobody_is_further_ahead_than_the_bound(judge: Judge, example: Example) -> None:
    """A3: stale synchronous parallel."""
    must_hold(judge, example)


@anywhere
@needs("async")
@takes("rate")
@suite_settings(quick=1, ci=3, nightly=40)
@given(example=examples("async", workers=SEVERAL, steps=STEPS, rate=st.just("staleness-aware")))
def test_stale_gradients_count_less(judge: Judge, example: Example) -> None:
    """A4."""
    must_hold(judge, example)


@needs("sync")
@exchanges("all-reduce")
@suite_settings(quick=1, ci=3, nightly=40)
@given(example=examples("sync", ps=NO_PS, steps=STEPS, reads=st.integers(1, 2)))
def test_replicas_stay_equal(judge: Judge, example: Example) -> None:
    """S7, and S1, S5, R1 on every replica."""
    must_hold(judge, example)


@anywhere
@needs("sync")
@exchanges("all-reduce")
@takes("local_steps")
@averages()
@suite_settings(quick=1, ci=3, nightly=40)
@given(
    example=examples(
        "sync", ps=NO_PS, workers=SEVERAL, steps=STEPS, reductions=("mean",), local_steps=st.integers(2, 9)
    )
)
def test_local_steps_are_averaged(judge: Judge, example: Example) -> None:
    """C5."""
    must_hold(judge, example)


@anywhere
@needs("sync")
@takes("gpus")
@suite_settings(quick=1, ci=2, nightly=30)
@given(example=examples("sync", steps=STEPS, gpus=st.integers(1, 4)))
def test_towers_are_averaged_before_the_push(judge: Judge, example: Example) -> None:
    """S1, S5, R1 of workers with several GPUs, emulated: a tower on each."""
    must_hold(judge, example)


@anywhere
@needs("async")
@takes("gpus")
@suite_settings(quick=1, ci=2, nightly=30)
@given(example=examples("async", steps=STEPS, gpus=st.integers(1, 4)))
def test_towers_of_workers_that_wait_for_nobody(judge: Judge, example: Example) -> None:
    """The same by A1, R1."""
    must_hold(judge, example)
