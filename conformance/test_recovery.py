"""Tasks are killed at drawn steps and phases, and started again: every update is applied exactly once in the end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from psconform.plugin import chosen, suite_settings

from .drawn import SOME, UP_TO_3, Example, Judge, anywhere, examples, must_hold, needs, recovers, says

STEPS = 40
PHASES = ("", "after-push:")
LARGE = 20_000_000
"""Parameters, of all ps together: a push takes so long that a kill can strike in the middle of one."""


@st.composite
def killed(
    draw: st.DrawFn,
    update: str,
    *,
    jobs: tuple[str, ...] = ("ps", "worker"),
    most: int = 2,
    padding: int = 0,
    restoring: bool = False,
) -> Example:
    """A cluster, and up to ``most`` different tasks that are killed in it, at a step or a phase of the chief's.

    With ``restoring`` the first is a ps, at a step, and there is a second one: the chief, or a ps, during the restore.
    """
    shape = draw(examples(update, ps=UP_TO_3, workers=SOME, steps=st.just(STEPS)))
    shape = replace(shape, steps=STEPS // 2) if padding else shape
    counts = {"ps": shape.ps, "worker": shape.workers}
    tasks = [f"{job}:{index}" for job in jobs for index in range(counts[job])]
    victims = draw(st.lists(st.sampled_from(tasks), min_size=1, max_size=most, unique=True))
    step = st.tuples(st.sampled_from(PHASES), st.integers(0, shape.steps - 1)).map(lambda at: f"{at[0]}{at[1]}")
    phase = st.sampled_from(["initialising", "checkpointing"])
    kill = []
    for victim in victims:
        chiefs = chosen.target == "reference" and (victim == "worker:0" or victim.startswith("ps"))  # who says them
        kill.append(f"{victim}@{draw(step | phase if chiefs else step)}")
    if restoring:
        lost = draw(st.integers(0, shape.ps - 1))
        chief = ["worker:0", *(f"ps:{index}" for index in range(shape.ps) if index != lost)]
        kill = [f"ps:{lost}@{draw(step)}", f"{draw(st.sampled_from(chief))}@restoring"]
    options: dict[str, Any] = {"kill": tuple(kill), "restart_after": "0s", "checkpoint_every": draw(st.integers(3, 15))}
    options |= {"padding": padding // shape.ps} if padding else {}
    return replace(shape, mode=tuple(options.items()))


@needs("async")
@recovers("async")
@suite_settings(quick=1, ci=4, nightly=60)
@given(example=killed("async"))
def test_async_ends_exactly_once(judge: Judge, example: Example) -> None:
    """R1 to R4, R6, L1: workers, the chief, ps, several at once."""
    must_hold(judge, example)


@needs("sync")
@recovers("sync")
@suite_settings(quick=1, ci=4, nightly=60)
@given(example=killed("sync"))
def test_sync_ends_exactly_once(judge: Judge, example: Example) -> None:
    """The same with a round half in."""
    must_hold(judge, example)


@needs("async")
@recovers("async")
@suite_settings(quick=1, ci=2, nightly=40)
@given(example=killed("async", jobs=("ps",), most=3))
def test_all_servers_may_be_lost(judge: Judge, example: Example) -> None:
    """R3, R4: what is restored is one cut, however many of them are empty."""
    must_hold(judge, example)


@needs("async")
@recovers("async")
@says("restoring")
@suite_settings(quick=1, ci=1, nightly=20)
@given(example=killed("async", restoring=True))
def test_a_restore_may_be_broken_off(judge: Judge, example: Example) -> None:
    """R3, R4, R6: whoever dies in a restore, it is made again, as a whole."""
    must_hold(judge, example)


@anywhere
@needs("async")
@recovers("async")
@suite_settings(quick=1, ci=1, nightly=20)
@given(example=killed("async", padding=LARGE))
def test_a_large_state_is_never_half_applied_async(judge: Judge, example: Example) -> None:
    """R1: a step that is cut off by a kill leaves all of its gradient or nothing."""
    must_hold(judge, example)


@anywhere
@needs("sync")
@recovers("sync")
@suite_settings(quick=1, ci=1, nightly=20)
@given(example=killed("sync", padding=LARGE))
def test_a_large_state_is_never_half_applied_sync(judge: Judge, example: Example) -> None:
    """The same, with what a round has summed up."""
    must_hold(judge, example)
