"""The oracle of the model: healthy runs keep all that they claim, mutants break something, and the checks see it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from psconform.runner.verdicts import judge_folder
from psconform.simulation.cluster import Cluster
from psconform.simulation.oracle import truths
from psconform.simulation.record import Recorded
from psconform.simulation.schedule import MODES, REPLICAS, draw

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

from model_misses import compared
from model_mutants import MUTANTS, mutated

from .tiers import every

SCHEDULES = 60
"""Among so many drawn ones is one that shows what a mutant breaks; but of ``RARE`` mutants."""
RARE = {
    "comes-back-to-its-own-step": "a worker that comes back after it was evicted",
    "says-ok-without-an-answer": "an answer is lost in a round that is skipped",
    "any-epoch": "a late message of an epoch that is over, or a fault of the chief in the middle of a restore",
    "begins-anew": "a restart at the right moment; the servers know again what is sent twice",
    "round-outlives-a-fence": "it crashes instead",
    "version-not-restored": "it hangs or crashes",
    "restored-state-is-the-checkpoint": "two rollbacks to one checkpoint",
    "one-epoch-for-ever": "two rollbacks",
    "reads-of-any-epoch": "a read in the middle of a restore",
    "serves-behind-the-fence": "a gradient in the middle of a restore",
    "goes-on-from-the-fastest-shard": "a cut between two shards",
    "restores-in-silence": "no record shows what was restored",
    "live-is-all": "a mean in which a worker was evicted",
    "live-at-every-other-round": "the same, in a round of an odd number",
    "live-and-the-evicted": "the same",
    "refused-as-if-applied": "an answer that is lost, of a piece of work that another worker has done",
    "skipped-is-told-taken": "an answer that is lost, in a round that is skipped",
}


def run(seed, mode=""):
    cluster = Cluster(draw(seed, mode=mode))
    cluster.run()
    return cluster


def broken(cluster):
    return {name: truth for name, truth in truths(cluster).items() if not truth.held}


@pytest.mark.parametrize("mode", [*MODES, *REPLICAS])
def test_healthy_runs_keep_all(mode):
    for seed in range(40):
        assert not broken(run(seed, mode)), seed


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(0, 20_000, 1000))
def test_many_healthy_runs_keep_all(first):
    for seed in range(first, first + 1000):
        assert not broken(run(seed)), seed


@pytest.mark.parametrize(("mode", "seed"), [("", 3971), ("", 6086), ("sync", 2240), ("sync", 9497), ("async", 4405)])
def test_no_epoch_is_used_twice(mode, seed):
    """A ps that is alone and dies twice knows no epoch."""
    assert not broken(run(seed, mode))


@pytest.mark.parametrize(
    ("mode", "names"),
    [
        ("sync", "A6 A7 I1 I2 R1 R2 S1 S3 S4 S5"),
        ("quorum", "A6 A7 I1 I2 R1 R2 S2 S3 S4 S5"),
        ("async", "A1 A2 A5 A6 A7 I1 I2 R1 R2"),
        ("bounded", "A1 A2 A3 A5 A6 A7 I1 I2 R1 R2"),
        ("staleness-aware", "A1 A2 A4 A5 A6 A7 I1 I2 R1 R2"),
        ("all-reduce", "I1 I2 R1 R2 S1 S3 S4 S5 S7"),
        ("local-steps", "C5 I1 I2 S7"),
    ],
)
def test_what_is_claimed_is_judged(mode, names):
    drawn = (draw(seed, mode=mode, faults=False) for seed in range(SCHEDULES))
    schedule = next(schedule for schedule in drawn if schedule.delivery == "exactly-once")
    recovery = {"R3", "R4", "R6", "M1"} if schedule.every else set()
    cluster = Cluster(schedule)
    cluster.run()
    assert truths(cluster).keys() == {*names.split(), "L0"} | recovery


@pytest.mark.parametrize(
    "mutant", every(3, [m for m in MUTANTS if m.breaks and m.name not in RARE]), ids=lambda m: m.name
)
def test_what_a_mutant_breaks_is_known_and_seen(mutant, tmp_path):
    """What the oracle says is broken, and shown, is violated, or unknown, in one of the guarantees that are."""
    make, parts = mutated(mutant)
    for seed in range(SCHEDULES):
        trace = Recorded(tmp_path / str(seed), draw(seed, mode=mutant.mode))
        cluster = make(trace.schedule, trace, parts)
        try:
            cluster.run()
        except (KeyError, IndexError, AttributeError):  # a task of the mutant has crashed
            continue
        found = broken(cluster)
        if any(truth.shown for truth in found.values()) and found.keys() & {*mutant.breaks.split()}:
            break
    else:
        pytest.fail("nothing is broken")
    trace.finish(cluster)
    verdicts = {verdict.guarantee: verdict for verdict in judge_folder(trace.folder).verdicts}
    assert any(verdicts[name].status in ("violated", "unknown") for name in found), found


@pytest.mark.nightly
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_no_run_of_a_mutant_is_misjudged(mutant):
    """Where reads show that something is broken, it is violated, or unknown; where nothing is, nothing is violated."""
    assert not compared(mutant, range(200)).wrong


@pytest.mark.parametrize(
    ("name", "seed", "guarantee", "status"),
    [
        ("sign", 30, "S5", "violated"),  # a worker is evicted
        ("sum-for-mean", 30, "S5", "violated"),
        ("late-by-one-is-taken", 23, "S2", "violated"),  # no read shows the round in between
        ("late-by-one-is-taken", 35, "S2", "violated"),
        ("taken-is-told-late", 12, "R1", "violated"),  # by a worker that was killed later
        ("taken-is-told-late", 28, "R1", "violated"),
        ("version-of-now", 0, "A2", "unknown"),  # by what another worker has read
        ("shared-row-overwritten", 44, "A1", "violated"),  # gradients that are sent again are applied again
        ("shared-row-now-and-then", 170, "S5", "violated"),  # no round has the gradients of all workers
        ("version-of-the-next", 100059, "A7", "violated"),  # all is sent again after a rollback
        ("hands-over-no-shared-row", 59, "S7", "violated"),  # only one replica lacks it
    ],
)
def test_runs_of_mutants_that_were_valid(name, seed, guarantee, status, tmp_path):
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    make, parts = mutated(mutant)
    trace = Recorded(tmp_path / "run", draw(seed, mode=mutant.mode))
    cluster = make(trace.schedule, trace, parts)
    cluster.run()
    trace.finish(cluster)
    assert broken(cluster)[guarantee].shown
    verdict = next(each for each in judge_folder(trace.folder).verdicts if each.guarantee == guarantee)
    assert verdict.status == status, verdict


def test_a_worker_that_was_killed_before_it_recorded_anything_has_to_read_too(tmp_path):
    """Of its first life there is no record."""
    mutant = next(mutant for mutant in MUTANTS if mutant.name == "comes-back-blind")
    make, parts = mutated(mutant)
    trace = Recorded(tmp_path / "run", draw(0, mode=mutant.mode))
    cluster = make(trace.schedule, trace, parts)
    cluster.run()
    trace.finish(cluster)
    assert not (tmp_path / "run" / "events" / "worker-1.jsonl").exists()
    joining = next(verdict for verdict in judge_folder(tmp_path / "run").verdicts if verdict.guarantee == "M1")
    assert joining.witness == ("worker:1, started again (1), pushed step 0 before it had read anything",)
    assert broken(cluster)["M1"].shown
