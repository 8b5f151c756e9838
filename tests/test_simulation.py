"""The model of training in virtual time: every healthy schedule is judged, and none is accused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import psutil
import pytest

from psconform.faults.process_faults import KILL
from psconform.report.text import explain
from psconform.runner.verdicts import judge_folder
from psconform.simulation.cluster import Cluster, Parts
from psconform.simulation.record import simulate
from psconform.simulation.schedule import MODES, REPLICAS, Fault, Schedule, draw
from psconform.simulation.server import OK, Server
from psconform.simulation.tally import judge_seeds
from psconform.simulation.trace import Read
from psconform.simulation.world import Network

from .simulate import Trainer
from .waits import until

CHUNK = 100


def sound(tally):
    """None is accused; at most, all that a worker ever sent was lost where it sends nothing again (at-most-once)."""
    few = tally.runs // 50
    return (
        not tally.accused and all("was acknowledged as ok" in why for why in tally.unknown) and tally.undecided <= few
    )


@pytest.mark.parametrize("first", range(0, 2000, CHUNK))
def test_no_healthy_schedule_is_accused(tmp_path, first):
    tally = judge_seeds(range(first, first + CHUNK), tmp_path)
    assert sound(tally)


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(2000, 22_000, 10 * CHUNK))
def test_none_of_many_healthy_schedules_is_accused(tmp_path, first):
    tally = judge_seeds(range(first, first + 10 * CHUNK), tmp_path)
    assert sound(tally)


def files(folder):
    """What was recorded, but for the boot and process ids of this machine, and checksums over them."""
    found = {}
    for path in sorted((folder / "events").iterdir()):
        events = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        leave = ("boot", "pid", "crc", "recorded_bytes", "nonce")
        found[path.name] = [{name: value for name, value in event.items() if name not in leave} for event in events]
    return found


@pytest.mark.parametrize("mode", [*MODES, *REPLICAS])
def test_a_seed_gives_the_same_run_again(tmp_path, mode):
    for name in ("a", "b"):
        simulate(draw(11, mode=mode), tmp_path / name)
    assert files(tmp_path / "a") == files(tmp_path / "b")
    simulate(draw(12, mode=mode), tmp_path / "c")
    assert files(tmp_path / "a") != files(tmp_path / "c")


def test_a_worker_that_was_too_late_for_every_round_has_nothing_to_say(tmp_path):
    schedule = Schedule(
        mode="quorum", workers=3, quorum=1, steps=3, network=Network(jitter_s=0.0), slow=(0.0, 1.0, 1.0)
    )
    simulate(schedule, tmp_path / "run")
    judged = judge_folder(tmp_path / "run")
    assert min(len(worker.reads) for worker in judged.history.workers) == 1
    assert judged.exit_code == 0, explain(judged)


class Blind(Trainer):
    """Worker 1 reads only in the end."""

    def reads(self, worker, step):
        return 0 if worker == 1 else 1


def test_a_worker_that_is_killed_for_good_need_not_have_read_twice(tmp_path):
    schedule = draw(548, mode="sync")
    assert schedule.drop_after
    cluster = simulate(schedule, tmp_path / "run")
    (gone,) = cluster.gone
    assert [what.step for _, what in cluster.trace.happened if isinstance(what, Read) and what.worker == gone] == [0]
    judged = judge_folder(tmp_path / "run")
    assert judged.exit_code == 0, explain(judged)
    assert "M2" in judged.names("valid")


def test_a_worker_that_is_killed_for_good_need_not_have_recorded_anything(tmp_path):
    schedule = draw(4314, mode="sync")
    assert schedule.drop_after
    cluster = simulate(schedule, tmp_path / "run")
    (gone,) = cluster.gone
    assert not (tmp_path / "run" / "events" / f"worker-{gone}.jsonl").exists()
    judged = judge_folder(tmp_path / "run")
    assert judged.exit_code == 0, explain(judged)


def test_a_worker_that_pushes_without_reading_leaves_all_unknown(tmp_path):
    judged = Blind(update="async").judge(tmp_path)
    assert {"R1", "I1", "A6"} <= set(judged.names("unknown"))
    assert "too few reads: worker:1 made less than 2" in explain(judged)


class Forgets(Server):
    """It does not know a gradient that it has applied."""

    def push(self, push):
        if not self.serves(push.epoch) or self.rules.per_round:
            return super().push(push)
        self.apply(push, 1.0)
        self.version += 1
        return OK, self.version


def test_what_is_applied_twice_is_found(tmp_path):
    cluster = simulate(Schedule(mode="async", network=Network(loss=0.1)), tmp_path / "run", parts=Parts(server=Forgets))
    entries = [(e.worker, e.step) for e in cluster.world.machines["ps:0"].logs[0].entries]
    assert len(set(entries)) < len(entries)
    assert {"R1", "R2", "A1"} <= set(judge_folder(tmp_path / "run").names("violated"))


class Stops(Server):
    """It answers no read any more after its third version."""

    def is_due(self, pull):
        return self.version < 3 and super().is_due(pull)


@pytest.mark.parametrize("faults", [(), (Fault(KILL, ("worker:1",), worker=0, step=1),)])
def test_a_hang_is_one(tmp_path, faults):
    schedule = Schedule(mode="async", every=2, faults=faults)
    assert simulate(schedule, tmp_path / "run", parts=Parts(server=Stops)).status == "stalled"
    judged = judge_folder(tmp_path / "run")
    assert judged.names("violated") == ["L1" if faults else "L0"]


def test_a_worker_that_was_done_when_it_was_killed_is_waited_for():
    """Else another one ends, and then a ps is killed that had all of its gradients."""
    cluster = Cluster(draw(1044697))
    cluster.run()
    assert cluster.status == "finished"


def test_the_ledger_shows_what_the_model_applied(tmp_path):
    cluster = simulate(Schedule(mode="async", workers=3, ps=2, variables=2, steps=9), tmp_path / "run")
    history = judge_folder(tmp_path / "run").history
    reads = [what for _, what in cluster.trace.happened if isinstance(what, Read)]
    for worker in history.workers:
        mine = [read for read in reads if read.worker == worker.index]
        assert len(mine) == len(worker.reads)
        for index, read in enumerate(mine):
            for variable, view in enumerate(read.views):
                assert worker.reads.gradients(variable)[index] == len(view.entries)


@pytest.mark.parametrize("seed", [2008673, 1008425])
def test_a_worker_that_was_never_answered_leaves_nothing_unknown(tmp_path, seed):
    """It was killed before it had an answer, and evicted; or all that it sent was lost (at-most-once)."""
    simulate(draw(seed), tmp_path / "run")
    judged = judge_folder(tmp_path / "run")
    assert any(not len(worker.acked) for worker in judged.history.workers)
    assert judged.exit_code == 0, explain(judged)


@pytest.mark.engine
def test_a_hundred_runs_in_one_table():
    command = [sys.executable, "-m", "psconform", "simulate", "--runs", "100"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    said = done.stdout.splitlines()[-1]
    assert said.startswith("VALID: 0 accused (with 95 % confidence at most 3 % of such runs are), 0 undecided")


def test_each_mode_of_the_command_line_is_simulated(tmp_path):
    for mode in (*MODES, *REPLICAS):
        cluster = Cluster(draw(3, mode=mode))
        cluster.run()
        assert (cluster.status, cluster.schedule.mode) == ("finished", mode)


def lives(process):
    """It is there, and no zombie, which is for init to reap."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.engine
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_of_one_that_is_ended(tmp_path, number):
    command = [sys.executable, "-m", "psconform", "simulate", "--runs", "100000"]
    with subprocess.Popen(command, env={**os.environ, "TMPDIR": str(tmp_path)}, stderr=subprocess.DEVNULL) as running:
        until(lambda: list(tmp_path.glob("*/run-*")))
        children = psutil.Process(running.pid).children(recursive=True)
        assert children
        running.send_signal(number)
    until(lambda: not any(map(lives, children)))
    assert list(tmp_path.iterdir()) == []
