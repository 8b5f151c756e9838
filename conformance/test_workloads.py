"""What the plain ledger cannot show: order of updates, changed gradients, and that it trains."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from psconform.plugin import suite_settings

from .drawn import Example, Judge, anywhere, examples, must_hold, needs, offers, takes

STEPS = st.integers(10, 120)
MODELS = ("softmax", "mlp")
OPTIMIZERS = st.sampled_from(("momentum", "adam"))
ONE_CLIENT = st.sampled_from(("in-graph", "model-parallel"))


class TestSync:
    """A full barrier."""

    pytestmark = needs("sync")

    @offers("decayed-ledger")
    @suite_settings(quick=1, ci=3, nightly=40)
    @given(example=examples("sync", workload="decayed-ledger", steps=STEPS))
    def test_rounds_are_applied_in_order(self, judge: Judge, example: Example) -> None:
        """A8, and what shows: S3, S4, A6, A7."""
        must_hold(judge, example)

    @anywhere
    @offers("dense-ledger")
    @suite_settings(quick=1, ci=3, nightly=40)
    @given(example=examples("sync", workload="dense-ledger", steps=STEPS))
    def test_gradients_arrive_entry_by_entry(self, judge: Judge, example: Example) -> None:
        """C4: nothing is clipped, rounded, compressed."""
        must_hold(judge, example)

    @offers("digits")
    @suite_settings(quick=1, ci=4, nightly=60)
    @given(example=examples("sync", workload="digits", steps=STEPS, models=MODELS))
    def test_training_is_serial_sgd_step_by_step(self, judge: Judge, example: Example) -> None:
        """C1, R5 on real data."""
        must_hold(judge, example)

    @anywhere
    @offers("digits")
    @takes("optimizer")
    @suite_settings(quick=1, ci=3, nightly=40)
    @given(example=examples("sync", workload="digits", steps=STEPS, models=MODELS, optimizer=OPTIMIZERS))
    def test_optimizers_train_step_by_step(self, judge: Judge, example: Example) -> None:
        """C1 with momentum and Adam."""
        must_hold(judge, example)

    @anywhere
    @offers("quadratic")
    @suite_settings(quick=1, ci=2, nightly=40)
    @given(example=examples("sync", workload="quadratic", steps=STEPS))
    def test_quadratic_converges_as_theory_says(self, judge: Judge, example: Example) -> None:
        """C1 where the optimum is known."""
        must_hold(judge, example)

    @offers("digits")
    @takes("replication")
    @suite_settings(quick=1, ci=4, nightly=40)
    @given(example=examples("sync", workload="digits", steps=STEPS, models=MODELS, replication=ONE_CLIENT))
    def test_it_does_not_matter_who_runs_the_steps(self, judge: Judge, example: Example) -> None:
        """C6: in-graph and model-parallel train what between-graph trains."""
        must_hold(judge, example)


class TestAsync:
    """Applied on arrival."""

    pytestmark = needs("async")

    @anywhere
    @offers("decayed-ledger")
    @suite_settings(quick=1, ci=3, nightly=40)
    @given(example=examples("async", workload="decayed-ledger", steps=STEPS, read_every=st.integers(1, 5)))
    def test_updates_are_applied_in_an_order_that_everybody_saw(self, judge: Judge, example: Example) -> None:
        """A8, A2, A6, A7."""
        must_hold(judge, example)

    @anywhere
    @offers("dense-ledger")
    @suite_settings(quick=1, ci=3, nightly=40)
    @given(example=examples("async", workload="dense-ledger", steps=STEPS))
    def test_gradients_arrive_entry_by_entry(self, judge: Judge, example: Example) -> None:
        """C4: nothing is clipped, rounded, compressed."""
        must_hold(judge, example)

    @offers("digits")
    @suite_settings(quick=1, ci=4, nightly=60)
    @given(example=examples("async", workload="digits", steps=STEPS, models=MODELS, read_every=st.integers(1, 3)))
    def test_training_applies_what_was_computed(self, judge: Judge, example: Example) -> None:
        """C2, R5 on real data."""
        must_hold(judge, example)

    @anywhere
    @offers("digits")
    @takes("optimizer")
    @suite_settings(quick=1, ci=2, nightly=40)
    @given(example=examples("async", workload="digits", steps=STEPS, models=MODELS, optimizer=OPTIMIZERS))
    def test_optimizers_apply_what_was_computed(self, judge: Judge, example: Example) -> None:
        """C2 with momentum and Adam."""
        must_hold(judge, example)

    @anywhere
    @offers("quadratic")
    @suite_settings(quick=1, ci=2, nightly=40)
    @given(example=examples("async", workload="quadratic", steps=STEPS))
    def test_quadratic_stays_within_the_bound(self, judge: Judge, example: Example) -> None:
        """C2 where the optimum is known."""
        must_hold(judge, example)
