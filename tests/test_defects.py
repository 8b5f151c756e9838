"""Each seeded defect, in a real TensorFlow cluster, is found by the check meant for it and by no other."""

from __future__ import annotations

import json
import sys

import pytest

from psconform.errors import BadInput
from psconform.faults.fault_generator import drawn_plan
from psconform.layout import Layout
from psconform.options import UPDATES
from psconform.plugin import need
from psconform.targets.reference import DEFECTS

from .parts import parts_of

RESET = 'fault = [{kind = "reset", links = "mute worker:1", at = 9, for = "200ms"}]'
CASES = [(name, update) for name, defect in DEFECTS.items() for update in defect.updates]
ALWAYS = [("lose-shard-update", "sync"), ("no-fence", "async"), ("swap-updates", "async")]
"""Of a ledger, of a rollback, of the order; all others are for the nightly tier, and recorded in tests/data."""


def tiers(cases, always):
    """These cases are tried in every run of the tests, the others in the nightly one."""
    assert all(case in cases for case in always)
    marks = [pytest.mark.tensorflow if case in always else pytest.mark.nightly for case in cases]
    return [pytest.param(*case, marks=mark) for case, mark in zip(cases, marks, strict=True)]


def judged(judge, **options):
    """The run, if this machine has what its faults take."""
    need(*parts_of(options))
    return judge("reference", **options)


@pytest.mark.parametrize(("name", "update"), tiers(CASES, ALWAYS))
def test_defect_is_found_by_its_check_and_no_other(judge, name, update):
    defect = DEFECTS[name]
    steps = max(50, defect.steps, -(-defect.gradients // 3))  # of the three workers of the default layout
    run = judged(
        judge,
        layout=defect.layout,
        update=update,
        defect=name,
        steps=steps,
        seed=len(name),
        **{"patience_s": 20, **defect.options},
    )
    meant = defect.meant_in(update)
    assert meant in run.violated, run.explain()
    assert set(run.violated) <= defect.concerns, run.explain()
    assert run.exit_code == 1
    witness = run.verdicts[meant].witness
    assert 1 <= len(witness) <= 10
    assert any("worker:" in line or "every gradient" in line or "nonces" in line for line in witness), witness


@pytest.mark.nightly
@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("name", [name for name, defect in DEFECTS.items() if defect.kill and defect.faults])
def test_defect_that_a_kill_shows_is_shown_by_the_network_too(judge, name, update):
    defect = DEFECTS[name]
    run = judged(judge, layout=defect.layout, update=update, defect=name, steps=defect.steps, **defect.network_options)
    assert defect.meant_in(update) in run.violated, run.explain()
    assert set(run.violated) <= defect.concerns, run.explain()


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "update"), [case for case in CASES if DEFECTS[case[0]].faults])
def test_defect_of_the_network_does_not_show_where_no_call_fails(judge, name, update):
    layout, kind = Layout(ps=2, workers=3, update=update), "random:latency"
    plans = {seed: drawn_plan(kind, layout=layout, steps=100, seed=seed) for seed in range(100)}
    seed = next(seed for seed, plan in plans.items() if all(dict(f.amounts)["ms"] <= 20 for f in plan))
    options = {**DEFECTS[name].network_options, "faults": kind}
    run = judged(judge, layout=layout.text, update=update, defect=name, steps=100, seed=seed, **options)
    if name == "timeout-drops" and slowest_push_s(run) > 0.9 * hasty_s():
        assert set(run.violated) <= DEFECTS[name].concerns, run.explain()  # for this one that is a call that failed
    else:
        assert run.exit_code == 0, run.explain()


def hasty_s():
    from psconform.reference_impl.defects.network_defects import TimeoutDrops

    return TimeoutDrops.hasty_s


def slowest_push_s(run):
    """Of the pushes of a run, first ones left out."""
    paths = (run.folder / "events").glob("worker-*.jsonl")
    lives = [[json.loads(line) for line in path.read_text().splitlines()] for path in paths]
    took = []
    for events in lives:
        sent = {event["step"]: event["mono_ns"] for event in events if event["kind"] == "push"}
        took += [event["mono_ns"] - sent[event["step"]] for event in events if event["kind"] == "ack" and event["step"]]
    return max(took) / 1e9


@pytest.mark.tensorflow
@pytest.mark.parametrize("update", UPDATES)
def test_healthy_trainer_is_valid(judge, update):
    run = judge("reference", update=update, seed=5)
    assert run.exit_code == 0, run.explain()


