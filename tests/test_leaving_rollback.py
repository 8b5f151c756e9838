"""A worker that the job goes on without, and then a rollback: each epoch has a truth of its own about who was there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from psconform.claims import DEFAULTS
from psconform.layout import Layout
from psconform.report.text import explain

from .stories import Story
from .test_checks_recovery import statuses, violated, witness


class Rounds(Story):
    """Two workers in sync; no time passes in a story, so M2 always minds that nobody was waited for."""

    def __init__(self, folder):
        claims = replace(DEFAULTS["sync"], recovery="checkpoint", liveness="progress", reduction="none")
        super().__init__(folder, layout=Layout(ps=2, workers=2, drop_after=2.0), steps=12, claims=claims)

    def round(self, *workers, say=True):
        """A round with these workers (both); the job says that it goes on without the others."""
        workers = workers or (0, 1)
        step = self.next_step(0)
        for worker in workers:
            self.read(worker, step)
            self.probes[worker].push(step)
        for worker in {0, 1} - {*workers}:
            self.before_absence()
            if say:
                self.probes[0].goes_without(worker, step)
            for applied in self.applied:
                applied[worker] += 1  # a push in its place, with nothing in it
        for worker in workers:
            for p in range(2):
                self.put(p, worker, step)
        for worker in workers:
            self.probes[worker].ack(step, "ok", [sum(applied) for applied in self.applied])

    def before_absence(self):
        """Somebody waits here, or not."""

    def rounds(self, number, *workers, **said):
        for _ in range(number):
            self.round(*workers, **said)

    def lose_ps(self):
        self.kill("ps:0")
        self.fault("kill", "ps:0", on=False, evidence="started again")
        self.exits.pop("ps:0")

    def ends(self):
        for worker in range(2):
            (self.folder / "done" / f"worker-{worker}").touch()
        for worker, probe in enumerate(self.probes):
            if f"worker:{worker}" not in self.exits:
                probe.wait_for_all()
                self.read(worker, final=True)
                probe.close()
        return self.end("finished")


def away_then_back(story, **said):
    """worker:1 is away from round 4 to 7 and takes part in 8; then a ps is lost, and rounds 2 to 11 have both."""
    story.rounds(2)
    story.checkpoint("ckpt-2")
    story.rounds(2)
    story.kill("worker:1")
    story.rounds(4, 0, **said)
    story.back(1)
    story.round()
    story.lose_ps()
    story.restore("ckpt-2")
    story.rounds(10)
    return story.ends()


def test_what_came_after_a_rollback_was_not_due_before_it(tmp_path):
    judged = away_then_back(Rounds(tmp_path / "run"))
    assert violated(judged) == {"M2"}, explain(judged)
    assert "after 0.0" in witness(judged, "M2")[0]
    assert {"S1", "S3", "R1", "M1", "R3", "R4"} <= {n for n, status in statuses(judged).items() if status == "valid"}


def test_unless_nobody_has_said_so(tmp_path):
    assert {"S1", "M1"} <= violated(away_then_back(Rounds(tmp_path / "run"), say=False))


def test_a_checkpoint_of_rounds_without_a_worker_is_restored_as_it_is(tmp_path):
    """And what it holds is no less because a later rollback went back to before that."""
    story = Rounds(tmp_path / "run")
    story.checkpoint("ckpt-0")
    story.rounds(2)
    story.kill("worker:1")
    story.rounds(4, 0)
    story.checkpoint("ckpt-6")
    story.back(1)
    for name in ("ckpt-6", "ckpt-0"):
        story.round()
        story.lose_ps()
        story.restore(name)
        story.round()
    story.rounds(11)
    judged = story.ends()
    assert violated(judged) == {"M2", "R3"}, explain(judged)  # R3: ckpt-6 was there still


@pytest.mark.parametrize("say", [True, False])
def test_what_was_accepted_and_rolled_back_may_be_gone_on_without(tmp_path, say):
    """Only if somebody says so, in the epoch in which it is missing."""
    story = Rounds(tmp_path / "run")
    story.rounds(2)
    story.checkpoint("ckpt-2")
    story.rounds(4)
    story.kill("worker:1")
    story.lose_ps()
    story.restore("ckpt-2")
    story.rounds(10, 0, say=say)
    judged = story.ends()
    if say:
        assert violated(judged) == {"M2"}, explain(judged)
        assert "R3" not in violated(judged)
    else:
        assert {"S1", "R3"} <= violated(judged) or {"S1", "R1"} <= violated(judged), explain(judged)


def test_what_was_accepted_and_not_rolled_back_may_not(tmp_path):
    """To say so afterwards, in the same epoch, takes nothing back."""
    story = Rounds(tmp_path / "run")
    story.rounds(4)
    for worker in range(2):
        story.theta[0] = story.theta[0] + story.probes[1].gradient(3) * (worker == 0)  # ps:0 loses it
    story.probes[0].goes_without(1, 3)
    story.kill("worker:1")
    story.rounds(8, 0)
    judged = story.ends()
    assert {"S1", "S3"} & violated(judged), explain(judged)
    assert "R1" in violated(judged)
