"""benchmarks/detection.py: its bounds, what it counts, and that it goes on where it stopped. No cluster is started."""

from __future__ import annotations

import importlib
import json
import math
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from psconform.defect import Defect
from psconform.errors import PsconformError
from psconform.options import Options
from psconform.runner.plan import make_plan
from psconform.targets.reference import DEFECTS

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
detection = importlib.import_module("detection")
detected = importlib.import_module("detected")
sys.path.pop(0)


@pytest.mark.parametrize("runs", [1, 2, 20, 300, 3000])
def test_bound_of_none_and_of_all(runs):
    assert detected.upper_bound(0, runs) == pytest.approx(1 - 0.05 ** (1 / runs), rel=1e-9)
    assert detected.lower_bound(runs, runs) == pytest.approx(0.05 ** (1 / runs), rel=1e-9)
    assert detected.lower_bound(0, runs) == 0.0
    assert detected.upper_bound(runs, runs) == 1.0


@pytest.mark.parametrize(("found", "runs"), [(19, 20), (1, 20), (10, 20), (1, 300), (150, 300), (1999, 2000)])
def test_at_the_bound_so_extreme_a_result_has_a_chance_of_one_in_twenty(found, runs):
    def chance(rate, counts):
        terms = (math.log(math.comb(runs, k)) + k * math.log(rate) + (runs - k) * math.log1p(-rate) for k in counts)
        return sum(map(math.exp, terms))

    assert chance(detected.lower_bound(found, runs), range(found, runs + 1)) == pytest.approx(0.05, rel=1e-6)
    assert chance(detected.upper_bound(found, runs), range(found + 1)) == pytest.approx(0.05, rel=1e-6)


def test_known_bounds():
    assert detected.lower_bound(19, 20) == pytest.approx(0.7839, abs=1e-4)  # from published tables
    assert detected.upper_bound(0, 300) == pytest.approx(0.009936, abs=1e-6)
    with pytest.raises(ValueError, match="21 of 20"):
        detected.lower_bound(21, 20)


def tree(folder):
    """Sources as stamp() expects them."""
    for name in ("checks/sync.py", "report/text.py", "cli.py", "plugin.py", "doctor.py", "probe.py"):
        path = folder / "src" / "psconform" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x = 1\n")
    (folder / "reference_impl").mkdir()
    (folder / "reference_impl" / "cli.py").write_text("x = 1\n")
    return folder


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("src/psconform/checks/sync.py", True),
        ("src/psconform/probe.py", True),
        ("src/psconform/checks/new.py", True),
        ("reference_impl/cli.py", True),
        ("src/psconform/report/text.py", False),
        ("src/psconform/cli.py", False),
        ("src/psconform/plugin.py", False),
        ("src/psconform/doctor.py", False),
        ("src/psconform/notes.txt", False),
        ("tests/test.py", False),
    ],
)
def test_the_stamp_changes_with_what_can_change_a_verdict(tmp_path, name, counts):
    before = detection.stamp(tree(tmp_path))
    assert before == detection.stamp(tmp_path)
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("x = 2\n")
    assert (detection.stamp(tmp_path) != before) is counts


def test_the_stamp_of_this_checkout_covers_its_sources():
    assert len(detection.stamp()) == 16
    assert all((detection.ROOT / "src" / "psconform" / name).exists() for name in detection.NO_INFLUENCE)


FEW = {
    "drop": Defect("", "loses a gradient", "R1", ("S1",)),
    "torn-read": Defect("", "tears a read", "A6", ("S1", "S4"), ("sync",), ps=2, steps=5),
}
"""In place of the registry, which grows."""


def statuses(*violated, unknown=()):
    """What a run says of all checks."""
    names = dict.fromkeys(("S1", "S5", "A7", "R1", "I1", "A6"), "valid")
    return names | dict.fromkeys(violated, "violated") | dict.fromkeys(unknown, "unknown")


@pytest.fixture
def cluster(monkeypatch, tmp_path):
    """In place of clusters: ``says`` gives the verdicts of a run; the calls are kept."""

    def as_it_should(options):
        defect = detection.DEFECTS.get(options["defect"])
        return statuses(*([defect.meant_in(options["update"])] if defect else []))

    fake = SimpleNamespace(calls=[], says=as_it_should)

    def judge(*, session, out, **options):
        fake.calls.append(options)
        found = fake.says(options)
        out.mkdir(parents=True)
        verdicts = {name: SimpleNamespace(status=status) for name, status in found.items()}
        return SimpleNamespace(verdicts=verdicts, repeat="psconform run", as_dict=lambda: {"times_s": {"ended": 1.5}})

    def registry(defects):
        monkeypatch.setattr(detection, "DEFECTS", defects)
        monkeypatch.setattr(detected, "DEFECTS", defects)

    registry(FEW)
    monkeypatch.setattr(detection, "judge", judge)
    fake.registry = registry
    fake.store = tmp_path / "store" / "results.jsonl"
    fake.call = lambda *words: detection.main([*words, "--store", str(fake.store)])
    return fake