MODES = [
    {"quorum": 2},
    {"quorum": 1, "layout": "ps=3,worker=2", "reads": 2},
    {"quorum": 3, "layout": "ps=1,worker=3", "reduction": "sum", "steps": 10},
    {"quorum": 2, "reads": 3, "steps": 5, "layout": "ps=2,worker=4"},
    {"quorum": 2, "slow": {"worker:1": 0.05}, "steps": 20},
    {"layout": "ps=0,worker=3", "reads": 2},
    {"layout": "ps=0,worker=2", "reduction": "sum", "workload": "dense-ledger"},
    {"layout": "ps=0,worker=2", "workload": "digits", "model": "mlp", "steps": 60},
    {"layout": "ps=0,worker=1", "local_steps": 4},
    {"layout": "ps=0,worker=3", "local_steps": 7, "reads": 2, "slow": {"worker:1": 0.005}},
    {"update": "async", "staleness": 0},
    {"update": "async", "rate": "staleness-aware", "read_every": 2},
    {"update": "async", "rate": "staleness-aware", "staleness": 4, "layout": "ps=1,worker=4"},
    {"update": "async", "staleness": 1, "layout": "ps=1,worker=4", "reads": 2, "slow": {"worker:2": 0.02}, "steps": 20},
]
MODES_ALWAYS = [MODES[0], MODES[5], MODES[7], MODES[8], MODES[11], MODES[12]]
"""Backup workers; replicas, of a ledger and of digits; local steps; a rate by staleness; a bound of staleness."""


@pytest.mark.parametrize("options", tiers([(mode,) for mode in MODES], [(mode,) for mode in MODES_ALWAYS]), ids=str)
def test_healthy_trainer_keeps_what_it_promises_in_every_mode(judge, options):
    run = judge("reference", seed=6, **options)
    assert run.exit_code == 0, run.explain()
    judged = {"quorum": "S2", "staleness": "A3", "rate": "A4", "local_steps": "C5"}
    for option in judged.keys() & options.keys():
        assert run.verdicts[judged[option]].status == "valid"


@pytest.mark.nightly
@pytest.mark.parametrize("update", UPDATES)
def test_error_feedback_adds_up(judge, update):
    run = judge("reference", update=update, workload="dense-ledger", compression="topk", steps=40, seed=3)
    assert run.exit_code == 0, run.explain()
    assert run.verdicts["C4"].claimed == "error-feedback"
    assert "--compression topk" in run.repeat


@pytest.mark.nightly
def test_one_worker_more_than_840_divides(judge):
    # 9 workers: 840 / 9 is not exact in float32, the stated tolerance must carry it
    run = judge("reference", layout="ps=1,worker=9", steps=12)
    assert run.valid, run.explain()


