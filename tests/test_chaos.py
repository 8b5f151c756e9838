"""The chaos suite in somebody else's project: it finds a bug of recovery, and says how to go on from there."""

from __future__ import annotations

import dataclasses
from itertools import combinations

import pytest
from psconform.suites.chaos.covering import factors_of

from psconform.targets.reference import reference

TRAINER = """
import json, os, sys
from psconform.reference_impl.__main__ import main
with open(os.environ["PSCONFORM_SPEC"], encoding="utf-8") as file:
    recovers = "checkpoints" in json.load(file)  # calibration has nothing to recover from
main([*sys.argv[1:], *(["--defect=no-fence"] if recovers else [])])
"""
TARGET = """
name = "no-fence"
[jobs.ps]
command = ["{python}", "{here}/trainer.py", "--update={update}", "--reduction={reduction}"]
[jobs.worker]
command = ["{python}", "{here}/trainer.py", "--update={update}", "--reduction={reduction}"]
[claims.sync]
recovery = "checkpoint"
liveness = "progress"
[claims.async]
recovery = "checkpoint"
liveness = "progress"
"""
CALM = """
name = "calm"
[jobs.worker]
command = ["{python}", "-c", "pass"]
[claims.sync]
"""


def suite(pytester, target, *options):
    path = pytester.path / "target.toml"
    path.write_text(target, encoding="utf-8")
    path.with_name("trainer.py").write_text(TRAINER, encoding="utf-8")
    given = ("--psconform-target", str(path), "--psconform-profile", "ci", *options)
    return pytester.runpytest_subprocess("--pyargs", "psconform.suites.chaos", "-p", "no:cacheprovider", *given)


@pytest.mark.psconform
def test_a_bug_of_recovery_is_found_and_can_be_replayed_and_shrunk(pytester):
    result = suite(pytester, TARGET, "-k", "kill-ps and async")
    assert result.parseoutcomes()["failed"] >= 1
    result.stdout.fnmatch_lines(["*R6*violated*", "psconform replay *psconform-runs*", "psconform shrink *"])
    assert list((pytester.path / "psconform-runs").glob("*/run-0/manifest.json"))


def test_what_does_not_claim_to_recover_is_not_broken_and_that_is_said(pytester):
    result = suite(pytester, CALM, "-rs")
    outcomes = result.parseoutcomes()
    assert set(outcomes) == {"skipped", "passed"}
    assert outcomes["passed"] == 1, "test_undecided.py: there was nothing to decide"
    result.stdout.fnmatch_lines(["*the target does not recover*"])


@pytest.mark.parametrize("lacks", ["", "libfaketime"])
def test_every_two_values_that_may_meet_do_so_in_profile_ci(monkeypatch, lacks):
    """A covering array with a filter had left out 15 pairs, where libfaketime was there."""
    monkeypatch.setattr("psconform.faults.faketime.lacking", lambda: lacks)
    factors = factors_of(reference())
    assert dict(factors.left_out) == ({"clock": "needs libfaketime"} if lacks else {})
    assert pairs_in(factors.pairs()) == pairs_in(factors.product())
    assert len(factors.pairs()) < len(factors.product()) / 4
    assert factors.pairs() == factors_of(reference()).pairs()


def test_what_a_target_cannot_be_broken_by_is_left_out_and_said():
    shared = factors_of(dataclasses.replace(reference(), shared=True))
    assert {name for name, _ in shared.left_out} >= {"sent", "slow-close"}
    assert "sent" not in shared.moments
    assert "slow-close" not in shared.kinds
    plain = factors_of(dataclasses.replace(reference(), push_alone=False))
    assert "push_alone in target.toml" in dict(plain.left_out)["sent"]
    assert "sent" not in plain.moments
    assert "slow-close" in plain.kinds


def pairs_in(rows):
    return {pair for row in rows for pair in combinations(enumerate(row), 2)}
