"""S1, S3, S4, S5: what a barrier promises, and how a witness says that it did not hold."""

from __future__ import annotations

import pytest

from . import bugs
from .simulate import Trainer


def verdict(trainer, folder, name):
    found = {verdict.guarantee: verdict for verdict in trainer.judge(folder / "run").verdicts}
    return found[name]


def witness(trainer, folder, name):
    found = verdict(trainer, folder, name)
    assert found.status == "violated", found
    return found.witness


@pytest.mark.parametrize("name", ["S1", "S3", "S4", "S5"])
def test_valid_when_healthy_and_not_judged_in_async(tmp_path, name):
    assert verdict(Trainer(shards=(0, 1), workers=3), tmp_path / "sync", name).status == "valid"
    assert verdict(Trainer(update="async"), tmp_path / "async", name).reason == "needs --update sync"


@pytest.mark.parametrize("name", ["S1", "S3", "S4"])
def test_not_judged_where_no_barrier_is_claimed(tmp_path, name):
    class NoBarrier(bugs.RunAhead):
        level = ("barrier", "none")

    assert verdict(NoBarrier(), tmp_path, name).reason == "needs a claim: barrier is none"


def test_s1_names_the_read_and_the_missing_gradient(tmp_path):
    (line,) = witness(bugs.Dropped(workers=3), tmp_path, "S1")
    assert line.startswith("worker:0 read version 4 of ps:0 at step 4, which lacks the gradient of worker:1, step 3")
    assert line.endswith("(as do 14 other reads)")


def test_s1_names_a_gradient_that_is_there_too_early_or_too_often(tmp_path):
    lines = witness(bugs.RunAhead(), tmp_path / "ahead", "S1")
    assert any("already has the gradient of worker:1, step" in line for line in lines)
    assert "which has 2 times the gradient of worker:1, step 3" in witness(bugs.Twice(), tmp_path / "twice", "S1")[0]


def test_s1_is_unknown_where_a_step_was_not_read(tmp_path):
    found = verdict(bugs.ReadsEveryOther(), tmp_path, "S1")
    assert found.status == "unknown"
    assert found.reason.startswith("worker:0 pushed step 1 without a read of it")


def test_s1_does_not_ask_for_rounds_that_nobody_could_complete(tmp_path):
    # everybody stops at step 5 of 8, in good order: the final reads show 5 rounds, as they must
    class StopsEarly(Trainer):
        def reads(self, worker, step):
            return 1 if step < 5 else 0

        def attempts(self, worker, step):
            return 1 if step < 5 else 0

        def waits_for(self, worker, step):
            return min(step, 5)

    judged = StopsEarly().judge(tmp_path / "run")
    assert [v.guarantee for v in judged.verdicts if v.status == "violated"] == ["L0"]
    assert judged.exit_code == 1


def test_s3_names_who_has_it_and_who_has_not(tmp_path):
    lines = witness(bugs.LostOnOneShard(shards=(0, 1)), tmp_path, "S3")
    assert lines == (
        "round 3: the gradient of worker:1, step 3, is in ps:0 and not in ps:1 (final reads of worker:0, worker:1)",
    )


def test_s3_leaves_weights_to_s5(tmp_path):
    class LightOnOneShard(Trainer):
        def weight(self, worker, step, variable, attempt):
            return 0.25 if (worker, step, variable) == (1, 3, 1) else 1.0

    judged = LightOnOneShard(shards=(0, 1)).judge(tmp_path / "run")
    assert [v.guarantee for v in judged.verdicts if v.status == "violated"] == ["S5"]


def test_s3_and_s4_are_unknown_without_a_final_read(tmp_path):
    for name in ("S3", "S4"):
        found = verdict(bugs.NoFinal(), tmp_path / name, name)
        assert (found.status, "no final read" in found.reason) == ("unknown", True)


def test_s4_names_versions_that_are_mixed_or_jump(tmp_path):
    mixed = witness(bugs.TornAcrossShards(shards=(0, 1)), tmp_path / "torn", "S4")
    assert mixed[0] == "worker:1 at step 3, version 2 and 3, read the shards at versions [3, 2]"
    jumps = witness(bugs.EarlyCommit(workers=3), tmp_path / "early", "S4")
    line = "worker:0 at step 2, version 3, came after its read of version 1, at step 1: version 2 was due"
    assert jumps[0] == f"{line} (as do 3 other reads)"


def test_s4_sees_it_without_version_counters(tmp_path):
    lines = witness(bugs.Stale(versions=False), tmp_path / "stale", "S4")
    assert lines[0] == "worker:1 at step 3 shows 2 rounds, and its read before 2: 3 were due (as does 1 other read)"
    # a gradient lost is not a round late, even where it is the only one of its round
    judged = OneDropped(workers=1, versions=False).judge(tmp_path / "lost")
    assert [v.guarantee for v in judged.verdicts if v.status == "violated"] == ["S1", "R1"]


class OneDropped(Trainer):
    def weight(self, worker, step, variable, attempt):
        return 0.0 if step == 3 else 1.0


def test_s4_says_nothing_of_a_worker_that_gave_up_waiting(tmp_path):
    # worker:1 ends at step 3; worker:0 waits for nobody any more and reads once more "in the end"
    class GivesUp(bugs.Quits):
        def waits_for(self, worker, step):
            return min(step, 3)

        def reads(self, worker, step):
            return 1 if step <= 3 else 0

        def attempts(self, worker, step):
            return 1 if step <= 3 else 0

    judged = GivesUp().judge(tmp_path / "run")
    assert [v.guarantee for v in judged.verdicts if v.status == "violated"] == ["L0"]
    assert judged.exit_code == 1


def test_s5_names_the_scale_and_what_it_looks_like(tmp_path):
    assert witness(bugs.SumNotMean(workers=4), tmp_path / "sum", "S5") == (
        "every gradient was applied 4 times the declared mean over 4 workers: a sum, not a mean",
    )
    assert "a mean over 4" in witness(bugs.WrongN(workers=3), tmp_path / "wrong", "S5")[0]


def test_s5_names_a_single_weight(tmp_path):
    assert "with the gradient of worker:1, step 3, at 0.5 times its weight" in witness(bugs.Half(), tmp_path, "S5")[0]


def test_s5_is_unknown_where_nothing_was_applied(tmp_path):
    class Nothing(Trainer):
        def weight(self, worker, step, variable, attempt):
            return 0.0

    assert verdict(Nothing(), tmp_path, "S5").reason == "no read shows any gradient"
    assert verdict(bugs.AllTwiceNoReduction(), tmp_path / "none", "S5").status == "not judged"


class CountsGradients(Trainer):
    """Its versions count gradients, not rounds: allowed, and of no use to S4."""

    def view(self, worker, step, values, versions):
        return values, [version * self.workers for version in versions]


def test_s4_leaves_out_counters_that_do_not_count_rounds(tmp_path):
    found = verdict(CountsGradients(workers=3), tmp_path, "S4")
    assert (found.status, found.reason) == ("valid", "version counters left out: they do not count rounds")


def test_s4_still_sees_the_content_without_counters(tmp_path):
    class Torn(bugs.TornAcrossShards):
        def view(self, worker, step, values, versions):
            values, versions = super().view(worker, step, values, versions)
            return values, [version * self.workers for version in versions]

    assert verdict(Torn(workers=3, shards=(0, 1)), tmp_path, "S4").status == "violated"
