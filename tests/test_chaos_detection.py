"""benchmarks/chaos_detection.py: what counts as found, that it resumes, what it prints. No cluster is started."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from psconform.options import UPDATES, Options
from psconform.runner.plan import make_plan
from psconform.targets.reference import DEFECTS

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
chaos = importlib.import_module("chaos_detection")
sys.path.pop(0)

TWO = ["--only", "ack-from-cut", "--tries", "2"]


@pytest.fixture
def cluster(monkeypatch, tmp_path):
    """In place of clusters: ``says`` gives exit code, violated guarantees and seconds of a run; the calls are kept."""

    def as_it_should(options):
        return (1, ("R1",), 3.0) if options["defect"] else (0, (), 3.0)

    fake = SimpleNamespace(calls=[], says=as_it_should, left=2, back=True)

    def judge(*, session, out, **options):
        fake.calls.append(options)
        code, violated, seconds = fake.says(options)
        out.mkdir(parents=True)
        content = {"times_s": {"ended": seconds}, "faults": [{}] * 4}
        return SimpleNamespace(exit_code=code, violated=violated, as_dict=lambda: content, repeat="psconform run")

    monkeypatch.setattr(chaos, "judge", judge)
    monkeypatch.setattr(chaos, "shrunk", lambda *_, **__: fake.left)
    monkeypatch.setattr(chaos, "replayed", lambda *_, **__: fake.back)
    fake.store = tmp_path / "store" / "chaos.jsonl"
    fake.call = lambda *words: chaos.main([*words, "--store", str(fake.store)])
    return fake


def test_every_case_can_be_planned_and_draws_its_faults(tmp_path):
    drawn = set()
    for name in (*chaos.names(), ""):
        cases = chaos.cases_of(name, 4)
        for case in cases:
            seed = case.seed * chaos.SEEDS
            plan = make_plan(Options(out=tmp_path, update=case.update, defect=name, seed=seed, **case.options))
            assert plan.faults
            drawn |= {fault.kind for fault in plan.faults}
        assert {case.update for case in cases} == set(DEFECTS[name].updates if name else UPDATES)
    assert len(drawn) > 5
    left_out = {name for name, defect in DEFECTS.items() if defect.recovers} - set(chaos.names())
    assert left_out == {"checkpoint-unchecked"}


def test_what_is_found_is_counted_and_the_first_is_shrunk(cluster, capsys, tmp_path):
    page = tmp_path / "page.md"
    assert cluster.call(*TWO, "--write", str(page)) == 0
    assert [(call["update"], call["seed"]) for call in cluster.calls] == [("async", chaos.SEEDS), ("sync", 0)]
    for shown in (capsys.readouterr().out, page.read_text(encoding="utf-8")):
        assert "| `ack-from-cut` | sync, async | 2 of 2 | 22.4% | 3.0 | 3.0 | 1.0 | R1 2 | 2 |" in shown
    assert not list(cluster.store.parent.glob("runs/*"))
    assert cluster.call(*TWO) == 0
    assert len(cluster.calls) == 2  # from the store


def test_more_are_replayed_than_shrunk(cluster, capsys):
    assert cluster.call("--only", "ack-from-cut", "--tries", "3") == 0
    shown = capsys.readouterr().out
    assert "the verdict came back in 2 of 2 runs" in shown
    assert "R1 3 | 2 |" in shown


def test_each_defect_has_its_turn_and_what_is_shrunk_comes_last():
    cases = chaos.first_to_last([case for name in ("ack-early", "") for case in chaos.cases_of(name, 2)])
    assert [(case.defect, case.seed) for case in cases] == [("ack-early", 1), ("", 1), ("ack-early", 0), ("", 0)]


def test_what_does_not_come_back_is_told(cluster, capsys):
    cluster.back = False
    assert cluster.call(*TWO) == 1
    shown = capsys.readouterr().out
    assert "the verdict came back in 0 of 2 runs" in shown
    assert "shrunk from 4 to 2 faults, did not come back" in shown


def test_a_try_draws_anew_until_its_time_is_over(cluster, capsys):
    cluster.says = lambda options: (2, (), 6.0)
    assert cluster.call("--only", "ack-from-cut", "--tries", "1") == 1
    assert [call["seed"] for call in cluster.calls] == [0, 1, 2, 3]
    assert "* ack-from-cut sync try 0: nothing violated after 24.0 s, 4 clusters" in capsys.readouterr().out


def test_what_ends_too_late_is_a_miss(cluster, capsys):
    cluster.says = lambda options: (1, ("R1",), 21.0)
    assert cluster.call("--only", "ack-from-cut", "--tries", "1") == 1
    assert "| 0 of 1 |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("says", "left", "shown"),
    [
        (lambda options: (1, ("R1", "M1"), 3.0), 2, "M1, R1 after 3.0 s"),  # M1 is nothing that it breaks
        (lambda options: (1, ("R1",), 3.0), 4, "shrunk from 4 to 4 faults"),
    ],
)
def test_what_is_to_be_looked_at_is_named_and_kept(cluster, capsys, says, left, shown):
    cluster.says, cluster.left = says, left
    cluster.call(*TWO)
    assert shown in capsys.readouterr().out
    assert list(cluster.store.parent.glob("runs/*"))


def test_the_healthy_trainer_may_not_be_accused(cluster, capsys):
    words = ["--only", "healthy", "--tries", "1"]
    assert cluster.call(*words) == 0
    assert "| sync | 1 | 7 | 0 | 0 |" in capsys.readouterr().out
    cluster.store.unlink()
    cluster.says = lambda options: (1, ("R1",), 3.0)
    assert cluster.call(*words) == 1
    assert "* healthy sync try 0: R1" in capsys.readouterr().out


def test_missing_tries_are_told(cluster, capsys):
    assert cluster.call(*TWO, "--budget", "0") == 2
    assert "incomplete: 0 of 2 tries" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--tries", "0"], ["--only", "clip"], ["--share", "1/2", "--write", "page.md"]])
def test_options_that_cannot_be_meant(words, capsys):
    with pytest.raises(SystemExit) as ended:
        chaos.main(words)
    assert ended.value.code == 2
