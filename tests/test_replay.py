"""A stored run again: as it was (replay), or with fewer faults, tasks and steps (shrink)."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from psconform import cli_replay, judge
from psconform.cli import app
from psconform.errors import BadInput, PsconformError
from psconform.faults.plan_file import load_plan, parse_plan
from psconform.history.reasons import FaultMissed, Missed
from psconform.layout import Layout
from psconform.options import Options
from psconform.runner import replay as replaying
from psconform.runner.folder import new_folder, new_manifest
from psconform.runner.plan import make_plan
from psconform.runner.replay import Seen, changed, keep, stored_plan
from psconform.runner.session import Session
from psconform.runner.shrink import Try, as_it_was, attempt, candidates, shrink
from psconform.runner.verdicts import judge_folder
from psconform.terminal import run_folder

SOCKETS = Path(__file__).parent / "socket_ps" / "target.toml"
PLAN = """
[[fault]]
kind = "latency"
links = "worker:2<->ps:0"
at = 5
until = 12
ms = 3

[[fault]]
kind = "kill"
task = "ps:0"
at = 30

[[fault]]
kind = "stop"
task = "worker:1"
at = 15
for = "300ms"
"""


@pytest.fixture
def plan(tmp_path):
    (tmp_path / "plan.toml").write_text(PLAN, encoding="utf-8")
    return make_plan(Options(out=tmp_path / "run", layout="ps=2,worker=3", steps=60, faults=tmp_path / "plan.toml"))


def psconform(*arguments):
    command = [sys.executable, "-m", "psconform", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def seen(fails):
    """Runs of which nothing is known but whether they fail."""
    return lambda plan: Seen(fails(plan))


def shrunk(plan, fails, *, k=1, n=1, tell=lambda _: None):
    """What is left of a plan that did fail often enough."""
    return shrink(Try("as it was", plan, k, n, True), seen(fails), k=k, n=n, tell=tell)


def test_without_what_does_not_matter(plan):
    """It fails whenever ps:0 is killed, and two workers are there to see it."""
    told = []

    def fails(smaller):
        return any(fault.kind == "kill" for fault in smaller.faults) and smaller.layout.workers >= 2

    smallest = shrunk(plan, fails, tell=told.append)
    assert [str(fault.kind) for fault in smallest.faults] == ["kill"]
    assert (smallest.layout.ps, smallest.layout.workers, smallest.faults[0].when.step) == (1, 2, 0)
    assert smallest.workload.steps <= 10
    assert any(tried.taken for tried in told)
    assert any(not tried.taken for tried in told)
    assert len(told) < 40


def six(tmp_path):
    """Six faults, each of another task or link, and 100 steps."""
    kills = [f"ps:{ps}@{step}" for ps, step in ((0, 12), (1, 62))]
    stops = [f"worker:{worker}@{step}..{step + 4}" for worker, step in ((0, 20), (1, 40), (2, 70), (0, 85))]
    return make_plan(Options(out=tmp_path / "run", layout="ps=2,worker=3", steps=100, kill=kills, stop=stops))


@pytest.mark.parametrize("matters", range(6))
def test_one_of_six_faults_is_found_in_few_tries(tmp_path, matters):
    plan, told = six(tmp_path), []
    one = plan.faults[matters]
    smallest = shrunk(plan, lambda smaller: any(_like(one, fault) for fault in smaller.faults), tell=told.append)
    assert len(smallest.faults) == 1
    alone = next(number for number, tried in enumerate(told, 1) if tried.taken and len(tried.plan.faults) == 1)
    assert alone <= 7
    assert smallest.layout.ps == 1 or "ps" in one.of
    assert smallest.workload.steps <= 6
    assert len(told) <= 20
    assert told[-1].left == 0
    assert all(tried.left <= len(list(candidates(plan))) for tried in told)


def _like(one, fault):
    return (fault.kind, fault.of) == (one.kind, one.of)


def test_what_was_dropped_for_this_very_plan_is_not_tried_again(plan):
    told = []

    def fails(smaller):
        return {fault.kind for fault in smaller.faults} >= {"kill", "stop"} and smaller.layout == plan.layout

    shrunk(plan, fails, tell=told.append)
    assert [each.taken for each in told[:2]] == [False, True], "something was dropped for a larger plan"
    tried = [(each.what, repr(each.plan)) for each in told]
    assert len(tried) == len(set(tried))


@pytest.mark.parametrize(
    ("silences_s", "patience_s"),
    [
        ((), 8.0),  # a call that is lost is waited for
        ((0.1, 3.0, 0.1), 8.0),
        ((0.1, 7.0), 14.0),  # it has gone on after such a silence
        ((50.0,), 60.0),  # the plan's own
    ],
)
def test_a_run_that_is_not_kept_hangs_sooner(plan, silences_s, patience_s):
    at = (1e9 * np.cumsum([5.0, *silences_s])).astype(np.int64)
    none = np.zeros(0, np.int64)
    worker = SimpleNamespace(reads=SimpleNamespace(at=at), pushes=SimpleNamespace(at=none), acked_ns=none)
    before = SimpleNamespace(history=SimpleNamespace(workers=(worker,)))
    assert plan.patience_s == 60
    assert replaying.short_patience(before, plan) == pytest.approx(patience_s)


def test_runs_that_are_not_kept_have_that_patience(plan, tmp_path, monkeypatch):
    ran = []
    session = SimpleNamespace(run=lambda plan: (ran.append(plan.patience_s), plan.out.mkdir()))
    judged = SimpleNamespace(exit_code=0, history=SimpleNamespace(missed=()))
    monkeypatch.setattr(replaying, "judge_folder", lambda _: judged)
    assert replaying.Fails(judged, session, tmp_path, 9.0)(plan).failed
    assert ran == [9.0]


def test_two_faults_that_only_matter_together(plan):
    def fails(smaller):
        return {fault.kind for fault in smaller.faults} >= {"kill", "stop"}

    smallest = shrunk(plan, fails)
    assert sorted(fault.kind for fault in smallest.faults) == ["kill", "stop"]


def test_what_mattered_in_a_larger_plan_is_tried_again(plan):
    """Without the stop it fails only once the latency, too, is gone."""

    def fails(smaller):
        kinds = {fault.kind for fault in smaller.faults}
        return "kill" in kinds and ("stop" in kinds or "latency" not in kinds)

    stops_first = replace(plan, faults=tuple(sorted(plan.faults, key=lambda fault: fault.kind != "stop")))
    for order in (plan, stops_first):
        smallest = shrunk(order, fails)
        assert [fault.kind for fault in smallest.faults] == ["kill"]


def test_what_fails_too_rarely_is_not_taken(plan):
    answers = iter([True, False, False] + [False] * 1000)
    assert shrunk(plan, lambda _: next(answers), k=2, n=3) == plan
    runs = []
    shrunk(plan, lambda _: False, k=2, n=3, tell=lambda tried: runs.append(tried.runs))
    assert set(runs) == {2}, "the third run could not have helped"


def test_a_plan_that_fails_in_two_of_five_runs_is_shrunk_by_that(plan):
    """It fails when ps:0 is killed, in the fourth and fifth of five runs; smaller plans are no better."""
    runs = Counter()

    def fails(smaller):
        runs[repr(smaller)] += 1
        return any(fault.kind == "kill" for fault in smaller.faults) and runs[repr(smaller)] % 5 in (0, 4)

    first = as_it_was(plan, seen(fails), k=2, n=None)
    assert (first.failed, first.runs, first.taken) == (3, 9, True)
    smallest = shrink(first, seen(fails), k=2, n=None, tell=lambda _: None)
    assert [fault.kind for fault in smallest.faults] == ["kill"]
    assert not as_it_was(plan, seen(fails), k=2, n=3).taken, "where runs are said, they are what counts"
    never = as_it_was(plan, seen(lambda _: False), k=2, n=None)
    assert (never.failed, never.runs, never.taken) == (0, 10, False)


def test_what_never_struck_is_left_out_at_once(plan):
    """Only what was idle in each run that failed: here the stop struck in one of them."""
    stop, others = plan.faults[2], frozenset(plan.faults) - {plan.faults[1]}
    runs = iter([Seen(False), Seen(True, others), Seen(True, others - {stop})])
    first = attempt("as it was", plan, lambda _: next(runs), k=2, n=3)
    assert first.idle == {plan.faults[0]}

    told = []
    kill = plan.faults[1]
    shrink(replace(first, idle=others), lambda smaller: Seen(kill in smaller.faults), k=1, n=1, tell=told.append)
    assert told[0].what == "without what never struck (latency worker:2 <-> ps:0, stop worker:1)"
    assert told[0].taken
    assert [fault.kind for fault in told[0].plan.faults] == ["kill"]
    one = next(iter(candidates(plan, {stop})))
    assert one[0] == "without stop worker:1", "what is idle comes first"


@pytest.mark.parametrize(
    ("missed", "idle"),
    [
        (FaultMissed("stop", "worker:1@15+300ms", Missed.NEVER_INJECTED), True),
        (FaultMissed("stop", "worker:1@16+300ms", Missed.NEVER_INJECTED), False),
        (FaultMissed("stop", "worker:1@15+300ms", Missed.REFUSED, "it was stopped already"), True),
        (FaultMissed("stop", "worker:1@15+300ms", Missed.NOT_OBSERVED), False),
        (FaultMissed("stop", "worker:1@15+300ms", Missed.NOT_HEALED, "it is stopped"), False),
    ],
)
def test_only_what_training_did_not_get_to_is_idle(plan, tmp_path, monkeypatch, missed, idle):
    judged = SimpleNamespace(exit_code=0, history=SimpleNamespace(missed=(missed,)))
    monkeypatch.setattr(replaying, "judge_folder", lambda _: judged)
    session = SimpleNamespace(run=lambda plan: plan.out.mkdir())
    stop = plan.faults[2]
    assert f"{stop.kind} {stop}" == "stop worker:1@15+300ms"
    assert replaying.Fails(judged, session, tmp_path, 9.0)(plan) == Seen(True, frozenset({stop} if idle else ()))
    assert not list(tmp_path.glob("0*")), "nobody needs the run any more"


@pytest.mark.engine
def test_a_fault_that_training_does_not_get_to_is_idle(tmp_path):
    """No task of this target reports the phase restoring."""
    kill = 'kind = "kill", task = "worker:1", at = 8, restart_after = "0s"'
    faults = f'fault = [{{{kill}}}, {{kind = "stop", task = "worker:0", at = "restoring", for = "1s"}}]'
    options = {"layout": "ps=1,worker=2", "update": "async", "steps": 20}
    run = judge(SOCKETS, **options, faults=faults, out=tmp_path / "run")
    assert "R2" in run.violated, run.explain()
    stored = stored_plan(tmp_path / "run", out=tmp_path)
    with Session() as session:
        found = replaying.Fails(judge_folder(tmp_path / "run"), session, tmp_path / "again", 60.0)(stored)
    (stop,) = (fault for fault in stored.faults if fault.kind == "stop")
    assert found == Seen(True, frozenset({stop}))


def test_smaller_plans_can_be_run(plan):
    """No fault of a task that is not there, no step beyond the last."""
    for _, smaller in candidates(plan):
        tasks = set(smaller.layout.tasks)
        for fault in smaller.faults:
            assert fault.task is None or fault.task in tasks
            assert {end for link in fault.links for end in (link.source, link.destination)} <= tasks
            assert (fault.when.step or 0) < smaller.workload.steps
    with pytest.raises(BadInput, match="no such task"):
        changed(plan, layout=plan.layout.__class__(ps=2, workers=1), steps=60, faults=plan.faults)


def test_a_defect_keeps_what_it_needs_to_show(tmp_path):
    plan = make_plan(
        Options(out=tmp_path, update="async", defect="no-fence", kill="ps:0@30", steps=60, checkpoint_every=10)
    )
    assert all(smaller.workload.steps >= 40 for _, smaller in candidates(plan))


@pytest.mark.parametrize("options", [{"drop_after": "2s"}, {"quorum": 2}])
def test_a_layout_that_can_have_no_fewer_workers_keeps_them(tmp_path, options):
    kill = {"kill": "worker:1@20"} if "drop_after" in options else {}
    plan = make_plan(Options(out=tmp_path, layout="ps=2,worker=2", steps=60, **options, **kill))
    smaller = [plan for _, plan in candidates(plan)]
    assert {plan.layout.workers for plan in smaller} == {2}
    assert any(plan.layout.ps == 1 for plan in smaller)


def test_what_cannot_be_run_is_not_taken_and_what_was_found_before_stays(plan):
    told, runs = [], Counter()

    def fails(smaller):
        runs[len(smaller.faults)] += 1
        if len(smaller.faults) < 2 and runs[1] % 2 == 0:
            raise PsconformError("ps:0 cannot be started")
        return True

    smallest = shrunk(plan, fails, k=2, n=2, tell=told.append)
    assert len(smallest.faults) == 2
    errors = {(tried.error, tried.failed, tried.runs) for tried in told if not tried.taken}
    assert errors == {("ps:0 cannot be started", 1, 2)}, "the run before the error did fail"


@pytest.fixture
def shrinking(plan, tmp_path, monkeypatch):
    """``psconform shrink`` of a run that is not there: ``fails`` says of a plan whether it fails."""
    before = SimpleNamespace(
        exit_code=1,
        names=lambda status: ["R6"],
        history=SimpleNamespace(workers=()),
        manifest=SimpleNamespace(status="finished"),
    )
    fake = SimpleNamespace(fails=lambda plan: True, out=tmp_path / "small", before=before, runs=2)
    monkeypatch.setattr(cli_replay, "judge_folder", lambda _: before)
    monkeypatch.setattr(replaying, "stored_plan", lambda _, out: plan)
    monkeypatch.setattr(replaying.Fails, "__call__", lambda self, plan: Seen(fake.fails(plan)))
    fake.call = lambda: cli_replay.shrink(tmp_path, runs=fake.runs, failing=2, out=fake.out)
    return fake


def test_what_does_not_fail_again_is_not_shrunk(shrinking):
    shrinking.fails = lambda plan: False
    with pytest.raises(BadInput, match=r"failed again in 0 of 1 runs, .* to be shrunk \(2 of 2 are asked for\)"):
        shrinking.call()
    shrinking.runs = None
    with pytest.raises(BadInput, match=r"failed again in 0 of 10 runs, .* to be shrunk \(3 of 12 are asked for\)"):
        shrinking.call()
    assert not shrinking.out.exists()


def test_smaller_plans_get_as_many_runs_as_the_plan_itself_takes(shrinking, capsys, monkeypatch):
    """It takes five runs to fail three times; so the last plan is run five times at most until one is kept."""

    def last(*_, times):
        shrinking.times = times
        raise KeyboardInterrupt

    monkeypatch.setattr(replaying, "run_until_it_fails", last)
    answers = iter([True, False, False])
    shrinking.fails = lambda _: next(answers, True)
    shrinking.runs = None
    with pytest.raises(KeyboardInterrupt):
        shrinking.call()
    said = " ".join(capsys.readouterr().err.split())
    assert "until it has failed 3 times, up to 12 times" in said
    assert "as it was: failed 3 of 5;" in said
    assert "smaller plans are to fail in 2 of 5 runs" in said
    assert shrinking.times == 5


def test_what_hangs_with_less_patience_only_is_tried_again_with_that_of_the_plan(shrinking, capsys, monkeypatch):
    """The run that is kept did not hang: so the plan is shrunk anew, and what is left fails as the stored run did."""
    patience, kept = [], []

    def fails(self, plan):
        patience.append(self.patience_s)
        return Seen(self.patience_s < 60 or any(fault.kind == "kill" for fault in plan.faults))

    def last(plan, *_, times):
        kept.append(len(plan.faults))
        if len(kept) > 1:
            raise KeyboardInterrupt
        return False

    monkeypatch.setattr(replaying.Fails, "__call__", fails)
    monkeypatch.setattr(replaying, "run_until_it_fails", last)
    with pytest.raises(KeyboardInterrupt):
        shrinking.call()
    assert sorted(patience) == patience
    assert set(patience) == {8.0, 60.0}
    assert kept == [0, 1]
    said = " ".join(capsys.readouterr().err.split())
    assert "a run that is not kept has --patience 8.0; the run that is kept has the 60 s of the plan" in said


@pytest.mark.parametrize(("status", "runs"), [("stalled", [8.0, 60.0]), ("finished", [8.0])])
def test_a_hang_that_does_not_come_back_is_tried_with_the_patience_of_the_plan(shrinking, monkeypatch, status, runs):
    patience = []
    shrinking.before.manifest.status = status
    monkeypatch.setattr(replaying.Fails, "__call__", lambda self, _: patience.append(self.patience_s) or Seen(False))
    with pytest.raises(BadInput, match="too rarely to be shrunk"):
        shrinking.call()
    assert patience == runs


@pytest.mark.parametrize(
    ("left", "ends"), [(4, "; at most 4 left to try, about 2 min"), (2, "; at most 2 left to try, about 60 s"), (0, "")]
)
def test_how_much_longer_it_takes_is_said(plan, left, ends):
    """After two tries in a minute; on a terminal beside the run that goes on, too."""
    out, shown = io.StringIO(), []
    console, status = Console(file=out, soft_wrap=True), SimpleNamespace(update=shown.append)
    show = cli_replay._Show(console, status, plan, tries=1, began=time.monotonic() - 60)
    show.tell(Try("without stop worker:1", plan, 0, 2, False, left=left))
    assert out.getvalue() == f"without stop worker:1: failed 0 of 2; does not{ends}\n"
    show.runs(7, plan)
    assert shown == [f"run 7: 3 faults on ps=2,worker=3, 60 steps{ends}"]


def test_ctrl_c_keeps_the_smallest_plan_so_far(shrinking, capsys):
    def fails(smaller):
        if len(smaller.faults) < 2:
            raise KeyboardInterrupt
        return True

    shrinking.fails = fails
    with pytest.raises(KeyboardInterrupt):
        shrinking.call()
    said = " ".join(capsys.readouterr().err.split())
    assert "so far: 2 faults on" in said
    assert f"--faults {shrinking.out}/faults.toml" in said
    assert len(load_plan(shrinking.out / "faults.toml", layout=Layout(), steps=60)) == 2


@pytest.mark.parametrize("error", [KeyboardInterrupt(), PsconformError("Toxiproxy at X: no answer")])
def test_what_goes_wrong_in_the_last_run_loses_nothing(shrinking, capsys, monkeypatch, error):
    """All the runs before it have been for that plan."""

    def last(*_, **__):
        raise error

    monkeypatch.setattr(replaying, "run_until_it_fails", last)
    shrinking.fails = lambda smaller: len(smaller.faults) > 1
    with pytest.raises(type(error)):
        shrinking.call()
    assert f"--faults {shrinking.out}/faults.toml" in " ".join(capsys.readouterr().err.split())
    assert len(load_plan(shrinking.out / "faults.toml", layout=Layout(), steps=60)) == 2


def test_the_run_that_is_kept_is_one_that_failed(plan, tmp_path, monkeypatch):
    codes = iter([0, 1, 0, 0])
    before = SimpleNamespace(exit_code=1, names=lambda status: ["R6"])
    session = SimpleNamespace(run=lambda plan: plan.out.mkdir())
    monkeypatch.setattr(replaying, "judge_folder", lambda _: SimpleNamespace(exit_code=next(codes), names=before.names))
    assert replaying.run_until_it_fails(plan, before, session, times=2)
    assert plan.out.exists()
    plan.out.rmdir()
    assert not replaying.run_until_it_fails(plan, before, session, times=2)
    assert plan.out.exists(), "the last one"


@pytest.mark.engine
def test_variables_that_the_target_names_are_as_they_were(tmp_path, monkeypatch):
    target = tmp_path / "target.toml"
    text = SOCKETS.read_text(encoding="utf-8").replace("{here}", str(SOCKETS.parent))
    text = text.replace("tf_config = false", 'environment = ["BUG", "SHARE"]')
    starts = '[jobs.worker]\ncommand = ["sh", "-c", "test \\"$BUG\\" = \'of mine\' && exec \\"$@\\"", "sh", '
    target.write_text(text.replace("[jobs.worker]\ncommand = [", starts), encoding="utf-8")
    monkeypatch.setenv("BUG", "of mine")
    run = judge(target, update="async", layout="ps=1,worker=2", steps=20, out=tmp_path / "run")
    assert run.exit_code == 0, run.explain()
    assert run.repeat.startswith(f"BUG='of mine' psconform run {target} ")
    assert stored_plan(tmp_path / "run", out=tmp_path / "again").repeat == run.repeat
    monkeypatch.delenv("BUG")
    assert stored_plan(tmp_path / "run", out=tmp_path / "again").repeat == run.repeat
    done = psconform("replay", tmp_path / "run", "--out", tmp_path / "again")
    assert done.returncode == 0, done.stderr
    monkeypatch.setenv("SHARE", "0.8")
    with pytest.raises(BadInput, match="SHARE: is set, and was not in that run"):
        stored_plan(tmp_path / "run", out=tmp_path / "more")


@pytest.mark.engine
def test_a_run_of_another_target_is_replayed(tmp_path):
    options = {"update": "async", "layout": "ps=1,worker=2", "steps": 20, "seed": 5, "patience_s": 33.0}
    run = judge(SOCKETS, **options, stop="worker:1@4..9", slow="worker:0=1ms", out=tmp_path / "run")
    plan = stored_plan(tmp_path / "run", out=tmp_path / "again")
    assert plan.repeat == run.repeat
    done = psconform("replay", tmp_path / "run", "--times", 2, "--out", tmp_path / "again", "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["summary"] == "the verdict (valid) came back in 2 of 2 runs"
    assert (tmp_path / "again/0002/faults.toml").read_text() == (tmp_path / "run/faults.toml").read_text()
    plan = (tmp_path / "run/faults.toml").read_text()
    (tmp_path / "run/faults.toml").write_text(plan.replace("4", "5"), encoding="utf-8")
    other = psconform("replay", tmp_path / "run", "--out", tmp_path / "other")
    assert other.returncode == 3
    assert "faults.toml: is not what this run had: stop worker:1@5..9. It had stop worker:1@4..9" in other.stderr
    shutil.copy(tmp_path / "again/0001/faults.toml", tmp_path / "run/faults.toml")
    healthy = psconform("shrink", tmp_path / "run", "--out", tmp_path / "small")
    assert healthy.returncode == 3
    assert "violates nothing, so there is nothing to shrink" in healthy.stderr


@pytest.mark.engine
def test_a_bug_comes_back_and_is_shrunk_to_the_fault_that_shows_it(tmp_path):
    """A ps that answers what is not on its disk yet."""
    durable = SOCKETS.with_name("target_durable.toml").read_text(encoding="utf-8")
    bug = durable.replace("{here}", str(SOCKETS.parent)).replace(
        '"--update={update}"', '"--update={update}", "--every=999"'
    )
    (tmp_path / "target.toml").write_text(bug.replace("{here}", str(SOCKETS.parent)), encoding="utf-8")
    kill, stop = 'kind = "kill", task = "ps:0", at = 12', 'kind = "stop", task = "worker:1", at = 6, for = "100ms"'
    faults = f'fault = [{{{stop}}}, {{{kill}, restart_after = "0s"}}]'
    options = {"layout": "ps=1,worker=2", "update": "async", "steps": 20}
    run = judge(tmp_path / "target.toml", **options, faults=faults, out=tmp_path / "run")
    assert "R1" in run.violated, run.explain()
    done = psconform("shrink", tmp_path / "run", "--runs", 2, "--failing", 2, "--out", tmp_path / "small")
    assert done.returncode == 1, done.stderr
    assert "shrunk to 1 fault on ps=1,worker=" in done.stdout  # of how many it still shows in one run is chance
    assert "kill ps:0" in (tmp_path / "small/manifest.json").read_text()
    assert "without kill ps:0" in done.stderr
    assert "does not" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("replay", "nowhere"), "is not a run folder"),
        (("shrink", "nowhere"), "is not a run folder"),
        (("replay", "nowhere", "--times", 0), "--times: must be between 1 and 10000"),
        (("shrink", "nowhere", "--runs", 2, "--failing", 3), "--failing: must be between 1 and --runs (2), got 3"),
        (("shrink", "nowhere", "--failing", 25), "--failing: must be between 1 and 24, or --runs be said, got 25"),
        (("shrink", "nowhere", "--runs", 101), "--runs: must be between 1 and 100, got 101"),
    ],
)
def test_what_is_wrong_is_named(arguments, says, tmp_path):
    with pytest.raises(BadInput, match=re.escape(says)) as error:
        app([*map(str, arguments), "--out", str(tmp_path / "out")], standalone_mode=False)
    assert error.value.exit_code == 3


def test_where_nothing_can_be_made_nothing_is_lost(tmp_path):
    """It is refused before anything is run; and where it was to be kept in the end, the plan is said."""
    nowhere = Path("/proc/psconform")
    with pytest.raises(BadInput, match="--out: cannot be used"):
        run_folder(nowhere / "run")
    plan = make_plan(Options(out=tmp_path / "run", faults='fault = [{kind = "kill", task = "ps:0", at = 3}]'))
    said = keep(plan, nowhere)
    assert "takes it no more" in said
    assert parse_plan(said.partition("\n")[2], place="said", layout=plan.layout, steps=200) == plan.faults
    assert not list(tmp_path.iterdir())
    run_folder(tmp_path / "run")
    assert not list(tmp_path.iterdir()), "asking whether it can be made leaves nothing"


def test_a_target_file_that_calls_itself_reference_is_replayed_as_that_file(tmp_path):
    text = (Path(__file__).parent / "socket_ps" / "target.toml").read_text(encoding="utf-8")
    (tmp_path / "target.toml").write_text(text.replace('"socket-ps"', '"reference"'), encoding="utf-8")
    plan = make_plan(Options(str(tmp_path / "target.toml"), out=tmp_path / "run", steps=5))
    new_manifest(new_folder(plan.out), plan)
    replaying = stored_plan(plan.out, out=tmp_path / "again")
    assert replaying.target.source == plan.target.source == str(tmp_path / "target.toml")
    assert "psconform run reference" not in replaying.repeat
