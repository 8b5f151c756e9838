"""Each seeded defect, in a real TensorFlow cluster, is found by the check meant for it and by no other."""

from __future__ import annotations

import pytest
from psconform.reference_impl.defects import WORKERS

from psconform.errors import BadInput
from psconform.layout import UPDATES
from psconform.targets.defects import DEFECTS

CASES = [(name, update) for name, defect in DEFECTS.items() for update in defect.updates]


@pytest.mark.psconform
@pytest.mark.parametrize(("name", "update"), CASES)
def test_defect_is_found_by_its_check_and_no_other(judge, name, update):
    defect = DEFECTS[name]
    run = judge("reference", update=update, defect=name, seed=len(name), patience_s=20)
    assert defect.meant in run.violated, run.explain()
    assert set(run.violated) <= {defect.meant, *defect.also}, run.explain()
    assert run.exit_code == 1
    witness = run.verdicts[defect.meant].witness
    assert 1 <= len(witness) <= 10
    assert any("worker:" in line or "every gradient" in line or "nonces" in line for line in witness), witness


@pytest.mark.psconform
@pytest.mark.parametrize("update", UPDATES)
def test_healthy_trainer_is_valid(judge, update):
    run = judge("reference", update=update, seed=5)
    assert run.exit_code == 0, run.explain()


@pytest.mark.psconform
def test_one_worker_more_than_840_divides(judge):
    # 9 workers: 840 / 9 is not exact in float32, the stated tolerance must carry it
    run = judge("reference", layout="ps=1,worker=9", steps=12)
    assert run.valid, run.explain()


def test_registry_and_trainer_know_the_same_defects():
    assert set(DEFECTS) == set(WORKERS) - {""}


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("sum-not-mean", {"update": "async"}, "--update: defect sum-not-mean needs"),
        ("torn-read", {"layout": "ps=1,worker=2"}, "at least 2 ps"),
        ("early-commit", {"layout": "ps=1,worker=1"}, "at least 2 worker"),
        ("nonsense", {}, "valid: drop-gradient"),
    ],
)
def test_layout_that_cannot_show_a_defect_is_refused(judge, name, options, says):
    with pytest.raises(BadInput, match=says):
        judge("reference", defect=name, **options)