@pytest.mark.tensorflow
def test_registry_and_trainer_know_the_same_defects():
    """Each is a class of its own, of what its needs say, and each module with bugs has no others."""
    from psconform.reference_impl.defects import code_of
    from psconform.reference_impl.modes.all_reduce import Replica
    from psconform.reference_impl.recovery.chief import Chief
    from psconform.reference_impl.recovery.eviction import Eviction
    from psconform.reference_impl.recovery.recoverable_ps import RecoverableShard
    from psconform.reference_impl.recovery.recovering_worker import RecoveringWorker

    code = {name: code_of(name) for name in DEFECTS}
    of_recovery = (RecoveringWorker, RecoverableShard, Chief, Eviction)
    assert {name for name in DEFECTS if issubclass(code[name], of_recovery)} == {
        name for name, defect in DEFECTS.items() if defect.recovers
    }
    assert {name for name in DEFECTS if issubclass(code[name], Replica)} == {
        name for name, defect in DEFECTS.items() if defect.all_reduce
    }
    same = {"adam-slots-lost", "momentum-lost"}  # of two optimizers
    assert {a for a in DEFECTS for b in DEFECTS if a != b and code[a] is code[b]} == same
    shared = {"OutOfRound", "LateShard", "Twice"}  # parts of workers with bugs
    for module in {sys.modules[kind.__module__] for kind in code.values()}:
        public = {name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__}
        classes = {name for name in public if isinstance(vars(module)[name], type) and not name.startswith("_")}
        assert classes - shared == {kind.__name__ for kind in code.values() if kind.__module__ == module.__name__}


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("sum-not-mean", {"update": "async"}, "--update: defect sum-not-mean needs"),
        ("torn-read", {"layout": "ps=1,worker=2"}, "at least 2 ps"),
        ("early-commit", {"layout": "ps=1,worker=1"}, "at least 2 worker"),
        ("swap-updates", {"update": "async"}, "--workload: defect swap-updates needs.*decayed-ledger"),
        ("drop-gradient", {"workload": "digits"}, "--workload: defect drop-gradient needs.*ledger"),
        ("nonsense", {}, "valid: drop-gradient"),
        ("late-applied", {}, "--quorum: defect late-applied needs it, got 0. Give --quorum 2"),
        ("late-applied", {"quorum": 3}, "at least 2 and less than all 3 workers, got 3"),
        ("ssp-off", {"update": "async"}, "--staleness: defect ssp-off needs it. Give --staleness 2"),
        ("ssp-off", {"update": "async", "staleness": 20, "steps": 50}, "--staleness: is too much for defect ssp-off"),
        ("tau-ignored", {"update": "async"}, "--rate: defect tau-ignored needs it, got 'constant'"),
        ("drop-gradient", {"quorum": 2}, "--quorum: defect drop-gradient has no such option, got 2"),
        ("flip-sign", {"steps": 166}, "at least 500 gradients .* got '3 x 166'"),
        ("clip", {"workload": "ledger"}, "--workload: defect clip needs dense-ledger to show, got 'ledger'"),
        ("drop-gradient", {"workload": "dense-ledger"}, "--workload: defect drop-gradient needs ledger"),
        ("forget-residual", {"workload": "dense-ledger"}, "--compression: defect forget-residual needs topk"),
        ("no-fence", {}, "--kill: defect no-fence needs it, got 'none'. Give --kill ps:0@30"),
        ("no-fence", {"kill": "worker:1@30"}, "--kill: defect no-fence needs it, got 'worker:1@30'"),
        ("place-lost", {"kill": "worker:0@30"}, "--kill: defect place-lost needs it.*Give --kill worker:1@30"),
        ("ack-early", {"kill": "worker:1@30"}, "--kill: defect ack-early needs it.*worker:1@delivering:30"),
        ("no-fence", {"kill": "ps:0@30", "restart_after": "never"}, "--restart-after: .* needs a task that comes back"),
        ("no-fence", {"kill": "ps:0@30", "checkpoint_every": 0}, "--checkpoint-every: .* needs checkpoints, got 0"),
        ("second-newest", {"kill": "ps:0@5"}, "--checkpoint-every: .* needs a checkpoint before step 5, got 10"),
        (
            "checkpoint-unchecked",
            {"kill": "ps:0@20", "checkpoint_every": 5},
            "--faults: defect checkpoint-unchecked needs 2 of full the folder for checkpoints, got .*Give --faults",
        ),
        ("claims-unchecked", {"steps": 60}, "--faults: .* needs twice worker:1, got 'none'. Give --faults 'fault = "),
        ("claims-unchecked", {"steps": 60, "kill": "worker:1@10"}, "needs twice worker:1, got 'kill worker:1@10'"),
        ("drop-gradient", {"kill": "ps:0@30"}, "--kill: defect drop-gradient has no recovery, got 'ps:0@30'"),
        ("drop-gradient", {"stop": "ps:0@1s..3s"}, "--stop: defect drop-gradient has no recovery"),
        ("drop-gradient", {"checkpoint_every": 10}, "--checkpoint-every: defect drop-gradient has no recovery, got 10"),
        ("ack-from-cut", {}, r"--faults: .* needs reset mute worker:1, got 'none'. Give --faults 'fault = \[{kind ="),
        (
            "ack-from-cut",
            {"kill": "ps:0@30"},
            "--faults: defect ack-from-cut needs reset mute worker:1, got 'kill ps:0@30'",
        ),
        ("ack-from-cut", {"faults": RESET, "checkpoint_every": 0}, "--checkpoint-every: .* needs checkpoints, got 0"),
        ("timeout-drops", {"faults": RESET}, "needs stall mute worker:1, got 'reset mute worker:1@9"),
        ("backoff-unbounded", {"faults": RESET}, "needs 3 of reset isolate worker:1, got"),
        ("third-strike", {"faults": RESET}, "needs 3 of stall isolate worker:0, got"),
        ("third-strike", {}, "--kill: defect third-strike needs it, got 'none'. Give --kill ps:0@worker:0@20"),
        ("drop-gradient", {"faults": RESET}, "--faults: fault 1: defect drop-gradient has no recovery"),
        ("", {"compression": "topk"}, "--compression: needs --workload dense-ledger"),
        ("", {"workload": "dense-ledger", "compression": "zip"}, "no such compression, got 'zip'; valid: none, topk"),
    ],
)
def test_layout_that_cannot_show_a_defect_is_refused(judge, name, options, says):
    with pytest.raises(BadInput, match=says):
        judge("reference", defect=name, **options)


@pytest.mark.tensorflow
def test_a_bug_that_a_mode_cannot_have_is_refused():
    from psconform.reference_impl.modes.backup_workers import QuorumWorker
    from psconform.reference_impl.modes.full_worker import FullWorker
    from psconform.reference_impl.modes.in_graph import InGraph
    from psconform.reference_impl.modes.setup import broken

    for healthy, name in ((QuorumWorker, "drop-gradient"), (InGraph, "run-ahead")):
        with pytest.raises(SystemExit, match=f"this mode of training cannot have {name}"):
            broken(healthy, name)
    assert broken(FullWorker, "detached-slice") is FullWorker  # a run for comparison
