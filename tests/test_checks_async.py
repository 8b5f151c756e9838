"""A1, A2, A5, A6, A7: updates applied on arrival, and what a worker may see of them."""

from __future__ import annotations

import pytest

from . import bugs
from .simulate import Trainer
from .test_checks_sync import verdict, witness


def in_async(bug, **options):
    return bug(update="async", **options)


@pytest.mark.parametrize("name", ["A1", "A2", "A5"])
def test_valid_when_healthy_and_not_judged_in_sync(tmp_path, name):
    assert verdict(in_async(Trainer, shards=(0, 1)), tmp_path / "async", name).status == "valid"
    assert verdict(Trainer(), tmp_path / "sync", name).reason == "needs --update async"


@pytest.mark.parametrize("name", ["A1", "A5", "A6", "A7"])
def test_unknown_without_a_final_read(tmp_path, name):
    found = verdict(in_async(bugs.NoFinal), tmp_path, name)
    assert (found.status, "no final read" in found.reason) == ("unknown", True)


def test_a1_names_gradient_variable_and_count(tmp_path):
    lines = witness(in_async(bugs.Twice, shards=(0, 1)), tmp_path, "A1")
    assert lines[0] == "the gradient of worker:1, step 3, was accepted and is 2 times in ps:0 and ps:1"


def test_a1_names_the_scale_and_the_lost(tmp_path):
    assert witness(in_async(bugs.AllThirds), tmp_path / "thirds", "A1") == (
        "every gradient was applied at 0.3333 times its weight",
    )
    assert witness(in_async(bugs.Dropped), tmp_path / "lost", "A1") == (
        "the gradient of worker:1, step 3, was accepted and is 0 times in ps:0",
    )


def test_a1_names_versions_given_twice_or_to_nobody(tmp_path):
    twice = witness(in_async(bugs.VersionGivenTwice), tmp_path / "twice", "A1")
    assert "ps:0 gave version" in twice[0]
    assert "to worker:1, step 3" in twice[0]
    assert witness(in_async(bugs.VersionSkipped), tmp_path / "skipped", "A1")[0].endswith("with no apply between")


def test_a1_lets_at_least_once_apply_what_was_sent_twice(tmp_path):
    assert verdict(in_async(bugs.SentTwice), tmp_path / "twice", "A1").status == "valid"
    thrice = witness(in_async(bugs.SentTwiceAppliedThrice), tmp_path / "thrice", "A1")
    assert thrice == ("the gradient of worker:1, step 3, was accepted and is 3 times in ps:0",)


def test_a1_is_not_judged_for_weaker_delivery(tmp_path):
    assert verdict(in_async(bugs.DroppedMost), tmp_path, "A1").reason == "needs a claim: delivery is at-most-once"


def test_a2_reports_the_staleness_that_was_there(tmp_path):
    alone = verdict(in_async(Trainer, workers=1), tmp_path / "alone", "A2")
    assert alone.stats == {"mean": 0.0, "p50": 0, "p95": 0, "max": 0}
    three = verdict(in_async(Trainer, workers=3, steps=40), tmp_path / "three", "A2")
    assert 1.0 < three.stats["mean"] < 3.0  # about N-1


def test_a2_names_a_gradient_applied_before_it_was_computed(tmp_path):
    lines = witness(in_async(bugs.VersionTooLow), tmp_path, "A2")
    assert lines == ("worker:1 pushed step 0, computed at version 0 of ps:0, and it was applied as version 0",)


def test_a2_is_not_judged_without_versions(tmp_path):
    found = verdict(in_async(Trainer, versions=False), tmp_path, "A2")
    assert found.status == "not judged"
    assert found.reason == "needs versions in reads and acknowledgements, or --workload decayed-ledger"


def test_a5_counts_what_was_lost_per_variable(tmp_path):
    lines = witness(in_async(bugs.LostOnOneShard, shards=(0, 1)), tmp_path / "lost", "A5")
    assert lines == ("ps:1 lost 1 of 16 acknowledged gradients: worker:1 step 3",)
    lines = witness(in_async(bugs.TwiceMost), tmp_path / "most", "A5")
    assert lines == ("17 gradients were applied, 16 pushed",)


def test_a6_names_the_torn_variable(tmp_path):
    lines = witness(in_async(bugs.TornWithinVariable), tmp_path, "A6")
    assert lines[0].startswith("worker:1 at step 3, version")
    assert "read the gradient of worker:0, step 1, in the first half but not the second of ps:0" in lines[0]