SERIES = {
    "": lambda defect: not (defect.recovers or defect.poison),
    "--recovery": lambda defect: bool(defect.kill or defect.poison),
    "--network": lambda defect: bool(defect.faults),
}


@pytest.mark.parametrize("option", [[], ["--recovery"], ["--network"]])
def test_every_defect_in_every_mode_and_the_healthy_trainer_are_counted(cluster, capsys, tmp_path, option):
    page = tmp_path / "detection.md"
    cluster.registry(DEFECTS)
    assert cluster.call(*option, "--runs", "3", "--healthy", "8", "--write", str(page)) == 0
    places = [
        (n, update) for n, defect in DEFECTS.items() for update in defect.updates if SERIES["".join(option)](defect)
    ]
    assert len(cluster.calls) == 3 * len(places) + 8
    text = page.read_text(encoding="utf-8")
    for shown in (capsys.readouterr().out, text):
        for name, update in places:
            assert f"| `{name}` | {update} | {DEFECTS[name].meant_in(update)} | 3 of 3 | 36.8% | 0 | 1.50 |" in shown
        assert "| both modes | 8 | 0 | 31.2% | 0 | 1.50 |" in shown
    assert f"python benchmarks/detection.py {' '.join([*option, '--runs'])} 3 --healthy 8 --write" in text
    assert "To be looked at" not in text
    assert not list(cluster.store.parent.glob("runs/*"))  # nothing went wrong, nothing is kept
    healthy = [call for call in cluster.calls if not call["defect"]]
    assert {call["update"] for call in healthy} == {"sync", "async"}
    assert len({call["layout"] for call in healthy}) > 2
    assert len({json.dumps(call, sort_keys=True) for call in cluster.calls}) == len(cluster.calls)
    struck = {"": "", "--recovery": "kill", "--network": "faults"}["".join(option)]
    assert {name for call in cluster.calls for name in ("kill", "faults") if call.get(name)} == {struck} - {""}


def test_healthy_recoveries_can_be_planned_and_strike_every_kind_of_task(tmp_path):
    cases = detection.healthy_recoveries(100)
    for case in cases:
        make_plan(Options(out=tmp_path / "run", update=case.update, seed=case.seed, **case.options))
    struck = {task.partition("@")[0].partition(":")[0] for case in cases for task in case.options["kill"]}
    assert struck == {"ps", "worker"}
    assert any(task.startswith("worker:0@") for case in cases for task in case.options["kill"])
    assert any(len(case.options["kill"]) == 2 for case in cases)


@pytest.mark.parametrize("series", ["recovery", "network"])
def test_what_shows_a_defect_is_accepted(monkeypatch, tmp_path, series):
    monkeypatch.setattr("psconform.faults.disk_faults.lacks", lambda: "")  # nothing is run
    for name in detection.of_series(series):
        for update in DEFECTS[name].updates:
            (case,) = detection.defect_cases(name, update, 1, series=series)
            make_plan(Options(out=tmp_path / "run", update=update, seed=0, defect=name, **case.options))


def test_healthy_networks_can_be_planned_and_only_links_are_struck(tmp_path):
    for case in detection.healthy_networks(100):
        plan = make_plan(Options(out=tmp_path / "run", update=case.update, seed=case.seed, **case.options))
        assert plan.faults
        assert all(fault.links for fault in plan.faults)


def test_what_has_been_run_is_not_run_again(cluster):
    assert cluster.call("--runs", "2", "--healthy", "4") == 0
    before = len(cluster.calls)
    assert cluster.call("--runs", "2", "--healthy", "4") == 0
    assert len(cluster.calls) == before
    assert cluster.call("--runs", "2", "--healthy", "6") == 0
    assert len(cluster.calls) == before + 2
    assert cluster.call("--runs", "3", "--only", "torn-read") == 0
    assert len(cluster.calls) == before + 3


