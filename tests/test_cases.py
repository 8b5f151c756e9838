"""Trainers of others, in tests/cases as they were found but for their claims: each gets the right verdict."""

from __future__ import annotations

from pathlib import Path

import pytest

from .tiers import every, first

CASES = Path(__file__).parent / "cases"
SEEDS = first(range(5))
pytestmark = pytest.mark.engine


@pytest.mark.parametrize("seed", SEEDS)
def test_a_task_that_dies_of_a_broken_connection_is_the_evidence_of_it(judge, seed):
    folder = CASES / "own-sampler"
    run = judge(folder / "target.toml", update="async", faults=folder / "refuse.toml", seed=seed)
    assert run.violated == ("L1",), run.explain()
    assert any("failed with status 1; its log ends: ConnectionError" in line for line in run.verdicts["L1"].witness)
    assert run.coverage.observed == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_a_step_that_all_skip_is_no_violation(judge, seed, monkeypatch):
    """Mixed precision; and one in which the shards do not agree (pytorch/pytorch#115710)."""
    target = CASES / "amp-found-inf" / "target.toml"
    monkeypatch.delenv("BUG", raising=False)
    healthy = judge(target, layout="ps=2,worker=2", steps=60, seed=seed)
    assert healthy.valid, healthy.explain()
    assert "6 of 60 rounds skipped" in healthy.verdicts["S1"].reason
    monkeypatch.setenv("FORM", "retry")
    again = judge(target, layout="ps=2,worker=2", steps=60, seed=seed)
    assert again.valid, again.explain()
    monkeypatch.setenv("BUG", "one-shard")
    monkeypatch.delenv("FORM")
    run = judge(target, layout="ps=2,worker=2", steps=60, seed=seed)
    assert run.violated == ("S1", "S3", "R1"), run.explain()
    assert "are in ps:1 and not in ps:0" in run.verdicts["S3"].witness[0]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("workers", [2, 3])
def test_a_worker_without_data_leaves_one_divisor_behind(judge, seed, workers, monkeypatch, tmp_path):
    """Uneven inputs (pytorch/pytorch#38174): a round is the mean of all workers, or of those that have data."""
    folder = CASES / "join-divisor"
    options = {"layout": f"ps=1,worker={workers}", "steps": 30, "batches": "worker:1=15", "seed": seed}
    for bug, names in (("initial", ()), ("wrong", ("S5",))):
        monkeypatch.setenv("BUG", bug)
        run = judge(folder / "target.toml", **options)
        assert run.violated == names, run.explain()
    monkeypatch.setenv("BUG", "alternating")
    assert "S5" in judge(folder / "target.toml", **options).violated
    declared = (folder / "target.toml").read_text(encoding="utf-8").replace("{here}", str(folder))
    (tmp_path / "target.toml").write_text(declared + 'divisor = "live"\n', encoding="utf-8")
    monkeypatch.setenv("BUG", "")
    run = judge(tmp_path / "target.toml", **options)
    assert run.valid, run.explain()
    assert run.verdicts["S5"].reason == "a round without some workers is the mean of those in it"
    if (
        workers == 3
    ):  # of rounds of two each gradient shows 1.5 times, which tells the rule; of rounds of one alone, 3 times
        run = judge(folder / "target.toml", **options | {"batches": ["worker:1=15", "worker:2=20"]})
        assert run.valid, run.explain()
        run = judge(folder / "target.toml", **options | {"batches": ["worker:1=15", "worker:2=15"]})
        assert run.exit_code == 2
        assert "claim divisor to tell" in run.verdicts["R1"].reason


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("bug", "workload", "names", "line"),
    [
        ("", "ledger", (), ""),
        ("", "dense-ledger", (), ""),
        ("", "digits", (), ""),
        ("no-division", "ledger", ("S5",), "applied 3 times the declared mean over 6 gradients"),
        ("no-division", "digits", ("C1",), ""),
        ("no-zero-grad", "ledger", ("S1", "R1", "R2"), ""),
        ("drop-rest", "ledger", ("S1", "R1"), ""),
        ("sync-each", "ledger", ("S1", "R1"), ""),
    ],
)
def test_gradients_of_several_steps_are_added_up(judge, seed, bug, workload, names, line, monkeypatch):
    """Gradient accumulation; 20 steps leave two for the last round."""
    monkeypatch.setenv("BUG", bug)
    target = CASES / "grad-accumulation" / "target.toml"
    run = judge(target, layout="ps=2,worker=2", steps=20, accumulate=3, seed=seed, workload=workload)
    assert run.violated == names, run.explain()
    assert line in run.explain()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("bug", "struck", "names", "line"),
    [
        ("", 0, (), ""),
        ("", 5, (), "kill scheduler:0 when the first worker is at step 30"),
        ("evaluator-writes", 0, ("S1",), "which lacks the gradient of worker:0"),
        ("evaluator-dies", 0, ("L0",), "evaluator:0 failed with status 1"),
        ("stuck", 5, ("L1",), "after kill scheduler:0 when the first worker is at step 30"),
    ],
)
def test_jobs_that_train_nothing(judge, seed, bug, struck, names, line, monkeypatch):
    """A scheduler, which workers register with, and evaluators, as BytePS, MXNet and TensorFlow have them."""
    monkeypatch.setenv("BUG", bug)
    folder, options = CASES / "scheduler", {"layout": "ps=2,worker=2", "steps": 60, "seed": seed, "patience_s": 3}
    run = judge(folder / "target.toml", **options, **({"faults": folder / "faults.toml"} if struck else {}))
    assert run.violated[:1] == names, run.explain()
    assert run.exit_code == bool(bug)
    assert run.coverage.observed == struck
    assert line in run.explain()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("bug", ["", "one-buffer"])
