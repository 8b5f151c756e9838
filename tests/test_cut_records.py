"""A record of a run with restarted tasks that is cut, anywhere, or gone: undecided, or a violation that was there."""

import json
import shutil

import pytest

from psconform.api import check
from psconform.errors import PsconformError
from psconform.layout import Layout
from psconform.runner.verdicts import judge_folder

from .recorded_runs import RECORDED, unpack
from .stories import CLAIMS, Story
from .tiers import every


@pytest.fixture(
    scope="module",
    params=every(3, ["restarted-sync", "restarted-async", "restarted-left-sync", "restarted-left-async"]),
)
def whole(request, tmp_path_factory):
    """A recorded run in which tasks were killed and started again."""
    folder = tmp_path_factory.mktemp("recorded")
    unpack(RECORDED / f"{request.param}.tar.xz", folder)
    return folder


def cuts(lines):
    """Lines that are left: none, the start event, some of it, all but one line."""
    return sorted({0, min(1, lines - 1), *(lines * part // 6 for part in range(1, 6)), lines - 1})


def test_whatever_is_cut_or_gone_nobody_is_accused(whole, tmp_path):
    names = sorted(path.name for path in (whole / "events").iterdir())
    assert {"worker-1.1.jsonl", "worker-0.1.jsonl"} <= set(names)
    accused, judged = [], 0
    for name in names:
        kept = (whole / "events" / name).read_bytes().splitlines(keepends=True)
        for left in [None, *cuts(len(kept))]:
            folder = tmp_path / "cut"
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(whole, folder)
            if left is None:
                (folder / "events" / name).unlink()
            else:
                (folder / "events" / name).write_bytes(b"".join(kept[:left]))
            try:
                run = check(folder)
            except PsconformError:
                continue  # no run folder any more, it says
            judged += 1
            if run.exit_code != 2:
                found = {key: said.witness[:1] for key, said in run.verdicts.items() if said.status == "violated"}
                accused.append((name, left, len(kept), run.exit_code, found))
    assert not accused
    assert judged > 5 * len(names)


def running(folder):
    """The manifest says that the run had not finished."""
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "status": "running", "reasons": []}))


def test_what_had_not_finished_and_ends_at_different_moments_accuses_nobody(whole, tmp_path):
    """As after a power loss, or in a copy that was made meanwhile: each file in turn lags behind the others."""
    events = {}
    for path in sorted((whole / "events").iterdir()):
        lines = path.read_bytes().splitlines(keepends=True)
        events[path.name] = [(json.loads(line)["mono_ns"], line) for line in lines]
    first, last = min(told[0][0] for told in events.values()), max(told[-1][0] for told in events.values())
    accused = []
    for late in (name for name in events if name != "psconform-0.jsonl"):
        for part in range(2, 9):
            end, folder = first + (last - first) * part // 8, tmp_path / "cut"
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(whole, folder)
            for name, told in events.items():
                until = end - (last - first) // 4 if name in (late, "psconform-0.jsonl") else end
                (folder / "events" / name).write_bytes(b"".join(line for at, line in told if at <= until))
                if not (folder / "events" / name).stat().st_size:
                    (folder / "events" / name).unlink()
            running(folder)
            try:
                run = check(folder)
            except PsconformError:
                continue
            if run.exit_code != 2:
                found = {key: said.witness[:1] for key, said in run.verdicts.items() if said.status == "violated"}
                accused.append((late, part, found))
    assert not accused


@pytest.mark.parametrize(
    ("drop_after", "seen", "found"), [(0.0, False, "violated"), (2.0, True, "violated"), (2.0, False, "unknown")]
)
def test_what_is_judged_of_a_run_that_had_not_finished(tmp_path, drop_after, seen, found):
    """What a job goes on without is said in records: unless the end of each was seen, that may be what is lost."""
    layout = Layout(ps=2, workers=2, update="async", drop_after=drop_after)
    story = Story(tmp_path / "run", claims=CLAIMS, layout=layout)
    for name in ("step-2", "step-4"):
        story.step(0, 2)
        story.checkpoint(name)
    story.kill("ps:0")
    story.fault("kill", "ps:0", on=False)
    story.restore("step-2")
    for worker in range(2):
        story.step(worker, 2)
    if seen:
        judged = story.end("running")
    else:
        story.manifest.write(story.folder)
        judged = judge_folder(story.folder)
    rollback = next(verdict for verdict in judged.verdicts if verdict.guarantee == "R3")
    assert rollback.status == found
