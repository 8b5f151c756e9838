"""A learning rate that changes while a ledger is trained: named as that, and no gradient is called applied again."""

from __future__ import annotations

import math

import pytest

from .simulate import Trainer

STEPS = 40


def trained(folder, update, weigh):
    class Weighs(Trainer):
        def weight(self, worker, step, variable, attempt):
            return weigh(worker, step)

    return Weighs(update=update, workers=3, shards=(0, 1), steps=STEPS).judge(folder / "run")


def names(judged, status):
    return [verdict.guarantee for verdict in judged.verdicts if verdict.status == status]


@pytest.mark.parametrize("update", ["sync", "async"])
@pytest.mark.parametrize(
    ("weigh", "says", "unclear"),
    [
        (lambda step: 1.0 if step < 30 else 0.5, "1 times their weight from step 0 on and 0.5 times", False),
        (lambda step: 1.0 if step < 4 else 0.1, "1 times their weight from step 0 on and 0.1 times", False),
        (lambda step: 1.0 if step < 4 else 2.0, "and 2 times their weight from step 4 on", True),
        (lambda step: min(step + 1.0, 10.0), "3 times their weight from step 2 on", True),
        (lambda step: 0.5 + 0.5 * math.cos(math.pi * step / STEPS), "0.9985 times their weight from step 1 on", False),
    ],
    ids=["decay", "early", "doubled", "warm-up", "cosine"],
)
def test_a_schedule_is_named(tmp_path, update, weigh, says, unclear):
    judged = trained(tmp_path, update, lambda _, step: weigh(step))
    assert names(judged, "violated") == ["S5" if update == "sync" else "A1"]
    assert names(judged, "unknown") == (["R1", "R2"] if unclear else [])
    (line,) = next(verdict.witness for verdict in judged.verdicts if verdict.status == "violated")
    assert line.startswith("the learning rate changes, which it must not on a ledger: gradients have ")
    assert says in line


@pytest.mark.parametrize("update", ["sync", "async"])
@pytest.mark.parametrize(
    "again",
    [
        lambda _, step: step == 7,
        lambda _, step: step >= STEPS - 2,
        lambda _, step: 7 <= step < 15,
        lambda worker, step: worker == 1 and step >= 20,
        lambda worker, step: step >= 20 + worker * (worker == 2) and worker,
    ],
    ids=["one round", "the last two", "for a while", "one worker", "two workers"],
)
def test_what_is_applied_again_is_no_schedule(tmp_path, update, again):
    judged = trained(tmp_path, update, lambda worker, step: 2.0 if again(worker, step) else 1.0)
    assert {"R1", "R2"} <= {*names(judged, "violated")}
    assert "S5" not in names(judged, "violated")


@pytest.mark.parametrize("update", ["sync", "async"])
def test_what_is_lost_beside_a_schedule_is_lost(tmp_path, update):
    judged = trained(
        tmp_path, update, lambda worker, step: 0.0 if (worker, step) == (1, 9) else 1.0 - 0.9 * (step < 30)
    )
    assert "R1" in names(judged, "violated")
    assert "R2" not in names(judged, "violated")
