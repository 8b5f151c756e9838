"""Checkpoints whose names are used again, that are folders, or that are not named as TensorFlow names them."""

from __future__ import annotations

import os
import time

import pytest

from psconform.faults.checkpoint_faults import newest_checkpoint
from psconform.faults.fault import NEWEST, Fault, When
from psconform.history.records import Struck
from psconform.report.text import explain

from .scenes import injector_of
from .stories import Story
from .test_checks_recovery import statuses, violated, witness


@pytest.fixture
def story(tmp_path):
    return Story(tmp_path / "run")


def both(story, steps):
    for worker in range(2):
        story.step(worker, steps)


def ring(story, *names):
    """A checkpoint by each of these names, one after the other, and two steps of both workers after each."""
    both(story, 1)
    for name in names:
        story.checkpoint(name)
        both(story, 2)


def loss(story, name, **restore):
    """A ps is lost, and this is restored."""
    story.kill("ps:0")
    story.fault("kill", "ps:0", on=False)
    story.exits.clear()
    story.restore(name, **restore)


def reason(judged, name):
    return next(v for v in judged.verdicts if v.guarantee == name).reason


def of_rollbacks(judged):
    return {statuses(judged).get(name) for name in ("R3", "R4", "R6", "R7")}


@pytest.mark.parametrize("names", [("a", "b", "a"), ("a", "b", "a", "b"), ("only", "only", "only")])
def test_the_newest_of_names_that_are_used_again(story, names):
    ring(story, *names)
    loss(story, names[-1])
    judged = story.finish()
    assert set(statuses(judged).values()) == {"valid"}, explain(judged)


def test_the_older_of_names_that_are_used_again(story):
    ring(story, "a", "b", "a")
    loss(story, "b")
    judged = story.finish()
    assert violated(judged) == {"R3"}, explain(judged)
    assert witness(judged, "R3") == ("worker:0 restored b in epoch 1, though a was durable before",)


def test_what_stood_under_a_name_before_is_not_what_was_restored(story):
    ring(story, "a", "b")
    first = story.kept["a"]
    story.checkpoint("a")
    story.kept["a"] = first  # a trainer that has it in memory still
    loss(story, "a")
    judged = story.finish()
    assert violated(judged) == {"R4"}, explain(judged)


def test_checkpoints_between_which_nothing_happened(story):
    """They hold the same, so whether ``a`` was written again or only recorded again is not to be told."""
    both(story, 1)
    for name in ("a", "b", "a"):
        story.checkpoint(name)
    loss(story, "a")
    assert not violated(story.finish())


def test_who_died_may_have_written_the_next_one_under_a_name(story):
    """It had not come to say so, and its successor does not say what was there."""
    ring(story, "a", "b", "a")
    story.checkpoint("b", record=False)
    both(story, 1)
    story.kill("worker:0")
    story.back(0)
    loss(story, "b")
    judged = story.finish()
    assert of_rollbacks(judged) == {"unknown"}, explain(judged)
    assert "which may be another one than it was: names are used again, and life 1 has not said" in reason(judged, "R4")


def test_a_successor_that_says_what_was_there(story):
    ring(story, "a", "b", "a")
    story.checkpoint("b", record=False)
    both(story, 1)
    story.kill("worker:0")
    story.back(0)
    story.probes[0].checkpoint("b", story.kept["b"][1])
    loss(story, "b")
    judged = story.finish()
    assert not violated(judged), explain(judged)
    assert of_rollbacks(judged) == {"valid"}


def test_a_name_that_several_tasks_use(story):
    ring(story, "a")
    story.checkpoint("a", record=False)
    story.probes[1].checkpoint("a", story.applied)
    loss(story, "a")
    judged = story.finish()
    assert of_rollbacks(judged) == {"unknown"}, explain(judged)
    assert "a name that several tasks have used, for different checkpoints" in reason(judged, "R4")


@pytest.mark.parametrize(("newer", "found"), [(True, "valid"), (False, "unknown")])
def test_tasks_share_no_clock(story, newer, found):
    """What another task has made is newer if it holds no less; else nobody can tell."""
    ring(story, "one")
    if not newer:
        story.checkpoint("its", record=False)
        both(story, 2)
    story.checkpoint("two")
    if newer:
        story.checkpoint("its", record=False)
    story.probes[1].checkpoint("its", story.kept["its"][1])
    loss(story, "its")
    judged = story.finish()
    assert statuses(judged)["R3"] == found, explain(judged)


def test_what_is_recorded_right_after_it_was_restored_is_what_was_restored(story):
    """And what a name stands for later is not."""
    ring(story, "a")
    loss(story, "a", resume=False)
    story.probes[0].checkpoint("a", story.applied)
    for worker, probe in enumerate(story.probes):
        probe.resume(story.next_step(worker))
    both(story, 2)
    story.checkpoint("a")
    judged = story.finish()
    assert set(statuses(judged).values()) == {"valid"}, explain(judged)


def test_what_a_name_stands_for_later_was_not_restored(story):
    both(story, 1)
    story.checkpoint("a", record=False)  # of an earlier run, say
    both(story, 2)
    loss(story, "a")
    both(story, 3)
    story.checkpoint("a")
    judged = story.finish()
    assert of_rollbacks(judged) == {"unknown"}, explain(judged)
    assert "which nobody recorded" in reason(judged, "R4")


