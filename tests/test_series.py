"""Series of runs (--repeat, --random-layouts): what is drawn, what is counted, and that each run can be repeated."""

from __future__ import annotations

import dataclasses
import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from psconform.anomalies import Anomaly
from psconform.cli import app
from psconform.defect import Defect
from psconform.errors import BadInput, PsconformError, Unavailable
from psconform.history.manifest import Manifest
from psconform.options import Options
from psconform.report.series_summary import one_line, show_series, summary
from psconform.runner.calibrate import NotLinear
from psconform.runner.plan import MAX_SEED
from psconform.runner.progress import Progress
from psconform.runner.random_layouts import drawn, make_plans
from psconform.runner.series import Series, run_series
from psconform.targets.reference import DEFECTS

from . import bugs
from .simulate import Trainer
from .tiers import every

TARGET = Path(__file__).parent / "socket_ps" / "target.toml"
NONE = Defect("", "", "")
SEEDS = st.integers(0, 2**31 - 1)
MODES = st.sampled_from(["sync", "async"])


@given(seed=SEEDS, i=st.integers(0, 9999), update=MODES, steps=st.integers(2, 500))
def test_what_is_drawn_is_within_bounds_and_the_same_again(seed, i, update, steps):
    found = drawn(seed, i, update=update, steps=steps, needs=NONE)
    assert found == drawn(seed, i, update=update, steps=steps, needs=NONE)
    assert found["layout"] in {f"ps={ps},worker={workers}" for ps in (1, 2, 3) for workers in (1, 2, 3, 4)}
    assert 2 <= found["steps"] <= steps
    assert 1 <= found["reads"] <= 3
    assert 1 <= found["read_every"] <= (min(5, found["steps"]) if update == "async" else 1)


@pytest.mark.parametrize("update", ["sync", "async"])
def test_everything_is_drawn_at_some_time(update):
    runs = [drawn(7, i, update=update, steps=6, needs=NONE) for i in range(300)]
    assert len({run["layout"] for run in runs}) == 12
    assert {run["steps"] for run in runs} == {2, 3, 4, 5, 6}
    assert {run["reads"] for run in runs} == {1, 2, 3}
    assert {run["read_every"] for run in runs} == ({1, 2, 3, 4, 5} if update == "async" else {1})
    assert len({run["layout"] for run in (drawn(s, 0, update=update, steps=6, needs=NONE) for s in range(99))}) == 12


@pytest.mark.parametrize(
    ("name", "update"), every(3, ((n, update) for n, defect in DEFECTS.items() for update in defect.updates))
)
def test_a_defect_gets_what_it_needs(monkeypatch, tmp_path, name, update):
    monkeypatch.setattr("psconform.faults.disk_faults.lacks", lambda: "")  # nothing is run
    plans = make_plans(
        Options(out=tmp_path, update=update, defect=name, **DEFECTS[name].options), repeat=40, random_layouts=True
    )
    assert len({(plan.layout, plan.workload.steps) for plan in plans}) > 20
    for plan in plans:  # make_plan has accepted each, and it checks
        assert plan.layout.workers >= DEFECTS[name].workers
        assert plan.workload.read_every == 1


def test_a_straggler_is_in_every_layout(tmp_path):
    plans = make_plans(Options(out=tmp_path, slow=["worker:2=1ms"]), repeat=40, random_layouts=True)
    assert {plan.layout.workers for plan in plans} == {3, 4}


@pytest.mark.parametrize(
    ("options", "workers", "ps", "steps"),
    [
        ({"kill": ["worker:2@20"]}, 3, 1, 21),
        ({"kill": ["ps:1@after-push:7", "worker:1@1.5s"]}, 2, 2, 8),
        ({"stop": "worker:1@3..40"}, 2, 1, 41),
        ({"poison": ["worker:3@9=inf"]}, 4, 1, 10),
        ({"batches": ["worker:1=50"]}, 2, 1, 51),
        ({"batches": {"worker:0": 30}}, 2, 1, 31),
        ({"drop_after": "2s"}, 2, 1, 2),
    ],
)
def test_what_an_option_names_is_in_every_layout(tmp_path, options, workers, ps, steps):
    plans = make_plans(Options(out=tmp_path, **options), repeat=40, random_layouts=True)
    assert min(plan.layout.workers for plan in plans) == workers
    assert min(plan.layout.ps for plan in plans) == ps
    assert min(plan.workload.steps for plan in plans) >= steps


