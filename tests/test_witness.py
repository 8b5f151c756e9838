"""Witnesses: what is alike stands in one line, and how much of it there is."""

from __future__ import annotations

import pytest

from psconform.checks.witness import alike, grouped, listed, spans


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([3], "step 3"),
        ([0, 1, 2], "steps 0 to 2"),
        ([3, 5], "steps 3 and 5"),
        ([3, 5, 7, 8, 9], "steps 3, 5 and 7 to 9"),
        ([0, 2, 4, 6, 8, 9, 11], "steps 0, 2, 4, 6 and 3 more"),
    ],
)
def test_steps_in_words(steps, said):
    assert spans(steps) == said


def test_gradients_are_put_together_by_worker_by_what_is_said_and_by_where():
    found = [(1, step, ps, ("twice",)) for step in range(20) for ps in ("ps:0", "ps:1")]
    found += [(1, 20, "ps:1", ("twice",)), (1, 21, "ps:1", ("lost",)), (2, 0, "ps:1", ("twice",))]
    groups = grouped(found)
    assert [(each.gradients, each.where, each.said[0], each.number) for each in groups] == [
        ("the gradients of worker:1, steps 0 to 19", "ps:0 and ps:1", "twice", " (20 gradients)"),
        ("the gradient of worker:1, step 20", "ps:1", "twice", ""),
        ("the gradient of worker:1, step 21", "ps:1", "lost", ""),
        ("the gradient of worker:2, step 0", "ps:1", "twice", ""),
    ]


def test_lines_that_are_alike_are_counted():
    lines = [(0, "a"), (0, "b"), (1, "a"), (2, "a"), (1, "b"), (2, "c"), (2, "c")]
    assert alike((read, (key,), f"{key} in read {read}") for read, key in lines) == [
        "a in read 0 (as do 2 other reads)",
        "b in read 0 (as does 1 other read)",
        "c in read 2",  # twice in the same read
    ]
    assert listed(["a", "b", "c"]) == "a, b and c"
