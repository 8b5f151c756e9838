"""A run is ended early only where what it violates stays violated, whatever its tasks record later."""

from __future__ import annotations

import json
import shutil

import msgspec
import pytest

from psconform import Run
from psconform.checks import all_checks, violated_for_good
from psconform.claims import Claims
from psconform.errors import PsconformError
from psconform.history.build import load_history
from psconform.history.manifest import Manifest
from psconform.history.reasons import Decided, NoProgress

from .recorded_runs import RECORDED, expected_of, names, unpack
from .stories import Story

MOMENTS = 5
FINAL = {check.name for check in all_checks() if check.final}


def violated_at(whole, folder, end):
    """What would end the run at that moment: of what its tasks had recorded by then, while it was running."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(whole, folder)
    for path in (folder / "events").iterdir():
        kept = [line for line in path.read_bytes().splitlines(keepends=True) if json.loads(line)["mono_ns"] <= end]
        path.write_bytes(b"".join(kept))
        if not kept:
            path.unlink()
    manifest = msgspec.structs.replace(Manifest.read(whole), status="running", reasons=[])
    try:
        return {*violated_for_good(load_history(folder, manifest))}
    except PsconformError:
        return set()


def may_be_ended(name):
    """As `_Execution._violated_for_good` says: no worker is dropped, no gradient poisoned, no second process there."""
    covers = expected_of(name)["covers"]
    return "drop_after" not in covers["layout"] and not {"poison", "twice"} & {*covers["faults"]}


def cases():
    """Most runs violate nothing that is final: that they do so at no moment either, a nightly run tells."""
    for name in filter(may_be_ended, names()):
        yield pytest.param(name, marks=() if FINAL & {*expected_of(name)["violated"]} else pytest.mark.nightly)


@pytest.mark.parametrize("name", list(cases()))
def test_what_is_violated_at_a_moment_is_violated_in_the_end(name, tmp_path):
    whole = tmp_path / "whole"
    whole.mkdir()
    unpack(RECORDED / f"{name}.tar.xz", whole)
    lines = [line for path in (whole / "events").iterdir() for line in path.read_text(encoding="utf-8").splitlines()]
    times = [json.loads(line)["mono_ns"] for line in lines]
    first, last = min(times), max(times)
    in_the_end = {*expected_of(name)["violated"]} & FINAL
    found = [violated_at(whole, tmp_path / "cut", first + (last - first) * part // MOMENTS) for part in range(1, 6)]
    assert set().union(*found) <= in_the_end
    assert found[-1] == in_the_end or name == "flip-sign-sync", "there it shows in the final read alone"


def story(folder, *, update="sync", **more):
    """Two workers, one of whose gradients is applied twice, and is seen to be."""
    told = Story(folder, claims=Claims(liveness="progress"), update=update, **more)
    told.step(0)
    told.step(1, twice=True)
    told.put(0, 1, 0)
    return told


def test_a_run_that_was_ended_early_is_violated_and_accused_of_no_hang(tmp_path):
    told = story(tmp_path / "run", update="async")
    told.step(0, 2)
    assert violated_for_good(load_history(told.folder, told.manifest)) == ("R2",)
    run = Run(told.end("decided", Decided(10.0, ("R2",))))
    assert (run.exit_code, run.violated) == (1, ("R1", "R2"))
    assert {verdict.status for name, verdict in run.verdicts.items() if name.startswith("L")} == {"not judged"}
    said = "ended after 10 s without progress: R2 was already violated, and no later event could change that"
    assert said in run.explain()
    assert "incomplete" not in run.explain()


def test_a_read_after_the_last_push_may_still_be_explained(tmp_path):
    """What a worker has read for may be a step that it sends again, so it counts once its gradient is pushed."""
    told = story(tmp_path / "run", update="async")
    told.read(0, 1)
    assert violated_for_good(load_history(told.folder, told.manifest)) == ()
    assert Run(told.end("stalled", NoProgress(60))).violated, "as it ended, there is nothing to explain it"
