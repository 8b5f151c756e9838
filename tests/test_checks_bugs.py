"""Each bug breaks exactly the guarantees whose own definition it breaks: nothing is missed, nothing is blamed on it."""

from __future__ import annotations

import pytest

from . import bugs, change_bugs
from .simulate import Trainer

ONE, TWO, SHARED = (0,), (0, 1), (0, 0)  # one variable; one on each of two ps; two on one ps

VIOLATED = [
    # What is lost is missing from a round (S1), from what was accepted (A1, A5), and from what was delivered (R1).
    (bugs.Dropped, "sync", TWO, "S1 R1"),
    (bugs.Dropped, "async", TWO, "A1 A5 R1"),
    (bugs.LostOnOneShard, "sync", TWO, "S1 S3 R1"),
    (bugs.LostOnOneShard, "async", TWO, "A1 A5 R1"),
    (bugs.LostTail, "sync", ONE, "R1"),
    (bugs.LostTail, "async", ONE, "A1 R1"),
    (bugs.Twice, "sync", TWO, "S1 R1 R2"),
    (bugs.Twice, "async", TWO, "A1 R1 R2"),
    (bugs.TwiceMost, "async", TWO, "A5 R1"),
    (bugs.Upwards, "sync", ONE, "S1 R1"),
    # A weight is not a count.
    (bugs.Half, "sync", TWO, "S5"),
    (bugs.Half, "async", TWO, "A1"),
    (bugs.SumNotMean, "sync", TWO, "S5"),
    (bugs.WrongN, "sync", TWO, "S5"),
    (bugs.AllThirds, "sync", TWO, "S5"),
    (bugs.AllThirds, "async", TWO, "A1"),
    (bugs.AllTiny, "sync", ONE, "S5"),
    (bugs.AllTiny, "async", ONE, "A1"),
    (bugs.AllTwice, "async", TWO, "A1"),
    # Released too early: versions jump, and a worker misses its own last gradient.
    (bugs.EarlyCommit, "sync", ONE, "S1 S4 S6 A7"),
    (bugs.RunAhead, "sync", ONE, "S1 S4 S6 A7"),
    # Reads.
    (bugs.Stale, "sync", TWO, "S1 S4 A7"),
    (bugs.Stale, "async", TWO, "A7"),
    (bugs.TornAcrossShards, "sync", TWO, "S1 S4 A6 A7"),
    (bugs.TornAcrossShards, "async", SHARED, "A6 A7"),
    (bugs.TornWithinVariable, "sync", TWO, "A6"),
    (bugs.TornWithinVariable, "async", TWO, "A6"),
    (bugs.TornFinal, "sync", TWO, "A6"),
    (bugs.TornFinal, "async", TWO, "A1 A6"),
    (bugs.ForgetsOthers, "sync", TWO, "S1 S4 A6"),
    (bugs.ForgetsOthers, "async", SHARED, "A6"),
    (bugs.Snapshot, "async", TWO, "A6"),
    (bugs.VersionsDown, "sync", ONE, "S4 A7"),
    (bugs.VersionsDown, "async", ONE, "A7"),
    (bugs.StaleFinal, "sync", ONE, "S1"),
    (bugs.OutOfOrder, "async", ONE, "A7"),
    # Initialisation.
    (bugs.Reinitialised, "sync", ONE, "S1 A7 I1 R1"),
    (bugs.Reinitialised, "async", ONE, "A1 A5 A7 I1 R1"),
    (bugs.ReinitialisedOne, "sync", TWO, "S1 S3 A7 I1 R1"),
    (bugs.InitialisedNotByChief, "async", TWO, "I1"),
    (bugs.InitialisedByNobody, "sync", TWO, "I1"),
    (bugs.ReadsTooEarly, "sync", TWO, "I2"),
    (bugs.ReadsTooEarly, "async", ONE, "I2"),
    (bugs.NeverInitialised, "async", TWO, "I2"),
    # Delivery.
    (bugs.Phantom, "async", ONE, "R1 L0"),
    (bugs.Quits, "async", ONE, "L0"),
    (bugs.Quits, "sync", ONE, "L0"),
    (bugs.FailedButApplied, "sync", TWO, "R1"),
    (bugs.FailedButApplied, "async", TWO, "R1"),
    (bugs.NeverToldTwice, "async", ONE, "R1 R2"),
    (bugs.NeverToldNotApplied, "sync", ONE, "S1"),
    (bugs.SentTwiceExactly, "async", ONE, "A1 R1 R2"),
    (bugs.SentTwiceAppliedThrice, "async", ONE, "A1 R2"),
    # Versions.
    (bugs.VersionGivenTwice, "async", TWO, "A1"),
    (bugs.VersionSkipped, "async", TWO, "A1"),
    (bugs.VersionTooLow, "async", ONE, "A1 A2"),
    (bugs.VersionTooHigh, "async", ONE, "A7"),
    # Values.
    (bugs.Poisoned, "sync", TWO, "C3"),
    (bugs.Poisoned, "async", ONE, "C3"),
    # Entries of a dense gradient.
    (change_bugs.Topmost, "sync", ONE, "C4"),
    (change_bugs.Lossy, "sync", TWO, "S1 C4"),
    (change_bugs.Lossy, "async", TWO, "A5 C4"),
]

