"""A record of a run with restarted tasks that is cut, anywhere, or gone: undecided, or a violation that was there."""

import shutil

import pytest

from psconform.api import check, judge
from psconform.errors import PsconformError

PLAN = """
fault = [
  {kind = "kill", task = "worker:1", at = 8, restart_after = "200ms"},
  {kind = "kill", task = "ps:0", at = "worker:0@16", restart_after = "200ms"},
  {kind = "kill", task = "worker:0", at = 22, restart_after = "200ms"},
]
"""


@pytest.fixture(scope="module", params=["sync", "async"])
def whole(request, tmp_path_factory):
    base = tmp_path_factory.mktemp(request.param)
    (base / "plan.toml").write_text(PLAN, encoding="utf-8")
    options = {"layout": "ps=2,worker=2", "update": request.param, "steps": 30, "checkpoint_every": 5}
    run = judge(faults=base / "plan.toml", out=base / "run", **options)
    assert run.valid, run.explain()
    return run.folder


def cuts(lines):
    """Lines that are left: none, the start event, some of it, all but one line."""
    return sorted({0, min(1, lines - 1), *(lines * part // 6 for part in range(1, 6)), lines - 1})


def test_whatever_is_cut_or_gone_nobody_is_accused(whole, tmp_path):
    names = sorted(path.name for path in (whole / "events").iterdir())
    assert {"worker-1.1.jsonl", "worker-0.1.jsonl", "ps-0.1.jsonl"} <= set(names)
    accused = []
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
            if run.exit_code != 2:
                found = {key: said.witness[:1] for key, said in run.verdicts.items() if said.status == "violated"}
                accused.append((name, left, len(kept), run.exit_code, found))
    assert not accused