def test_seeds_and_folders_follow_one_another(tmp_path):
    plans = make_plans(Options(out=tmp_path, seed=MAX_SEED - 2, steps=9), repeat=3)
    assert [plan.workload.seed for plan in plans] == [MAX_SEED - 2, MAX_SEED - 1, MAX_SEED]
    assert [plan.out for plan in plans] == [tmp_path / "0001", tmp_path / "0002", tmp_path / "0003"]
    assert {(plan.layout.text, plan.workload.steps) for plan in plans} == {("ps=2,worker=3", 9)}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"repeat": 0}, "--repeat: must be between 1 and 10000, got 0"),
        ({"repeat": 10001}, "--repeat: must be between 1 and 10000, got 10001"),
        ({"seed": MAX_SEED}, "--seed: must leave room for 2 seeds"),
        ({"seed": -1}, "--seed: must be between 0"),
        ({"random_layouts": True, "layout": "small"}, "--layout: is drawn with --random-layouts.*'small'"),
        ({"random_layouts": True, "reads": 2}, "--reads: is drawn with --random-layouts.*got 2"),
        (
            {"random_layouts": True, "update": "async", "read_every": 2},
            "--read-every: is drawn with --random-layouts.*got 2",
        ),
        ({"random_layouts": True, "steps": 1}, "--steps: must be at least 2 to draw from.*got 1"),
        ({"random_layouts": True, "steps": 4, "defect": "run-ahead"}, "--steps: must be at least 5.*got 4"),
        (
            {"random_layouts": True, "slow": ["worker:4=1ms"]},
            "--random-layouts: draws at most 4 workers, got 'worker:4'",
        ),
        ({"random_layouts": True, "slow": ["ps:0=1ms"]}, "--slow: only workers"),
        ({"random_layouts": True, "kill": ["ps:3@2"]}, "--random-layouts: draws at most 3 ps, got 'ps:3'"),
        ({"repeat": "3"}, "--repeat: must be a whole number, got '3'"),
        ({"repeat": 2.5}, "--repeat: must be a whole number, got 2.5"),
        ({"seed": "x"}, "--seed: must be a whole number, got 'x'"),
        ({"random_layouts": True, "slow": [f"worker:{'9' * 5000}=1ms"]}, "--slow: must be job:index"),
        ({"random_layouts": True, "defect": "nonsense"}, "--defect: unknown defect"),
        ({"random_layouts": True, "update": "later"}, "--update: unknown update mode"),
    ],
)
def test_a_series_that_cannot_be_is_refused_before_it_starts(tmp_path, options, says):
    options = dict(options)
    series = {name: options.pop(name, usual) for name, usual in (("repeat", 2), ("random_layouts", False))}
    with pytest.raises(BadInput, match=says):
        make_plans(Options(**{"out": tmp_path / "out", **options}), **series)
    assert not (tmp_path / "out").exists()


class Simulated:
    """In place of a Session: each run is a trainer in this process, or an exception."""

    def __init__(self, *kinds):
        self.kinds = list(kinds)

    def run(self, plan, *, notify):
        kind = self.kinds.pop(0)
        if isinstance(kind, BaseException):
            (plan.out / "logs").mkdir(parents=True)
            raise kind
        return Manifest.read(kind(workers=2, shards=(0, 1)).run(plan.out))


def judged(out, *kinds, **options):
    """The series of these trainers."""
    series = Series(make_plans(Options(out=out), repeat=len(kinds)), out)
    seen = []
    run_series(series, Simulated(*kinds), notify=lambda _: None, done=seen.append, **options)
    assert seen == series.outcomes
    return series


def shown(series):
    """The summary as plain text."""
    console = Console(width=400, color_system=None)
    with console.capture() as captured:
        console.print(summary(series), soft_wrap=True)
    return captured.get()


class Unfinished(Trainer):
    """Nobody can say anything about this one: it made no final read."""

    final = False


