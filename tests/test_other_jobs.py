"""Jobs that train nothing: what psconform does with their tasks must not show in the verdict on training."""

from __future__ import annotations

from pathlib import Path

import pytest

from psconform.errors import BadInput, PsconformError
from psconform.layout import Layout
from psconform.runner.replay import stored_plan

CASE = Path(__file__).parent / "cases" / "scheduler"
LAYOUT = {"layout": "ps=1,worker=2"}
pytestmark = pytest.mark.engine


@pytest.fixture
def target(tmp_path):
    def change(*changes):
        text = (CASE / "target.toml").read_text(encoding="utf-8").replace("{here}", str(CASE))
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / "target.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return change


def on_failure(what):
    return "cluster_spec", f'on_failure = "{what}"\ncluster_spec'


def test_one_that_is_killed_for_good_had_nothing_to_record(judge, target):
    run = judge(target(on_failure("nothing")), steps=20, kill="scheduler:0@10", **LAYOUT)
    unknown = [verdict.guarantee for verdict in run.verdicts.values() if verdict.status == "unknown"]
    assert (run.violated, unknown) == ((), ["L1"]), run.explain()


def test_a_job_that_is_over_is_not_restarted_as_a_whole(judge, target):
    run = judge(target(on_failure("restart-all")), steps=30, kill="scheduler:0@10", **LAYOUT)
    assert run.valid, run.explain()
    assert "to start all again" not in run.explain()


@pytest.mark.nightly
def test_one_that_comes_back_after_training_may_wait_for_nobody(judge, target, monkeypatch):
    monkeypatch.setenv("FORM", "bye")
    ends = 'count = 2\ncommand = ["{python}", "' + str(CASE), 'count = 1\ncommand = ["{python}", "' + str(CASE)
    evaluator = target(ends, ('"{evaluator_hosts}"]\nexits = false\n\n[jobs.ps]', '"{evaluator_hosts}"]\n\n[jobs.ps]'))
    for kill in ((), ("evaluator:0@20",)):
        run = judge(evaluator, steps=30, kill=kill, patience_s=3, **LAYOUT)
        assert run.valid, run.explain()


def test_a_ps_that_is_ready_can_be_dialled(judge, target, monkeypatch, tmp_path):
    """Its proxy refused connections until it listened, for evaluators are there before it."""
    monkeypatch.setenv("FORM", "slow-ps")
    (tmp_path / "plan.toml").write_text('fault = [{kind = "stall", links = "deaf ps:0", at = 10, for = "100ms"}]')
    run = judge(target(), steps=20, faults=tmp_path / "plan.toml", **LAYOUT)
    assert run.valid, run.explain()


def test_what_does_not_end_one_is_not_observed(judge, target, monkeypatch, tmp_path):
    monkeypatch.setenv("FORM", "deaf")
    (tmp_path / "plan.toml").write_text('fault = [{kind = "term", task = "scheduler:0", at = 10}]')
    run = judge(target(), steps=20, faults=tmp_path / "plan.toml", **LAYOUT)
    assert (run.violated, run.coverage.observed) == ((), 0), run.explain()


@pytest.mark.nightly
def test_one_that_failed_before_the_faults_says_nothing_of_the_last(judge, target, monkeypatch):
    monkeypatch.setenv("BUG", "evaluator-dies")
    stops = [f"worker:1@{step}..{step + 5}" for step in (30, 45, 60)]
    run = judge(target(), steps=80, slow="worker:0=10ms", stop=stops, **LAYOUT)
    assert run.violated == ("L1",), run.explain()


def test_one_that_crashes_at_the_start_is_named(judge, target):
    crashes = '"{python}", "-c", "raise SystemExit(\'boom: cannot start\')"'
    command = f'"{{python}}", "{CASE}/train.py"'
    scheduler = target((f"[jobs.scheduler]\ncommand = [{command}", f"[jobs.scheduler]\ncommand = [{crashes}"))
    scheduler.write_text(scheduler.read_text(encoding="utf-8").replace("ready = { port = true }\n", "", 1))
    with pytest.raises(PsconformError, match="scheduler:0: failed with status 1 before it had started: boom"):
        judge(scheduler, steps=20, patience_s=3, **LAYOUT)


def test_a_run_with_other_jobs_is_not_replayed(judge, target):
    run = judge(target(), steps=10, **LAYOUT)
    target(("[jobs.evaluator]", "[jobs.watcher]"), ("{evaluator_hosts}", "{watcher_hosts}"))
    with pytest.raises(BadInput, match="and the run's are scheduler"):
        stored_plan(run.folder, out=run.folder.parent / "again")


@pytest.mark.parametrize("job", [("ps", 1), ("../x", 1), ("psconform", 1), ("head", 0), ("head", 10**9)])
def test_jobs_that_cannot_be(job):
    with pytest.raises(BadInput, match="others: "):
        Layout(others=(job,))
