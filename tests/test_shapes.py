"""Each example of docs/shapes.md is judged as its comment says; benchmarks/shapes.py runs each with many seeds."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
benchmark = importlib.import_module("shapes")
sys.path.pop(0)
EXAMPLES = benchmark.examples(benchmark.PAGE.read_text(encoding="utf-8"))


def ran(bug, violated, *, valid=False, expected=("S5",)):
    return benchmark.Outcome(benchmark.Example("a/b/target.toml", bug, expected if bug else ()), violated, valid, "")


def test_there_are_examples():
    assert len(EXAMPLES) >= 16
    assert {"gang", "clip-norm", "--layout ps=2,worker=3 --quorum 2 --steps 20"} <= {one.name for one in EXAMPLES}
    assert ("BUG=" in benchmark.PAGE.read_text(encoding="utf-8")) == any(one.bug for one in EXAMPLES)


@pytest.mark.engine
@pytest.mark.nightly
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: f"{example.words} {example.bug}".strip())
def test_an_example_is_judged_as_it_says(tmp_path, example):
    outcome = example.run(tmp_path / "run")
    assert outcome.violated == example.violated, outcome.text
    assert outcome.valid == (not example.bug), outcome.text


@pytest.mark.parametrize(
    ("outcomes", "bad"),
    [
        ([ran("", (), valid=True)], False),
        ([ran("", ())], True),  # undecided
        ([ran("", ("S1",))], True),
        ([ran("x", ("S5",))] * 19 + [ran("x", (), valid=True)], False),
        ([ran("x", ("S5",))] * 18 + [ran("x", (), valid=True)] * 2, True),
        ([ran("x", ("S5", "S1"))], True),
        ([ran("x", ("S5",), expected=("S5", "S1"))], False),
    ],
)
def test_what_is_bad(outcomes, bad):
    assert benchmark.bad(outcomes) == bad


def test_tables_count_each_bug_and_the_healthy_runs_together():
    runs = [
        ran("x", ("S5",)),
        ran("x", ("S5", "S1")),
        ran("x", (), valid=True),
        ran("", (), valid=True),
        ran("", ("S1",)),
    ]
    text = benchmark.tables(runs)
    assert "| b | `x` | S5 | 2 of 3 | 13.5% | 1 |" in text
    assert "| `a/b/target.toml` | 2 | 1 | 1 | 97.5% |" in text
    assert text.splitlines()[-1] == "| all | 2 | 1 | 1 | 97.5% |"
