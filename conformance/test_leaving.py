"""Workers that leave: the job goes on without them as declared, and takes back who returns (M2)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from psconform.plugin import suite_settings

from .drawn import (
    SEVERAL,
    SOME,
    UP_TO_3,
    Example,
    Judge,
    anywhere,
    examples,
    heeds_due,
    must_hold,
    needs,
    recovers,
    takes,
)

STEPS = 40
RETURNS_STEPS = 160
STRAGGLER_S = 0.05
"""With so many steps, of so many seconds, the others are not through before a worker is back."""


@st.composite
def left(draw: st.DrawFn, update: str, *, returns: bool = False) -> Example:
    """A cluster that waits half a second for a worker, and one that is killed in it, for good or not."""
    steps = RETURNS_STEPS if returns else STEPS
    shape = draw(examples(update, ps=UP_TO_3, workers=SOME, steps=st.just(steps)))
    worker = draw(st.integers(1, shape.workers - 1))
    options: dict[str, Any] = {
        "kill": (f"worker:{worker}@{draw(st.integers(1, STEPS // 2))}",),
        "restart_after": "1s" if returns else "never",
        "drop_after": "500ms",
        "checkpoint_every": draw(st.integers(10, 50)),
    }
    options |= {"slow": (f"worker:0={STRAGGLER_S:g}s",)} if returns else {}
    return replace(shape, mode=tuple(options.items()))


@st.composite
def short(draw: st.DrawFn, update: str) -> Example:
    """A cluster in which one worker, not always the last, runs out of data."""
    shape = draw(examples(update, ps=UP_TO_3, workers=SEVERAL, steps=st.just(STEPS)))
    worker = draw(st.integers(0, shape.workers - 1))
    return replace(shape, mode=(("batches", (f"worker:{worker}={draw(st.integers(1, STEPS - 1))}",)),))


@anywhere
@needs("sync")
@recovers("sync")
@takes("drop_after")
@suite_settings(quick=1, ci=1, nightly=20)
@given(example=left("sync"))
def test_sync_goes_on_without_a_worker(judge: Judge, example: Example) -> None:
    """It waits as long as declared, says so, and what the others push counts as ever."""
    must_hold(judge, example)


@anywhere
@needs("async")
@recovers("async")
@takes("drop_after")
@suite_settings(quick=1, ci=1, nightly=20)
@given(example=left("async"))
def test_async_ends_without_a_worker(judge: Judge, example: Example) -> None:
    """Nobody waits for it before the end."""
    must_hold(judge, example)


@needs("sync")
@recovers("sync")
@takes("drop_after")
@suite_settings(quick=1, ci=1, nightly=20)
@given(example=left("sync", returns=True))
def test_who_returns_is_taken_back(judge: Judge, example: Example) -> None:
    """M1, M2: from then on its gradients are in the rounds again."""
    must_hold(judge, example)


@anywhere
@needs("sync")
@heeds_due()
@suite_settings(quick=1, ci=1, nightly=20)
@given(example=short("sync"))
def test_no_round_waits_for_a_worker_without_data(judge: Judge, example: Example) -> None:
    """tensorflow#20342: who has pushed its last batch leaves, and the others wait for it for good."""
    must_hold(judge, example)


@anywhere
@needs("async")
@heeds_due()
@suite_settings(quick=1, ci=1, nightly=20)
@given(example=short("async"))
def test_async_ends_with_fewer_batches(judge: Judge, example: Example) -> None:
    """The others train to the end of theirs."""
    must_hold(judge, example)
