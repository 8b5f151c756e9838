"""What a run must show before a check says valid: acknowledgements, a read that fits its version, a bug that struck."""

from __future__ import annotations

import os

import pytest

from psconform.errors import BadInput
from psconform.probe import EventLog
from psconform.targets.lookup import find_target
from psconform.targets.target import fill
from psconform.targets.toml import load_target

from . import bugs
from .simulate import Trainer


class NeverAcknowledged(Trainer):
    def outcome(self, worker, step, attempt):
        return None


class NeverAcknowledgedAndLost(bugs.Dropped):
    def outcome(self, worker, step, attempt):
        return "unknown"


class RefusesAll(Trainer):
    """The server says no to everything; nothing is trained."""

    def weight(self, worker, step, variable, attempt):
        return 0.0

    def outcome(self, worker, step, attempt):
        return "failed"


class FrozenReplica(Trainer):
    """Worker 1 sees its own updates and never those of others, and is told the newest version."""

    def view(self, worker, step, values, versions):
        if worker != 1 or step == self.steps:
            return values, versions
        mine = slice(self.steps, 2 * self.steps)
        for value in values:
            nonce = (value.size - 1) // 2
            for half in (value[:nonce], value[nonce + 2 :]):
                kept = half[mine].copy()
                half[:] = 0
                half[mine] = kept
        return values, versions


class AllSentTwice(bugs.SentTwice):
    def attempts(self, worker, step):
        return 2


def statuses(trainer, tmp_path):
    judged = trainer.judge(tmp_path / "run")
    return {v.guarantee: v.status for v in judged.verdicts}, judged


@pytest.mark.parametrize("kind", [NeverAcknowledged, NeverAcknowledgedAndLost])
def test_without_acknowledgements_delivery_is_unknown(kind, tmp_path):
    found, judged = statuses(kind(update="async", workers=3), tmp_path)
    assert {found[name] for name in ("A1", "A5", "R1", "R2")} == {"unknown"}
    assert judged.exit_code == 2
    (reason,) = {v.reason for v in judged.verdicts if v.guarantee == "R1"}
    assert reason == (
        "no gradient of worker:0, worker:1, worker:2 was acknowledged as ok: does the trainer call probe.ack?"
    )


@pytest.mark.parametrize("update", ["sync", "async"])
def test_a_server_that_refuses_everything_trains_nothing(update, tmp_path):
    found, judged = statuses(RefusesAll(update=update), tmp_path)
    assert "valid" not in found.values()
    assert judged.exit_code == 2


def test_a_version_that_does_not_fit_the_parameters_decides_no_staleness(tmp_path):
    found, judged = statuses(FrozenReplica(update="async", workers=2, steps=8), tmp_path)
    assert found["A2"] == "unknown", judged.verdicts
    (reason,) = (v.reason for v in judged.verdicts if v.guarantee == "A2")
    assert reason.startswith("versions and parameters contradict each other: worker:")
    assert judged.exit_code != 0


def test_at_least_once_may_apply_all_of_them_twice(tmp_path):
    found, judged = statuses(AllSentTwice(update="async"), tmp_path)
    assert (judged.exit_code, found["A1"], found["R2"]) == (0, "valid", "valid")


def test_attempts_are_counted(probe, tmp_path):
    probe.push(0)
    probe.ack(0, "unknown")
    probe.push(0)
    probe.ack(0, "ok")
    lines = (tmp_path / "events" / "worker-0.jsonl").read_text().splitlines()
    assert ['"attempt":1' in line for line in lines] == [False, False, False, True, True]


@pytest.mark.engine
def test_a_forked_child_writes_nothing(tmp_path):
    log = EventLog(tmp_path / "log.jsonl", run="r", task="worker:0", incarnation=0)
    if (child := os.fork()) == 0:
        log.close(reason="atexit")
        os._exit(0)
    os.waitpid(child, 0)
    assert (tmp_path / "log.jsonl").read_text().count("\n") == 1
    log.close()


@pytest.mark.parametrize("text", ["{port:9999999999}", "{port!r}", "{port.real}", "{0}"])
def test_placeholder_is_a_name_and_nothing_more(text):
    with pytest.raises(BadInput, match=r"env\.X: (cannot be filled in|unknown placeholder)"):
        fill(text, {"port": "1"}, place="env.X")


def test_barrier_is_no_promise_of_async(tmp_path):
    jobs = '[jobs.ps]\ncommand=["a"]\n[jobs.worker]\ncommand=["a"]\n'
    (tmp_path / "t.toml").write_text(f'name="x"\n{jobs}[claims.async]\nbarrier="full"\n', encoding="utf-8")
    with pytest.raises(BadInput, match=r"claims\.async\.barrier: is a promise of sync only, got 'full'; valid: none"):
        load_target(tmp_path / "t.toml")


def test_a_defect_that_cannot_strike_is_refused():
    with pytest.raises(BadInput, match="--steps: defect stale-cache needs at least 5 to show, got 1"):
        find_target("reference", defect="stale-cache", steps=1)
