"""What holds in other modes: rounds of R gradients, a bound on staleness, a rate that falls with it."""

from __future__ import annotations

import pytest

from psconform.checks import judge_history
from psconform.history.build import load_history

from . import simulate_modes as modes
from .simulate import Trainer
from .test_checks_bugs import ONE, SHARED, TWO, of

VIOLATED = [
    (modes.LateApplied, ONE, "S2"),
    (modes.LateAppliedUnversioned, ONE, "S2"),
    (modes.LateAppliedAndDenied, ONE, "S2 R1"),
    (modes.QuorumMinusOne, ONE, "S2"),
    (modes.QuorumTorn, TWO, "S4 A6"),
    (modes.QuorumLost, ONE, "S2 R1"),
    (modes.Unbounded, TWO, "A3"),
    (modes.BoundedButStale, ONE, "A3 A7"),
    (modes.AwareNot, TWO, "A4"),
    (modes.AwareOffByOne, ONE, "A4"),
    (modes.AwareOnOneShard, TWO, "A4"),
    (modes.AwareLost, ONE, "A1 A5 R1"),
    (modes.AwareTwice, TWO, "R1 R2 A1"),
]


@pytest.mark.parametrize("shards", [ONE, TWO, SHARED, (0, 1, 2)])
@pytest.mark.parametrize(("workers", "quorum"), [(1, 1), (2, 1), (3, 2), (4, 2), (3, 3)])
def test_healthy_rounds_of_some_workers_are_valid_in_every_interleaving(tmp_path, shards, workers, quorum):
    for seed in range(4):
        trainer = modes.Quorum(shards=shards, workers=workers, quorum=quorum, steps=3 + 2 * seed, seed=seed)
        judged = trainer.judge(tmp_path / str(seed))
        assert of(judged, "violated") | of(judged, "unknown") == set(), judged.verdicts
        assert {"S2", "S3", "S4", "S5"} <= of(judged, "valid")
        assert "S1" in of(judged, "not judged")


@pytest.mark.parametrize("shards", [ONE, TWO])
def test_sum_and_missing_or_other_versions_are_valid_too(tmp_path, shards):
    assert modes.Quorum(reduction="sum", shards=shards).judge(tmp_path / "sum").exit_code == 0
    assert modes.Quorum(versions=False, shards=shards).judge(tmp_path / "bare").exit_code == 0
    assert modes.QuorumCountsGradients(shards=shards).judge(tmp_path / "gradients").exit_code == 0


@pytest.mark.parametrize(("bug", "shards", "names"), VIOLATED)
@pytest.mark.parametrize("seed", range(3))
def test_broken_rounds_of_some_workers_are_found(tmp_path, bug, shards, names, seed):
    judged = bug(shards=shards, steps=12, seed=seed).judge(tmp_path / "run")
    found = of(judged, "violated")
    # what a worker is shown of the past lacks its own last gradient, if that was in time, and its next is late
    assert found - ({"A7", "S2"} if bug is modes.QuorumTorn else set()) == set(names.split()), judged.verdicts


@pytest.mark.parametrize("shards", [ONE, TWO, SHARED])
@pytest.mark.parametrize(("workers", "staleness"), [(1, 0), (2, 0), (3, 1), (4, 3), (2, 99)])
def test_healthy_bounded_staleness_is_valid_in_every_interleaving(tmp_path, shards, workers, staleness):
    for seed in range(4):
        trainer = modes.Bounded(shards=shards, workers=workers, staleness=staleness, steps=3 + 3 * seed, seed=seed)
        judged = trainer.judge(tmp_path / str(seed))
        assert of(judged, "violated") | of(judged, "unknown") == set(), judged.verdicts
        (verdict,) = (v for v in judged.verdicts if v.guarantee == "A3")
        assert verdict.status == "valid"
        assert verdict.stats["apart"] <= staleness


@pytest.mark.parametrize("seed", range(3))
def test_staleness_is_measured_against_its_own_bound(tmp_path, seed):
    loose = modes.Unbounded(shards=TWO, steps=12, staleness=12, seed=seed).judge(tmp_path / "loose")
    assert loose.exit_code == 0
    (verdict,) = (v for v in loose.verdicts if v.guarantee == "A3")
    assert verdict.stats["apart"] > 2


def test_push_without_a_read_of_its_step_is_unknown(tmp_path):
    assert of(modes.BoundedBlind().judge(tmp_path / "run"), "unknown") == {"A3"}


@pytest.mark.parametrize("shards", [ONE, TWO, SHARED])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_healthy_staleness_aware_rate_is_valid_in_every_interleaving(tmp_path, shards, workers):
    stale = 0
    for seed in range(4):
        judged = modes.Aware(shards=shards, workers=workers, steps=3 + 3 * seed, seed=seed).judge(tmp_path / str(seed))
        assert of(judged, "violated") | of(judged, "unknown") == set(), judged.verdicts
        (verdict,) = (v for v in judged.verdicts if v.guarantee == "A4")
        assert verdict.status == "valid"
        stale += verdict.stats["stale"]
    assert (stale > 0) == (workers > 1)


@pytest.mark.parametrize("versions", [True, False])
def test_a_quorum_that_stops_half_way_did_not_complete(tmp_path, versions):
    judged = modes.StopsHalfWay(steps=8, versions=versions).judge(tmp_path / "run")
    assert "L0" in of(judged, "violated"), judged.verdicts


def test_rate_without_versions_is_unknown(tmp_path):
    assert of(modes.Aware(versions=False).judge(tmp_path / "run"), "unknown") == {"A4"}


@pytest.mark.parametrize("mode", [modes.Quorum, modes.Bounded, modes.Aware])
def test_record_cut_at_any_line_blames_nobody_and_passes_nothing(tmp_path, mode):
    folder = mode(shards=TWO, steps=5).run(tmp_path / "run")
    path = folder / "events" / "worker-1.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    for kept in range(len(lines)):
        path.write_bytes(b"".join(lines[:kept]))
        verdicts = judge_history(load_history(folder))
        assert {v.status for v in verdicts} <= {"unknown", "not judged"}, (kept, verdicts)


def test_full_barrier_makes_no_promise_about_some_of_the_workers(tmp_path):
    assert "S2" in of(Trainer().judge(tmp_path / "run"), "not judged")
