"""Rules that hold for every check, whatever it judges."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from psconform.checks import all_checks, judge_history
from psconform.history.build import load_history
from psconform.verdict import exit_code, not_judged, unknown, valid, violated

from . import bugs
from . import simulate_modes as modes
from .replicas import Ring
from .simulate import Trainer
from .stories import Story, stretched
from .test_checks_recovery import VIOLATED as AFTER_FAULTS
from .test_checks_recovery import joined, ps_lost
from .test_leaving import ran_dry
from .test_replication import run as in_graph


@pytest.fixture
def histories(tmp_path):
    return [load_history(Trainer(update=update, shards=(0, 1)).run(tmp_path / update)) for update in ("sync", "async")]


def test_every_check_is_valid_somewhere_and_says_what_it_judged(histories, tmp_path):
    kinds = (modes.Quorum, modes.Bounded, modes.Aware)
    histories += [load_history(kind().run(tmp_path / kind.__name__)) for kind in kinds]
    verdicts = [verdict for history in histories for verdict in judge_history(history)]
    for update, workload in itertools.product(("sync", "async"), ("decayed-ledger", "dense-ledger", "digits")):
        trainer = Trainer(update=update, workload=workload)
        verdicts += trainer.judge(tmp_path / f"{update}-{workload}").verdicts
    verdicts += in_graph(tmp_path / "in-graph").verdicts
    verdicts += ps_lost(Story(tmp_path / "story")).verdicts
    verdicts += joined(Story(tmp_path / "joined"), lambda story: story.step(1)).verdicts
    thrice = Story(tmp_path / "thrice")
    thrice.spaced()
    verdicts += thrice.finish().verdicts
    slow = Story(tmp_path / "slow", steps=60)
    slow.long_after(25)
    slow.finish()
    verdicts += stretched(slow.folder, pause_s=6.0, slower=1.0).verdicts
    verdicts += Ring(local_steps=3).judge(tmp_path / "ring").verdicts
    verdicts += judge_history(ran_dry(tmp_path / "dry"))
    assert {v.guarantee for v in verdicts if v.status == "valid"} == {check.name for check in all_checks()}
    for check in all_checks():
        assert check.definition.startswith(f"{check.name}:")
        assert "Assumes:" in check.definition or "Claimed" in check.definition


def test_every_check_is_violated_by_some_bug():
    from .test_checks_bugs import VIOLATED
    from .test_checks_modes import VIOLATED as IN_OTHER_MODES
    from .test_convergence import WRONG as UNTRAINED
    from .test_order import WRONG
    from .test_replicas import VIOLATED as RINGS
    from .test_replication import VIOLATED as REPLICATED

    assert all(callable(test) for test in AFTER_FAULTS.values())
    named = {name for *_, names in [*VIOLATED, *IN_OTHER_MODES, *WRONG, *REPLICATED, *RINGS] for name in names.split()}
    named |= {*AFTER_FAULTS, "M2", "L2"}  # test_leaving.py, test_budgets.py
    assert named | set().union(*(names for _, _, names, _ in UNTRAINED)) == {check.name for check in all_checks()}


def test_check_that_crashes_is_unknown(histories):
    for history in histories:
        broken = dataclasses.replace(history, variables=history.variables + 1)  # a real crash: arrays do not fit
        crashed = [v for v in judge_history(broken) if v.reason.startswith("the check crashed: ")]
        assert {"A7", "R1", "R2", "I1"} <= {v.guarantee for v in crashed}
        assert all(v.status == "unknown" for v in crashed)


def test_nothing_is_valid_on_an_incomplete_record(histories):
    for history in histories:
        gap = dataclasses.replace(history, gaps=("the disk was full",))
        verdicts = judge_history(gap)
        assert {v.status for v in verdicts} == {"unknown", "not judged"}
        assert all(v.reason == "incomplete: the disk was full" for v in verdicts if v.status == "unknown")
        assert exit_code(verdicts) == 2


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        ([], 2),
        ([not_judged("")], 2),
        ([valid(), not_judged("")], 0),
        ([valid(), unknown("")], 2),
        ([unknown(""), violated([""]), valid()], 1),
    ],
)
def test_the_worst_verdict_is_the_exit_code(verdicts, code):
    """A run of which nothing is judged has shown nothing."""
    assert exit_code(verdicts) == code


def test_how_a_run_ended_is_judged_whatever_its_parameters_show(tmp_path):
    """Its final reads disagree, so that nothing that is counted is valid; it came to its end all the same."""
    judged = bugs.StaleFinal(update="async").judge(tmp_path / "run")
    assert judged.history.disagreement
    assert {v.guarantee for v in judged.verdicts if v.status == "valid"} & {"R1", "L0"} == {"L0"}


def test_a_violation_on_an_incomplete_record_stays_one(tmp_path):
    history = load_history(bugs.Twice(update="async").run(tmp_path / "run"))
    gap = dataclasses.replace(history, gaps=("the disk was full",))
    assert {v.guarantee for v in judge_history(gap) if v.status == "violated"} == {"A1", "R1", "R2"}


def test_nothing_is_valid_where_nothing_was_trained(tmp_path):
    class Idle(Trainer):
        def attempts(self, worker, step):
            return 0

        def waits_for(self, worker, step):
            return 0

    judged = Idle().judge(tmp_path / "run")
    assert {v.guarantee: v.status for v in judged.verdicts if v.status != "not judged"} == {"L0": "violated"}
    assert "training ended early before the first step" in {v.reason for v in judged.verdicts}


@pytest.mark.parametrize("update", ["sync", "async"])
def test_record_cut_at_any_line_blames_nobody_and_passes_nothing(tmp_path, update):
    # the parameters show updates of which the record no longer tells: unknown, not phantoms
    folder = Trainer(update=update, shards=(0, 1), steps=5).run(tmp_path / "run")
    path = folder / "events" / "worker-1.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    for kept in range(len(lines)):
        path.write_bytes(b"".join(lines[:kept]))
        verdicts = judge_history(load_history(folder))
        assert {v.status for v in verdicts} <= {"unknown", "not judged"}, (kept, verdicts)
    path.unlink()
    assert {v.status for v in judge_history(load_history(folder))} <= {"unknown", "not judged"}


@pytest.mark.parametrize("bug", [bugs.SentTwice, bugs.FailedNotApplied, bugs.NeverTold])
def test_record_with_retries_cut_at_any_line_blames_nobody(tmp_path, bug):
    folder = bug(update="async", steps=5).run(tmp_path / "run")
    path = folder / "events" / "worker-1.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    for kept in range(len(lines)):
        path.write_bytes(b"".join(lines[:kept]))
        assert {v.status for v in judge_history(load_history(folder))} <= {"unknown", "not judged"}, kept
