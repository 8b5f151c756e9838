"""C4: each kind of change is named; what is allowed is valid; error feedback adds up."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psconform.checks.compression import KINDS, Changes, common_factor
from psconform.errors import Malformed
from psconform.history.build import load_history
from psconform.probe import DenseLedger, Probe
from psconform.runner.verdicts import judge_folder

from . import bugs, change_bugs

TWO = (0, 1)
PRESENCE = {"S1", "S3", "S4", "A5", "A6", "A7"}


def judged(bug, folder, update="async", shards=TWO, workers=2, **options):
    return bug(update=update, shards=shards, workers=workers, **options).judge(folder / f"{bug.__name__}-{update}")


def c4(run):
    return next(verdict for verdict in run.verdicts if verdict.guarantee == "C4")


def violated(run):
    return {verdict.guarantee for verdict in run.verdicts if verdict.status == "violated"}


@pytest.mark.parametrize("update", ["sync", "async"])
@pytest.mark.parametrize(
    ("bug", "says", "example"),
    [
        (change_bugs.Flipped, "1 of 16 gradients were sign flipped", "worker:1 step 3 in ps:0: its sign is flipped"),
        (change_bugs.Thrice, "1 of 16 gradients were applied again", "worker:1 step 3 in ps:0: applied 3 times"),
        (
            change_bugs.Damped,
            "1 of 16 gradients were scaled",
            "in ps:0: scaled as a whole by 0.7, from norm 96322.6 to 674",
        ),
        (
            change_bugs.ClippedByNorm,
            "4 of 16 gradients were scaled: all of norm 96322.6 and more, none of 48161.3 and less "
            "(clipped to norm 60000)",
            "worker:0 step 3 in ps:0: scaled as a whole by 0.6229, from norm 96322.6 to 60000",
        ),
        (
            change_bugs.ClippedByValue,
            "8 of 16 gradients were capped: all of norm 48161.3 and more, none of 24080.7 and less, all at 20000",
            "worker:0 step 2 in ps:0: entries above 20000 capped at 20000 (clip by value)",
        ),
        (
            change_bugs.SignsOnly,
            "16 of 16 gradients were capped, all at 100",
            "worker:0 step 0 in ps:0: entries above 100 capped",
        ),
        (
            change_bugs.Topmost,
            "16 of 16 gradients were sparsified",
            "worker:0 step 0 in ps:0: of 8 entries only the 3 largest (top-k) arrived",
        ),
        (
            change_bugs.RandomK,
            "1 of 16 gradients were sparsified",
            "worker:1 step 3 in ps:0: of 8 entries only 3, not the largest, arrived, at 2.667 times their size",
        ),
        (
            change_bugs.InHalfPrecision,
            "16 of 16 gradients were rounded",
            "rounded to 11 bits (as float16 and TF32 have), off by",
        ),
        (change_bugs.InBFloat16, "16 of 16 gradients were rounded", "cut off after 8 bits (as bfloat16 has), off by"),
        (change_bugs.InInt8, "16 of 16 gradients were rounded", "rounded to about 6 bits, off by up to 0.0"),
        (change_bugs.OneSignFlipped, "1 of 16 gradients were other", "entries arrived at -1 to 1 times their size"),
    ],
)
def test_a_change_is_named_and_nobody_else_is_accused(tmp_path, bug, update, says, example):
    run = judged(bug, tmp_path, update)
    assert violated(run) == {"C4"}
    witness = c4(run).witness
    assert witness[0] == says
    assert example in witness[1]
    assert len(witness) <= 10


def test_a_change_of_a_worker_that_is_alone_is_named(tmp_path):
    run = judged(change_bugs.ClippedByNorm, tmp_path, workers=1)
    assert violated(run) == {"C4"}
    assert c4(run).witness[0].startswith("2 of 8 gradients were scaled: all of norm 96322.6 and more, none of 48161.3")


def test_a_gradient_that_is_lost_is_named_by_those_whose_definition_it_breaks(tmp_path):
    sync, other = judged(change_bugs.Lossy, tmp_path, "sync"), judged(change_bugs.Lossy, tmp_path, "async")
    assert (violated(sync), violated(other)) == ({"S1", "C4"}, {"A5", "C4"})
    assert c4(sync).witness[:2] == ("1 of 16 gradients are lost", "worker:1 step 3 in ps:0: lost")
    assert c4(sync).stats == {"lost": 1}


@pytest.mark.parametrize("update", ["sync", "async"])
def test_a_common_factor_is_named_once(tmp_path, update):
    witness = c4(judged(change_bugs.DampedAll, tmp_path, update)).witness
    assert witness == ("every gradient was scaled by 0.7: a weight, see S5 and A1 on workload ledger",)


@pytest.mark.parametrize(
    ("bug", "level", "status"),
    [
        (change_bugs.Lossy, "at-most-once", "valid"),
        (change_bugs.Lossy, "none", "valid"),
        (change_bugs.Lossy, "at-least-once", "violated"),
        (change_bugs.Thrice, "at-least-once", "valid"),
        (change_bugs.Thrice, "at-most-once", "violated"),
        (change_bugs.Damped, "none", "violated"),
    ],
)
def test_what_delivery_allows_is_no_compression(tmp_path, bug, level, status):
    class Claims(bug):
        pass

    Claims.level = ("delivery", level)
    assert c4(judged(Claims, tmp_path)).status == status


@pytest.mark.parametrize("update", ["sync", "async"])
@pytest.mark.parametrize("bug", [change_bugs.FeedsBack, change_bugs.FeedsBackQuantised])
def test_error_feedback_adds_up(tmp_path, bug, update):
    run = judged(bug, tmp_path, update, workers=3)
    assert run.exit_code == 0, run.verdicts
    assert c4(run).reason.startswith("24 gradients; ")
    reasons = {verdict.reason for verdict in run.verdicts if verdict.guarantee in PRESENCE}
    wanted = "needs gradients that arrive whole: compression is error-feedback"
    assert wanted in reasons
    assert reasons <= {wanted, "needs --update sync", "needs --update async"}


@pytest.mark.parametrize("update", ["sync", "async"])
@pytest.mark.parametrize(
    ("bug", "says"),
    [
        (
            change_bugs.Forgets,
            "worker:1 in ps:0: 32 of 64 entries do not add up; of step 0, 841.641 was pushed, 0 applied, 0 is",
        ),
        (change_bugs.LosesOne, "worker:1 in ps:0: 4 of 64 entries do not add up; of step 3, "),
        (change_bugs.ResidualOfOthers, "worker:0 keeps others' gradients in its residual of ps:0"),
    ],
)
def test_error_feedback_that_does_not_add_up(tmp_path, bug, update, says):
    run = judged(bug, tmp_path, update)
    assert violated(run) == {"C4"}
    assert any(line.startswith(says) for line in c4(run).witness), c4(run).witness


def test_what_cannot_be_decided(tmp_path):
    found = c4(judged(change_bugs.NoResidual, tmp_path))
    assert (found.status, found.reason) == (
        "unknown",
        "worker:0 recorded no residual: does the trainer call probe.residual?",
    )
    found = c4(judged(change_bugs.FeedsBackAny, tmp_path))
    assert (found.status, found.reason) == ("not judged", "needs a claim: compression is any")

    class Unanswered(change_bugs.FeedsBack, bugs.NeverTold):
        pass

    found = c4(judged(Unanswered, tmp_path))
    assert found.status == "unknown"
    assert found.reason.startswith("not every push of worker:1 was accepted")
    assert c4(judged(type("NoFinal", (bugs.NoFinal, change_bugs.Dense), {}), tmp_path)).status == "unknown"


def test_final_reads_that_differ_in_a_value_decide_nothing(tmp_path):
    class OneReadsOtherwise(change_bugs.Dense):
        def view(self, worker, step, values, versions):
            if (worker, step) == (bugs.WHO, self.steps):
                values[0][0] *= np.float32(0.5)
            return values, versions

    found = c4(judged(OneReadsOtherwise, tmp_path))
    assert (found.status, found.reason) == ("unknown", "final reads disagree about what is in the parameters")


def test_claimed_lossless_error_feedback_is_caught(tmp_path):
    run = judged(change_bugs.FeedsBackSecretly, tmp_path)
    assert "C4" in violated(run)
    assert any("sparsified" in line for line in c4(run).witness)


@settings(max_examples=25, deadline=None)
@given(
    mode=st.sampled_from([("sync", "mean"), ("sync", "sum"), ("async", "mean")]),
    workers=st.integers(1, 8),
    shards=st.sampled_from([(0,), TWO, (0, 0, 1)]),
    steps=st.integers(1, 9),
    seed=st.integers(0, 99),
)
def test_a_healthy_dense_ledger_is_valid(tmp_path_factory, mode, workers, shards, steps, seed):
    update, reduction = mode
    trainer = change_bugs.Dense(
        update=update, workers=workers, reduction=reduction, shards=shards, steps=steps, seed=seed
    )
    run = trainer.judge(tmp_path_factory.mktemp("dense") / "run")
    assert run.exit_code == 0, run.verdicts
    assert c4(run).status == "valid"
    statuses = {verdict.guarantee: verdict.status for verdict in run.verdicts}
    names = ["A5", "A6", "A7"] if update == "async" else ["S1", "S3", "S4", "A6", "A7"]
    assert {statuses[name] for name in [*names, "I1", "I2", "C3"]} == {"valid"}
    assert {statuses[name] for name in ("R1", "R2", "A1", "S5")} == {"not judged"}


@given(
    bits=st.integers(6, 16),
    step=st.integers(0, 3),
    weight=st.sampled_from([1.0, 1 / 3, 0.25]),
    before=st.booleans(),
)
def test_bits_are_found_whether_rounded_before_or_after_the_weight(bits, step, weight, before):
    sent = DenseLedger(workers=1, steps=4).magnitudes(step)
    unit = 1.0 if before else weight
    mantissa, exponent = np.frexp(sent * unit)
    rounded = np.ldexp(np.rint(np.ldexp(mantissa, bits)), exponent - bits) / unit
    changes = Changes(sent[None], rounded[None], weight)
    kind = KINDS[int(changes.kind[0])]
    if kind == "rounded":
        said = int(changes.describe((0,), KINDS.index(kind)).split()[2])
        assert said <= bits  # fewer, if the entries happen to need no more
    else:
        assert np.allclose(rounded, sent, rtol=1e-5)


@given(factor=st.floats(0.01, 100), noise=st.floats(-4e-6, 4e-6))
def test_what_is_within_rounding_is_unchanged_and_what_is_not_is_named(factor, noise):
    sent = np.stack([DenseLedger(workers=1, steps=4).magnitudes(step) for step in range(4)])
    same = Changes(sent, sent * (1 + noise))
    assert set(same.kind.tolist()) == {0}
    assert common_factor(same) == 1.0
    scaled = Changes(sent, sent * factor)
    if abs(factor - 1) > 2e-5:
        assert 0 not in scaled.kind
        assert common_factor(scaled) == pytest.approx(factor)


def test_the_probe_takes_one_residual_after_the_last_push(tmp_path):
    folder = change_bugs.FeedsBack(update="async").run(tmp_path / "run")
    history = load_history(folder)
    assert history.workers[0].residual.shape == (1, history.workers[0].reads.values[8].shape[1])
    for part in ("events", "vectors"):
        (tmp_path / part).mkdir()
    probe = Probe({"run": "r", "workers": 1, "steps": 2, "unit": 1.0}, task="worker:0", folder=str(tmp_path))
    probe.residual([])
    probe.residual([np.zeros(3)])
    probe.push(0)
    probe.residual([np.zeros(probe.slots)])
    probe.push(1)
    probe.residual([np.zeros(probe.slots)])
    probe.close()
    events = [json.loads(line) for line in (tmp_path / "events" / "worker-0.jsonl").read_text().splitlines()]
    whats = [event.get("what", event["kind"]) for event in events]
    slips = "push after residual", "residual again"
    assert whats == ["start", "no values", "size", "push", "residual", *slips, "end"]


def test_a_residual_that_does_not_fit_is_malformed(tmp_path):
    folder = change_bugs.FeedsBack(update="async").run(tmp_path / "run")
    side = folder / "vectors" / "worker-1.bin"
    events = (folder / "events" / "worker-1.jsonl").read_text().splitlines()
    at = next(json.loads(line)["vector"][0] for line in events if '"kind":"residual"' in line)
    data = bytearray(side.read_bytes())
    data[at] ^= 1
    side.write_bytes(data)
    with pytest.raises(Malformed, match=r"worker-1\.bin: bytes .* do not fit the residual in worker-1\.jsonl"):
        judge_folder(folder)


def test_a_residual_of_too_many_variables_is_malformed(tmp_path):
    class Wider(change_bugs.FeedsBack):
        def finish(self, worker):
            self.probes[worker]._variables = 0  # or the probe sees it itself
            self.probes[worker].residual([self.kept[worker]] * (len(self.shards) + 1))

    folder = Wider(update="async").run(tmp_path / "run")
    with pytest.raises(Malformed, match="worker:0 has a residual of 2 variables, the reads have 1"):
        load_history(folder)
