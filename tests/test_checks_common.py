"""I1, I2, R1, R2, C3: initialisation, delivery and values, in both update modes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from psconform.checks.initialisation import one_initialisation
from psconform.history.build import load_history
from psconform.history.columns import Odd
from psconform.history.weights import rescaled

from . import bugs
from .simulate import Trainer
from .test_checks_sync import verdict, witness


@pytest.mark.parametrize("update", ["sync", "async"])
@pytest.mark.parametrize("name", ["I1", "I2", "R1", "R2", "A6", "A7", "C3"])
def test_valid_when_healthy(tmp_path, update, name):
    assert verdict(Trainer(update=update, shards=(0, 1), workers=3), tmp_path, name).status == "valid"


@pytest.mark.parametrize(
    ("names", "level", "reason"),
    [
        ("I1 I2", ("init", "repeated"), "needs a claim: init is repeated"),
        ("R1 R2 A1 A5", ("delivery", "none"), "needs a claim: delivery is none"),
        ("R2 A1", ("delivery", "at-most-once"), "needs a claim: delivery is at-most-once"),
        ("A6 A7", ("read_atomicity", "none"), "needs a claim: read_atomicity is none"),
    ],
)
def test_not_judged_where_nothing_is_claimed(tmp_path, names, level, reason):
    class Claims(bugs.Reinitialised):
        pass

    Claims.level = level
    judged = Claims(update="async").judge(tmp_path / "run")
    for found in judged.verdicts:
        assert (found.reason == reason) == (found.guarantee in names.split()), found


def test_i1_names_nonces_and_who_read_them_first(tmp_path):
    lines = witness(bugs.Reinitialised(), tmp_path, "I1")
    assert lines[0].startswith("ps:0 was read with 2 nonces: ")
    assert lines[0].count("first by worker:") == 2
    assert "1 variable was initialised 2 times: by worker:0 (1), worker:1 (1)" in lines


def test_i1_names_the_worker_that_is_not_the_chief_where_the_chief_is_to(tmp_path):
    lines = witness(bugs.InitialisedNotByChief(), tmp_path, "I1")
    assert lines == ("worker:1 initialised, though it is not the chief",)


def test_i1_names_who_came_back_and_what_ran_beside(tmp_path):
    bugs.Reinitialised().judge(tmp_path / "run")
    history = load_history(tmp_path / "run")
    first, again = history.inits
    rejoined = replace(history, inits=(first, replace(again, life=1)))
    assert one_initialisation(rejoined).witness[1].endswith("by worker:0 (1), worker:1 in incarnation 1 (1)")
    beside = one_initialisation(replace(history, inits=(first, replace(again, second=True)))).witness
    assert beside[1].endswith("written by a second process of worker:1")
    assert "initialised 2 times" not in str(beside)


def test_i1_names_a_nonce_that_nobody_wrote_if_all_initialisers_keep_a_record(tmp_path):
    assert witness(bugs.InitialisedByNobody(), tmp_path / "nobody", "I1")[0].endswith("written by nobody")
    assert verdict(bugs.HalfRecorded(shards=(0, 1)), tmp_path / "half", "I1").status == "valid"


def test_i1_and_i2_without_nonces(tmp_path):
    for name in ("I1", "I2"):
        nowhere = verdict(bugs.NoNonces(), tmp_path / f"none{name}", name)
        assert (nowhere.status, nowhere.reason) == (
            "not judged",
            "needs the initialiser to write probe.initial()",
        )
        somewhere = verdict(bugs.NonceInOne(shards=(0, 1)), tmp_path / f"one{name}", name)
        assert somewhere.status == "unknown"
        assert somewhere.reason.startswith("no read of ps:1 shows a nonce")


def test_i2_names_the_read_that_came_too_early(tmp_path):
    assert witness(bugs.ReadsTooEarly(), tmp_path, "I2") == (
        "worker:1 at step 0, version 0, read ps:0 before it was initialised (nonce 0)",
    )


def test_i2_sees_a_variable_reset_to_zero(tmp_path):
    class Reset(Trainer):
        def before(self, worker, step):
            if (worker, step) == (1, 3):
                self.theta[1][:] = 0

    lines = witness(Reset(shards=(0, 1)), tmp_path, "I2")
    assert lines[0].endswith("read ps:1 before it was initialised (nonce 0)")


@pytest.mark.parametrize(
    ("bug", "line"),
    [
        (bugs.Dropped, "(ok) was lost: ps:0 never shows it in the end"),
        (bugs.Twice, "(ok) was applied 2 times to ps:0"),
        (bugs.FailedButApplied, "(failed) was applied 1 time to ps:0"),
        (bugs.Phantom, "(never pushed) was applied 1 time to ps:0"),
        (bugs.NeverToldTwice, "(unknown) was applied 2 times to ps:0"),
    ],
)
def test_r1_names_gradient_outcome_and_count(tmp_path, bug, line):
    assert witness(bug(update="async"), tmp_path, "R1") == (f"the gradient of worker:1, step 3, {line}",)


def test_r1_finds_a_failed_push_below_later_ones_that_went_well(tmp_path):
    # no read falls between this apply and the next of the same worker: it is never the topmost one
    class NobodyLooks(bugs.FailedButApplied):
        def reads(self, worker, step):
            return 0 if step in (4, 5) else 1

    lines = witness(NobodyLooks(update="async", workers=2), tmp_path, "R1")
    assert lines == ("the gradient of worker:1, step 3, (failed) was applied 1 time to ps:0",)


def test_r1_without_a_final_read_still_says_what_it_saw(tmp_path):
    class TwiceNoFinal(bugs.Twice):
        final = False

    class DroppedNoFinal(bugs.Dropped):
        final = False

    assert "was applied 2 times" in witness(TwiceNoFinal(update="async"), tmp_path / "twice", "R1")[0]
    found = verdict(DroppedNoFinal(update="async"), tmp_path / "dropped", "R1")
    assert (found.status, "no final read" in found.reason) == ("unknown", True)


@pytest.mark.parametrize("bug", [bugs.AllTwiceMost, bugs.AllTwiceNoReduction])
def test_r1_cannot_tell_everything_twice_from_twice_the_weight(tmp_path, bug):
    update = "async" if bug is bugs.AllTwiceMost else "sync"
    found = verdict(bug(update=update), tmp_path, "R1")
    assert found.status == "unknown"
    assert found.reason == "every gradient was applied 2 times, or at 2 times its weight: the ledger cannot tell"


def test_r2_allows_as_many_as_were_sent(tmp_path):
    assert verdict(bugs.SentTwice(update="async"), tmp_path / "allowed", "R2").status == "valid"
    assert witness(bugs.SentTwiceAppliedThrice(update="async"), tmp_path / "more", "R2") == (
        "the gradient of worker:1, step 3, sent 2 times, was applied 3 times to ps:0",
    )
    assert witness(bugs.SentTwiceExactly(update="async"), tmp_path / "exactly", "R2") == (
        "the gradient of worker:1, step 3, sent 2 times, was applied 2 times to ps:0",
    )


def test_r2_is_unknown_without_a_final_read(tmp_path):
    assert verdict(bugs.NoFinal(), tmp_path, "R2").status == "unknown"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("update", ["sync", "async"])
def test_c3_names_read_variable_and_gradient(tmp_path, value, update):
    class Poisoned(Trainer):
        def before(self, worker, step):
            if (worker, step) == (1, 3):
                self.theta[0][1] = value  # worker:0's step 1, in the head

    lines = witness(Poisoned(update=update), tmp_path, "C3")
    assert f"{-value} and 1.0 for the gradient of worker:0, step 1" in lines[0]


def test_c3_sees_a_poisoned_nonce(tmp_path):
    class Poisoned(Trainer):
        def before(self, worker, step):
            if (worker, step) == (1, 3):
                self.theta[0][self.workers * self.steps] = float("nan")

    judged = Poisoned().judge(tmp_path / "run")
    assert {v.guarantee for v in judged.verdicts if v.status == "violated"} == {"C3"}
    assert {v.guarantee for v in judged.verdicts if v.status == "valid"} == {"L0"}


def test_c3_is_unknown_on_an_incomplete_record(tmp_path):
    assert verdict(bugs.Killed(update="async"), tmp_path, "C3").status == "unknown"


def test_what_holds_exactly_one_is_odd_where_all_others_share_a_weight(tmp_path):
    """A cell that shows half, its weight, in one read and a whole application from the next on."""
    history = load_history(Trainer(workers=1).run(tmp_path / "run"))
    (worker,) = history.workers
    count = len(worker.reads)
    every, halves = np.zeros(history.steps, np.int64), np.full(history.steps, 0.5)
    first = np.minimum(np.arange(history.steps) + 1, count - 1)
    alike = Odd(every, every, np.arange(history.steps), first, np.full(history.steps, count), halves, halves)
    alike.end[0] = 2
    found = rescaled(replace(history, workers=(replace(worker, reads=replace(worker.reads, odd=alike)),)), 0.5)
    odd = found.workers[0].reads.odd
    assert (odd.step.tolist(), odd.first.tolist(), odd.end.tolist()) == ([0], [2], [count])
    assert (odd.head.tolist(), odd.tail.tolist()) == ([2.0], [2.0])