def test_two_shares_fill_one_store_and_leave_nothing_to_run(cluster, capsys, tmp_path):
    words = ("--runs", "3", "--healthy", "7")
    assert cluster.call(*words, "--share", "1/2") == 0
    first = len(cluster.calls)
    assert cluster.call(*words, "--share", "2/2") == 0
    both = len(cluster.calls)
    assert first in (both // 2, both // 2 + 1)
    page = tmp_path / "detection.md"
    assert cluster.call(*words, "--write", str(page)) == 0
    assert len(cluster.calls) == both
    assert ", 2 clusters at a time; " in " ".join(page.read_text(encoding="utf-8").split())
    for wrong in ("0/2", "3/2", "1", "a/2", "1/"):
        with pytest.raises(SystemExit):
            cluster.call(*words, "--share", wrong)
    assert "K/N with K from 1 to N" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cluster.call(*words, "--share", "1/2", "--write", str(page))


def test_results_of_other_code_or_other_options_are_not_counted(cluster, monkeypatch):
    words = ("--runs", "2", "--only", "torn-read")
    cluster.call(*words)
    monkeypatch.setattr(detection, "STEPS", 51)
    cluster.call(*words)
    assert [call["steps"] for call in cluster.calls] == [200, 200, 51, 51]
    monkeypatch.setattr(detection, "stamp", lambda: "other")
    cluster.call(*words)
    assert len(cluster.calls) == 6
    assert len(cluster.store.read_text().splitlines()) == 6


def test_ctrl_c_costs_the_run_in_progress_and_no_more(cluster, capsys):
    says = cluster.says

    def interrupted(options):
        if len(cluster.calls) == 3:
            raise KeyboardInterrupt
        return says(options)

    cluster.says = interrupted
    assert cluster.call("--runs", "5", "--only", "torn-read") == 2
    assert "| 2 of 2 |" in (out := capsys.readouterr().out)
    assert "incomplete: 2 of 5 runs" in out
    assert cluster.call("--runs", "5", "--only", "torn-read") == 0
    assert [call["seed"] for call in cluster.calls] == [0, 1, 2, 2, 3, 4]


def test_a_line_cut_off_by_a_crash_is_run_again(cluster):
    cluster.call("--runs", "3", "--only", "torn-read")
    text = cluster.store.read_text()
    cluster.store.write_text(text[:-20])
    assert cluster.call("--runs", "3", "--only", "torn-read") == 0
    assert [call["seed"] for call in cluster.calls] == [0, 1, 2, 2]
    assert [json.loads(line)["seed"] for line in cluster.store.read_text().splitlines()] == [0, 1, 2]


def test_a_budget_that_is_spent_leaves_all_rows_alike(cluster, monkeypatch, capsys):
    clock = iter(range(1000))
    monkeypatch.setattr(detection, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    assert cluster.call("--runs", "4", "--healthy", "16", "--budget", "13") == 2
    counts = Counter((call["defect"], call["update"]) for call in cluster.calls)
    assert set(counts) == {("drop", "sync"), ("drop", "async"), ("torn-read", "sync"), ("", "sync"), ("", "async")}
    assert max(counts.values()) <= 4
    assert f"incomplete: {counts.total()} of 28 runs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("says", "shown", "exit_code"),
    [
        (lambda o: statuses() if o["seed"] in (3, 4) else statuses("A6"), "18 of 20", 1),
        (lambda o: statuses() if o["seed"] == 3 else statuses("A6"), "19 of 20", 0),
        (
            lambda o: statuses("A6", "S1", "R1" if o["seed"] == 3 else "S4"),
            "torn-read sync seed 3: violated A6, R1, S1",
            1,
        ),
        (lambda o: statuses("A6", "S1", "R1" if o["seed"] == 3 else "S4"), "accused for nothing R1", 1),
        (lambda o: statuses("A6", unknown=("S1",)), "20 of 20", 0),
    ],
)
def test_misses_and_wrong_accusations_are_named_and_their_folders_kept(cluster, capsys, says, shown, exit_code):
    cluster.says = says
    assert cluster.call("--runs", "20", "--only", "torn-read") == exit_code
    out = capsys.readouterr().out
    assert shown in out
    kept = list(cluster.store.parent.glob("runs/*"))
    assert len(kept) == out.count("* torn-read sync seed ")
    assert all(str(folder) in out for folder in kept)


@pytest.mark.parametrize(
    ("found", "row", "exit_code"),
    [
        (statuses("R1"), "| both modes | 10 | 1 | 39.4% | 0 |", 1),
        (statuses(unknown=("R1",)), "| both modes | 10 | 0 | 25.9% | 1 |", 0),
        (PsconformError("ps:0 was not\nready"), "| both modes | 10 | 0 | 25.9% | 1 |", 0),
    ],
)
def test_false_alarms_and_unknowns_of_the_healthy_trainer(cluster, capsys, found, row, exit_code):
    def says(options):
        if options["seed"] != 7:
            return statuses()
        if isinstance(found, Exception):
            raise found
        return found

    cluster.says = says
    assert cluster.call("--runs", "0", "--healthy", "10") == exit_code
    out = capsys.readouterr().out
    assert row in out
    assert out.count("* healthy async seed 7: ") == 1
    assert cluster.call("--runs", "0", "--healthy", "10") == exit_code  # from the store
    assert len(cluster.calls) == 10


def test_slow_clusters_are_named():
    result = {"defect": "", "update": "sync", "seed": 0, "statuses": statuses(), "folder": None}
    rows = detected.rows_of([result | {"times_s": {"ended": seconds}} for seconds in (1.0, 20.5, 30.0)])
    assert detected.remarks(rows, asked=3) == ["2 clusters took longer than 20 s, the slowest 30.0 s"]


@pytest.mark.parametrize("words", [["--runs", "-1"], ["--only", "nonsense"], ["--budget", "long"]])
def test_options_that_cannot_be_meant(words, capsys):
    with pytest.raises(SystemExit) as ended:
        detection.main(words)
    assert ended.value.code == 2
    assert words[0] in capsys.readouterr().err
