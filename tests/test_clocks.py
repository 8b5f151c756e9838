"""Clocks read in one piece are those that are read one by one; what is no clock is left to who names its line."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from psconform.history.build import load_history
from psconform.history.reader import DECODER, LeanRead, clocks_of

from . import test_reader
from .test_reader import changed, refused

folder = test_reader.folder
SHAPES = hnp.array_shapes(min_dims=3, max_dims=3, min_side=1, max_side=5)


def decoded(clocks):
    """Events as they are read, of the text of a clock each; None: a read without one."""
    for clock in clocks:
        part = "" if clock is None else f'"clock":{clock},'
        yield DECODER.decode(f'{{"kind":"read","seq":0,"mono_ns":0,"step":0,{part}"crc":"00000000"}}')


@given(hnp.arrays(np.int64, SHAPES, elements=st.integers(0, 2**53)), st.data())
def test_clocks_in_one_piece_are_those_of_each_read(clocks, data):
    texts = [msgspec.json.encode(clock.tolist()).decode() for clock in clocks]
    for _ in range(data.draw(st.integers(0, 2))):
        texts.insert(data.draw(st.integers(0, len(texts))), None)
    events = list(decoded(texts))
    assert all(isinstance(event, LeanRead) for event in events)
    assert np.array_equal(clocks_of(events), clocks)


def test_reads_without_a_clock_have_none():
    assert clocks_of(list(decoded([None, None]))).size == clocks_of([]).size == 0


NO_CLOCKS = ["[[1,2],[3]]", "[[1,2],3]", "[1,2]", "[]", "[[]]", "7", "null", "[[-1,2]]", "[[1.5,2]]", "[[1, 2]]", '"x"']
NO_CLOCKS += [
    "[[1e3,2]]",
    "[[9007199254740993,2]]",
    "[[99999999999999999999999,2]]",
    "[[[1],2]]",
    "[[true,2]]",
    '["1,2"]',
]


@pytest.mark.parametrize("text", NO_CLOCKS)
@pytest.mark.parametrize("others", [[], ["[[1,2]]"], ["[[1]]"], ["[[1,2],[3,4]]"]])
def test_what_is_no_clock_like_the_others_is_not_taken_for_one(text, others):
    for texts in ([*others, text], [text, *others]):
        assert clocks_of(list(decoded(texts))) is None


@pytest.mark.parametrize(
    ("clock", "says"),
    [
        ([[0], [0]], "read: clock must have 2 numbers up to 4 per variable"),
        ([[0, 0]], "read: nonce must have 1 numbers"),
        ([[0, 5], [0, 0]], "read: clock must have 2 numbers up to 4 per variable"),
        ([], "read: 0 variables"),
        ([[], []], "read: clock must have 2 numbers up to 4 per variable"),
        ([[-1, 0], [0, 0]], "Expected `int` >= 0 - at `$.clock[0][0]`"),
        ([[2**60, 0], [0, 0]], "$.clock[0][0]"),
        ([[0.5, 0], [0, 0]], "Expected `int`, got `float` - at `$.clock[0][0]`"),
    ],
)
def test_a_wrong_clock_is_named_by_its_line(folder, clock, says):
    line = changed(folder, "read", {"clock": clock})
    text = refused(folder)
    assert f":{line}" in text or f":{line + 1}" in text or f"line {line}" in text
    assert says in text


def test_a_history_is_the_same_whether_its_clocks_are_read_in_one_piece_or_one_by_one(folder, monkeypatch):
    def loaded():
        return [worker.reads.clock.tolist() for worker in load_history(folder).workers]

    def one_by_one(events):
        del events

    found = loaded()
    assert any(map(any, found[0]))
    monkeypatch.setattr("psconform.history.reader.clocks_of", one_by_one)
    assert loaded() == found