VALID = [
    # What a class, a level or a missing record allows.
    (bugs.DroppedMost, "async", TWO),
    (bugs.NeverTold, "sync", TWO),
    (bugs.NeverTold, "async", TWO),
    (bugs.NeverToldNotApplied, "async", TWO),
    (bugs.FailedNotApplied, "async", TWO),
    (bugs.SentTwice, "async", TWO),
    (bugs.SentTwiceAppliedOnce, "async", TWO),
    (bugs.ForgetsOthersPerVariable, "async", SHARED),
    (bugs.ReadsEveryOther, "async", ONE),
    (bugs.NoInitialRecorded, "sync", TWO),
    (bugs.HalfRecorded, "sync", TWO),
    (bugs.InitialisedByWorker, "async", TWO),
    (bugs.NoNonces, "async", TWO),
]

UNKNOWN = [
    # Not a pass, and nobody's fault as far as the record goes.
    (bugs.AllTwiceMost, "async", TWO, "R1"),
    (bugs.AllTwiceNoReduction, "sync", TWO, "R1 R2"),
    (bugs.ReadsEveryOther, "sync", TWO, "S1"),
    (bugs.NonceInOne, "async", TWO, "I1 I2"),
    (bugs.StaleFinal, "async", ONE, "A1 A2 A5 A6 A7 I1 I2 R1 R2"),
    (bugs.ReadsOnlyInTheEnd, "async", ONE, "A1 A5 A6 A7 I1 I2 R1 R2 C3"),
    (bugs.Killed, "async", TWO, "A1 A2 A5 A6 A7 I1 I2 R1 R2 L0 C3"),
    (bugs.PhantomOfKilled, "async", ONE, "A1 A2 A5 A6 A7 I1 I2 R1 R2 L0 C3"),
    (bugs.NoFinal, "async", ONE, "A1 A2 A5 A6 A7 I1 I2 R1 R2 L0 C3"),
    (bugs.NoFinal, "sync", TWO, "S1 S3 S4 S5 S6 A6 A7 I1 I2 R1 R2 L0 C3"),
]


def of(judged, status):
    return {verdict.guarantee for verdict in judged.verdicts if verdict.status == status}


def workers(bug):
    return 3 if bug is bugs.EarlyCommit else 2


@pytest.mark.parametrize(("bug", "update", "shards", "names"), VIOLATED)
def test_bug_violates_exactly(tmp_path, bug, update, shards, names):
    judged = bug(update=update, shards=shards, workers=workers(bug)).judge(tmp_path / "run")
    assert of(judged, "violated") == set(names.split())
    assert judged.exit_code == 1
    for verdict in judged.verdicts:
        assert bool(verdict.witness) == (verdict.status == "violated")
        assert len(verdict.witness) <= 10


@pytest.mark.parametrize(("bug", "update", "shards"), VALID)
def test_what_is_allowed_is_valid(tmp_path, bug, update, shards):
    judged = bug(update=update, shards=shards).judge(tmp_path / "run")
    assert of(judged, "violated") | of(judged, "unknown") == set()
    assert judged.exit_code == 0


@pytest.mark.parametrize(("bug", "update", "shards", "names"), UNKNOWN)
def test_what_cannot_be_decided_is_unknown(tmp_path, bug, update, shards, names):
    judged = bug(update=update, shards=shards).judge(tmp_path / "run")
    assert of(judged, "violated") == set()
    assert of(judged, "unknown") == set(names.split())
    assert judged.exit_code == 2
    assert all(verdict.reason for verdict in judged.verdicts if verdict.status == "unknown")


@pytest.mark.parametrize("update", ["sync", "async"])
@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("shards", [ONE, TWO, SHARED, (0, 1, 1), (0, 1, 2)])
def test_healthy_trainer_is_valid_in_every_interleaving(tmp_path, update, workers, shards):
    for seed in range(4):
        trainer = Trainer(update=update, workers=workers, shards=shards, steps=1 + 3 * seed, seed=seed)
        judged = trainer.judge(tmp_path / str(seed))
        assert judged.exit_code == 0, judged.verdicts
        assert of(judged, "violated") | of(judged, "unknown") == set()


@pytest.mark.parametrize("update", ["sync", "async"])
def test_sum_and_missing_versions_are_valid_too(tmp_path, update):
    reduction = "sum" if update == "sync" else "mean"
    assert Trainer(update=update, workers=3, reduction=reduction).judge(tmp_path / "sum").exit_code == 0
    judged = Trainer(update=update, workers=3, shards=TWO, versions=False).judge(tmp_path / "bare")
    assert judged.exit_code == 0
    assert "A2" in of(judged, "not judged")


def test_mean_over_nine_stays_within_the_tolerance(tmp_path):
    # 840 / 9 has no exact float32
    assert Trainer(workers=9, steps=3).judge(tmp_path / "run").exit_code == 0