def test_one_process_trains_for_all_workers(judge, seed, bug, monkeypatch):
    monkeypatch.setenv("BUG", bug)
    target, options = CASES / "one-process" / "target.toml", {"layout": "ps=2,worker=3", "steps": 30, "seed": seed}
    for workload in ("ledger",) if bug else ("ledger", "digits"):
        run = judge(target, update="async", replication="in-graph", workload=workload, **options)
        own = {"A7"} if bug else set()  # a worker may also see that its own gradient is missing
        assert {*run.violated} - own == ({"A1", "A5", "R1", "R2"} if bug else set()), run.explain()
        assert run.exit_code == bool(bug), run.explain()


CLIPS = [
    ("", "before", "ps=2,worker=2", ""),
    ("", "after", "ps=1,worker=2", ""),
    ("none", "before", "ps=2,worker=2", "every step is one of serial SGD, not clipped"),
    ("per-variable", "before", "ps=2,worker=2", ""),
    ("by-value", "after", "ps=1,worker=2", ""),
    ("other-side", "before", "ps=1,worker=2", "every step is one of serial SGD, clipped to norm 0.5 after the average"),
    ("other-side", "after", "ps=1,worker=2", "every step is one of serial SGD, clipped to norm 0.5 before the average"),
]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("bug", "when", "layout", "line"), every(2, CLIPS), ids=lambda part: part)
def test_gradients_are_clipped_by_their_global_norm(judge, seed, bug, when, layout, line, monkeypatch):
    """Keras has clipnorm, of a variable, beside global_clipnorm; torch's clip_grad_norm_ clips what DDP averaged."""
    monkeypatch.setenv("BUG", bug)
    target, options = CASES / "clip-norm" / "target.toml", {"clip_norm": 0.5, "clip_when": when, "layout": layout}
    for workload in ("digits", "quadratic") if not bug else ("digits",):
        run = judge(target, steps=20, seed=seed, workload=workload, **options)
        assert run.violated == (("C1",) if bug else ()), run.explain()
        assert run.exit_code == bool(bug)
        assert line in run.explain()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_constant_factor_is_seen_where_the_learning_rate_is_declared(judge, seed, monkeypatch):
    """Of gradient accumulation (huggingface/transformers#34191), and of the world size."""
    target = CASES / "loss-scale-factor" / "target.toml"
    says = {"": "", "grad-acc": "applied 4 times the declared mean", "dp-size": "a sum, not a mean"}
    for workload, guarantee in (("ledger", "S5"), ("digits", "C1")):
        for bug, line in says.items():
            monkeypatch.setenv("BUG", bug)
            run = judge(target, layout="ps=2,worker=2", steps=20, seed=seed, workload=workload)
            assert run.violated == ((guarantee,) if bug else ()), run.explain()
            if workload == "ledger":
                assert line in run.explain()


