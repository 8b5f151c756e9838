"""A8 finds every wrong order, and accuses nobody of one where the ledger is wrong in another way."""

from __future__ import annotations

import dataclasses
import re
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psconform.checks.order import apply_order
from psconform.history.build import load_history
from psconform.history.manifest import PLAIN, Manifest
from psconform.history.reasons import TaskFailed
from psconform.runner.verdicts import judge_folder

from . import bugs, order_bugs
from .bugs import WHEN, WHO
from .simulate import Trainer

ONE, TWO, SHARED = (0,), (0, 1), (0, 0)

WRONG = [
    # A gradient that is held back for long is missing from the next read of its own worker, too (A7).
    (order_bugs.OutOfOrder, "async", TWO, "A7 A8"),
    (order_bugs.Swapped, "async", TWO, "A8"),
    (order_bugs.NoPrefix, "async", ONE, "A7 A8"),
    (order_bugs.NoPrefix, "sync", ONE, "A7 A8"),
    (order_bugs.BeforeItsRead, "async", TWO, "A8"),
    (order_bugs.NextRound, "sync", TWO, "S4 A6 A7 A8"),
    (order_bugs.VersionGivenTwice, "async", TWO, "A8"),
    (bugs.VersionsDown, "async", ONE, "A7 A8"),
]

UNDECIDED = [
    # The plain ledger tells that something else is wrong ...
    (bugs.Twice, "async", TWO, "a plain ledger of the same set-up is not clean: A1 violated, R1 violated"),
    (bugs.Twice, "sync", TWO, "not clean: S1 violated, R1"),
    (bugs.LostOnOneShard, "async", TWO, "not clean: A1 violated"),
    (order_bugs.TwoUpdates, "async", ONE, "not clean: A1 violated"),
    # ... or the decayed one does.
    (order_bugs.Twice, "async", TWO, "has no order: the gradient of worker:1, step 3, would be -"),
    (order_bugs.Twice, "sync", TWO, "has no order"),
    (order_bugs.Half, "async", ONE, "has no order"),
    (order_bugs.Dropped, "async", ONE, r"lacks the gradient of worker:1, step 3 \(ok\) in the end"),
    (order_bugs.TwoUpdatesCleanPlain, "async", ONE, "has no order"),
    (order_bugs.NoDecayOnOneShard, "async", TWO, "ps:0 has no order: 16 gradients are 0 updates old"),
    (order_bugs.NoDecayOnOneShard, "sync", TWO, "ps:0 has no order: 1 rounds of 8 steps"),
    (order_bugs.DecaysPerGradient, "sync", ONE, "ps:0 has no order: no gradient is 1 updates old"),
    (order_bugs.TwoKinds, "async", ONE, "updates old at the head and"),
    (bugs.NeverTold, "async", ONE, "worker:1, step 3, is unknown: nobody can say"),
    (bugs.NoFinal, "async", ONE, "no plain ledger|not clean"),
    (bugs.StaleFinal, "async", ONE, "not clean|final reads disagree"),
]


def verdict(judged, name="A8"):
    return next(verdict for verdict in judged.verdicts if verdict.guarantee == name)


def violated(judged):
    return {verdict.guarantee for verdict in judged.verdicts if verdict.status == "violated"}


def trained_folder(kind, folder, **options):
    return kind(workload="decayed-ledger", **options).run(folder)


def trained(kind, folder, **options):
    return judge_folder(trained_folder(kind, folder, **options))


@pytest.mark.parametrize(("kind", "update", "shards", "names"), WRONG)
def test_a_wrong_order_is_violated(tmp_path, kind, update, shards, names):
    judged = trained(kind, tmp_path / "run", update=update, shards=shards)
    assert violated(judged) == set(names.split())
    assert all("worker:" in line for line in verdict(judged).witness)


@pytest.mark.parametrize(("kind", "update", "shards", "says"), UNDECIDED)
def test_what_is_wrong_otherwise_is_unknown(tmp_path, kind, update, shards, says):
    judged = trained(kind, tmp_path / "run", update=update, shards=shards)
    assert verdict(judged).status == "unknown", verdict(judged)
    with pytest.raises(ValueError, match=says):
        raise ValueError(verdict(judged).reason)


@pytest.mark.parametrize(
    ("kind", "options", "says"),
    [
        (
            order_bugs.OutOfOrder,
            {},
            r"ps:0 applied step 4 of worker:1 as update \d+, and its step 3, sent before it, as",
        ),
        (
            order_bugs.NoPrefix,
            {},
            r"worker:1 read version \d+ of ps:0 at step 3 with update \d+ .*, but without update",
        ),
        (order_bugs.BeforeItsRead, {}, r"at step 3 with update \d+ .*; its gradient of step 3, computed there, is"),
        (order_bugs.NextRound, {"update": "sync"}, "worker:1, step 3, is in the round of step 4 in ps:0"),
        (
            order_bugs.Swapped,
            {},
            r"was told version \d+ of ps:0 for its step \d, which is update \d+ of ps:0: expected",
        ),
    ],
)
def test_the_witness_says_what_is_wrong(tmp_path, kind, options, says):
    found = verdict(trained(kind, tmp_path / "run", **{"update": "async", **options}))
    assert any(re.search(says, line) for line in found.witness), found.witness


