"""Rows that the gradients of all workers change, as those of an embedding."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partialmethod
from pathlib import Path

import pytest

from psconform.errors import Malformed
from psconform.runner.verdicts import judge_folder
from psconform.simulation import trace
from psconform.simulation.record import simulate
from psconform.simulation.schedule import Schedule

from .mutations import edit
from .tiers import first

CASES = Path(__file__).parent / "cases"
SEEDS = first(range(5))
BUGS = {
    "sync": {
        "": "",
        "row-mean": "each row is divided by the number of gradients that touch it",
        "last-writer": "of a round it gets one gradient only, here that of worker:",
    },
    "async": {"": "", "lost-rows": "increments of a row that several workers change were lost"},
}
ROWS = [(update, bug, line) for update, bugs in BUGS.items() for bug, line in bugs.items()]


@pytest.mark.engine
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("layout", ["ps=2,worker=2", "ps=1,worker=3"])
@pytest.mark.parametrize(("update", "bug", "line"), ROWS)
def test_a_row_that_all_change_has_what_all_have_added(judge, seed, layout, update, bug, line, monkeypatch):
    monkeypatch.setenv("BUG", bug)
    run = judge(CASES / "sparse-rows" / "target.toml", layout=layout, update=update, steps=12, seed=seed)
    assert run.violated == (({"sync": "S5", "async": "A1"}[update],) if bug else ()), run.explain()
    assert line in run.explain()


@pytest.mark.engine
@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("bug", ["", "sparse"])
def test_tensorflow_averages_sparse_gradients_by_row(judge, seed, bug, monkeypatch):
    """SyncReplicasOptimizer with an embedding (tensorflow/tensorflow#5252)."""
    monkeypatch.setenv("BUG", bug)
    run = judge(CASES / "tf-sparse-sync" / "target.toml", layout="ps=2,worker=2", steps=10, seed=seed)
    assert run.violated == (("S5",) if bug else ()), run.explain()
    assert ("each row is divided by the number of gradients that touch it" in run.explain()) == bool(bug)
    assert "a sum, not a mean" not in run.explain()


OWN = trace.HEAD | trace.TAIL
RUN = Schedule(workers=3, ps=2, steps=7)


def lost(log, worker, step, weight, end=trace.WHOLE, *, of, **more):
    """What a server applies: the gradients of these workers and steps do not reach the row that all share."""
    log.entries.append(trace.Entry(worker, step, weight, OWN if of(worker, step) else end, **more))


@pytest.mark.parametrize("mode", ["sync", "quorum", "async", "all-reduce"])
@pytest.mark.parametrize("which", ["none", "of one worker", "one"])
def test_in_the_model_as_in_a_cluster(tmp_path, monkeypatch, mode, which):
    of = {"none": lambda *_: False, "of one worker": lambda w, _: w == 0, "one": lambda w, s: (w, s) == (2, 4)}[which]
    monkeypatch.setattr(trace.Log, "add", partialmethod(lost, of=of))
    run = {"quorum": {"quorum": 2}, "all-reduce": {"ps": 0}}.get(mode, {})
    simulate(replace(RUN, mode=mode, **run), tmp_path / "run")
    judged = judge_folder(tmp_path / "run")
    wrong = "A1" if mode == "async" else "S5"
    assert judged.names("violated") == ([wrong] if which != "none" else []), judged.verdicts


def reads(folder):
    lines = (folder / "events" / "worker-0.jsonl").read_text(encoding="utf-8").splitlines()
    return [number for number, line in enumerate(lines) if json.loads(line)["kind"] == "read"]


@pytest.mark.parametrize("pairs", [[], [[1, 2]], [None, None, None]])
def test_a_record_that_tells_of_another_number_of_variables_is_refused(tmp_path, pairs):
    simulate(RUN, tmp_path / "run")
    edit(tmp_path / "run" / "events" / "worker-0.jsonl", reads(tmp_path / "run")[1], lambda e: e | {"shared": pairs})
    with pytest.raises(Malformed, match="shared must have 2 pairs"):
        judge_folder(tmp_path / "run")


def test_what_is_lost_in_a_read_that_lacks_gradients_is_not_for_s5(tmp_path):
    """S1 and A6 know what that read is."""
    simulate(RUN, tmp_path / "run")
    final = reads(tmp_path / "run")[-1]
    path = tmp_path / "run" / "events" / "worker-0.jsonl"
    edit(path, final, lambda e: {k: v for k, v in e.items() if k != "vector"})
    edit(path, final, lambda e: e | {"clock": [[7, 6, 7], [7, 7, 7]], "shared": [[1, 2], None]})
    assert "S5" not in judge_folder(tmp_path / "run").names("violated")


@pytest.mark.parametrize(("off", "names"), [(lambda step: 0.03 * step, []), (lambda step: 0.9 * (step > 3), ["S5"])])
def test_a_sum_that_is_rounded_each_time_wanders(tmp_path, off, names):
    """As in a bfloat16; and one that is suddenly another."""
    simulate(RUN, tmp_path / "run")
    for worker in range(RUN.workers):
        path = tmp_path / "run" / "events" / f"worker-{worker}.jsonl"
        for line, event in enumerate(map(json.loads, path.read_text(encoding="utf-8").splitlines())):
            if event["kind"] == "read":
                pair = [1 + off(event["step"]), 1]
                edit(path, line, lambda event, pair=pair: event | {"shared": [pair, None]})
    assert judge_folder(tmp_path / "run").names("violated") == names


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_what_is_not_finite_there_is_seen(tmp_path, value):
    simulate(RUN, tmp_path / "run")
    path = tmp_path / "run" / "events" / "worker-1.jsonl"
    final = [number for number, line in enumerate(path.read_text(encoding="utf-8").splitlines()) if '"read"' in line][
        -1
    ]
    edit(path, final, lambda event: event | {"shared": [None, [value, 1]]})
    assert judge_folder(tmp_path / "run").names("violated") == ["C3"]