def test_what_was_reported_of_a_run_is_kept_and_counted(tmp_path, monkeypatch):
    slow = Anomaly(kind="straggler", task="worker:1", step=5, since_s=1.5, text="takes 60 ms")
    found = iter([(slow, slow), (), (slow,)])
    monkeypatch.setattr("psconform.runner.verdicts.find_anomalies", lambda history, losses: next(found))
    series = judged(tmp_path / "out", Trainer, Trainer, Trainer)
    runs = json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))["runs"]
    assert [len(run["anomalies"]) for run in runs] == [2, 0, 1]
    assert runs[2]["anomalies"] == [dataclasses.asdict(slow)]
    assert "straggler worker:1: in 2 of 3 runs" in shown(series)
    assert ": valid, reported straggler worker:1" in one_line(series.outcomes[0])
    assert "reported" not in one_line(series.outcomes[1])
    assert series.exit_code == 0


FAILS, BROKEN = Unavailable("ps:0 cannot be started"), PsconformError("the keeper is gone")


@pytest.mark.parametrize(
    ("kinds", "exit_code", "codes"),
    [
        ((Trainer, Trainer), 0, {"0": 2, "1": 0, "2": 0, "3": 0, "4": 0}),
        ((Trainer, Unfinished, Trainer), 2, {"0": 2, "1": 0, "2": 1, "3": 0, "4": 0}),
        ((FAILS, Unfinished, Trainer), 3, {"0": 1, "1": 0, "2": 1, "3": 1, "4": 0}),
        ((BROKEN, FAILS, Unfinished, Trainer), 4, {"0": 1, "1": 0, "2": 1, "3": 1, "4": 1}),
        ((FAILS, Unfinished, bugs.Dropped, Trainer), 1, {"0": 1, "1": 1, "2": 1, "3": 1, "4": 0}),
    ],
)
def test_every_run_is_counted_and_the_worst_decides(tmp_path, kinds, exit_code, codes):
    series = judged(tmp_path / "out", *kinds)
    content = json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))
    assert content == series.as_dict()
    assert (content["exit_code"], content["exit_codes"]) == (exit_code, codes)
    assert (content["asked_for"], content["judged_or_failed"]) == (len(kinds), len(kinds))
    bad = [i for i, kind in enumerate(kinds, start=1) if kind is not Trainer]
    assert [run["run"] for run in content["not_valid"]] == bad
    assert sum(content["guarantees"]["R1"][status] for status in ("valid", "violated", "unknown")) == len(kinds) - (
        (FAILS in kinds) + (BROKEN in kinds)
    )
    text = shown(series)
    for run in content["not_valid"]:
        assert run["folder"] in text
        assert run["repeat"] in text
        assert Path(run["folder"]).is_dir()
    assert ("ps:0 cannot be started" in text) is (FAILS in kinds)
    assert {0: "VALID", 1: "VIOLATED", 2: "UNKNOWN", 3: "FAILED", 4: "FAILED"}[exit_code] + ": " in text


def test_the_table_counts_verdicts(tmp_path):
    series = judged(tmp_path, Trainer, bugs.Dropped, bugs.Dropped)
    assert series.guarantees["R1"] == {"valid": 1, "violated": 2}
    assert series.guarantees["A1"] == {"not judged": 3}
    (row,) = (line for line in shown(series).splitlines() if line.startswith("  R1 "))
    assert row.split() == ["R1", "delivery", "1", "2", ".", "."]
    assert one_line(series.outcomes[1]).startswith("0002 ps=2,worker=3, 200 steps, seed 1: violated ")
    assert "R1" in one_line(series.outcomes[1])


def test_times_are_summed_up(tmp_path):
    series = judged(tmp_path, *[Trainer] * 3)
    for outcome, seconds in zip(series.outcomes, (1.0, 3.0, 2.0), strict=True):
        outcome.times_s["ended"] = seconds
    assert series.as_dict()["times_s"]["cluster"] == {"min": 1.0, "median": 2.0, "p95": 3.0, "max": 3.0}
    assert series.as_dict()["times_s"]["first_ack"] == {}
    assert series.total_s > 0


@pytest.mark.parametrize("keep", [True, False])
def test_folders_of_valid_runs_are_kept_on_request(tmp_path, keep):
    series = judged(tmp_path, Trainer, bugs.Dropped, keep_valid=keep)
    assert [(tmp_path / name / "verdicts.json").exists() for name in ("0001", "0002")] == [keep, True]
    runs = series.as_dict()["runs"]
    assert [run["folder"] for run in runs] == [str(tmp_path / "0001") if keep else None, str(tmp_path / "0002")]