def test_what_is_sent_again_counts_from_there(tmp_path):
    history = load_history(trained_folder(order_bugs.OutOfOrder, tmp_path / "run", update="async", versions=False))
    history = dataclasses.replace(history, plain="")
    assert apply_order(history).status == "violated"
    worker = history.workers[WHO]
    attempts, last = worker.pushes.attempts.copy(), worker.pushes.last.copy()
    attempts[WHEN], last[WHEN] = 2, last[WHEN + 1] + 1
    again = dataclasses.replace(worker, pushes=dataclasses.replace(worker.pushes, attempts=attempts, last=last))
    assert apply_order(dataclasses.replace(history, workers=(history.workers[0], again))).status == "valid"


def layouts(update, *, least=1):
    return st.fixed_dictionaries(
        {
            "update": st.just(update),
            "workers": st.integers(least, 4),
            "shards": st.sampled_from([ONE, TWO, SHARED, (0, 1, 1), (0, 1, 2)]),
            "steps": st.integers(5 if least > 1 else 1, 12),
            "versions": st.booleans(),
            "seed": st.integers(0, 2**31 - 1),
        }
    )


def in_a_folder(kind, options):
    folder = Path(tempfile.mkdtemp())
    try:
        return trained(kind, folder / "run", **options)
    finally:
        shutil.rmtree(folder)


@settings(max_examples=40, deadline=None)
@given(options=layouts("async") | layouts("sync"))
def test_healthy_order_is_valid(options):
    judged = in_a_folder(Trainer, options)
    assert judged.exit_code == 0, judged.verdicts
    found = verdict(judged)
    assert found.stats["updates"] == options["steps"] * (options["workers"] if options["update"] == "async" else 1)
    assert found.stats["worst_rank_error"] < 0.01


@settings(max_examples=30, deadline=None)
@given(kind=st.sampled_from([order_bugs.OutOfOrder, order_bugs.NoPrefix]), options=layouts("async", least=2))
def test_a_wrong_order_is_found_in_every_interleaving(kind, options):
    judged = in_a_folder(kind, options)
    assert "A8" in violated(judged), judged.verdicts
    assert violated(judged) <= {"A7", "A8", "A6"}


@settings(max_examples=30, deadline=None)
@given(options=layouts("async", least=2))
def test_swapped_updates_contradict_the_versions(options):
    judged = in_a_folder(order_bugs.Swapped, {**options, "versions": True})
    assert "A8" in violated(judged), judged.verdicts


@settings(max_examples=30, deadline=None)
@given(kind=st.sampled_from([order_bugs.NextRound, order_bugs.NoPrefix]), options=layouts("sync", least=2))
def test_a_wrong_round_is_found(kind, options):
    assert "A8" in violated(in_a_folder(kind, options))


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from([order_bugs.Twice, order_bugs.TwoUpdatesCleanPlain, order_bugs.Half, order_bugs.Dropped]),
    options=layouts("async", least=2) | layouts("sync", least=2),
)
def test_a_wrong_amount_is_never_called_a_wrong_order(kind, options):
    assert verdict(in_a_folder(kind, options)).status == "unknown"


def test_without_a_plain_ledger_nothing_is_said(tmp_path):
    folder = Trainer(workload="decayed-ledger", update="async").run(tmp_path / "run")
    shutil.rmtree(folder / PLAIN)
    found = verdict(judge_folder(folder))
    assert (found.status, found.reason) == ("unknown", "no plain ledger of the same set-up was run")


class Rarely(Trainer):
    def reads(self, worker, step):
        return int(step % 50 == 0)


@pytest.mark.nightly
def test_twenty_thousand_updates(tmp_path):
    judged = trained(Rarely, tmp_path / "run", update="async", workers=4, steps=5000)
    assert judged.exit_code == 0, judged.verdicts
    assert verdict(judged).stats["updates"] == 20_000
    assert re.fullmatch(r"20000 updates, worst rank error 0\.00\d{1,3}", verdict(judged).reason)
    assert 0.001 < verdict(judged).stats["worst_rank_error"] < 0.005


def test_staleness_without_versions_is_that_of_the_versions(tmp_path):
    options = {"update": "async", "workers": 3, "shards": (0, 1, 1), "steps": 20, "seed": 4}
    told = trained(Trainer, tmp_path / "told", **options)
    silent = trained(Trainer, tmp_path / "silent", versions=False, **options)
    assert verdict(told, "A2").status == verdict(silent, "A2").status == "valid"
    assert verdict(told, "A2").stats == verdict(silent, "A2").stats
    assert verdict(told, "A2").stats["max"] > 0


def test_staleness_of_an_impossible_order_is_unknown(tmp_path):
    judged = trained(order_bugs.BeforeItsRead, tmp_path / "run", update="async", versions=False)
    assert verdict(judged, "A2").status == "unknown"
    assert "see A8" in verdict(judged, "A2").reason


def test_a_plain_ledger_that_stopped_early_shows_no_amounts(tmp_path):
    """It was clean as far as it went."""
    folder = Trainer(update="async", workload="decayed-ledger").run(tmp_path / "run")
    plain = Manifest.read(folder / PLAIN)
    plain.reasons = [TaskFailed("worker:0", 1, "KeyError: 'step'")]
    plain.write(folder / PLAIN)
    found = verdict(judge_folder(folder))
    assert found.status == "unknown"
    assert "training ended by an error at step 7" in found.reason
