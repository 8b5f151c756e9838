"""benchmarks/mutants.py: what it changes, what it draws, what it calls found. No process is started."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
benchmark = importlib.import_module("mutants")
sites = importlib.import_module("mutation.sites")
covered = importlib.import_module("mutation.coverage_map")
sandbox = importlib.import_module("mutation.sandbox")
sys.path.pop(0)

LEFT_ALONE = '''
"""A docstring of 1 module."""
from typing import TYPE_CHECKING, Literal
__all__ = ["a", "b"][0:1]
if TYPE_CHECKING:
    from a import b

@decorated(frozen=True)
def f(a: Literal[1], b: "not a" = None) -> Literal[True]:
    """Docstring."""
    c: list[Literal[2]] = []
    raise ValueError("no" + str(1))
'''


def changes(text):
    """Each mutation as the source after it."""
    return [mutation.apply(text) for mutation in sites.mutations(text)]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a < b", {"a <= b", "a >= b"}),
        ("a == b != c", {"a != b != c", "a == b == c"}),
        ("a not in b", {"a in b"}),
        ("(a) is not (b)", {"(a) is (b)"}),
        ("a and b or c", {"a or b or c", "a and b and c"}),
        ("x = not a", {"x = a"}),
        ("x = -a + b", {"x = +a + b", "x = -a - b"}),
        ("x = a + 'text'", set()),
        ("x = a // 2", {"x = a * 2", "x = a // 3"}),
        ("x = True", {"x = False"}),
        ("x = 'é' if a else b", {"x = 'é' if not (a) else b"}),
        ("x = {'é': 7}", {"x = {'é': 8}"}),
        ("x = f'{1 + a}'", set()),
        ("a.b = c", {"pass"}),
        ("a += b", {"pass", "a -= b"}),
        ("f(a)", {"pass"}),
        ("x = min(a)", {"x = max(a)"}),
        ("x = a.any()", {"x = a.all()"}),
        ("x = sorted(b for b in c)", {"x = sorted(b for b in c)[::-1]"}),
        ("x = a[b:c]", {"x = a[:c]", "x = a[b:]"}),
        ("x = [a for a in b if c]", {"x = [a for a in b if not (c)]", "x = [a for a in b if True]"}),
        ("if a:\n    x = b", {f"if {test}:\n    x = b" for test in ("not (a)", "True", "False")}),
        ("for a in b:\n    continue", {"for a in b:\n    break"}),
        ("def f():\n    return a", {"def f():\n    return None"}),
        ("def f() -> list[int]:\n    return a", {"def f() -> list[int]:\n    return []"}),
        ("def f() -> bool:\n    return a", {"def f() -> bool:\n    return not (a)"}),
        ("def f(a=1):\n    'Words.'", {"def f(a=2):\n    'Words.'"}),
        (LEFT_ALONE, set()),
    ],
)
def test_what_is_changed(before, after):
    assert set(changes(before)) == after


def test_lines_stay_where_they_are():
    before = "f(\n    a,\n    b,\n)\nif (\n    a\n    and b\n):\n    c()\n"
    found = changes(before)
    assert {text.count("\n") for text in found} == {before.count("\n")}
    assert "pass\n\n\n\nif (\n    a\n    and b\n):\n    c()\n" in found
    for text in found:
        ast.parse(text)


def test_the_statement_that_has_to_run():
    text = "if (\n    a\n    < b\n):\n    c(\n        1,\n    )\n"
    found = {(mutation.operator, mutation.line, mutation.first, mutation.last) for mutation in sites.mutations(text)}
    assert ("comparison", 3, 1, 3) in found
    assert ("constant", 6, 5, 7) in found


def test_areas_have_their_shares_of_any_count():
    assert benchmark.shares(60) == {name: area.share for name, area in benchmark.AREAS.items()}
    for count in range(1, 130):
        assert sum(benchmark.shares(count).values()) == count


def test_a_draw_is_its_seeds_and_has_one_mutant_for_a_line():
    files = benchmark.targets_of(benchmark.ROOT)["history"]
    drawn = benchmark.candidates(benchmark.ROOT, "history", files, 7)
    assert drawn == benchmark.candidates(benchmark.ROOT, "history", files, 7)
    assert drawn[:5] != benchmark.candidates(benchmark.ROOT, "history", files, 8)[:5]
    assert len({mutant.place for mutant in drawn}) == len(drawn)
    for mutant in drawn[:20]:
        text = benchmark.mutated(benchmark.ROOT, mutant)
        assert text.splitlines()[mutant.mutation.line - 1].strip() == mutant.after != mutant.before


def test_an_area_may_be_what_has_some_names():
    """Functions, classes and constants, in whatever they are; a name that is gone is an error."""
    text = "A = 1\n\ndef f(a):\n    return a\n\nclass B:\n    def f(self):\n        return 2\n\nb = A\n"
    assert benchmark.named(text, ["A", "f"]) == {1, 3, 4, 7, 8}
    assert benchmark.named(text, ["B"]) == {6, 7, 8}
    assert benchmark.named(text, []) == set()
    with pytest.raises(SystemExit, match="there is no g any more"):
        benchmark.named(text, ["f", "g"])


def test_all_mutants_may_be_of_one_area():
    """Of the rules of completion none are drawn otherwise."""
    assert benchmark.shares(7, "completion") == {"completion": 7}
    assert benchmark.shares(60)["completion"] == 0
    files = benchmark.targets_of(benchmark.ROOT)["completion"]
    drawn = benchmark.candidates(benchmark.ROOT, "completion", files, 7)
    assert {mutant.file for mutant in drawn} == {*files}


def a_map():
    tests = [
        {"id": "a.py::slow", "outcome": "passed", "seconds": 2.0, "lines": {"x.py": [1, 5, 6]}},
        {"id": "a.py::fast", "outcome": "passed", "seconds": 1.0, "lines": {"x.py": [6]}},
        {"id": "a.py::other", "outcome": "passed", "seconds": 0.1, "lines": {"y.py": [6]}},
        {"id": "a.py::imports", "outcome": "passed", "seconds": 0.1, "lines": {"x.py": [1]}},
        {"id": "a.py::fails", "outcome": "failed", "seconds": 0.1, "lines": {"x.py": [6]}},
    ]
    return covered.CoverageMap("code", "marker", {"a.py": {"hash": "", "tests": tests}}, {"x.py": [1, 2]})


def test_which_tests_cover_a_mutation():
    known = a_map()
    assert known.covering("x.py", 6, 7) == ["a.py::fast", "a.py::slow"]
    assert known.covering("x.py", 4, 5) == ["a.py::slow"]
    assert known.covering("x.py", 9, 9) == []
    assert known.covering("x.py", 2, 2) == ["a.py::fast", "a.py::slow"]  # runs at import: whoever runs anything else
    assert known.failed == ["a.py::fails"]
    assert known.limits(["a.py::slow"]) == {"a.py::slow": 30.0}
    known.leave_out("a.py::fast")
    assert known.covering("x.py", 6, 7) == ["a.py::slow"]


class Box:
    """A sandbox whose tests fail as told: with the mutant always, once, or also without it."""

    def __init__(self, **fails):
        self.fails, self.ran, self.text = fails, [], ""

    def write(self, name, text):
        self.text = text

    def run(self, tests):
        passed = []
        for test in tests:
            self.ran.append(test)
            how = self.fails.get(test)
            if how == "always" or (how == "mutant" and "-" in self.text) or (how == "once" and self.fails.pop(test)):
                return sandbox.Outcome(tuple(passed), test, "failed", "")
            passed.append(test)
        return sandbox.Outcome(tuple(passed), "", "", "")


@pytest.mark.parametrize(
    ("fails", "by", "flaky"),
    [
        ({}, "", []),
        ({"b": "mutant"}, "b", []),
        ({"a": "always", "c": "mutant"}, "c", ["a"]),
        ({"a": "once"}, "", ["a"]),
        ({"b": "once", "c": "always"}, "", ["b", "c"]),
    ],
)
def test_found_is_what_fails_twice_with_the_mutant_and_not_without(tmp_path, fails, by, flaky):
    (tmp_path / "x.py").write_text("x = a + b\n", encoding="utf-8")
    (mutation,) = sites.mutations("x = a + b\n")
    mutant = benchmark.Mutant("checks", "x.py", "", "", "", mutation)
    tests = [{"id": name, "outcome": "passed", "seconds": 0.1, "lines": {}} for name in "abc"]
    known = covered.CoverageMap("", "", {"t": {"hash": "", "tests": tests}})
    box = Box(**fails)
    result = benchmark.judge(tmp_path, mutant, ["a", "b", "c"], box=box, known=known)
    assert (result["found_by"], result["flaky"]) == (by, flaky)
    assert box.text == "x = a + b\n"
    assert known.failed == [name for name, how in fails.items() if how == "always"]
