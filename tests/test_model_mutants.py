"""benchmarks/model_mutants.py: every edit is there to be made, and what the table says is found."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

import model_mutants


@pytest.mark.parametrize("name", ["dedupe-one-too-many", "no-bound", "one-too-few", "oldest-checkpoint"])
def test_a_mutant_of_the_model_is_found(name):
    mutant = next(mutant for mutant in model_mutants.MUTANTS if mutant.name == name)
    assert model_mutants.search(mutant, 60).right


def test_one_that_breaks_nothing_is_not_accused():
    mutant = next(mutant for mutant in model_mutants.MUTANTS if not mutant.breaks)
    found = model_mutants.search(mutant, 40)
    assert found.right
    assert not found.runs


@pytest.mark.nightly
@pytest.mark.parametrize("mutant", model_mutants.MUTANTS, ids=lambda mutant: mutant.name)
def test_each_mutant_is_found(mutant):
    assert model_mutants.search(mutant, 1000).right


@pytest.mark.parametrize("mutant", model_mutants.MUTANTS, ids=lambda mutant: mutant.name)
def test_the_edit_of_a_mutant_is_there(mutant):
    model_mutants.mutated(mutant)