@pytest.mark.parametrize("name", ["step-4", "saved/step-4", "/data/run/checkpoints/step-4"])
@pytest.mark.parametrize("file", ["step-4/model.bin", "step-4.npz", "step-4/rank-0/model.bin"])
def test_a_damaged_checkpoint_that_is_a_folder_or_is_called_by_its_path(story, name, file):
    both(story, 2)
    story.checkpoint("step-2")
    both(story, 2)
    story.checkpoint(name)
    story.fault("flip", "the newest checkpoint", file=f"saved/{file}" if name.startswith("saved") else file)
    loss(story, "step-2")
    judged = story.finish()
    assert set(statuses(judged).values()) == {"valid"}, explain(judged)


@pytest.mark.parametrize("file", ["model.bin", "step-40/model.bin", "m-4.npz"])
def test_a_damaged_file_of_which_no_name_tells_whose_it_is(story, file):
    """``model.bin`` alone is what run folders of before have."""
    both(story, 2)
    story.checkpoint("step-2")
    both(story, 2)
    story.checkpoint("step-4")
    story.fault("flip", "the newest checkpoint", file=file)
    loss(story, "step-2")
    judged = story.finish()
    assert statuses(judged)["R3"] == "unknown", explain(judged)
    assert f"nobody can tell of which checkpoint {file} is, that was damaged" in reason(judged, "R3")


def test_a_checkpoint_that_was_written_anew_after_it_was_damaged(story):
    """So it seems; perhaps it was damaged between its last byte and its record."""
    ring(story, "a", "b")
    story.fault("flip", "the newest checkpoint", file="a.npz", did_ns=time.monotonic_ns())
    story.checkpoint("a")
    loss(story, "b")
    judged = story.finish()
    assert statuses(judged)["R3"] == "unknown", explain(judged)


@pytest.mark.parametrize(
    ("file", "name", "its"),
    [
        ("step-4.index", "step-4", True),
        ("step-40.index", "step-4", False),
        ("saved/step-4.index", "step-4", True),
        ("a/model.bin", "a/model", True),
        ("b/model.bin", "a/model", False),
        ("x/a/model.bin", "a/model", True),
        ("model.ckpt-50.index", "/somewhere/model.ckpt-50", True),
        ("model.ckpt-500.index", "/somewhere/model.ckpt-50", False),
        ("step-4", "step-4/", True),
        ("step-4", "", False),
        ("", "step-4", False),
        ("step-4", "/", False),
    ],
)
def test_whose_file_it_is(file, name, its):
    assert Struck("flip", "the newest checkpoint", "5", "seen", "", file=file).damaged(name) is its


def write(folder, *names, size=900):
    """One after the other."""
    paths = [folder / name for name in names]
    for at, path in enumerate(paths, 1):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(size))
        os.utime(path, ns=(at, at))
    return paths


@pytest.mark.parametrize(
    "names",
    [
        [f"model.{step:04}.npz" for step in range(1, 6)],
        ["ckpt-0.1.pt", "ckpt-0.2.pt", "ckpt-0.3.pt"],
        ["model.ckpt-8.index", "model.ckpt-8.data-00000-of-00001", "model.ckpt-12.data-00000-of-00001"],
        ["model.ckpt-8", "model.ckpt-12"],
        ["step-4.h5", "step-8.h5"],
        ["b.npz", "a.npz"],
        ["b/model.bin", "a/model.bin"],
        ["model.best.pt", "model.last.pt"],
        ["step-8/model.bin", "step-12/model.bin"],
    ],
)
def test_the_newest_is_the_one_that_was_written_last(tmp_path, names):
    *_, last = write(tmp_path, *names)
    assert newest_checkpoint(tmp_path) == last


@pytest.mark.parametrize(
    ("largest", "beside"),
    [
        ("ckpt-12.data-00000-of-00001", "ckpt-12.index"),
        ("model.ckpt-12.data-00000-of-00001", "model.ckpt-12.meta"),
        ("step-20-epoch-0.data-00000-of-00001", "step-20-epoch-0.json.tmp"),
        ("model.0005.npz", "model.0005.json"),
        ("step-4/model.bin", "step-4/meta.json"),
        ("step-4/variables/variables.data-00000-of-00001", "step-4/saved_model.pb"),
        ("step-4/model.bin", "step-4.json"),
        ("model.ckpt-12.data-00000-of-00001", "checkpoint"),
    ],
)
def test_the_largest_of_its_files(tmp_path, largest, beside):
    write(tmp_path, "ckpt-8.npz", "step-3/model.bin", "model.0004.npz", "model.ckpt-8.data-00000-of-00001", size=9000)
    for at, (name, size) in enumerate([(largest, 900), (beside, 300)], 10):
        (path,) = write(tmp_path, name, size=size)
        os.utime(path, ns=(at, at))
    write(tmp_path, "epoch-1", size=8)
    assert newest_checkpoint(tmp_path) == tmp_path / largest


def test_a_checkpoint_that_is_called_as_the_index_of_tensorflow(tmp_path):
    (path,) = write(tmp_path, "checkpoint")
    assert newest_checkpoint(tmp_path) == path


def test_the_damaged_file_is_told_with_its_folder(tmp_path):
    write(tmp_path, "step-2/model.bin", "step-4/model.bin")
    damage = injector_of(Fault(kind="flip", region=NEWEST, when=When("before-push", 30)), checkpoints=tmp_path)
    damage.inject()
    assert damage.file == "step-4/model.bin"
    assert damage.evidence().startswith("step-4/model.bin: bit ")
