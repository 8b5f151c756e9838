"""The chaos suite in somebody else's project: it finds a bug of recovery, and says how to go on from there."""

from __future__ import annotations

import dataclasses
from itertools import combinations
from pathlib import Path

import pytest
from psconform.suites.chaos.covering import factors_of

from psconform.plugin import REQUIRE_ALL
from psconform.targets.reference import reference

from .tiers import first

SOCKETS = Path(__file__).parent / "socket_ps"
SMALL = ("--psconform-target", str(SOCKETS / "target_durable.toml"))
CALM = """
name = "calm"
[jobs.worker]
command = ["{python}", "-c", "pass"]
[claims.sync]
"""


def suite(pytester, target, *options):
    path = pytester.path / "target.toml"
    path.write_text(target, encoding="utf-8")
    given = ("--psconform-target", str(path), "--psconform-profile", "ci", *options)
    return pytester.runpytest_subprocess("--pyargs", "psconform.suites.chaos", "-p", "no:cacheprovider", *given)


@pytest.mark.engine
def test_a_bug_of_recovery_is_found_and_can_be_replayed_and_shrunk(pytester):
    """A ps answers pushes that are not on its disk yet, and dies."""
    target = (SOCKETS / "target_durable.toml").read_text(encoding="utf-8").replace("{here}", str(SOCKETS))
    bug = target.replace('"--update={update}"', '"--update={update}", "--every=1000"')
    result = suite(pytester, bug, "-k", "test_a_fault_of_a_role and kill-ps and async and not sent")
    assert result.parseoutcomes()["failed"] >= 1
    result.stdout.fnmatch_lines(["*R1*violated*", "psconform replay *psconform-runs*", "psconform shrink *"])
    assert list((pytester.path / "psconform-runs").glob("*/run-0/manifest.json"))


@pytest.mark.engine
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
    assert not factors_of(reference(), "docker").left_out, "the image has it"


def test_a_task_that_a_target_does_not_have_is_not_struck():
    lone = factors_of(dataclasses.replace(reference(), max_ps=1))
    assert lone.roles == ("worker:0", "worker:1", "ps:0")
    assert {role for _, role, _, _ in lone.pairs()} == {*lone.roles}
    assert dict(lone.left_out)["ps:1"].startswith("the target takes fewer tasks")


def test_what_a_target_cannot_be_broken_by_is_left_out_and_said():
    shared = factors_of(dataclasses.replace(reference(), shared=True))
    assert {name for name, _ in shared.left_out} >= {"sent", "slow-close"}
    assert "sent" not in shared.moments
    assert "slow-close" not in shared.kinds
    plain = factors_of(dataclasses.replace(reference(), push_alone=False))
    assert "push_alone in target.toml" in dict(plain.left_out)["sent"]
    assert "sent" not in plain.moments
    assert "slow-close" in plain.kinds


NEVER = """
import pytest
from psconform.suites.chaos.survive import must_survive, tally
from psconform.faults.plan_file import parse_plan
from psconform.layout import Layout

@pytest.mark.parametrize("number", range(RUNS))
def test_a_fault_that_never_strikes(judge, tmp_path, number):
    text = 'fault = [{kind = "kill", task = "ps:0", at = "3600s"}]'
    faults = parse_plan(text, place="here", layout=Layout(ps=1, workers=2), steps=40)
    must_survive(judge, faults, folder=tmp_path, layout="ps=1,worker=2", update="async")

from psconform.suites.chaos.test_undecided import *
"""


NO_PROXIES = """
import psconform.faults.toxiproxy_install as server
from psconform.suites.chaos.survive import must_survive
from psconform.faults.plan_file import parse_plan
from psconform.layout import Layout

server.set_up = lambda **_: server.Search(None, (("PATH", "has none"), ("go install", "there is no go")))

def survive(judge, folder, fault):
    faults = parse_plan("fault = [{" + fault + "}]", place="here", layout=Layout(ps=1, workers=2), steps=40)
    must_survive(judge, faults, folder=folder, layout="ps=1,worker=2", update="async")

def test_links(judge, tmp_path):
    survive(judge, tmp_path, 'kind = "stall", links = "worker:1->ps:0", at = 5, for = "100ms"')

def test_a_push_that_is_held_up(judge, tmp_path):
    survive(judge, tmp_path, 'kind = "kill", task = "ps:0", at = "worker:1@sent:5"')

def test_processes(judge, tmp_path):
    survive(judge, tmp_path, 'kind = "kill", task = "ps:0", at = 5')
"""


@pytest.mark.engine
def test_where_no_toxiproxy_can_be_had_the_rest_is_tried_and_that_is_said(pytester, monkeypatch):
    monkeypatch.delenv("TOXIPROXY_URL", raising=False)
    monkeypatch.delenv(REQUIRE_ALL, raising=False)
    pytester.makepyfile(NO_PROXIES)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-rs", *SMALL)
    result.assert_outcomes(passed=1, skipped=2)
    result.stdout.fnmatch_lines(
        [
            "*2 tests were skipped: 2 for lack of toxiproxy (toxiproxy: not found (PATH: has none; *",
            "*needs toxiproxy: not found (PATH: has none; go install: *",
        ]
    )
    monkeypatch.setenv(REQUIRE_ALL, "1")
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", *SMALL)
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines([f"*{REQUIRE_ALL}=1, and this machine lacks toxiproxy: not found (PATH: has none; *"])
    monkeypatch.delenv(REQUIRE_ALL)
    monkeypatch.setenv("TOXIPROXY_URL", "http://127.0.0.1:1")
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", *SMALL)
    result.assert_outcomes(passed=1, failed=2)


@pytest.mark.engine
@pytest.mark.parametrize("runs", [1, 2])
def test_runs_of_which_nothing_can_be_said_are_kept_if_they_are_too_many(pytester, runs):
    pytester.makepyfile(NEVER.replace("RUNS", str(runs)))
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", *SMALL)
    kept = sorted((pytester.path / "psconform-runs").glob("undecided-*/manifest.json"))
    if runs == 1:
        result.assert_outcomes(passed=2)
        assert not (pytester.path / "psconform-runs").exists()
    else:
        result.assert_outcomes(passed=2, failed=1)
        result.stdout.fnmatch_lines(
            ["*2 of 2 runs are undecided*", f"psconform replay {kept[0].parent}: *was never injected*"]
        )
        assert len(kept) == 2


@pytest.mark.engine
@pytest.mark.parametrize("runs", first([3, 1]))
def test_so_they_are_when_several_processes_share_the_tests(pytester, runs):
    pytester.makepyfile(NEVER.replace("RUNS", str(runs)))
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-n", "2", *SMALL)
    result.assert_outcomes(passed=runs, skipped=1)
    started = f"[{runs + 1}{runs + 2}]"  # each of the processes that has a run calibrates once
    result.stdout.fnmatch_lines([f"psconform: {started} real clusters started (socket-ps-durable; quick)"])
    if runs == 1:
        assert result.ret == 0
        assert not (pytester.path / "psconform-runs").exists()
    else:
        assert result.ret == 1
        result.stdout.fnmatch_lines(
            ["3 of 3 runs are undecided:", "psconform replay */undecided-*: *was never injected*"]
        )


def pairs_in(rows):
    return {pair for row in rows for pair in combinations(enumerate(row), 2)}
