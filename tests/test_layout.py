"""Layouts, tasks, claims: what they take, and how they say what they do not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psconform.claims import DEFAULTS, LEVELS, Claims
from psconform.errors import BadInput
from psconform.layout import NAMED, Layout, Task


@given(st.integers(1, 64), st.integers(1, 64), st.sampled_from([("sync", "sum"), ("async", "mean")]))
def test_layout_reads_what_it_writes(ps, workers, mode):
    update, reduction = mode
    layout = Layout(ps, workers, update, reduction)
    assert Layout.parse(layout.text, update=update, reduction=reduction) == layout
    assert len(layout.tasks) == ps + workers
    assert layout.tasks[:ps] == tuple(Task("ps", i) for i in range(ps))
    assert layout.worker_tasks == layout.tasks[ps:]


@pytest.mark.parametrize(("text", "ps", "workers"), [(" ps = 2 , worker = 3 ", 2, 3), ("worker=1,ps=4", 4, 1)])
def test_layout_is_read_in_any_order_and_with_spaces(text, ps, workers):
    layout = Layout.parse(text)
    assert (layout.ps, layout.workers) == (ps, workers)


@pytest.mark.parametrize("name", NAMED)
def test_named_layouts_are_what_they_say(name):
    assert Layout.parse(name).text == NAMED[name]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "--layout: cannot read, got ''. Write ps=2,worker=3 or one of: small, default, wide, single"),
        ("big", "--layout: cannot read, got 'big'"),
        ("ps=2", "--layout: lacks the job worker, got 'ps=2'. Write ps=2,worker=3"),
        ("worker=2", "--layout: lacks the job ps, got 'worker=2'"),
        ("ps=2,worker=3,chief=1", "--layout: unknown job, got 'chief'; valid: ps, worker"),
        ("ps=2,wroker=3", "--layout: unknown job, got 'wroker'; valid: ps, worker, gpus (did you mean 'worker'?)"),
        ("ps=2,ps=2,worker=1", "--layout: names ps twice, got 'ps=2,ps=2,worker=1'"),
        ("ps=-1,worker=3", "--layout: cannot read, got 'ps=-1,worker=3'"),
        ("ps=1.5,worker=3", "--layout: cannot read, got 'ps=1.5,worker=3'"),
        ("ps=2,worker=", "--layout: cannot read, got 'ps=2,worker='"),
        ("ps=2;worker=3", "--layout: cannot read, got 'ps=2;worker=3'"),
        ("ps=65,worker=3", "--layout: ps must be between 0 and 64, got 65"),
        ("ps=2,worker=65", "--layout: worker must be between 1 and 64, got 65"),
        ("ps=2,worker=999999", "--layout: worker must be between 1 and 64, got 999999"),
        ("ps=2,worker=" + "9" * 50, "--layout: cannot read"),
    ],
)
def test_bad_layout_names_place_value_and_choices(text, says):
    with pytest.raises(BadInput) as caught:
        Layout.parse(text)
    assert str(caught.value).startswith(says)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"update": "synch"}, "--update: unknown update mode, got 'synch'; valid: sync, async (did you mean 'sync'?)"),
        ({"quorum": 3}, "--quorum: must be between 1 and the number of workers, 2 (0: all of them), got 3"),
        ({"quorum": -1}, "--quorum: must be between 1 and the number of workers, 2"),
        ({"quorum": 1, "update": "async"}, "--quorum: needs --update sync, got 1"),
        ({"staleness": 1}, "--staleness: needs --update async, got 1"),
        ({"staleness": -1, "update": "async"}, "--staleness: must be at least 0, got -1"),
        ({"rate": "staleness-aware"}, "--rate: needs --update async, got 'staleness-aware'"),
        ({"rate": "fast"}, "--rate: unknown rate, got 'fast'; valid: constant, staleness-aware"),
        ({"reduction": "max"}, "--reduction: unknown reduction, got 'max'; valid: mean, sum"),
    ],
)
def test_bad_mode_names_the_choices(options, says):
    with pytest.raises(BadInput) as caught:
        Layout.parse("small", **options)
    assert str(caught.value).startswith(says)


def test_what_completes_a_round():
    assert Layout(2, 3).per_round == 3
    layout = Layout.parse("ps=2,worker=3", quorum=2)
    assert (layout.per_round, layout.mode) == (2, "sync mean 2 of 3")
    assert Layout.parse("small", update="async", staleness=0).mode == "async staleness 0"
    assert (Layout(2, 3).mode, Layout(2, 3, "async").mode) == ("sync mean", "async")


def test_task_reads_what_it_writes():
    assert Task.parse("worker:12") == Task("worker", 12)
    assert (str(Task("ps", 0)), Task("ps", 0).slug) == ("ps:0", "ps-0")


@pytest.mark.parametrize(
    "text", ["", "worker", "worker:", ":0", "worker:x", "worker:-1", "Worker:0", "worker:0:1", "worker:99999"]
)
def test_bad_task_is_named(text):
    with pytest.raises(BadInput) as caught:
        Task.parse(text, place="--fault")
    assert str(caught.value) == f"--fault: must be job:index, such as worker:0, got {text!r}"


@pytest.mark.parametrize("dimension", LEVELS)
def test_every_level_is_taken_and_any_other_refused(dimension):
    for level in LEVELS[dimension]:
        assert Claims.from_dict({dimension: level}).level(dimension) == level
    with pytest.raises(BadInput) as caught:
        Claims.from_dict({dimension: "much"}, place="here")
    assert str(caught.value).startswith(f"here.{dimension}: unknown level, got 'much'; valid: {LEVELS[dimension][0]}")


def test_unknown_dimension_is_refused():
    with pytest.raises(
        BadInput, match=r"claims: unknown dimension, got 'barier'; valid: .* \(did you mean 'barrier'\?\)"
    ):
        Claims.from_dict({"barier": "full"})


def test_usual_claims_round_trip():
    for claims in DEFAULTS.values():
        assert Claims.from_dict(claims.as_dict()) == claims