def test_a6_judges_the_claimed_level(tmp_path):
    torn = witness(in_async(bugs.ForgetsOthers, shards=(0, 0)), tmp_path / "shard", "A6")
    assert "in ps:0 (variable 0) but not yet in ps:0 (variable 1)" in torn[0]
    allowed = in_async(bugs.ForgetsOthersPerVariable, shards=(0, 0))
    assert verdict(allowed, tmp_path / "variable", "A6").status == "valid"
    across = witness(in_async(bugs.Snapshot, shards=(0, 1)), tmp_path / "snapshot", "A6")
    assert "but not yet in ps:" in across[0]


def test_a6_is_not_judged_where_nobody_says_what_is_where(tmp_path):
    # three variables on two ps, and no shards in any read
    trainer = in_async(Trainer, shards=(0, 1, 1))
    trainer.names_shards = False
    found = verdict(trainer, tmp_path, "A6")
    assert (found.status, found.reason) == ("not judged", "needs the ps of each variable: probe.read(..., shards=...)")


def test_a7_names_what_a_read_no_longer_shows(tmp_path):
    lines = witness(in_async(bugs.Reinitialised), tmp_path, "A7")
    assert "read ps:0 without the gradient of worker:0, step 0, which its read before, at step 1, had" in lines[0]


def test_a7_names_own_writes_order_and_versions(tmp_path):
    own = witness(in_async(bugs.Stale), tmp_path / "own", "A7")
    assert "read ps:0 without its own gradient of step 2, acknowledged before" in own[0]
    order = witness(in_async(bugs.OutOfOrder), tmp_path / "order", "A7")
    assert all(line.endswith("read ps:0 with step 4 of worker:1 but not yet its step 3") for line in order)
    down = witness(in_async(bugs.VersionsDown), tmp_path / "down", "A7")
    assert down == ("worker:1 at step 3, version 2, read version 2 of ps:0 after 3",)


def test_a7_lets_a_worker_send_again_later_what_failed(tmp_path):
    # step 3 fails, step 4 goes through, step 3 is sent again: the worker's own order is 4, 3
    class Later(bugs.OutOfOrder):
        def outcome(self, worker, step, attempt):
            return "failed" if (worker, step) == (bugs.WHO, bugs.WHEN) else "ok"

        def push(self, worker, step, gradient, attempt):
            if (worker, step) == (bugs.WHO, bugs.WHEN + 2):
                self.probes[worker].push(bugs.WHEN, 1)
                self.probes[worker].push(step, 1)  # back to this step, so that the next read is numbered right
            return (yield from super().push(worker, step, gradient, attempt))

    found = verdict(in_async(Later), tmp_path, "A7")
    assert found.status == "valid", found


class HalfApplied(Trainer):
    """One gradient reaches the first half of its variable only, for good."""

    def sent(self, worker, step, gradient):
        if (worker, step) == (bugs.WHO, bugs.WHEN):
            gradient = gradient.copy()
            gradient[gradient.size // 2 + 1 :] = 0
        return gradient

    def outcome(self, worker, step, attempt):
        return None if (worker, step) == (bugs.WHO, bugs.WHEN) else "ok"


class HalfAppliedAtMostOnce(HalfApplied):
    level = ("delivery", "at-most-once")


class HalfAppliedAnyRead(HalfApplied):
    level = ("read_atomicity", "none")


class SecondHalf(bugs.SentTwice):
    """Of a gradient that is sent twice, only the first half arrives the second time."""

    def push(self, worker, step, gradient, attempt):
        if attempt:
            gradient = gradient.copy()
            gradient[gradient.size // 2 + 1 :] = 0
        return super().push(worker, step, gradient, attempt)


def test_r1_takes_no_half_of_a_second_application_for_a_whole_one(tmp_path):
    line = "the gradient of worker:1, step 3, (ok) was applied to one end of ps:0 more than to the other"
    assert witness(in_async(SecondHalf, versions=False), tmp_path / "run", "R1") == (line,)


def test_r1_takes_no_half_of_a_gradient_for_a_whole_one(tmp_path):
    line = "the gradient of worker:1, step 3, (unknown) was applied to one end of ps:0 more than to the other"
    assert witness(in_async(HalfApplied), tmp_path / "once", "R1") == (line,)
    assert witness(in_async(HalfAppliedAtMostOnce), tmp_path / "most", "R1") == (line,)
    assert witness(HalfApplied(), tmp_path / "sync", "R1") == (line,)
    assert verdict(in_async(HalfAppliedAnyRead), tmp_path / "any", "R1").status == "valid"  # each read may be torn
