"""The chaos suite in somebody else's project: it finds a bug of recovery, and says how to go on from there."""

from __future__ import annotations

import pytest

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