def test_ctrl_c_keeps_the_summary_so_far(tmp_path):
    series = judged(tmp_path, Trainer, KeyboardInterrupt(), Trainer)
    assert (series.exit_code, len(series.outcomes), series.interrupted) == (130, 1, tmp_path / "0002")
    assert json.loads((tmp_path / "summary.json").read_text())["exit_codes"]["0"] == 1
    assert "INTERRUPTED: 1 valid" in shown(series)
    assert f"interrupted in: {tmp_path / '0002'}" in shown(series)


def test_ctrl_c_before_anything_is_no_success(tmp_path):
    series = judged(tmp_path, KeyboardInterrupt(), Trainer)
    assert (series.exit_code, series.as_dict()["runs"]) == (130, [])
    assert "INTERRUPTED: no run finished" in shown(series)


def test_a_target_that_cannot_be_judged_ends_the_series(tmp_path):
    with pytest.raises(NotLinear):
        judged(tmp_path, Trainer, NotLinear("target", "is not plain SGD"), Trainer)
    assert len(json.loads((tmp_path / "summary.json").read_text())["runs"]) == 1


def test_a_long_list_of_bad_runs_is_cut(tmp_path):
    text = shown(judged(tmp_path, *[FAILS] * 25))
    assert text.count("psconform run") == 20
    assert "and 5 more, in summary.json" in text


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_on_a_terminal_and_in_a_log(tmp_path, capfd, monkeypatch, terminal):
    monkeypatch.setenv("TTY_COMPATIBLE", "1" if terminal else "0")
    monkeypatch.setenv("FORCE_COLOR", "1" if terminal else "")
    series = Series(make_plans(Options(out=tmp_path), repeat=2), tmp_path)
    with show_series(series) as (notify, done):
        notify(Progress({}, 10, 100, 5.0))
        run_series(series, Simulated(Trainer, bugs.Dropped), notify=notify, done=done)
    out, err = capfd.readouterr()
    assert out == ""
    assert "starting 2 runs of reference, sync" in err
    assert "0002 ps=2,worker=3, 200 steps, seed 1: violated" in err
    assert ("0001 ps=2,worker=3, 200 steps, seed 0: valid" in err) is not terminal  # the bar counts it
    assert ("1 valid, 1 violated" in err) is terminal


class Planned(Exception):
    """In place of a run."""


@pytest.mark.parametrize(
    "options",
    [
        {"update": "async", "slow": ["worker:0=3ms"], "patience_s": 90.0},
        {"update": "sync", "reduction": "sum", "defect": "torn-read"},
        {"update": "sync", "target": str(TARGET)},
    ],
)
def test_the_repeat_line_of_each_run_is_that_run(tmp_path, monkeypatch, options):
    def catch(plan, **_):
        raise Planned(plan)

    monkeypatch.setattr("psconform.api.run_plan", catch)
    for plan in make_plans(
        Options(**{"target": "reference", **options}, out=tmp_path, seed=11), repeat=8, random_layouts=True
    ):
        with pytest.raises(Planned) as planned:
            app(shlex.split(plan.repeat)[1:], standalone_mode=False)
        (again,) = planned.value.args
        assert dataclasses.replace(again, out=plan.out) == plan


def psconform(*words, cwd):
    command = [sys.executable, "-m", "psconform.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=120, check=False)


@pytest.mark.engine
def test_a_real_series(tmp_path):
    words = ["--repeat", "2", "--random-layouts", "--update", "async", "--steps", "12", "--seed", "3", "--json"]
    done = psconform("run", str(TARGET), *words, "--no-keep-valid", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    content = json.loads(done.stdout)
    assert content == json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))
    assert [run["seed"] for run in content["runs"]] == [3, 4]
    assert content["exit_codes"] == {"0": 2, "1": 0, "2": 0, "3": 0, "4": 0}
    assert 0 < content["times_s"]["first_ack"]["min"] <= content["times_s"]["cluster"]["max"]
    assert all(run["updates_per_s"] > 0 for run in content["runs"])
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["summary.json"]
    assert len(done.stderr.splitlines()) == 3


@pytest.mark.engine
def test_runs_that_cannot_start_are_counted(tmp_path):
    (tmp_path / "target.toml").write_text(TARGET.read_text().replace('"{python}"', '"no-such-program"'))
    done = psconform("run", "target.toml", "--repeat", "2", "--out", "out", cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    assert done.stdout.count("ps:0 cannot be started: FileNotFoundError") == 2
    assert "FAILED: 2 failed" in done.stdout
    assert "Traceback" not in done.stderr
