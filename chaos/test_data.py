"""A gradient is full of NaN or Inf; a worker has no data any more."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from psconform.faults.plan_file import parse_plan
from psconform.plugin import chosen
from psconform.targets.lookup import find_target

from .covering import UPDATE
from .survive import LAYOUT, STEPS, Judge, anywhere, crossed, must_survive

TARGET = find_target(chosen.target)
WORKER = ("worker:0", "worker:1")[: LAYOUT.workers]
"""worker:0 is the chief."""


def promises(update: str) -> pytest.MarkDecorator:
    """A target that promises nothing in a mode is not asked to keep anything there, nor one without a ps."""
    lacks = update not in TARGET.claims or "ps" not in TARGET.exchanges
    return pytest.mark.skipif(lacks, reason=f"the target has no [claims.{update}], or no ps")


def in_modes(*factors: Sequence[str]) -> list[Any]:
    """All combinations, in each update mode."""
    return [pytest.param(*case, marks=promises(case[0])) for case in crossed(UPDATE, *factors)]


def broken(judge: Judge, folder: Path, fault: str, *, update: str) -> None:
    """Run one cluster with this fault."""
    faults = parse_plan(f"fault = [{{{fault}}}]", place="case", layout=LAYOUT, steps=STEPS)
    must_survive(judge, faults, folder=folder, layout=LAYOUT.text, update=update)


@anywhere
@pytest.mark.parametrize(("update", "task", "value"), in_modes(WORKER, ("nan", "inf")))
def test_a_gradient_is_not_finite(judge: Judge, tmp_path: Path, update: str, task: str, value: str) -> None:
    """C3: it is kept out of the parameters, and somebody says so within a step."""
    fault = f'kind = "poison", task = "{task}", at = {STEPS // 3}, value = "{value}"'
    broken(judge, tmp_path, fault, update=update)


@anywhere
@pytest.mark.skipif(not TARGET.batches, reason="its workers do not look how much data they have (batches = true)")
@pytest.mark.parametrize(("update", "task"), in_modes(WORKER))
def test_a_worker_has_no_data_any_more(judge: Judge, tmp_path: Path, update: str, task: str) -> None:
    """M2, L1: the others go on without it, and nothing of what it has done is lost."""
    broken(judge, tmp_path, f'kind = "out-of-data", task = "{task}", at = {STEPS // 2}', update=update)