SAMPLERS = {
    "": "",
    "no-set-epoch": "epoch 1: worker:0 takes its samples in the order of epoch 0 again",
    "no-sharding": "epoch 0: worker:0 and worker:1 both use samples",
    "own-seed": "epoch 0: worker:0 and worker:1 both use samples",
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("update", ["sync", "async"])
@pytest.mark.parametrize(("bug", "line"), SAMPLERS.items(), ids=SAMPLERS)
def test_a_trainer_draws_its_samples_itself(judge, seed, update, bug, line, monkeypatch):
    """As torch's DistributedSampler does (ray-project/ray#22108, ray#27167, meta-pytorch/data#302)."""
    monkeypatch.setenv("BUG", bug)
    options = {"layout": "ps=1,worker=2", "workload": "digits", "batch": 48, "steps": 20}
    run = judge(CASES / "own-sampler" / "target.toml", update=update, seed=seed, **options)
    assert run.violated == (("R5",) if bug else ()), run.explain()
    assert line in run.explain()
    assert run.verdicts["C1" if update == "sync" else "C2"].status == "valid"


@pytest.mark.parametrize("pad", first(["pad", "drop"]))
def test_what_is_left_over_is_padded_or_dropped_as_declared(judge, pad, monkeypatch, tmp_path):
    """Of 1347 samples four workers leave three."""
    monkeypatch.setenv("BUG", "")
    monkeypatch.setenv("PAD", pad)
    folder = CASES / "own-sampler"
    declared = (folder / "target.toml").read_text(encoding="utf-8").replace("{here}", str(folder))
    for sampling in ("padded", "drop-last", "exactly-once", "with-replacement"):
        (tmp_path / "target.toml").write_text(declared.replace("padded", sampling), encoding="utf-8")
        options = {"layout": "ps=1,worker=4", "workload": "digits", "batch": 48, "steps": 16}
        run = judge(tmp_path / "target.toml", **options)
        fits = sampling in ("with-replacement", {"pad": "padded", "drop": "drop-last"}[pad])
        assert run.violated == (() if fits else ("R5",)), run.explain()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("workload", "guarantee"), [("ledger", "S5"), ("dense-ledger", "C4")])
def test_gradients_of_one_variable_that_reach_another_are_named(judge, seed, workload, guarantee, monkeypatch):
    """Matched by the order in which they are ready (pytorch/pytorch#64629), or in a bucket that is used again."""
    target = CASES / "order-mismatch" / "target.toml"
    for bug, line in (("", ""), ("by-order", "made for ps:1"), ("bucket-reuse", "made for ps:1")):
        monkeypatch.setenv("BUG", bug)
        run = judge(target, layout="ps=2,worker=2", steps=20, seed=seed, workload=workload)
        assert run.violated == ((guarantee,) if bug else ()), run.explain()
        assert line in run.explain()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("workload", "guarantee"), [("ledger", "S5"), ("dense-ledger", "C4"), ("digits", "C1")])
def test_weights_follow_the_number_of_samples_or_that_is_said(judge, seed, workload, guarantee, monkeypatch):
    """Federated averaging (FLEXible-FL/FLEXible#122): a client's update counts by its number of samples."""
    target = CASES / "fedavg-weights" / "target.toml"
    for bug in ("", "unweighted"):
        monkeypatch.setenv("BUG", bug)
        run = judge(target, layout="ps=1,worker=3", steps=20, seed=seed, workload=workload)
        assert run.violated == ((guarantee,) if bug else ()), run.explain()
        assert ("all gradients count alike" in run.explain()) == (bool(bug) and workload != "digits")


def test_the_healthy_one(judge):
    run = judge(CASES / "own-sampler" / "target.toml", update="async", steps=30)
    assert run.valid, run.explain()
